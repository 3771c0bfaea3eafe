"""Searches for faster schedules than the default ones."""
