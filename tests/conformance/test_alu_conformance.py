"""Every elementwise op on every dtype that a device computes, against the definition, bit by bit.

One kernel a dtype computes all ops on pairs of edge values and random numbers, once element by
element and once in SIMD values. Only functions that no standard rounds exactly have a tolerance.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from aster_ml.backend import Grid
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import DType, dtypes, to_numpy_dtype
from aster_ml.engine.compile import renderer_for
from aster_ml.runtime.cpu import clang
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from tests.core.linear_builder import LOOP, UPCAST, VECTOR, Builder, at, run_c, run_llvm
from tests.shim.devices import SHIMS

NO_COMPILER = clang.find_compiler() is None
DEVICES = [
    pytest.param("LLVM"),
    pytest.param(
        "C", marks=[pytest.mark.cc, pytest.mark.skipif(NO_COMPILER, reason="no C compiler on PATH")]
    ),
    pytest.param(
        "OPENCL",
        marks=[
            pytest.mark.opencl,
            pytest.mark.skipif(
                missing("OPENCL") is not None, reason=f"OpenCL: {missing('OPENCL')}"
            ),
        ],
    ),
    pytest.param(
        "WEBGPU",
        marks=[
            pytest.mark.webgpu,
            pytest.mark.slow,
            pytest.mark.skipif(
                missing("WEBGPU") is not None, reason=f"WebGPU: {missing('WEBGPU')}"
            ),
        ],
    ),
    *[
        pytest.param(
            name,
            marks=[
                pytest.mark.cc,
                pytest.mark.slow,
                pytest.mark.skipif(missing(name) is not None, reason=str(missing(name))),
            ],
        )
        for name in SHIMS
    ],
    pytest.param("PYTHON"),
]
# Those that have blocks of work-items.
WITH_BLOCKS = ("OPENCL", "WEBGPU", *SHIMS)
WIDTHS = [1, 4]

INT_OPS = (
    Ops.ADD,
    Ops.SUB,
    Ops.MUL,
    Ops.IDIV,
    Ops.MOD,
    Ops.MAX,
    Ops.CMPLT,
    Ops.CMPNE,
    Ops.CMPEQ,
    Ops.XOR,
    Ops.OR,
    Ops.AND,
    Ops.SHL,
    Ops.SHR,
    Ops.NEG,
    Ops.MULACC,
    Ops.WHERE,
)
BOOL_OPS = (
    Ops.ADD,
    Ops.MUL,
    Ops.MAX,
    Ops.CMPLT,
    Ops.CMPNE,
    Ops.CMPEQ,
    Ops.XOR,
    Ops.OR,
    Ops.AND,
    Ops.NEG,
    Ops.WHERE,
)
FLOAT_OPS = (
    Ops.ADD,
    Ops.SUB,
    Ops.MUL,
    Ops.FDIV,
    Ops.MAX,
    Ops.CMPLT,
    Ops.CMPNE,
    Ops.CMPEQ,
    Ops.NEG,
    Ops.SQRT,
    Ops.RECIPROCAL,
    Ops.TRUNC,
    Ops.MULACC,
    Ops.WHERE,
)
LIBRARY_OPS = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TANH, Ops.POW)
LEAST_NORMAL = 2.0**-126
BIT_DTYPES = (dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2)
VALUE_DTYPES = (dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64)
FLOAT_EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    -2.5,
    3.0,
    127.5,
    -128.5,
    255.5,
    65504.0,
    65519.9,
    65520.0,
    6e-8,
    -6e-8,
    1e-40,
    1e-310,
    2147483520.0,
    2147483648.0,
    -2147483648.0,
    -2147483904.0,
    4294967296.0,
    9.2e18,
    9223372036854775808.0,
    -9.3e18,
    1.9e19,
    1e38,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    1 + 2**-11,
    1 + 2**-11 + 2**-30,
]


@functools.cache
def edge_values(dtype: DType) -> tuple[Any, ...]:
    """Values at which something may go wrong, all of them values of the dtype."""
    with np.errstate(all="ignore"):
        if dtype.kind == "bool":
            return (False, True)
        if dtype.kind == "float":
            raw = np.array(FLOAT_EDGES).astype(to_numpy_dtype(dtype)).astype(float)
            return tuple(float(x) for x in raw)
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    found = {
        0,
        1,
        2,
        3,
        7,
        31,
        dtype.bits - 1,
        dtype.bits,
        high,
        high - 1,
        low,
        low + 1,
        high // 2,
        100,
        *(x for x in (-1, -2, -7, -100) if x >= low),
    }
    return tuple(sorted(found))


@functools.cache
def operands(dtype: DType, count: int = 256) -> tuple[tuple[Any, ...], ...]:
    """Three rows of `count` operands: pairs of edges, then random numbers."""
    edges = edge_values(dtype)
    rng = np.random.default_rng(7)
    pairs = list(itertools.product(edges, edges))
    order = rng.permutation(len(pairs))[: count * 3 // 4]
    rows = [[pairs[i][0] for i in order], [pairs[i][1] for i in order]]
    while len(rows[0]) < count:
        for row in rows:
            if dtype.kind == "float":
                value = float(
                    np.array(rng.normal() * 10.0 ** rng.integers(-3, 4)).astype(
                        to_numpy_dtype(dtype)
                    )
                )
            elif dtype.kind == "bool":
                value = bool(rng.integers(2))
            else:
                value = int(
                    rng.integers(
                        dtypes.min(dtype),
                        dtypes.max(dtype),
                        endpoint=True,
                        dtype=to_numpy_dtype(dtype),
                    )
                )
            row.append(value)
    # Finite, where an addend is: infinity less a product that overflows depends on the rounding.
    addends = [x for x in edges if dtype.kind != "float" or abs(x) != float("inf")]
    third = [addends[i % len(addends)] for i in rng.integers(0, 1000, count)]
    return tuple(rows[0]), tuple(rows[1]), tuple(third)


def as_array(values: Any, dtype: DType) -> np.ndarray:
    """Numbers as memory of a dtype."""
    return np.array(values, dtype=to_numpy_dtype(dtype))


Expression = Callable[..., UOp]


def build(
    expressions: list[Expression], inputs: list[DType], count: int, width: int, lanes: AxisType
) -> Linear:
    """out_k[i] = expression_k(in_0[i], in_1[i], ...), in so many `lanes` at a time."""
    b = Builder("alu")
    sources = [b.param(count, d) for d in inputs]
    r = b.axis(count // width, LOOP)
    base, offset = r, 0
    if width > 1:
        base, offset = b.add(r * UOp.const(dtypes.int32, width)), b.axis(width, lanes)
    values = [b.load(at(s, base, offset)) for s in sources]
    for expression in expressions:
        result = expression(*values)
        # A buffer is listed before the loop; the order of the list is what counts.
        out = UOp.param(len(b.params), count, result.dtype)
        b.params.append(out)
        b.listed.add(out)
        b.uops.insert(0, out)
        b.store(at(out, base, offset), b.add(result))
    b.end(r)
    return b.build()


def run(device: str, linear: Linear, buffers: list[np.ndarray]) -> list[np.ndarray]:
    """The buffers after the run."""
    found = [x.copy() for x in buffers]
    if device == "LLVM":
        run_llvm(linear, found)
    elif device == "C":
        run_c(linear, found)
    elif device == "PYTHON":
        Interpreter(linear).run(found)
    else:
        backend = Device[device]
        source = renderer_for(backend.target).render(linear)
        program = backend.load(linear.name, backend.compile(source))
        memory = [
            Buffer(device, x.size, p.dtype).copyin(x)
            for x, p in zip(found, linear.params, strict=True)
        ]
        program(tuple(m.handle for m in memory), launch=Grid((1,), (1,)))
        found = [m.numpy() for m in memory]
    return found


def compute(
    device: str,
    expressions: list[Expression],
    rows: list[tuple[Any, ...]],
    inputs: list[DType],
    width: int,
) -> list[np.ndarray]:
    """The value of each expression on the rows."""
    target = Device[device].target if device in WITH_BLOCKS else None
    room = target.max_buffers - len(inputs) if target and target.max_buffers else len(expressions)
    if room < len(expressions):
        first, rest = expressions[:room], expressions[room:]
        found = compute(device, first, rows, inputs, width)
        return found + compute(device, rest, rows, inputs, width)
    # Where there is no SIMD the elements of a group are computed side by side.
    lanes = UPCAST if target and not target.vector_bits else VECTOR
    linear = build(expressions, inputs, len(rows[0]), width, lanes)
    buffers = [as_array(row, d) for row, d in zip(rows, inputs, strict=True)]
    buffers += [np.zeros(len(rows[0]), to_numpy_dtype(p.dtype)) for p in linear.params[len(rows) :]]
    return run(device, linear, buffers)[len(rows) :]


def check_bits(found: np.ndarray, want: np.ndarray, what: str, rows: Any) -> None:
    """Equal bits, except that every NaN is the same."""
    same = found.view(np.dtype(f"u{found.itemsize}")) == want.view(np.dtype(f"u{want.itemsize}"))
    both = np.stack([found, want]).astype(np.float64) if found.dtype.kind not in "iub" else None
    if both is not None:
        same |= np.isnan(both).all(0)
    wrong = np.flatnonzero(~same)
    lines = [
        f"{what}({', '.join(repr(r[i]) for r in rows)}) = {found[i]!r}, want {want[i]!r}"
        for i in wrong[:5]
    ]
    assert not len(wrong), f"{len(wrong)} of {len(want)}:\n" + "\n".join(lines)


def expected(op: Ops, dtype: DType, rows: Any, dts: list[DType]) -> np.ndarray:
    """What the definition says."""
    return as_array([evaluate(op, dtype, values, dts) for values in zip(*rows)], dtype)


def flushed(device: str, dtype: DType, rows: Any) -> tuple[tuple[Any, ...], ...]:
    """The rows, without numbers below the normal ones where a language may take them for zero."""
    if device != "WEBGPU" or dtype is not dtypes.float32:
        return tuple(rows)
    return tuple([tuple([0.0 if 0 < abs(x) < LEAST_NORMAL else x for x in row]) for row in rows])


def supports(device: str, dtype: DType) -> bool:
    """Whether a device has arithmetic of a dtype; what lacks it is decomposed before."""
    return device not in WITH_BLOCKS or Device[device].target.has_dtype(dtype.name)


def of_device(device: str, kinds: Iterable[DType]) -> list[DType]:
    """Those dtypes that a device has at least in memory: of floats wider than its own, none."""
    return [d for d in kinds if d is not dtypes.float64 or supports(device, d)]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=lambda d: d.name)
def test_ldexp_of_any_width(dtype: DType, width: int) -> None:
    if not Device["CPU"].target.has_op("LDEXP"):
        pytest.skip("this processor has no instruction for LDEXP (x86 with AVX-512)")
    rows = operands(dtype)
    given = np.array(rows[1])
    whole = np.round(np.fmod(np.where(np.isinf(given), 3.0, given), 1150.0))
    # The instruction takes the whole number below.
    whole += np.resize([0.0, 0.9375, 0.5], whole.shape)
    exponents = np.where(np.isnan(rows[0]), np.nan, whole).tolist()
    both = [rows[0], tuple(exponents)]
    scaled = lambda x, y: x.alu(Ops.LDEXP, y)  # noqa: E731
    (found,) = compute("LLVM", [scaled], both, [dtype] * 2, width)
    check_bits(found, expected(Ops.LDEXP, dtype, both, [dtype] * 2), "LDEXP", both)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
def test_32nds_of_any_width(width: int) -> None:
    if not Device["CPU"].target.has_op("EXP2_32NDS"):
        pytest.skip("this processor has no instruction for that (x86 with AVX-512)")
    given = tuple((1.5 * 2.0**18 + np.arange(-320, 320) / 32).tolist())
    power = lambda x: x.alu(Ops.EXP2_32NDS)  # noqa: E731
    (found,) = compute("LLVM", [power], [given], [dtypes.float32], width)
    wanted = expected(Ops.EXP2_32NDS, dtypes.float32, [given], [dtypes.float32])
    check_bits(found, wanted, "EXP2_32NDS", [given])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", (dtypes.bool, *dtypes.ints, dtypes.float32, dtypes.float64))
@pytest.mark.parametrize("device", DEVICES)
def test_ops(device: str, dtype: DType, width: int) -> None:
    if not supports(device, dtype):
        pytest.skip(f"{device} has no {dtype.name}")
    ops = {"bool": BOOL_OPS, "float": FLOAT_OPS}.get(dtype.kind, INT_OPS)
    rows = flushed(device, dtype, operands(dtype))
    arity = {Ops.NEG: 1, Ops.SQRT: 1, Ops.RECIPROCAL: 1, Ops.TRUNC: 1, Ops.MULACC: 3, Ops.WHERE: 3}
    calls, wants = [], []
    for op in ops:
        if op is Ops.WHERE:
            calls.append(lambda x, y, z: (x < z).where(x, y))
            wants.append(as_array([x if x < z else y for x, y, z in zip(*rows)], dtype))
            continue
        n = arity.get(op, 2)
        calls.append(lambda *v, op=op, n=n: v[0].alu(op, *v[1:n]))
        result = calls[-1](*[UOp.const(dtype, 0)] * 3).dtype
        wants.append(expected(op, result, rows[:n], [dtype] * n))
    for op, found, want in zip(ops, compute(device, calls, rows, [dtype] * 3, width), wants):
        if op is Ops.MULACC and dtype.kind == "float":
            # Rounded once where the processor can, else twice.
            twice = as_array(
                [
                    evaluate(
                        Ops.ADD,
                        dtype,
                        (evaluate(Ops.MUL, dtype, (x, y), [dtype] * 2), z),
                        [dtype] * 2,
                    )
                    for x, y, z in zip(*rows)
                ],
                dtype,
            )
            want = np.where(found == twice, found, want)
        if device == "WEBGPU" and want.dtype == np.float32:
            want = np.where((np.abs(want) < LEAST_NORMAL) & (found == 0), found, want)
        check_bits(found, want, f"{op.name} {dtype.name}", rows)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("source", VALUE_DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_casts(device: str, source: DType, width: int) -> None:
    targets = [d for d in of_device(device, VALUE_DTYPES) if d is not source]
    if not of_device(device, [source]):
        pytest.skip(f"{device} has no {source.name}")
    rows = [operands(source)[0]]
    calls = [lambda x, d=d: x.cast(d) for d in targets]
    for d, found in zip(targets, compute(device, calls, rows, [source], width)):
        check_bits(found, expected(Ops.CAST, d, rows, [source]), f"{source.name} to {d.name}", rows)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("itemsize", (1, 2, 4, 8))
@pytest.mark.parametrize("device", DEVICES)
def test_bitcasts(device: str, itemsize: int, width: int) -> None:
    kinds = [d for d in dtypes.all if d.itemsize == itemsize and d.kind not in ("bool", "index")]
    kinds = of_device(device, kinds)
    for source in kinds:
        rows = [operands(source)[0]]
        calls = [lambda x, d=d: x.bitcast(d) for d in kinds if d is not source]
        targets = [d for d in kinds if d is not source]
        for d, found in zip(targets, compute(device, calls, rows, [source], width)):
            want = as_array(rows[0], source).view(to_numpy_dtype(d))
            check_bits(found, want, f"bits of {source.name} as {d.name}", rows)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", (dtypes.float16, *BIT_DTYPES))
@pytest.mark.parametrize("device", DEVICES)
def test_small_floats_are_moved_and_chosen(device: str, dtype: DType, width: int) -> None:
    rows = operands(dtype)[:2]
    flags = tuple(i % 3 == 0 for i in range(len(rows[0])))
    calls: list[Expression] = [
        lambda c, x, y: c.where(x, y),
        lambda c, x, y: c.where(x, UOp.const(dtype, 1.5)),
    ]
    found = compute(device, calls, [flags, *rows], [dtypes.bool, dtype, dtype], width)
    check_bits(
        found[0],
        as_array([x if c else y for c, x, y in zip(flags, *rows)], dtype),
        f"where {dtype.name}",
        [flags, *rows],
    )
    check_bits(
        found[1],
        as_array([x if c else 1.5 for c, x in zip(flags, rows[0])], dtype),
        f"where {dtype.name} 1.5",
        [flags, *rows],
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", (dtypes.int8, dtypes.uint16, dtypes.int32, dtypes.uint64))
@pytest.mark.parametrize("device", DEVICES)
def test_shifts_by_constants_and_other_dtypes(device: str, dtype: DType, width: int) -> None:
    rows = [operands(dtype)[0], operands(dtypes.uint32)[1]]
    kinds = [dtype, dtypes.uint32]
    counts = [0, 1, dtype.bits - 1, dtype.bits]
    for op in (Ops.SHL, Ops.SHR):
        calls: list[Expression] = [lambda x, y, op=op: x.alu(op, y)]
        calls += [lambda x, y, op=op, n=n: x.alu(op, UOp.const(dtype, n)) for n in counts]
        found = compute(device, calls, rows, kinds, width)
        check_bits(found[0], expected(op, dtype, rows, kinds), f"{op.name} {dtype.name}", rows)
        for n, got in zip(counts, found[1:]):
            again = [rows[0], (n,) * len(rows[0])]
            want = expected(op, dtype, again, [dtype] * 2)
            check_bits(got, want, f"{op.name} {dtype.name}", again)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64))
@pytest.mark.parametrize("device", DEVICES)
def test_division_by_constants(device: str, dtype: DType, width: int) -> None:
    rows = [operands(dtype)[0]]
    divisors = [1, 2, 3, 7, 100] + ([-1, -3] if dtype.kind == "int" else [])
    for op in (Ops.IDIV, Ops.MOD):
        calls: list[Expression] = [
            lambda x, op=op, n=n: x.alu(op, UOp.const(dtype, n)) for n in divisors
        ]
        for n, got in zip(divisors, compute(device, calls, rows, [dtype], width)):
            again = [rows[0], (n,) * len(rows[0])]
            want = expected(op, dtype, again, [dtype] * 2)
            check_bits(got, want, f"{op.name} {dtype.name}", again)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64))
@pytest.mark.parametrize("device", DEVICES)
def test_library_functions(device: str, dtype: DType, width: int) -> None:
    if not supports(device, dtype):
        pytest.skip(f"{device} has no {dtype.name}")
    rng = np.random.default_rng(3)
    x = [*rng.uniform(-20, 20, 60), 0.0, float("inf"), float("-inf"), float("nan")]
    y = [*rng.uniform(-3, 3, 60), 0.0, 1.0, 2.0, 3.0]
    rows = [tuple(as_array(v, dtype).astype(float).tolist()) for v in (x, y)]
    ops = LIBRARY_OPS
    if device == "WEBGPU":
        # The others are decomposed for it, whose own have errors of hundreds of units and more.
        ops = tuple([op for op in ops if Device[device].target.has_op(op.name)])
    calls: list[Expression] = [
        lambda x, y, op=op: x.alu(op, *([y] if op is Ops.POW else [])) for op in ops
    ]
    # What OpenCL promises is 16 units in the last place for pow, 4 for the others.
    rtol = 16 * float(np.finfo(to_numpy_dtype(dtype)).eps)
    for op, found in zip(ops, compute(device, calls, rows, [dtype] * 2, width)):
        want = expected(op, dtype, rows[: 2 if op is Ops.POW else 1], [dtype] * 2)
        np.testing.assert_allclose(found, want, rtol=rtol, atol=rtol, err_msg=op.name)


@pytest.mark.parametrize(
    "dtype", (dtypes.int8, dtypes.int32, dtypes.uint64, dtypes.float32, dtypes.float64, dtypes.bool)
)
@pytest.mark.parametrize("device", DEVICES)
def test_constants_are_written_exactly(device: str, dtype: DType) -> None:
    if not supports(device, dtype):
        pytest.skip(f"{device} has no {dtype.name}")
    edges = edge_values(dtype)
    more = [0.1, 1 / 3, 1e-45, 3.4028234663852886e38] if dtype.kind == "float" else []
    values = (*edges, *more)
    calls: list[Expression] = [
        lambda c, n=n: c.where(UOp.const(dtype, n), UOp.const(dtype, 0)) for n in values
    ]
    found = compute(device, calls, [(True,) * 4], [dtypes.bool], 4)
    check_bits(np.array([f[0] for f in found]), as_array(values, dtype), dtype.name, [values])
