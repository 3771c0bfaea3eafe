"""Specifies which nodes may exist at which stage."""
