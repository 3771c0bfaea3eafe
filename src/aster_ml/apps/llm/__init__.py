"""Generates text with language models: `aster llm MODEL.gguf`, and its server."""
