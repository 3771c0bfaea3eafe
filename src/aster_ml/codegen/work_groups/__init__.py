"""Lowers Opts of work-groups: local memory, tensor cores, bulk tensor copies (TMA)."""
