"""Random functions of Tensors written as ONNX: onnxruntime and OnnxRunner compute what they do.

A case draws a chain of functions of one tensor, float or integer, or one method with a `Shapes:`
line on tensors of any dtype. The file has passed the checker, and both run it on other numbers than
it was written with.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, AsterError, UnsupportedError
from aster_ml.nn.onnx import OnnxRunner, to_onnx
from tests.fuzz.budget import check_all, draws
from tests.fuzz.tensor_methods import MethodCall

ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
SIZES = (1, 2, 3, 4, 5, 7, 8)
Function = Callable[[Tensor], Tensor]
DRAW = np.random.default_rng(0)
KERNEL = Tensor(DRAW.normal(size=(3, 1, 3, 3)).astype(np.float32)).realize()
TABLE = Tensor(DRAW.normal(size=(5, 4)).astype(np.float32)).realize()


def small(x: Tensor) -> Tensor:
    """Between -2 and 2, so that chains stay finite."""
    return x.clip(-2, 2)


def pictures(x: Tensor) -> Tensor:
    """A convolution over rows and columns."""
    flat = small(x).flatten().reshape((1, 1, x.shape[0], -1))
    return flat.conv2d(KERNEL, padding=1).reshape((-1, x.shape[-1]))


def looked_up(x: Tensor) -> Tensor:
    """Rows of a table by numbers of x."""
    return TABLE[(small(x).round().cast(dtypes.int32).abs() % 5).flatten()]


FUNCTIONS: dict[str, Function] = {
    "tanh": lambda x: x.tanh(), "exp": lambda x: small(x).exp(), "sin": lambda x: x.sin(),
    "log": lambda x: (x.abs() + 1).log(), "sqrt": lambda x: (x.square() + 1).sqrt(),
    "erf": lambda x: x.erf(), "gelu": lambda x: x.gelu(), "sigmoid": lambda x: x.sigmoid(),
    "round": lambda x: (small(x) * 3).round(), "floor": lambda x: (x * 3 + 0.13).floor(),
    "trunc": lambda x: (x * 3 + 0.13).trunc(), "divide": lambda x: x / (x.square() + 1),
    "mod": lambda x: (small(x) * 7).round().cast(dtypes.int32) % 3,
    "idiv": lambda x: (small(x) * 7).round().cast(dtypes.int32) // 3,
    "bits": lambda x: (small(x) * 7).round().cast(dtypes.int32) & 5,
    "mask": lambda x: (x > 0.1).where(x, -x * 0.5), "not": lambda x: (x <= 0.1).logical_not(),
    "both": lambda x: (x > 0.1) & (x < 1.1), "turn": lambda x: x.transpose(0, 1),
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0), "part": lambda x: x[:, ::2],
    "end": lambda x: x[-1:], "pad": lambda x: x.pad(((1, 0), (0, 2)), value=0.5),
    "sum": lambda x: x.sum(1, keepdim=True), "mean": lambda x: x - x.float().mean(),
    "max": lambda x: x - x.max(0, keepdim=True), "prod": lambda x: small(x).prod(0, keepdim=True),
    "std": lambda x: x.float().std(1, keepdim=True, correction=0),
    "norm": lambda x: x.float().layernorm(), "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.float().softmax(-1), "log_softmax": lambda x: x.float().log_softmax(-1),
    "argmax": lambda x: x.argmax(1, keepdim=True) + x, "sort": lambda x: x.sort(1)[0],
    "cat": lambda x: x.cat(x * 2, dim=1), "stack": lambda x: x.stack(x + 1).reshape((-1, 1)),
    "gram": lambda x: small(x.float()) @ small(x.float()).transpose(0, 1) * 0.1,
    "outer": lambda x: (x.unsqueeze(2) * x.unsqueeze(1)).sum(2) * 0.1,
    "conv": lambda x: pictures(x.float()), "table": looked_up,
    "triangle": lambda x: x.triu(), "where": lambda x: x.eq(x.max()).where(1, x),
    "one_hot": lambda x: (small(x).round().cast(dtypes.int32).abs() % 4).one_hot(4).sum(1),
    "half": lambda x: x.half().float(),
    "whole": lambda x: small(x).cast(dtypes.int8).cast(dtypes.int32),
    "repeat": lambda x: x.repeat(2, 1), "expand": lambda x: x[:1].expand(3, x.shape[1]),
}  # fmt: skip
# The last steps, whose places and steps depend on rounding, come before what would enlarge it.
MOST_ELEMENTS = 4096


class Case:
    """A chain of functions, and inputs of one shape."""

    def __init__(self, seed: int) -> None:
        draw, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.shape = draw.choice(SIZES), draw.choice(SIZES)
        self.is_whole = draw.random() < 0.2
        self.steps = [draw.choice(list(FUNCTIONS)) for _ in range(draw.randint(1, 5))]

    def given(self) -> Any:
        """An input."""
        if self.is_whole:
            return self.numbers.integers(-4, 5, self.shape).astype(np.int32)
        return self.numbers.normal(size=self.shape).astype(np.float32)

    def function(self, x: Tensor) -> Tensor:
        """All steps."""
        for step in self.steps:
            y = FUNCTIONS[step](x)
            y = y.cast(dtypes.int32) if y.dtype is dtypes.bool else y
            if y.numel() <= MOST_ELEMENTS:
                x = y
        return x if self.steps[0] != "turn" else x + 1


def differs(found: Any, wanted: Any) -> bool:
    """Whether arrays lie apart by more than rounding; one element in twenty may sit on a step."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return True
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    near = np.isclose(a, b, 1e-4, 1e-4 * scale, equal_nan=True)
    return bool(near.mean() < 0.95) if near.size else False


