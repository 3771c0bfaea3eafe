"""The meaning of tensor-stage graphs in NumPy: what the compiler is checked against.

`evaluate(uop)` computes a node from the memory of its BUFFER nodes, one NumPy call an op, without
schedule, kernels or devices. Effects are taken as values: AFTER is its source with what its STOREs
write put in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml.dtype import DType, dtypes, to_numpy_dtype
from aster_ml.engine import storage
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, MOVEMENT, Ops

Array = Any
INDEX = np.dtype(np.int64)


def numpy_dtype(dtype: DType) -> Any:
    """The NumPy dtype in which values of `dtype` are held."""
    return INDEX if dtype is dtypes.index else to_numpy_dtype(dtype)


def evaluate(root: UOp, memory: dict[UOp, Array] | None = None) -> Array:
    """The value of `root`; `memory` overrides the content of BUFFER nodes."""
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for u in toposort(root):
            values[u] = step(u, values, memory or {})
    return values[root]


def size_value(size: Any, values: dict[UOp, Array]) -> int:
    """A size, symbolic ones by the values of their variables."""
    return size if isinstance(size, int) else int(evaluate(size))


def step(u: UOp, values: dict[UOp, Array], memory: dict[UOp, Array]) -> Array:
    """The value of one node, its sources being known."""
    op = u.op
    if op in (Ops.DEVICE, Ops.STORE, Ops.DEFINE_VAR):
        return None
    if op in LEAVES:
        return LEAVES[op](u, values, memory)
    if op in MOVEMENT:
        return moved(u, values[u.src[0]], lambda s: size_value(s, values))
    x = [values[s] for s in u.src]
    if op in MARKS:
        return x[0]
    rule = RULES.get(op)
    if rule is None:
        raise NotImplementedError(f"the oracle does not know {u!r}")
    result = rule(u, *x)
    dtype = numpy_dtype(u.dtype)
    return result if result.dtype == dtype else result.astype(dtype)


MARKS = GRADIENT_MARKS | {Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.COPY}


def buffer_value(u: UOp, values: dict[UOp, Array], memory: dict[UOp, Array]) -> Array:
    """The content of memory."""
    if u in memory:
        return memory[u]
    buffer = storage.buffer_of(u)
    if not buffer.is_allocated():
        return np.zeros(u.arg.size, dtype=numpy_dtype(u.dtype))
    return buffer.numpy(copy=True)


LEAVES: dict[Ops, Callable[..., Array]] = {
    Ops.CONST: lambda u, v, m: np.array(u.arg, dtype=numpy_dtype(u.dtype)),
    Ops.BUFFER: buffer_value,
    Ops.IOTA: lambda u, v, m: np.arange(int(v[u.src[0]]), dtype=INDEX),
    Ops.BIND: lambda u, v, m: np.array(u.src[1].arg, dtype=INDEX),
    Ops.AFTER: lambda u, v, m: written(u, v),
}


def moved(u: UOp, x: Array, size: Callable[[Any], int]) -> Array:
    """A movement op on an array."""
    op, arg = u.op, u.marg
    if op is Ops.RESHAPE:
        return x.reshape([size(s) for s in arg])
    if op is Ops.EXPAND:
        return np.broadcast_to(x, [size(s) for s in arg])
    if op is Ops.PERMUTE:
        return x.transpose(arg)
    if op is Ops.NAME:
        return x
    if op is Ops.FLIP:
        return np.flip(x, arg)
    if op is Ops.PAD:
        pairs = [(size(b), size(a)) for b, a in arg]
        result = np.zeros([s + b + a for s, (b, a) in zip(x.shape, pairs)], dtype=x.dtype)
        result[tuple([slice(b, b + s) for s, (b, _) in zip(x.shape, pairs)])] = x
        return result
    return x[tuple([slice(size(a), size(b)) for a, b in arg])]


def written(u: UOp, values: dict[UOp, Array]) -> Array:
    """AFTER: the source with the values that its effects store put in place."""
    target = u.src[0]
    result = np.array(values[target])
    for effect in u.src[1:]:
        assert effect.op is Ops.STORE, f"the effect {effect!r} is no STORE"
        chain = []
        place = effect.src[0]
        while place is not target:
            assert place.op in MOVEMENT, f"a write through {place!r} does not reach {target!r}"
            chain.append(place)
            place = place.src[0]
        positions = np.arange(result.size).reshape(result.shape)
        for view in reversed(chain):
            assert view.op not in (Ops.PAD, Ops.EXPAND), f"{view.op.name} of a place to write to"
            positions = moved(view, positions, lambda s: size_value(s, values))
        result.reshape(-1)[positions] = values[effect.src[1]]
    return result


def cast(u: UOp, x: Array) -> Array:
    """CAST: floats saturate to ints and NaN is 0, small unsigned ints go through 32 bits."""
    target = u.dtype
    if target.kind in ("int", "uint", "index") and u.src[0].dtype.kind == "float":
        bits = 64 if target is dtypes.index else max(target.bits, 32)
        unsigned = target.kind == "uint" and target.bits >= 32
        low = 0 if unsigned else -(1 << (bits - 1))
        high = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
        wide = np.asarray(x, dtype=np.float64)

        def convert(v: float) -> int:
            return 0 if v != v else int(max(min(v, high), low))

        ints = [convert(v) & ((1 << 64) - 1) for v in wide.reshape(-1).tolist()]
        whole = np.array(ints, dtype=np.uint64).reshape(wide.shape)
        return whole.astype(numpy_dtype(target))
    if target is dtypes.bool:
        return x != 0
    return x.astype(numpy_dtype(target))


def bitcast(u: UOp, x: Array) -> Array:
    """BITCAST, between widths along the last axis."""
    return np.ascontiguousarray(x).view(numpy_dtype(u.dtype)).reshape(u.shape)


def widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of floats computed in float64 and rounded once."""

    def rule(u: UOp, *x: Array) -> Array:
        return function(*[np.asarray(v, dtype=np.float64) for v in x])

    return rule


