"""Decides which values are stored and which are recomputed where they are read."""
