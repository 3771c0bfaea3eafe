"""Runs linear programs on Python numbers, op by op."""
