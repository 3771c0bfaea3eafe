"""Packs and unpacks the quantised blocks of GGUF files."""
