"""Scalar graphs evaluated over whole NumPy arrays, with or without fused multiply-adds.

What `uop/evaluate` says of one number, for millions at once: the tests of codegen measure with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aster_ml.dtype import DType, dtypes, to_numpy_dtype
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ParamArg

Array = Any

# How products and sums meet: MULACC rounded twice; rounded once; every sum of a product too.
ROUNDINGS = ("separate", "fused", "contracted")


def leaf(slot: int, dtype: DType) -> UOp:
    """A scalar whose values an evaluation gives."""
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, 1)).index(UOp.index_const(0)).load()


def split(x: Array) -> tuple[Array, Array]:
    """x as two float64 of 26 bits each (Veltkamp); x is of moderate size."""
    t = x * 134217729.0
    high = t - (t - x)
    return high, x - high


def fused(x: Array, y: Array, z: Array) -> Array:
    """x * y + z with one rounding (float32), or one and a bit (float64, errors of 2**-100)."""
    if x.dtype == np.float32:
        wide = np.float64(1) * x * y + np.float64(1) * z
        return wide.astype(np.float32)
    plain = x * y + z
    # Scaled so that the parts of the product are neither too large nor too small.
    (xm, xe), (ym, ye) = np.frexp(x), np.frexp(y)
    p = xm * ym
    (xh, xl), (yh, yl) = split(xm), split(ym)
    e = ((xh * yh - p) + xh * yl + xl * yh) + xl * yl
    zs = np.ldexp(z, -(xe + ye))
    s = p + zs
    t = s - p
    rest = (p - (s - t)) + (zs - t)
    result = np.ldexp(s + (rest + e), xe + ye)
    # Beyond these bounds the scaling itself rounds; nothing that is tested comes there.
    usual = np.isfinite(zs) & (np.abs(plain) > 1e-290) & (np.abs(plain) < 1e290)
    return np.where(usual, result, plain)


def to_int(x: Array, dtype: DType) -> Array:
    """A float as an integer, saturated; NaN gives 0."""
    wide = dtype if dtype.bits >= 32 else dtypes.int32
    low, high = float(dtypes.min(wide)), float(dtypes.max(wide))
    x = np.trunc(x.astype(np.float64))
    inside = (x > low) & (x < high)
    value = np.where(inside, x, 0.0).astype(to_numpy_dtype(wide))
    value = np.where(x >= high, to_numpy_dtype(wide).type(dtypes.max(wide)), value)
    value = np.where(x <= low, to_numpy_dtype(wide).type(dtypes.min(wide)), value)
    return value.astype(to_numpy_dtype(dtype))


def shift(op: Ops, x: Array, y: Array) -> Array:
    """SHL and SHR; a whole width or more gives 0, or the sign."""
    width = x.dtype.itemsize * 8
    y = np.asarray(y).astype(np.uint64)
    far = y >= width
    amount = np.where(far, 0, y).astype(x.dtype)
    if op is Ops.SHL:
        return np.where(far, x.dtype.type(0), x << amount).astype(x.dtype)
    return np.where(far, np.where(x < 0, -1, 0).astype(x.dtype), x >> amount).astype(x.dtype)


def divide_ints(x: Array, y: Array) -> Array:
    """Towards zero; 0 where y is 0."""
    safe = np.where(y == 0, 1, y)
    q = x // safe
    q = q + ((q < 0) & (q * safe != x))
    return np.where(y == 0, 0, q).astype(x.dtype)


def multiply_add(x: Array, y: Array, z: Array, rounding: str) -> Array:
    """MULACC under one of ROUNDINGS."""
    if x.dtype.kind != "f" or rounding == "separate":
        return (x * y + z).astype(x.dtype)
    return fused(np.asarray(x), np.asarray(y), np.asarray(z))


def contracted_sum(u: UOp, known: Mapping[UOp, Array]) -> Array:
    """ADD or SUB of floats that reads a product: fused with it, as a backend may."""
    x, y = u.src
    dtype = to_numpy_dtype(u.dtype)
    sign = dtype.type(1 if u.op is Ops.ADD else -1)
    if x.op is Ops.MUL:
        return fused(known[x.src[0]], known[x.src[1]], sign * known[y])
    return fused(sign * known[y.src[0]], known[y.src[1]], known[x])


def compute(u: UOp, known: Mapping[UOp, Array], rounding: str) -> Array:
    """The values of one node, those of its sources being known."""
    op = u.op
    dtype = to_numpy_dtype(u.dtype)
    s = [known[v] for v in u.src]
    source = u.src[0].dtype if u.src else u.dtype
    if op is Ops.CONST:
        return np.asarray(u.arg, dtype)
    if op is Ops.CAST:
        if source.kind == "float" and u.dtype.kind in ("int", "uint"):
            return to_int(s[0], u.dtype)
        return s[0].astype(dtype)
    if op is Ops.BITCAST:
        return np.ascontiguousarray(s[0]).view(dtype)
    if op in (Ops.ADD, Ops.SUB) and rounding == "contracted" and u.dtype.kind == "float":
        if any(v.op is Ops.MUL for v in u.src):
            return contracted_sum(u, known)
    if op is Ops.MULACC:
        return multiply_add(s[0], s[1], s[2], rounding)
    if op in (Ops.SHL, Ops.SHR):
        return shift(op, *s)
    if op is Ops.MAX:
        larger = np.where(s[0] > s[1], s[0], s[1])
        return np.where(s[0] != s[0], s[0], larger).astype(dtype)
    return np.asarray(NUMPY[op](*s)).astype(dtype)


NUMPY: dict[Ops, Any] = {
    Ops.ADD: lambda x, y: x + y if x.dtype != bool else x | y,
    Ops.SUB: lambda x, y: x - y,
    Ops.MUL: lambda x, y: x * y if x.dtype != bool else x & y,
    Ops.FDIV: lambda x, y: x / y,
    Ops.IDIV: divide_ints,
    Ops.MOD: lambda x, y: x - y * divide_ints(x, y),
    Ops.NEG: lambda x: -x,
    Ops.SQRT: np.sqrt,
    Ops.RECIPROCAL: lambda x: x.dtype.type(1) / x,
    Ops.TRUNC: np.trunc,
    Ops.CMPLT: lambda x, y: x < y,
    Ops.CMPNE: lambda x, y: x != y,
    Ops.CMPEQ: lambda x, y: x == y,
    Ops.XOR: lambda x, y: x ^ y,
    Ops.OR: lambda x, y: x | y,
    Ops.AND: lambda x, y: x & y,
    Ops.WHERE: np.where,
    Ops.EXP2: np.exp2,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.TANH: np.tanh,
    Ops.POW: np.power,
    Ops.LDEXP: lambda x, y: np.ldexp(x, np.floor(np.where(y == y, y, 0)).astype(np.int32)) + y * 0,
    Ops.EXP2_32NDS: lambda x: np.exp2((x.view(np.uint32) & 31).astype(np.float32) / 32),
}


def evaluate_arrays(root: UOp, values: Mapping[UOp, Array], rounding: str = "fused") -> Array:
    """The values of `root` when the leaves have these."""
    known: dict[UOp, Array] = dict(values)
    with np.errstate(all="ignore"):
        for u in toposort(root, enter=lambda v: v not in values):
            if u not in known:
                known[u] = compute(u, known, rounding)
    shape = np.broadcast_shapes(*[np.shape(v) for v in values.values()])
    return np.broadcast_to(known[root], shape)


def count_operations(root: UOp, leaves: tuple[UOp, ...]) -> int:
    """Nodes that compute something, bit casts not counted."""
    free = (Ops.CONST, Ops.BITCAST)
    order = toposort(root, enter=lambda v: v not in leaves)
    return sum(u.op not in free and u not in leaves for u in order)


def ulp_error(found: Array, exact: Array) -> Array:
    """Distance to the exact value in units of the last place of a number of its size.

    `exact` is of a wider type. Numbers beyond the largest count as the power of two that would be
    next; NaN beside NaN, and equal infinities, have no distance.
    """
    info = np.finfo(found.dtype)
    top = info.max.astype(exact.dtype) * (1 + info.eps.astype(exact.dtype) / 2)
    clipped = np.clip(exact, -top, top)
    _, exponent = np.frexp(np.where(np.isfinite(clipped), clipped, 1))
    exponent = np.clip(exponent - 1, info.minexp, info.maxexp - 1)
    unit = np.ldexp(np.ones_like(exact), exponent - info.nmant)
    value = np.where(np.isinf(found), np.copysign(top, found), found.astype(exact.dtype))
    error = np.abs(value - clipped) / unit
    both_nan = np.isnan(found) & np.isnan(exact)
    return np.where(both_nan, 0, np.where(np.isnan(error), np.inf, error))
