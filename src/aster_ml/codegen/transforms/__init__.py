"""Rewrites of a kernel's loops that any machine may profit from."""
