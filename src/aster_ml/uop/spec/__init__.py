"""Which nodes may exist at which stage."""
