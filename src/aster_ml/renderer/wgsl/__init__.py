"""Writes WGSL."""
