"""Writes Metal Shading Language."""
