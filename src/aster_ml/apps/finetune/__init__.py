"""Language models that learn: `aster finetune MODEL.gguf data.jsonl`."""
