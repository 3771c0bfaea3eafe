"""Computes the operators of ATen as functions of tensors, a family a module."""
