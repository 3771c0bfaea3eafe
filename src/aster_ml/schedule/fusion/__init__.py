"""Which values are stored and which are computed where they are read."""
