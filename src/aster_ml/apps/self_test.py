"""Holds a device to what the ops mean: `aster doctor --self-test CUDA`.

Receives the name of a device; says of each part of the test whether it passed, and keeps that
(`runtime/verdicts`). A part runs in a process of its own for so many seconds at most, so that a
kernel that hangs or ends the process is a part that failed. What nobody has run on hardware is off
by default on a device that has not passed the part that is about it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Context, Device, Tensor, TinyJit, dtypes
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import AsterError
from aster_ml.extend import BOXES, keep_verdicts, python_command, python_environment
from aster_ml.target import Target
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.ops import Ops

Array = np.ndarray[Any, Any]
BOTH = (
    Ops.ADD, Ops.MUL, Ops.MAX, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.NEG,
)  # fmt: skip
BITS = (Ops.XOR, Ops.OR, Ops.AND)
EXACT = {
    "bool": (*BOTH, *BITS),
    "int": (*BOTH, *BITS, Ops.SUB, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR),
    "uint": (*BOTH, *BITS, Ops.SUB, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR),
    "float": (*BOTH, Ops.SUB, Ops.FDIV, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC),
}
# Functions that no standard rounds exactly, and how far float32 may be off, relatively.
LIBRARY, LIBRARY_ERROR = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TANH), 2e-6
UNARY = {Ops.NEG, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC, *LIBRARY}
COMPARE = {Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ}
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    -127.5,
    65504.0,
    1e-3,
    3e9,
    -1e19,
    1e30,
    np.inf,
    -np.inf,
    np.nan,
)
COUNT = 192


class Report(NamedTuple):
    """Report of a part: a count of what was tried, and a line on each that was wrong."""

    tried: int
    wrong: list[str]


# ops


def operands(dtype: DType) -> list[tuple[Any, ...]]:
    """Two rows of values of a dtype: pairs of edges, then random ones."""
    rng = np.random.default_rng(11)
    if dtype.kind == "bool":
        edges: list[Any] = [False, True]
        more = rng.integers(0, 2, (2, COUNT)).astype(bool)
    elif dtype.kind == "float":
        edges = list(FLOATS)
        more = rng.normal(size=(2, COUNT)) * 10.0 ** rng.integers(-2, 3, (2, COUNT))
    else:
        low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
        edges = [0, 1, 2, 3, 7, dtype.bits - 1, high, high - 1, low, low + 1]
        more = rng.integers(low, high, (2, COUNT), endpoint=True, dtype=to_numpy_dtype(dtype))
    pairs = [(a, b) for a in edges for b in edges][-COUNT // 2 :]
    with np.errstate(over="ignore"):
        rows = [
            np.array([p[i] for p in pairs] + more[i].tolist(), to_numpy_dtype(dtype))[:COUNT]
            for i in (0, 1)
        ]
    return [tuple(row.tolist()) for row in rows]


def same(found: Array, want: Array, error: float) -> Array:
    """Where values are as they should be: every NaN is the same, zeros have signs."""
    if found.dtype.kind != "f":
        return np.asarray(found == want)
    nan = np.isnan(found) & np.isnan(want)
    with np.errstate(all="ignore"):
        near = np.abs(found - want) <= error * np.abs(want)
    signs = (np.signbit(found) == np.signbit(want)) | (error > 0)
    return np.asarray(nan | ((found == want) & signs) | (near & (error > 0)))


def check_ops(device: str) -> Iterator[tuple[str, str]]:
    """Each op on each dtype with arithmetic of its own, and casts, against their meaning."""
    target = Device[device].target
    kinds = [dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64]
    there = [d for d in kinds if target.has_dtype(d.name)]
    for dtype in there:
        rows = operands(dtype)
        if dtype.name in target.flushes:
            least = float(np.finfo(to_numpy_dtype(dtype)).tiny)
            rows = [tuple([x if abs(x) >= least or x != x else 0.0 for x in row]) for row in rows]
        a, b = [Tensor(list(row), dtype=dtype, device=device).realize() for row in rows]
        ops = EXACT[dtype.kind] + (LIBRARY if dtype is dtypes.float32 else ())
        results = {op: a.alu(op) if op in UNARY else a.alu(op, b) for op in ops}
        casts = {other: a.cast(other) for other in there if other is not dtype}
        Tensor.realize(*results.values(), *casts.values())
        for op, result in results.items():
            made = dtypes.bool if op in COMPARE else dtype
            given = rows[:1] if op in UNARY else rows
            want = [evaluate(op, made, values, [dtype] * len(given)) for values in zip(*given)]
            yield f"{op.name} of {dtype.name}", differences(
                result.numpy(), np.array(want, to_numpy_dtype(made)), given,
                LIBRARY_ERROR if op in LIBRARY else 0.0,
            )  # fmt: skip
        for other, result in casts.items():
            want = [evaluate(Ops.CAST, other, (x,), [dtype]) for x in rows[0]]
            yield (
                f"{dtype.name} as {other.name}",
                differences(result.numpy(), np.array(want, to_numpy_dtype(other)), rows[:1]),
            )


def differences(found: Array, want: Array, rows: Sequence[Any], error: float = 0.0) -> str:
    """Names wrong values; empty where there are none."""
    wrong = np.flatnonzero(~same(found, want, error))
    if not len(wrong):
        return ""
    i = wrong[0]
    given = ", ".join([repr(row[i]) for row in rows])
    return f"{len(wrong)} of {len(want)} differ: of {given} it is {found[i]!r}, not {want[i]!r}"


# programs


def drawn(*shape: int, seed: int = 3) -> Array:
    """Numbers from -1 to 1, as float32."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def windows(x: Array, w: Array) -> Array:
    """A convolution of 3 x 3 with an edge of zeros."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    return np.asarray(np.einsum("ncyxij,ocij->noyx", found, w))


def softmaxed(x: Array) -> Array:
    """Powers of each row, as parts of their sum."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def attended(q: Array, k: Array, v: Array) -> Array:
    """Attention of rows."""
    return np.asarray(softmaxed(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v)


class Program(NamedTuple):
    """Shapes of inputs, a program of tensors, and the same of arrays."""

    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any]
    want: Callable[..., Any]
    error: float = 2e-5


