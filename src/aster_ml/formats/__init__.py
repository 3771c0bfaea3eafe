"""Reads and writes files of tensors: safetensors, GGUF, checkpoints of PyTorch, archives."""