def whole_divide(u: UOp, x: Array, y: Array) -> Array:
    """IDIV: towards zero, 0 where the divisor is 0; of index dtype rounded down."""
    safe = np.where(y == 0, 1, y)
    if u.dtype is dtypes.index:
        return np.where(y == 0, 0, x // safe)
    quotient = x // safe
    rest = x - quotient * safe
    quotient = quotient + ((rest != 0) & ((x < 0) != (safe < 0))).astype(quotient.dtype)
    return np.where(y == 0, 0, quotient).astype(quotient.dtype)


def remainder(u: UOp, x: Array, y: Array) -> Array:
    """MOD: what IDIV leaves."""
    return x - y * whole_divide(u, x, y)


def greatest(u: UOp, x: Array, y: Array) -> Array:
    """MAX: NaN if either is; +0 above -0."""
    result = np.maximum(x, y)
    if u.dtype.kind != "float":
        return result
    zeros = (x == 0) & (y == 0)
    both = np.signbit(x) & np.signbit(y)
    return np.where(zeros, np.where(both, np.array(-0.0, x.dtype), np.array(0.0, x.dtype)), result)


def power(u: UOp, x: Array, y: Array) -> Array:
    """POW: C's pow on floats; on ints exact and wrapped, 0 where a fraction is the result."""
    if u.dtype.kind == "float":
        return np.power(np.asarray(x, np.float64), np.asarray(y, np.float64))
    spread = np.broadcast_arrays(x, y)
    bits = (1 << u.dtype.bits) - 1
    found = [
        pow(int(a), int(b), bits + 1) if b >= 0 else int(float(a) ** int(b)) if a else 0
        for a, b in zip(spread[0].reshape(-1), spread[1].reshape(-1))
    ]
    return np.array([v & bits for v in found], dtype=np.uint64).reshape(spread[0].shape)


def shifted(left: bool) -> Callable[..., Array]:
    """SHL and SHR, by counts that may reach the width."""

    def rule(u: UOp, x: Array, y: Array) -> Array:
        width = 64 if u.dtype is dtypes.index else u.dtype.bits
        inside = np.minimum(np.asarray(y, np.uint64), width - 1).astype(x.dtype)
        if left:
            return np.where(np.asarray(y) >= width, 0, np.left_shift(x, inside)).astype(x.dtype)
        far = x >> (width - 1) if u.dtype.kind == "int" else np.zeros_like(x)
        return np.where(np.asarray(y) >= width, far, np.right_shift(x, inside)).astype(x.dtype)

    return rule


def threefry(u: UOp, counter: Array, key: Array) -> Array:
    """THREEFRY: Threefry-2x32 with 20 rounds."""
    counter, key = np.broadcast_arrays(counter, key)
    mask = np.uint64(0xFFFFFFFF)
    x = [(v & mask).astype(np.uint32) for v in (counter, counter >> np.uint64(32))]
    k = [(v & mask).astype(np.uint32) for v in (key, key >> np.uint64(32))]
    k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
    x = [x[0] + k[0], x[1] + k[1]]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            low = x[0] + x[1]
            turned = (x[1] << np.uint32(turn)) | (x[1] >> np.uint32(32 - turn))
            x = [low, turned ^ low]
        x = [x[0] + k[(group + 1) % 3], x[1] + k[(group + 2) % 3] + np.uint32(group + 1)]
    return x[0].astype(np.uint64) | (x[1].astype(np.uint64) << np.uint64(32))


def reduced(u: UOp, x: Array) -> Array:
    """REDUCE: axes folded, size 1 left."""
    function: Any = {
        Ops.ADD: np.add,
        Ops.MUL: np.multiply,
        Ops.MAX: np.maximum,
        Ops.OR: np.bitwise_or,
        Ops.AND: np.bitwise_and,
    }[u.arg.op]
    if x.dtype == np.bool_ and u.arg.op in (Ops.ADD, Ops.MUL):
        function = np.logical_or if u.arg.op is Ops.ADD else np.logical_and
    if x.dtype.kind == "V" or x.dtype == np.float16:
        return function.reduce(x.astype(np.float32), axis=u.arg.axes, keepdims=True)
    return function.reduce(x, axis=u.arg.axes, keepdims=True, dtype=x.dtype)


def gathered(u: UOp, x: Array, *index: Array) -> Array:
    """INDEX: elements at one index an axis."""
    spread = [np.broadcast_to(i, u.shape) for i in index]
    for i, size in zip(spread, x.shape):
        assert np.all((i >= 0) & (i < size)), f"an INDEX of axis size {size} is outside"
    return x[tuple(spread)] if index else x


def scattered(u: UOp, x: Array, *index: Array) -> Array:
    """SCATTER: elements added up at their places, or the greatest of them."""
    if u.arg.op is Ops.MAX:
        result = np.full(u.arg.shape, dtypes.min(u.dtype), dtype=x.dtype)
        np.maximum.at(result, tuple([np.broadcast_to(i, x.shape) for i in index]), x)
        return result
    wide = np.float64 if u.dtype.kind == "float" else x.dtype
    result = np.zeros(u.arg.shape, dtype=wide)
    np.add.at(result, tuple([np.broadcast_to(i, x.shape) for i in index]), x.astype(wide))
    return result


RULES: dict[Ops, Callable[..., Array]] = {
    Ops.CAST: cast,
    Ops.BITCAST: bitcast,
    Ops.NEG: lambda u, x: np.negative(x),
    Ops.EXP2: widened(np.exp2),
    Ops.LOG2: widened(np.log2),
    Ops.SIN: widened(np.sin),
    Ops.TANH: widened(np.tanh),
    Ops.SQRT: widened(np.sqrt),
    Ops.RECIPROCAL: widened(lambda x: 1 / x),
    Ops.TRUNC: lambda u, x: np.trunc(x),
    Ops.ADD: lambda u, x, y: np.add(x, y),
    Ops.SUB: lambda u, x, y: np.subtract(x, y),
    Ops.MUL: lambda u, x, y: np.multiply(x, y),
    Ops.FDIV: lambda u, x, y: np.divide(x, y),
    Ops.IDIV: whole_divide,
    Ops.MOD: remainder,
    Ops.MAX: greatest,
    Ops.POW: power,
    Ops.CMPLT: lambda u, x, y: np.less(x, y),
    Ops.CMPNE: lambda u, x, y: np.not_equal(x, y),
    Ops.CMPEQ: lambda u, x, y: np.equal(x, y),
    Ops.XOR: lambda u, x, y: np.bitwise_xor(x, y),
    Ops.OR: lambda u, x, y: np.bitwise_or(x, y),
    Ops.AND: lambda u, x, y: np.bitwise_and(x, y),
    Ops.SHL: shifted(True),
    Ops.SHR: shifted(False),
    Ops.THREEFRY: threefry,
    Ops.WHERE: lambda u, c, x, y: np.where(c, x, y),
    Ops.MULACC: widened(lambda x, y, z: x * y + z),
    Ops.REDUCE: reduced,
    Ops.INDEX: gathered,
    Ops.SCATTER: scattered,
}
