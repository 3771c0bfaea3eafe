"""Turns stored values into kernels: cuts, fuses horizontally, tiles and orders them."""
