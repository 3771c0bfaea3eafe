"""Operators of ONNX at every version at which their schema changed, beside onnxruntime.

Where onnxruntime has no kernel for a version, the reference implementation of the package `onnx` is
the oracle, and plain NumPy for the broadcasting of versions before 7. What OnnxRunner does not
compute it refuses by the name of the operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import defs, helper, shape_inference
from onnx.reference import ReferenceEvaluator

from aster_ml.errors import FormatError, UnsupportedError
from aster_ml.nn.onnx import OnnxRunner
from tests.fuzz.budget import check_all, draws
from tests.programs.fuzz.onnx_opsets import OLD_TWO, Drawn, Form, forms, one_node

ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
OPTIONS = ort.SessionOptions()
OPTIONS.log_severity_level = 4
OPTIONS.intra_op_num_threads = 1
NUMPY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Greater": np.greater, "Less": np.less, "Equal": np.equal, "And": np.logical_and,
    "Or": np.logical_or, "Xor": np.logical_xor,
}  # fmt: skip


def wanted_by_numpy(form: Form, model: Any, inputs: dict[str, Any]) -> list[Any]:
    """Two operands as before version 7: the second stretched from an axis on."""
    attributes = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    a, b = inputs["i0"], inputs["i1"]
    if attributes.get("broadcast") and "axis" in attributes:
        at = attributes["axis"] % a.ndim
        b = b.reshape(*b.shape, *(1,) * (a.ndim - at - b.ndim))
    return [NUMPY[form.kind](a, b)]


# Operators whose first versions nobody computes: what they mean is what a later version means.
SAME_AS = {
    "AveragePool": 7, "BatchNormalization": 7, "Clip": 6, "Dropout": 7, "GRU": 7, "LSTM": 7,
    "RNN": 7,
    "Gemm": 7, "Upsample": 7, "Split": 2, "Cast": 6, "Pad": 2,
}  # fmt: skip
# Attributes that later versions have, and their first ones not under another name.
NEWER = {
    "AveragePool": ("count_include_pad", "ceil_mode", "dilations"), "GRU": ("linear_before_reset",),
}  # fmt: skip


def news_since(form: Form, later: int) -> frozenset[str]:
    """The attributes that an operator got between a form and a later version."""
    known = defs.get_schema(form.kind, form.opset, "").attributes
    return frozenset(NEWER.get(form.kind, ())) - known.keys()


def wanted(form: Form, model: Any, inputs: dict[str, Any], seed: int) -> list[Any] | None:
    """What the node gives by the first oracle that has it; None where it is refused, or nothing."""
    if form.version < 7 and form.kind in OLD_TWO:
        return wanted_by_numpy(form, model, inputs)
    if form.kind == "Tile" and form.version < 6:
        count, axis = int(inputs["i1"][0]), int(inputs["i2"][0])
        x = inputs["i0"]
        return [np.tile(x, [count if i == axis else 1 for i in range(x.ndim)])]
    later = SAME_AS.get(form.kind, 0)
    if form.version < later:
        made = one_node(Form(form.kind, later, later), Drawn(seed), news_since(form, later))
        model = None if made is None else typed(made[0])
        if made is None or model is None:
            return None
        inputs = made[1]
    try:
        session = ort.InferenceSession(model.SerializeToString(), OPTIONS)
        names = {item.name for item in session.get_inputs()}
        return list(session.run(None, {k: v for k, v in inputs.items() if k in names}))
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            return None
    try:
        names = {item.name for item in model.graph.input}
        found = ReferenceEvaluator(model).run(None, {k: v for k, v in inputs.items() if k in names})
        return [np.asarray(value) for value in found]
    except Exception:
        return None


def typed(model: Any) -> Any | None:
    """The model with the types of its outputs; None where the schema refuses it."""
    # Definitions of operators by others do not pass the strict way.
    kind, opset = model.graph.node[0].op_type, model.opset_import[0].version
    strict = kind != "MeanVarianceNormalization" and (kind != "Cast" or opset > 5)
    try:
        found = shape_inference.infer_shapes(model, check_type=True, strict_mode=strict)
    except shape_inference.InferenceError:
        return None
    for value in found.graph.output:
        if not value.type.HasField("tensor_type") and strict:
            return None
    return found


def said_of(form: Form, seed: int) -> str | None:
    """What is wrong with one form."""
    made = one_node(form, Drawn(seed))
    model = None if made is None else typed(made[0])
    if made is None or model is None:
        return None
    inputs = made[1]
    right = wanted(form, model, inputs, seed)
    if right is None:
        return None
    for value, exact in zip(model.graph.output, right):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(exact.dtype)
    node = model.graph.node[0]
    shown = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "body"}
    place = f"{form.kind} of opset {form.opset} {shown} {[v.shape for v in inputs.values()]}"
    try:
        names = {item.name for item in model.graph.input}
        given = {k: v for k, v in inputs.items() if k in names}
        runner = OnnxRunner(model, device="PYTHON")
        found = [runner(given)[f"o{i}"] for i in range(len(node.output))]
    except (FormatError, UnsupportedError) as error:
        return None if is_refusal(error, form) else f"{place}: {error}"
    for value, exact in zip(found, right, strict=True):
        said = apart(value.numpy() if hasattr(value, "numpy") else np.asarray(value), exact)
        if said:
            return f"{place}: {said}"
    return None


def is_refusal(error: Exception, form: Form) -> bool:
    """Whether an error names the operator and says that a form of it is not there."""
    return isinstance(error, UnsupportedError) and form.kind in str(error)


def apart(found: Any, right: Any) -> str | None:
    """How two arrays differ."""
    if found.shape != right.shape or found.dtype != right.dtype:
        return f"{found.dtype}{list(found.shape)}, wanted {right.dtype}{list(right.shape)}"
    a, b = found.astype(np.float64), right.astype(np.float64)
    scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
    if np.allclose(a, b, 1e-4, 1e-5 * scale, equal_nan=True):
        return None
    return f"{found.reshape(-1)[:8]}, wanted {right.reshape(-1)[:8]}"


def check(seed: int) -> str | None:
    """One form, each of them in turn."""
    known = forms()
    return said_of(known[seed * 7919 % len(known)], seed)


def test_operators_at_every_version(record_property: Any) -> None:
    assert len(forms()) > 400
    check_all("versions of operators", draws(60, 20_000), check, record_property)
