"""Computes the operators of ONNX on Tensors, one module a family, and reads and runs graphs of
them.
"""

# Graphs that a file says stay as they are while it is open, so recordings need not watch them.
__guarded__ = False
