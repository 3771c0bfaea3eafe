"""Attention on tensor cores: scores stay in registers, forward and backward."""
