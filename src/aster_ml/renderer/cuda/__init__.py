"""Writes CUDA C++."""
