"""Stored values as kernels: cut, fused side by side, tiled, put in order."""
