"""Kernels for what is no loop nest of one reduction: one folder a row, listed in `rows`."""
