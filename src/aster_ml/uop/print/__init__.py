"""Prints nodes: infix for people, Python, and text that parses back."""
