"""Golden vectors: what a case is, its inputs, how it is computed, and the files that hold results.

A case is an expression over `Tensor`, `dtypes` and the inputs a, b, c. Its inputs come from the
SHA-256 of its name, so anyone can make them again. `compute` takes the `Tensor` of Aster or of the
reference; nothing here imports either of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "vectors"
LETTERS = "abcdefgh"
# NumPy has no type of its own for these; their values are kept as float32, exactly.
WIDENED = ("bfloat16", "fp8e4m3", "fp8e5m2")
# How many different numbers a float input is drawn from; powers of two make exact steps.
STEPS = 1 << 20


@dataclass(frozen=True)
class Input:
    """One input: the shape the expression sees, the range of its values, and its memory layout.

    Floats lie in [low, high), whole numbers in low..high - 1.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -2
    high: float = 2
    layout: str = "plain"

    def __str__(self) -> str:
        layout = "" if self.layout == "plain" else f" {self.layout}"
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype} {size} {self.low:g}..{self.high:g}{layout}"

    @property
    def is_float(self) -> bool:
        """Whether it can have a gradient."""
        return "float" in self.dtype or self.dtype.startswith("fp8")


@dataclass(frozen=True)
class Case:
    """An expression and its inputs; `grads` names those whose gradient is taken too."""

    expression: str
    inputs: tuple[Input, ...] = ()
    grads: str = ""

    @property
    def name(self) -> str:
        """What tells a case from all others; inputs are derived from it."""
        inputs = "; ".join(f"{n} {i}" for n, i in zip(LETTERS, self.inputs))
        return f"{self.expression} | {inputs} | {self.grads}".rstrip(" |")


@dataclass(frozen=True)
class Value:
    """One result: "out 0" or "grad a", the dtype's name, and the numbers."""

    label: str
    dtype: str
    array: Any


def case(expression: str, *inputs: Input, grads: str | None = None) -> Case:
    """A case; without `grads`, gradients of all float inputs are taken."""
    floats = "".join(n for n, i in zip(LETTERS, inputs) if i.is_float)
    return Case(expression, inputs, floats if grads is None else grads)


def plain(*shape: int, dtype: str = "float32", low: float = -2, high: float = 2) -> Input:
    """An input in memory as it is seen."""
    return Input(shape, dtype, low, high)


def drawn(name: str, count: int) -> Any:
    """`count` numbers of 32 bits: SHA-256 of `name:0`, `name:1`, ..."""
    blocks = [hashlib.sha256(f"{name}:{i}".encode()).digest() for i in range(math.ceil(count / 8))]
    return np.frombuffer(b"".join(blocks), dtype="<u4")[:count]


def numbers(name: str, shape: tuple[int, ...], dtype: str, low: float, high: float) -> Any:
    """The values of one input; narrow floats are given in float32."""
    bits = drawn(name, math.prod(shape)).reshape(shape)
    if dtype == "bool":
        return bits % 2 == 1
    if "float" in dtype or dtype.startswith("fp8"):
        values = low + (high - low) * ((bits % STEPS) / STEPS)
        return values.astype("float32" if dtype in WIDENED else dtype)
    return (int(low) + (bits % int(high - low)).astype("int64")).astype(dtype)


def leaf_shape(wanted: Input) -> tuple[int, ...]:
    """The shape in memory of an input that a layout turns into the wanted one."""
    shape = wanted.shape
    if wanted.layout == "permute":
        return shape[::-1]
    if wanted.layout == "shrink":
        return tuple(s + 2 for s in shape)
    if wanted.layout == "stride":
        return (*shape[:-1], 2 * shape[-1])
    if wanted.layout == "pad":
        return (*shape[:-1], shape[-1] - 1)
    if wanted.layout == "expand":
        return (1, *shape[1:])
    return shape


def view(leaf: Any, wanted: Input) -> Any:
    """The input as the expression sees it."""
    axes = range(len(wanted.shape))
    if wanted.layout == "permute":
        return leaf.permute(*reversed(axes))
    if wanted.layout == "flip":
        return leaf.flip(tuple(axes))
    if wanted.layout == "shrink":
        return leaf.shrink(tuple((1, s + 1) for s in wanted.shape))
    if wanted.layout == "stride":
        return leaf[..., ::2]
    if wanted.layout == "pad":
        return leaf.pad(tuple((int(i == axes[-1]), 0) for i in axes))
    return leaf.expand(wanted.shape) if wanted.layout == "expand" else leaf


def leaves(of: Case) -> list[Any]:
    """The arrays in memory that a case starts from."""
    return [
        numbers(f"{of.name}/{letter}", leaf_shape(i), i.dtype, i.low, i.high)
        for letter, i in zip(LETTERS, of.inputs)
    ]


def weights(of: Case, k: int, shape: tuple[int, ...]) -> Any:
    """What output k is weighted with before gradients are taken."""
    return numbers(f"{of.name}/weight {k}", shape, "float32", -1, 1)


def seen(leaf: Any, wanted: Input) -> Any:
    """`view` on a NumPy array, for the layouts that corrections have."""
    assert wanted.layout == "plain", f"no case with a correction has layout {wanted.layout}"
    return leaf


