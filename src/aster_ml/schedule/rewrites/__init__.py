"""Rewrites a body of tensors before values are stored."""