PROGRAMS = {
    "a chain": Program(((33, 7), (33, 7)), lambda a, b: a * b + a - b, lambda a, b: a * b + a - b),
    "sums of rows": Program(((17, 65),), lambda a: a.sum(1), lambda a: a.sum(1)),
    "sums of columns": Program(((65, 17),), lambda a: a.sum(0), lambda a: a.sum(0)),
    "one sum": Program(((5000,),), lambda a: a.sum(), lambda a: a.sum()),
    "the largest": Program(((7, 5, 6),), lambda a: a.max((0, 2)), lambda a: a.max((0, 2))),
    "running sums": Program(((3, 300),), lambda a: a.cumsum(1), lambda a: a.cumsum(1)),
    "in order": Program(((3, 37),), lambda a: a.sort(1)[0], lambda a: np.sort(a, 1)),
    "softmax": Program(((5, 77),), lambda a: a.softmax(), softmaxed),
    "a product": Program(((96, 80), (80, 64)), lambda a, b: a @ b, lambda a, b: a @ b),
    "an odd product": Program(((13, 7), (7, 9)), lambda a, b: a @ b, lambda a, b: a @ b),
    "many products": Program(((3, 8, 5), (3, 5, 6)), lambda a, b: a @ b, lambda a, b: a @ b),
    "a convolution": Program(
        ((2, 3, 9, 9), (4, 3, 3, 3)), lambda x, w: x.conv2d(w, padding=1), windows
    ),
    "attention": Program(
        ((2, 70, 16), (2, 70, 16), (2, 70, 16)),
        lambda q, k, v: q.scaled_dot_product_attention(k, v), attended,
    ),
    "turned and cut": Program(
        ((9, 8),), lambda a: a.flip(0)[2:7].T.contiguous() * 2, lambda a: a[::-1][2:7].T * 2
    ),
}  # fmt: skip


