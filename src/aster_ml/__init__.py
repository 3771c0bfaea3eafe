"""Aster ML: a deep-learning compiler in readable Python with tinygrad's API."""
