"""The operators of ONNX on Tensors, one module a family, and what reads and runs graphs of them."""