def check_programs(device: str) -> Iterator[tuple[str, str]]:
    """Whole programs, a gradient and a recording against NumPy."""
    for name, program in PROGRAMS.items():
        given = [drawn(*shape, seed=i) for i, shape in enumerate(program.shapes)]
        found = program.run(*[Tensor(x, device=device) for x in given]).numpy()
        want = program.want(*[x.astype(np.float64) for x in given])
        yield name, far_off(found, want, program.error)
    for numbers in (dtypes.float16, dtypes.bfloat16):
        yield from check_products(device, numbers, ((64, 64, 64), (33, 40, 17)))
    x, w = drawn(20, 12), drawn(12, 9, seed=4)
    weights = Tensor(w, device=device, requires_grad=True)
    (Tensor(x, device=device) @ weights).tanh().sum().backward()
    assert weights.grad is not None
    slope = 1 - np.tanh(x.astype(np.float64) @ w) ** 2
    yield "a gradient", far_off(weights.grad.numpy(), x.T @ slope, 2e-5)

    @TinyJit
    def step(a: Tensor) -> Tensor:
        return ((a @ weights.detach()).relu() + 1).sum(0).realize()

    for i in range(5):
        a = drawn(20, 12, seed=10 + i)
        found = step(Tensor(a, device=device).realize()).numpy()
        yield f"a recording, call {i + 1}", far_off(found, (np.maximum(a @ w, 0) + 1).sum(0), 2e-5)


def far_off(found: Array, want: Array, error: float) -> str:
    """Names wrong values, of those that may differ a little; empty where there are none."""
    if found.shape != want.shape:
        return f"its shape is {found.shape}, not {want.shape}"
    off = np.abs(found.astype(np.float64) - want).max(initial=0)
    most = error * max(1.0, float(np.abs(want).max(initial=0)))
    # What is no number is not less than anything.
    return "" if off <= most else f"it is off by {off:.3g}, where {most:.3g} may be"


# products whose operands are boxes of tensors

SIZES = ((64, 64, 64), (128, 256, 128), (72, 136, 64), (200, 520, 264), (1024, 512, 512))


def whole_numbers(dtype: DType, seed: int, device: str, *shape: int) -> tuple[Tensor, Array]:
    """Small whole numbers, whose products and sums no dtype rounds, as a tensor and as an array."""
    x = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    return Tensor(x, device=device).cast(dtype).realize(), x


def check_products(
    device: str, dtype: DType, sizes: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[str, str]]:
    """Products of narrow numbers in each way that operands lie, exactly."""
    for m, k, n in sizes:
        for turned in range(4):
            a, x = whole_numbers(dtype, m + turned, device, *((k, m) if turned & 1 else (m, k)))
            b, y = whole_numbers(dtype, n + turned, device, *((n, k) if turned & 2 else (k, n)))
            a, x = (a.T, x.T) if turned & 1 else (a, x)
            b, y = (b.T, y.T) if turned & 2 else (b, y)
            found = a.matmul(b, dtype=dtypes.float32)
            name = f"{m} x {k} x {n} of {dtype.name}, way {turned}"
            yield name, far_off(found.numpy(), x @ y, 0.0)
            if turned == 0 and dtype is dtypes.float16:
                small = (found / 1024).half().numpy()
                yield f"{name}, stored narrow", far_off(small, (x @ y) / 1024, 1e-3)


