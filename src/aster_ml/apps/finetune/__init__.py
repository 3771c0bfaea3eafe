"""Finetunes language models: `aster finetune MODEL.gguf data.jsonl`."""
