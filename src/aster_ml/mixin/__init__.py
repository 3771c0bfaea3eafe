"""Vocabulary shared by UOp and Tensor, and what only a Tensor has, by subject."""
