"""Nodes as text: infix for people, Python, and lines that parse back."""
