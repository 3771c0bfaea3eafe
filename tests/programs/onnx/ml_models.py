"""Models of one node of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper, shape_inference

ML = "ai.onnx.ml"


def model_of(name: str, attributes: dict[str, Any], x: Any, outputs: int) -> Any:
    """A model of one node, whose outputs have the types that it gives."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(name, ["x"], names, domain=ML, **attributes)
    kind = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    given = helper.make_tensor_value_info("x", kind, [None, *x.shape[1:]])
    graph = helper.make_graph(
        [node], "g", [given], [helper.make_empty_tensor_value_info(n) for n in names]
    )
    version = 5 if name == "TreeEnsemble" else 3
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return with_types(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def with_types(model: Any) -> Any:
    """A model with the types that outputs without one have by what computes them."""
    found = shape_inference.infer_shapes(model)
    for value in found.graph.output:
        if not value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return found