def in_memory(array: Any, tensor: Any) -> Any:
    """The array as a tensor with memory of its own, also where it has no axes."""
    return tensor(array) if array.ndim else tensor(array.reshape(1)).reshape(())


def plan(of: Case, tensor: Any, dtypes: Any) -> list[tuple[str, Any]]:
    """Labelled tensors, not computed yet: each output, then each gradient.

    The gradient is that of the sum of all float outputs, each weighted by numbers of its own.
    """
    made = []
    for array, i in zip(leaves(of), of.inputs):
        leaf = in_memory(array, tensor)
        made.append(leaf.cast(i.dtype).realize() if i.dtype in WIDENED else leaf)
    views = [view(leaf, i) for leaf, i in zip(made, of.inputs)]
    names = {"Tensor": tensor, "dtypes": dtypes, **dict(zip(LETTERS, views))}
    result = eval(of.expression, names)  # the expressions are the cases of this folder
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    found = [(f"out {k}", output) for k, output in enumerate(outputs)]
    targets = [made[LETTERS.index(letter)] for letter in of.grads]
    if not targets:
        return found
    total = None
    for k, output in enumerate(outputs):
        if dtypes.is_float(output.dtype):
            weight = in_memory(weights(of, k, tuple(output.shape)), tensor)
            part = (output * weight.cast(output.dtype)).sum()
            total = part if total is None else total + part
    gradients = total.gradient(*targets)
    return found + [(f"grad {letter}", g) for letter, g in zip(of.grads, gradients)]


def read(label: str, tensor: Any) -> Value:
    """The numbers of a computed tensor."""
    name = name_of(tensor.dtype)
    array = tensor.cast("float32").numpy() if name in WIDENED else tensor.numpy()
    return Value(label, name, np.asarray(array))


def name_of(dtype: Any) -> str:
    """NumPy's name for a dtype, and a name of ours for those that NumPy has not."""
    known = {"float": "float32", "double": "float64", "half": "float16", "__bf16": "bfloat16"}
    for word, bits in (("char", 8), ("short", 16), ("int", 32), ("long", 64)):
        known |= {word: f"int{bits}", f"unsigned {word}": f"uint{bits}"}
    known["signed char"] = "int8"
    return known.get(dtype.name, dtype.name)


def pack(cases: Sequence[Case], results: Sequence[Sequence[Value]], path: Path) -> None:
    """Writes one group: an index, and all numbers one behind the other."""
    index = [
        [c.name, [[v.label, v.dtype, list(v.array.shape), v.array.dtype.str] for v in values]]
        for c, values in zip(cases, results)
    ]
    data = b"".join(np.ascontiguousarray(v.array).tobytes() for vs in results for v in vs)
    np.savez_compressed(
        path,
        index=np.frombuffer(json.dumps(index, separators=(",", ":")).encode(), dtype="u1"),
        data=np.frombuffer(data, dtype="u1"),
    )


def unpack(path: Path) -> dict[str, list[Value]]:
    """The reverse of `pack`: the values of each case by its name."""
    with np.load(path) as file:
        index, data = json.loads(file["index"].tobytes()), file["data"].tobytes()
    found: dict[str, list[Value]] = {}
    at = 0
    for name, rows in index:
        found[name] = []
        for label, dtype, shape, kind in rows:
            count = math.prod(shape)
            array = np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(shape)
            at += array.nbytes
            found[name].append(Value(label, dtype, array))
    assert at == len(data), f"{path.name}: {len(data) - at} bytes belong to no case"
    return found


def unique(cases: Iterable[Case]) -> list[Case]:
    """The cases in order, each name once."""
    return list({c.name: c for c in cases}.values())


def unit(dtype: str) -> float:
    """The relative distance of neighbouring numbers of a float dtype; 0 for whole numbers."""
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7, "fp8e4m3": 3, "fp8e5m2": 2}
    return 2.0 ** -bits[dtype] if dtype in bits else 0.0


def difference(got: Value, want: Value, units: float) -> str:
    """How one value differs from another, "" where it does not.

    Floats may differ by `units` units in the last place of the larger of a number and a share of
    the largest one: sums cancel, and what is left of them has the error of what was added. The
    share is 1/8; of narrow floats, which are rounded at other steps here and there, all.
    """
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    if got.array.shape != want.array.shape:
        return f"shape {got.array.shape}, not {want.array.shape}"
    if got.array.dtype.kind != "f":
        wrong = got.array != want.array
    else:
        mine, theirs = got.array.astype("float64"), want.array.astype("float64")
        finite = np.isfinite(theirs)
        size = np.abs(np.where(finite, theirs, 0))
        share = 1.0 if unit(want.dtype) > 1e-4 else 0.125
        allowed = units * unit(want.dtype) * np.maximum(size, share * size.max(initial=0))
        far = np.abs(np.where(finite, mine, 0) - np.where(finite, theirs, 0)) > allowed
        same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        wrong = np.where(finite & np.isfinite(mine), far, ~same)
    if not wrong.any():
        return ""
    at = tuple(int(k[0]) for k in np.nonzero(wrong))
    return (
        f"{wrong.sum()} of {wrong.size} differ, at {at} {got.array[at]!r}, not {want.array[at]!r}"
    )
