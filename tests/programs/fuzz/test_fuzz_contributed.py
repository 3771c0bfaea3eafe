"""Operators that onnxruntime adds (com.microsoft), drawn at random, beside onnxruntime.

What OnnxRunner does not compute it refuses by the name of the operator. Results that are small
integers may be one apart, where a sum lies between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from aster_ml.errors import UnsupportedError
from aster_ml.nn.onnx import OnnxRunner
from tests.fuzz.budget import check_all, draws
from tests.programs.fuzz.onnx_opsets import Drawn, Values

ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
OPTIONS = ort.SessionOptions()
OPTIONS.log_severity_level = 4
OPTIONS.intra_op_num_threads = 1
OPTIONS.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def scale(d: Drawn, *shape: int) -> Any:
    """A positive scale, or several."""
    return (np.abs(d.floats(*shape)) * 0.05 + 0.01).astype(np.float32)


def small(d: Drawn, kind: str, *shape: int) -> Any:
    """Small integers of a kind."""
    info = np.iinfo(kind)
    return d.ints(info.min, info.max + 1, *shape, kind=kind)


def of_two(d: Drawn) -> Values:
    """Two quantised tensors."""
    kind, shape = d.draw.choice(["u1", "i1"]), d.shape()
    other = shape[d.draw.randint(0, len(shape) - 1) :]
    return {0: small(d, kind, *shape), 1: scale(d), 2: small(d, kind), 3: small(d, kind, *other),
            4: scale(d), 5: small(d, kind), 6: scale(d) * 3, 7: small(d, kind)}  # fmt: skip


def of_one(**more: Any) -> Callable[[Drawn], Values]:
    """One quantised tensor."""

    def make(d: Drawn) -> Values:
        kind = d.draw.choice(["u1", "i1"])
        values = {0: small(d, kind, *d.shape()), 1: scale(d), 2: small(d, kind), 3: scale(d),
                  4: small(d, kind)}  # fmt: skip
        return {**values, **{k: v for k, v in more.items() if d.maybe()}}

    return make


def softmax(d: Drawn) -> Values:
    """One quantised tensor, an axis, and whose Softmax is meant."""
    values = of_one()(d)
    rank = values[0].ndim
    kind = values[0].dtype
    zero = np.array(0 if kind == np.uint8 else -128, kind)
    return {**values, 3: np.float32(1 / 256), 4: zero, "axis": d.draw.choice([-1, rank - 1]),
            "opset": d.draw.choice([11, 13])}  # fmt: skip


def joined(d: Drawn) -> Values:
    """Quantised tensors with scales of their own."""
    kind = d.draw.choice(["u1", "i1"])
    values: Values = {0: scale(d), 1: small(d, kind), "axis": 1}
    for i in range(d.draw.randint(1, 3)):
        values |= {2 + 3 * i: small(d, kind, 2, d.draw.randint(1, 3)), 3 + 3 * i: scale(d),
                   4 + 3 * i: small(d, kind)}  # fmt: skip
    return values


def pooled(d: Drawn) -> Values:
    """A quantised image and windows."""
    last = d.draw.randint(0, 1)
    shape = (1, 6, 5, 3) if last else (1, 3, 6, 5)
    values: Values = {0: small(d, "u1", *shape), 1: scale(d), 2: small(d, "u1"), 3: scale(d),
                      4: small(d, "u1"), "channels_last": last, "kernel_shape": [2, 3]}  # fmt: skip
    if d.maybe():
        values["strides"] = [2, 1]
    if d.maybe():
        values["pads"], values["count_include_pad"] = [1, 1, 0, 1], d.draw.randint(0, 1)
    return values


def globally(d: Drawn) -> Values:
    """A quantised image."""
    values = pooled(d)
    for name in ("kernel_shape", "strides", "pads", "count_include_pad"):
        values.pop(name, None)
    return values


def greatest(d: Drawn) -> Values:
    """A quantised image, channels last."""
    values: Values = {0: small(d, "u1", 1, 6, 5, 3), "kernel_shape": [2, 3]}
    return {**values, **({"strides": [2, 1], "pads": [1, 1, 0, 1]} if d.maybe() else {})}


def gemm(d: Drawn) -> Values:
    """Two quantised matrices, a bias, perhaps a scale of the result."""
    n, k, m = (d.draw.randint(1, 4) for _ in range(3))
    many = d.draw.randint(0, 1)
    turned = d.draw.randint(0, 1)
    kind = d.draw.choice(["u1", "i1"])
    values: Values = {
        0: small(d, "u1", n, k), 1: scale(d), 2: small(d, "u1"), "transB": turned,
        3: small(d, kind, *((m, k) if turned else (k, m))), 4: scale(d, *[m] * many),
        5: np.zeros([m] * many, kind) if many else small(d, kind),
    }  # fmt: skip
    if d.maybe():
        values[6] = d.ints(-99, 99, m, kind="i4")
    if d.maybe():
        values |= {7: scale(d) * 20, 8: small(d, "u1")}
    return values


def attended(d: Drawn) -> Values:
    """A quantised input and weights of attention."""
    batch, length, size = d.draw.randint(1, 2), d.draw.randint(1, 4), 8
    values: Values = {
        0: small(d, "u1", batch, length, size), 1: small(d, d.draw.choice(["u1", "i1"]), size, 24),
        2: d.floats(24), 3: scale(d) * 0.1, 4: scale(d) * 0.1, 6: small(d, "u1"), "num_heads": 2,
    }  # fmt: skip
    values[7] = np.zeros((), values[1].dtype)
    if d.maybe():
        values[5] = d.ints(0, 2, batch, length, kind="i4")
    if d.maybe():
        values["unidirectional"] = 1
    return values


def of_floats(d: Drawn) -> Values:
    """Attention of floats: its own product."""
    batch, length, size = d.draw.randint(1, 2), d.draw.randint(1, 4), 8
    values: Values = {0: d.floats(batch, length, size), 1: d.floats(size, 24), 2: d.floats(24),
                      "num_heads": 2}  # fmt: skip
    if d.maybe():
        values[3] = d.draw.choice([
            d.ints(0, 2, batch, length, kind="i4"), d.ints(1, length + 1, batch, kind="i4"),
        ])  # fmt: skip
    if d.maybe():
        values["unidirectional"] = 1
    if d.maybe(0.3):
        values["scale"] = 0.4
    return values


def many_heads(d: Drawn) -> Values:
    """Attention of separate queries, keys and values."""
    batch, queries, keys = d.draw.randint(1, 2), d.draw.randint(1, 3), d.draw.randint(1, 4)
    values: Values = {0: d.floats(batch, queries, 8), 1: d.floats(batch, keys, 8),
                      2: d.floats(batch, keys, 8), "num_heads": 2}  # fmt: skip
    if d.maybe():
        values[3] = d.floats(24)
    if d.maybe():
        values[4] = d.ints(0, 2, batch, keys, kind="i4")
    if d.maybe():
        values[5] = d.floats(batch, 2, queries, keys)
    if d.maybe(0.3):
        values["mask_filter_value"] = -3.0
    return values


def grouped(d: Drawn) -> Values:
    """Attention in groups of heads, with a cache."""
    length, past = d.draw.randint(1, 3), d.draw.choice([0, 2])
    length = 1 if past else length
    total = length + past
    values: Values = {
        0: d.floats(1, length, 64), 1: d.floats(1, length, 32), 2: d.floats(1, length, 32),
        3: d.floats(1, 2, past, 16), 4: d.floats(1, 2, past, 16),
        5: np.array([total - 1], np.int32),
        6: np.array(total, np.int32), "num_heads": 4, "kv_num_heads": 2, "outputs": 3,
    }  # fmt: skip
    if d.maybe(0.3):
        # Queries, keys and values side by side.
        values[0] = np.concatenate([values.pop(i) for i in range(3)], -1)
    if d.maybe():
        values |= {7: d.floats(8, 8), 8: d.floats(8, 8), "do_rotary": 1,
                   "rotary_interleaved": d.draw.randint(0, 1)}  # fmt: skip
    if d.maybe(0.3):
        values["local_window_size"] = 2
    return values


def embedded(d: Drawn) -> Values:
    """Quantised embeddings."""
    kind = "u1"
    values: Values = {
        0: d.ints(0, 5, 2, 3, kind="i4"), 1: d.ints(0, 2, 2, 3, kind="i4"),
        2: small(d, kind, 5, 4), 3: small(d, kind, 6, 4), 4: small(d, kind, 2, 4),
        5: small(d, kind, 4), 6: small(d, kind, 4), "outputs": 2,
    }  # fmt: skip
    values |= {8 + i: scale(d) for i in range(5)}
    return {**values, **{13 + i: small(d, kind) for i in range(5)}}


def blocks(d: Drawn) -> Values:
    """A table of numbers with a scale for each block of a row."""
    rows, size, block = 6, 32, 16
    values: Values = {
        0: small(d, "u1", rows, size // 2), 1: d.ints(0, rows, *d.shape(1, 2)),
        2: scale(d, rows, size // block), "block_size": block, "quantize_axis": 1,
        "gather_axis": 0, "bits": 4,
    }  # fmt: skip
    if d.maybe():
        values[3] = small(d, "u1", rows, 1)
    return values


def packed_product(d: Drawn) -> Values:
    """A product with a matrix of four bits in blocks."""
    n, k, block = d.draw.randint(1, 5), d.draw.choice([16, 32, 40, 64]), d.draw.choice([16, 32])
    count = -(-k // block)
    values: Values = {
        0: d.floats(2, k), 1: small(d, "u1", n, count, block // 2), 2: scale(d, n, count),
        "K": k, "N": n, "bits": 4, "block_size": block,
    }  # fmt: skip
    if d.maybe():
        values[3] = small(d, "u1", n, -(-count // 2))
    return values


def recurrent(d: Drawn) -> Values:
    """An LSTM of quantised weights."""
    steps, batch, size, hidden = (d.draw.randint(1, 3) for _ in range(4))
    direction = d.draw.choice(["forward", "reverse", "bidirectional"])
    n = 2 if direction == "bidirectional" else 1
    kind = d.draw.choice(["u1", "i1"])
    shape = (n, 4 * hidden) if d.maybe() else (n,)
    values: Values = {
        0: d.floats(steps, batch, size), 1: small(d, kind, n, size, 4 * hidden),
        2: small(d, kind, n, hidden, 4 * hidden), 8: scale(d, *shape) * 0.1,
        10: scale(d, *shape) * 0.1, "hidden_size": hidden, "direction": direction, "outputs": 3,
    }  # fmt: skip
    for place in (9, 11):
        values[place] = np.zeros(shape, kind) if len(shape) > 1 else small(d, kind, *shape)
    if d.maybe():
        values[3] = d.floats(n, 8 * hidden)
    if d.maybe(0.3):
        values[5], values[6] = d.floats(n, batch, hidden), d.floats(n, batch, hidden)
    if d.maybe(0.3):
        values[7] = d.floats(n, 3 * hidden)
    return values


def dynamic(d: Drawn) -> Values:
    """Floats times a quantised matrix."""
    n, k, m = (d.draw.randint(1, 5) for _ in range(3))
    kind = d.draw.choice(["u1", "i1"])
    many = d.draw.randint(0, 1)
    values: Values = {0: d.floats(n, k), 1: small(d, kind, k, m), 2: scale(d, *[m] * many)}
    if d.maybe():
        values[3] = np.zeros([m] * many, kind) if many else small(d, kind)
    if d.maybe():
        values[4] = d.floats(m)
    return values


def to_float(d: Drawn) -> Values:
    """A product of quantised matrices as floats."""
    values = dynamic(d)
    made: Values = {0: small(d, "u1", *values[0].shape), 1: values[1], 2: scale(d), 3: values[2],
                    4: small(d, "u1")}  # fmt: skip
    if 3 in values:
        made[5] = values[3]
    if 4 in values:
        made[6] = values[4]
    return made


def skipped(d: Drawn) -> Values:
    """A sum that is normalised."""
    values: Values = {i: d.floats(2, 3, 8) for i in range(2)} | {2: d.floats(8), 3: d.floats(8)}
    return {**values, **({4: d.floats(8)} if d.maybe() else {}), "epsilon": 1e-5}


def multiplied(d: Drawn) -> Values:
    """A product of matrices that are transposed."""
    turned = [d.draw.randint(0, 1) for _ in range(2)]
    return {0: d.floats(*((2, 4, 3) if turned[0] else (2, 3, 4))),
            1: d.floats(*((2, 5, 4) if turned[1] else (2, 4, 5))), "transA": turned[0],
            "transB": turned[1], "alpha": d.draw.choice([1.0, 0.5])}  # fmt: skip


MAKERS: dict[str, Callable[[Drawn], Values]] = {
    "QLinearAdd": of_two, "QLinearMul": of_two, "QLinearSigmoid": of_one(),
    "QLinearLeakyRelu": of_one(alpha=0.3), "QLinearSoftmax": softmax, "QLinearConcat": joined,
    "QLinearAveragePool": pooled, "QLinearGlobalAveragePool": globally, "NhwcMaxPool": greatest,
    "QGemm": gemm, "QAttention": attended, "Attention": of_floats, "MultiHeadAttention": many_heads,
    "GroupQueryAttention": grouped, "QEmbedLayerNormalization": embedded,
    "GatherBlockQuantized": blocks, "MatMulNBits": packed_product, "DynamicQuantizeLSTM": recurrent,
    "DynamicQuantizeMatMul": dynamic, "MatMulIntegerToFloat": to_float,
    "SkipLayerNormalization": skipped, "FusedMatMul": multiplied,
    "QLinearWhere": lambda d: {
        0: d.floats(2, 3) > 0, 1: small(d, "u1", 2, 3), 2: scale(d), 3: small(d, "u1"),
        4: small(d, "u1", 3), 5: scale(d), 6: small(d, "u1"), 7: scale(d), 8: small(d, "u1"),
    },
    "BiasGelu": lambda d: {0: d.floats(2, 3), 1: d.floats(3)},
    "FastGelu": lambda d: {0: d.floats(2, 3), **({1: d.floats(3)} if d.maybe() else {})},
    "QuickGelu": lambda d: {0: d.floats(2, 3), "alpha": d.draw.choice([1.0, 1.702])},
    "Gelu": lambda d: {0: d.floats(2, 3)}, "TransposeMatMul": multiplied,
    "Trilu": lambda d: {0: d.floats(2, 3, 4), "upper": d.draw.randint(0, 1)},
}  # fmt: skip
# Names that have to stay numbers of a call, and no constants.
COMPUTED = {"i0"}


def case(kind: str, d: Drawn) -> tuple[Any, dict[str, Any]]:
    """A model of one node, and its inputs; weights are constants, as in files."""
    values = MAKERS[kind](d)
    outputs = values.pop("outputs", 1)
    inputs = {f"i{i}": np.asarray(v) for i, v in values.items() if not isinstance(i, str)}
    attributes = {name: v for name, v in values.items() if isinstance(name, str)}
    last = max(i for i in values if not isinstance(i, str))
    given = [f"i{i}" if i in values else "" for i in range(last + 1)]
    node = helper.make_node(
        kind, given, [f"o{i}" for i in range(outputs)], domain="com.microsoft", **attributes
    )
    constant = {} if d.maybe() else {n: v for n, v in inputs.items() if n not in COMPUTED}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in inputs.items() if n not in constant
    ]  # fmt: skip
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in node.output],
        [numpy_helper.from_array(v, n) for n, v in constant.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, {n: v for n, v in inputs.items() if n not in constant}


def said_of(kind: str, seed: int) -> str | None:
    """What is wrong with one node."""
    model, inputs = case(kind, Drawn(seed))
    shown = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    place = f"{kind} {shown} { {n: v.shape for n, v in inputs.items()} }"
    try:
        session = ort.InferenceSession(model.SerializeToString(), OPTIONS)
        right = session.run(None, inputs)
    except Exception as error:
        # What onnxruntime refuses says nothing of us, and may not be all that is drawn.
        return f"{place}: onnxruntime: {error}"[:400]
    for value, exact in zip(model.graph.output, right):
        value.CopyFrom(helper.make_tensor_value_info(
            value.name, helper.np_dtype_to_tensor_dtype(exact.dtype), exact.shape))  # fmt: skip
    try:
        runner = OnnxRunner(model, device="PYTHON")
        found = [runner(inputs)[name] for name in model.graph.node[0].output]
    except UnsupportedError as error:
        return None if kind in str(error) else f"{place}: {error}"
    for value, exact in zip(found, right, strict=True):
        a = value.numpy()
        if a.shape != exact.shape or a.dtype != exact.dtype:
            return f"{place}: {a.dtype}{a.shape}, wanted {exact.dtype}{exact.shape}"
        near = 1.01 if exact.dtype.kind in "iu" else 2e-3
        if not np.allclose(a.astype(float), exact.astype(float), 2e-3, near, equal_nan=True):
            return f"{place}: {a.reshape(-1)[:8]}, wanted {exact.reshape(-1)[:8]}"
    return None


def check(seed: int) -> str | None:
    """One operator, each of them in turn."""
    kinds = list(MAKERS)
    return said_of(kinds[seed % len(kinds)], seed)


def test_operators_that_onnxruntime_adds(record_property: Any) -> None:
    check_all("operators of com.microsoft", draws(54, 10_000), check, record_property)