def check_boxes(device: str, level: int) -> Iterator[tuple[str, str]]:
    """Products that read boxes of tensors, with the setting BOXES at a level, and recordings."""
    with Context(BOXES=level, ALLOW_TF32=1):
        for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.fp8e4m3):
            yield from check_products(device, dtype, SIZES)
        b, y = whole_numbers(dtypes.float16, 1, device, 136, 64)

        @TinyJit
        def step(a: Tensor) -> Tensor:
            return (a.matmul(b, dtype=dtypes.float32) + 1).half().realize()

        for i in range(5):
            a, x = whole_numbers(dtypes.float16, 30 + i, device, 128, 136)
            yield f"a recording, call {i + 1}", far_off(step(a).numpy(), x @ y + 1, 0.0)
        q, k, v = [drawn(2, 192, 64, seed=i) for i in range(3)]
        given = [Tensor(x, device=device).half() for x in (q, k, v)]
        found = given[0].scaled_dot_product_attention(given[1], given[2]).float().numpy()
        yield "attention", far_off(found, attended(q, k, v), 4e-3)


class Part(NamedTuple):
    """A part of the test: what it looks at, its checks, and seconds that it may take."""

    what: str
    run: Callable[[str], Iterator[tuple[str, str]]]
    limit_s: int
    applies: Callable[[Target], bool] = lambda target: True


def has_boxes(target: Target) -> bool:
    """Whether tensor cores of a target read boxes of tensors."""
    return "wgmma" in target.features


PARTS = {
    "ops": Part("each op on each dtype", check_ops, 45),
    "programs": Part("whole programs, a gradient, a recording", check_programs, 45),
    BOXES: Part(
        "products of boxes of tensors (BOXES=1)", lambda d: check_boxes(d, 1), 60, has_boxes
    ),
    "producers": Part(
        "the same by producers and clusters (BOXES=2)", lambda d: check_boxes(d, 2), 60, has_boxes
    ),
}


def check(device: str, part: str) -> Report:
    """Tests one part of a device, in this process."""
    tried, wrong = 0, []
    try:
        for name, said in PARTS[part].run(device):
            tried += 1
            if said:
                wrong.append(f"{name}: {said}")
    except (AsterError, OSError, RuntimeError) as error:
        wrong.append(f"after {tried} checks: {type(error).__name__}: {error}")
    return Report(tried, wrong)


def check_apart(device: str, part: str) -> Report:
    """The same in a process of its own, which may end or hang."""
    limit = PARTS[part].limit_s
    command = python_command("-m", "aster_ml.apps.self_test", device, part)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace",
            check=False, timeout=limit, env=python_environment(STRICT="1"),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Report(0, [f"it did not end within {limit} s"])
    try:
        tried, wrong = json.loads(done.stdout.splitlines()[-1])
        return Report(int(tried), [str(line) for line in wrong])
    except (ValueError, LookupError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return Report(0, [f"its process ended with {done.returncode}: {last[:300]}"])


def run_self_test(device: str, apart: Callable[[str, str], Report] = check_apart) -> int:
    """Tests a device, prints and keeps what was found; 1 where a part failed.

    Raises: DeviceError for a device that is not there.
    """
    backend = Device[device]
    name, found = backend.tested_as, dict[str, bool]()
    print(f"{device}: {name}")
    for part, row in PARTS.items():
        if not row.applies(backend.target):
            continue
        report = apart(device, part)
        found[part] = bool(report.tried) and not report.wrong
        state = "passed" if found[part] else "FAILED"
        print(f"  {part:10} {state}  {row.what}: {report.tried} checks", flush=True)
        for line in report.wrong[:5]:
            print(f"    {line}")
        if len(report.wrong) > 5:
            print(f"    and {len(report.wrong) - 5} more")
    try:
        print(f"kept in {keep_verdicts(name, found)}: what processes do that begin from now on")
    except OSError as error:
        print(f"not kept: {error}")
    return 0 if all(found.values()) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """The process of one part: prints how much was tried and what was wrong, as JSON."""
    device, part = sys.argv[1:] if argv is None else argv
    print(json.dumps(check(device, part)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
