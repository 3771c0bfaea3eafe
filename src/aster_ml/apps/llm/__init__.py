"""Language models that answer: `aster llm MODEL.gguf`, and its server."""