def check(seed: int) -> str | None:
    """What is wrong with the file of one function."""
    case = Case(seed)
    model = to_onnx(case.function, {"x": Tensor(case.given())})
    x = case.given()
    wanted = case.function(Tensor(x)).numpy()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    theirs = session.run(None, {"x": x})[0]
    ours = OnnxRunner(model)({"x": x})["output0"].numpy()
    for name, found in (("onnxruntime", theirs), ("OnnxRunner", ours)):
        if differs(found, wanted):
            return (
                f"{case.steps} on {case.shape}: {name} gives {found.dtype}{list(found.shape)} "
                f"{found.reshape(-1)[:5]}, wanted {wanted.dtype}{list(wanted.shape)} "
                f"{wanted.reshape(-1)[:5]}"
            )
    return None


# Vectors of these are as right with the other sign.
EITHER_SIGN = {"svd", "eigh"}
# Raised by Python, or what stands below, for a dtype that a method does not take.
NOT_TAKEN = (AsterError, TypeError, ValueError)
SESSION = ort.SessionOptions()
SESSION.log_severity_level = 4


def method_said(seed: int) -> str | None:
    """What is wrong with the file of one method; None too where it is refused by name."""
    call = MethodCall(seed)
    given = {name: tensor.clone().realize() for name, tensor in call.tensors.items()}
    try:
        wanted = [value.numpy() for value in call(**given)]
    except NOT_TAKEN:
        return None
    if not call.tensors:
        return None
    try:
        model = to_onnx(call, call.tensors)
    except UnsupportedError as error:
        return None if "to_onnx: " in str(error) else f"{call}: {error}"
    except ArgumentError as error:
        return None if "no result depends on" in str(error) else f"{call}: {error}"
    found = {"OnnxRunner": [v.numpy() for v in OnnxRunner(model)(dict(call.tensors)).values()]}
    if dtypes.bfloat16 not in [tensor.dtype for tensor in call.tensors.values()]:
        arrays = {name: tensor.numpy() for name, tensor in call.tensors.items()}
        session = ort.InferenceSession(model.SerializeToString(), SESSION)
        found["onnxruntime"] = session.run(None, arrays)
    near = 2e-2 if call.dtype in ("float16", "bfloat16") else 1e-4
    for name, values in found.items():
        for value, right in zip(values, wanted, strict=True):
            said = apart(np.asarray(value), right, near, call.case.name in EITHER_SIGN)
            if said:
                return f"{call}: {name} {said}"
    return None


def apart(found: Any, wanted: Any, near: float, either_sign: bool) -> str | None:
    """How arrays differ by more than rounding; None where they do not."""
    if found.shape != wanted.shape:
        return f"gives {list(found.shape)}, wanted {list(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f"gives {found.dtype}, wanted {wanted.dtype}"
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    a, b = (np.abs(a), np.abs(b)) if either_sign else (a, b)
    scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
    if np.allclose(a, b, near, near * scale, equal_nan=True):
        return None
    return f"gives {found.reshape(-1)[:6]}, wanted {wanted.reshape(-1)[:6]}"


def test_methods_of_every_dtype(record_property: Any) -> None:
    check_all("methods written as ONNX", draws(40, 6000), method_said, record_property)


def test_both_runtimes_compute_what_functions_do(record_property: Any) -> None:
    check_all("functions written as ONNX", draws(12, 2000), check, record_property)
