"""Rewrites of a body of tensors before anything is stored."""
