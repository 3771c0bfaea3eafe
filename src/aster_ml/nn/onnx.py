"""Offers ONNX: `OnnxRunner` opens models and runs them, `to_onnx` writes functions of Tensors as
such.
"""

from aster_ml.onnx.export import to_onnx
from aster_ml.onnx.runner import OnnxRunner

__all__ = ["OnnxRunner", "to_onnx"]
