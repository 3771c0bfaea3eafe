"""Rewrites ops that a target lacks in terms of ops that it has."""
