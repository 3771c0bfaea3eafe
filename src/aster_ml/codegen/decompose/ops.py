"""Replaces ops and narrow dtypes that a target lacks by native ones.

Receives the graph of one kernel, scalar for each iteration, and a Target; returns the same kernel
with native ops and dtypes only. One walk visits sources first; `REPLACEMENTS` has a row for each op
that may need one. The formulas are in `decompose/transcendental`, `power`, `threefry` and `floats`.

During the walk, a value of an emulated dtype is the float32 that equals it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from aster_ml.codegen.decompose.dot import split_dot, split_word
from aster_ml.codegen.decompose.floats import (
    EXACT_OPS,
    NARROW,
    cast_to_narrow,
    decode,
    encode,
    encode_constant,
    round_to,
)
from aster_ml.codegen.decompose.flushed import rewrite_comparisons
from aster_ml.codegen.decompose.power import pow_constant, pow_float, pow_int
from aster_ml.codegen.decompose.threefry import low_word, threefry
from aster_ml.codegen.decompose.transcendental import (
    exp2_of_scaled,
    exp2_poly,
    log2_poly,
    sin_poly,
    tanh_poly,
)
from aster_ml.codegen.kernel import Kernel
from aster_ml.dtype import DType, dtypes, round_float
from aster_ml.errors import CompileError, DTypeError
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMPARE, ELEMENTWISE, Ops, PowerArg

# A native POW is replaced too where multiplications do: integer POW is never native.
LOOKED_AT = frozenset({Ops.POW})
# Nodes of memory take the dtype of their source.
MEMORY_OPS = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.INDEX, Ops.AFTER, Ops.STAGE})
FLOAT32 = dtypes.float32
# What a DOT of each dtype multiplies.
DOT_OPERANDS = {dtypes.int32: "int8", dtypes.float32: "bfloat16"}


class Abilities(NamedTuple):
    """A Target in terms of ops and dtypes."""

    target: Target
    native: frozenset[DType]
    emulated: frozenset[DType]
    # Ops that the walk replaces.
    rewritten: frozenset[Ops]


@functools.lru_cache(maxsize=64)
def abilities_of(target: Target) -> Abilities:
    """The native, emulated and replaced ops and dtypes of a target."""
    native = frozenset(
        [d for d in dtypes.all if target.has_dtype(d.name)] + [dtypes.void, dtypes.index]
    )
    lacking = frozenset([op for op in ELEMENTWISE if not target.has_op(op.name)])
    some = frozenset() if dots_of(target) >= {*DOT_OPERANDS.values()} else frozenset({Ops.DOT})
    return Abilities(target, native, frozenset(NARROW) - native, lacking | some | LOOKED_AT)


def dots_of(target: Target) -> frozenset[str]:
    """The dtypes whose DOT is native."""
    return target.dot_dtypes if target.has_op("DOT") else frozenset()


def decompose_kernel(kernel: Kernel, target: Target) -> None:
    """Replaces ops and dtypes that the target lacks.

    Raises: CompileError for an op, DTypeError for a dtype that cannot be replaced.
    """
    kernel.sink = decompose(kernel.sink, target, kernel.facts.order)


def decompose(sink: UOp, target: Target, order: dict[UOp, None] | None = None) -> UOp:
    """The kernel in native ops and dtypes; the same node where nothing changes.

    `order` is the topological order of the graph, where it is known.

    Raises: CompileError for an op, DTypeError for a dtype that the target lacks and that cannot be
        replaced.
    """
    if not target.compiles:
        return sink
    sink = in_native_ops(sink, target, order)
    return rewrite_comparisons(sink, target) if target.flushes else sink


def in_native_ops(sink: UOp, target: Target, order: dict[UOp, None] | None) -> UOp:
    """`decompose` without the rewriting of comparisons with subnormal constants."""
    abilities = abilities_of(target)
    order = toposort(sink) if order is None else order
    native, rewritten = abilities.native, abilities.rewritten
    if all([u.dtype in native and u.op not in rewritten for u in order]):
        return sink
    sink = Decomposition(abilities).run(order)
    # Replacements contain MULACC too.
    return sink if target.has_op("MULACC") else split_mulacc(sink)


class Decomposition:
    """One walk: the replacement of each node, and the stored bits of loaded values."""

    def __init__(self, abilities: Abilities) -> None:
        self.target = abilities.target
        self.native = abilities.native
        self.emulated = abilities.emulated
        self.rewritten = abilities.rewritten
        self.new: dict[UOp, UOp] = {}
        # (float32, narrow dtype) -> the stored form that it was made from.
        self.stored: dict[tuple[UOp, DType], UOp] = {}
        self.has_threefry = False

    def run(self, order: dict[UOp, None]) -> UOp:
        """Decomposes nodes in order and returns the last."""
        new, native, rewritten = self.new, self.native, self.rewritten
        if Ops.DOT in rewritten and any([u.op is Ops.DOT and self.splits(u) for u in order]):
            order = toposort(split_words(order))
        last: UOp | None = None
        foreign = any([u.dtype not in native for u in order])
        for u in order:
            src = tuple(map(new.__getitem__, u.src))
            if foreign and (u.dtype not in native or any([s.dtype not in native for s in u.src])):
                last = self.narrow(u, src)
            elif u.op in rewritten:
                last = self.replace(u, src)
            elif self.has_threefry and u.op is Ops.CAST and u.dtype is dtypes.uint32:
                last = cast_to_word(src[0])
            else:
                last = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
            new[u] = last
        assert last is not None
        return last

    def splits(self, u: UOp) -> bool:
        """Whether the target lacks this DOT."""
        return DOT_OPERANDS[u.dtype] not in dots_of(self.target)

    # ops

    def dot(self, dtype: DType, x: UOp, y: UOp) -> UOp:
        """A DOT, in other ops where the target lacks it."""
        whole = UOp(Ops.DOT, dtype, (x, y))
        return split_dot(dtype, x, y) if self.splits(whole) else whole

    def replace(self, u: UOp, src: tuple[UOp, ...]) -> UOp:
        """An elementwise node that the target may lack, over native dtypes."""
        rule = REPLACEMENTS.get(u.op)
        if rule is None:
            raise CompileError(
                f"{self.target.device}: {u.op.name.lower()} does not exist in its language, "
                f"{self.target.language}, and nothing replaces it; DEV=CPU has it"
            )
        return rule(self, u, src)

    def apply(self, op: Ops, dtype: DType, src: tuple[UOp, ...]) -> UOp:
        """An op over native values, replaced where the target lacks it."""
        if op in self.rewritten:
            return self.replace(UOp(op, dtype, src), src)
        return UOp(op, dtype, src)

    def function(self, polynomial: Callable[[UOp], UOp], op: Ops, x: UOp) -> UOp:
        """A function of one float for which there is a polynomial."""
        if self.target.has_op(op.name):
            return UOp(op, x.dtype, (x,))
        if x.dtype in NARROW:
            return self.function(polynomial, op, x.cast(FLOAT32)).cast(x.dtype)
        if op is Ops.SIN:
            self.need(dtypes.uint64, "taking whole turns from the argument of sin")
            wide = dtypes.float64 if dtypes.float64 in self.native else FLOAT32
            return sin_poly(x, wide)
        return polynomial(x)

    def exp2(self, x: UOp, falling: bool) -> UOp:
        """EXP2; of a value times a constant, such as exp, without rounding the product."""
        if not self.target.has_op("EXP2") and x.op is Ops.MUL and x.dtype not in NARROW:
            for value, factor in (x.src, x.src[::-1]):
                if factor.op is Ops.CONST:
                    ldexp = self.target.has_op("LDEXP")
                    found = exp2_of_scaled(value, factor.arg, ldexp, falling)
                    if found is not None:
                        return found
        if falling and self.target.has_op("EXP2") and x.dtype not in NARROW:
            return UOp(Ops.EXP2, x.dtype, (x,), PowerArg(falls=True))
        return self.function(self.by_ldexp(exp2_poly), Ops.EXP2, x)

    def by_ldexp(self, polynomial: Callable[..., UOp]) -> Callable[[UOp], UOp]:
        """A polynomial that uses LDEXP where the target has it."""
        return functools.partial(polynomial, ldexp=self.target.has_op("LDEXP"))

    def power(self, x: UOp, y: UOp) -> UOp:
        """POW."""
        if x.dtype.kind != "float":
            return pow_int(x, y)
        if x.dtype in NARROW:
            return self.power(x.cast(FLOAT32), y.cast(FLOAT32)).cast(x.dtype)
        if self.target.has_op("POW"):
            found = pow_constant(x, y.arg) if y.op is Ops.CONST else None
            return UOp(Ops.POW, x.dtype, (x, y)) if found is None else found
        return pow_float(x, y)

    def random(self, counter: UOp, key: UOp) -> UOp:
        """THREEFRY."""
        self.has_threefry = True
        return threefry(counter, key)

    def need(self, dtype: DType, what: str) -> None:
        """Raises CompileError where the target lacks a dtype."""
        if dtype not in self.native:
            raise CompileError(
                f"{self.target.device}: it has no {dtype.name}, which is needed for {what}; "
                "DEV=CPU has it"
            )

    # dtypes

    def narrow(self, u: UOp, src: tuple[UOp, ...]) -> UOp:
        """A node that has or reads a dtype which the target lacks."""
        for dtype in (u.dtype, *[s.dtype for s in u.src]):
            if dtype not in self.native and dtype not in self.emulated:
                names = sorted(d.name for d in self.native if d.kind not in ("void", "index"))
                raise DTypeError(
                    f"{self.target.device}: it has no {dtype.name}; cast to one of "
                    f"{', '.join(names)}, or use another device (DEV=CPU has all)"
                )
        op = u.op
        if op in ELEMENTWISE:
            return self.narrow_value(u, src)
        if op is Ops.CONST:
            return self.constant(u)
        if op in MEMORY_OPS:
            dtype = src[0].dtype if src else NARROW[u.dtype].storage
            return UOp(op, dtype, src, u.arg)
        if op is Ops.LOAD:
            if u.dtype is not u.src[0].dtype:
                # A packed word, which is not unpacked here.
                return UOp(op, u.dtype, src, u.arg)
            load = UOp(op, src[0].dtype, src, u.arg)
            return load if load.dtype is FLOAT32 else self.decode(load, u.dtype)
        if op is Ops.STORE:
            value = src[1]
            if src[0].dtype is not FLOAT32:
                value = self.encode(value, u.src[1].dtype)
            return UOp(op, u.dtype, (src[0], value, *src[2:]), u.arg)
        if op is Ops.REDUCE:
            # Reduced in float32 and rounded once, which is more accurate than rounding each step.
            total = UOp(op, FLOAT32, src, u.arg)
            if u.arg.op in EXACT_OPS:
                return total
            return self.round(round_to(total, u.dtype), u.dtype)
        if op is Ops.LDMATRIX:
            # Packed words, which only tensor cores read.
            return UOp(op, src[0].dtype, src, u.arg)
        if op is Ops.MMA:
            stored = [
                self.encode(new, old.dtype) if new.dtype is FLOAT32 else new
                for old, new in zip(u.src[:2], src[:2], strict=True)
            ]
            return UOp(op, u.dtype, (*stored, *src[2:]), u.arg)
        return UOp(op, u.dtype, src, u.arg)

    def decode(self, stored: UOp, dtype: DType) -> UOp:
        """The float32 of stored bits; notes the bits, so that `encode` can reuse them."""
        value = decode(stored, dtype)
        self.stored[value, dtype] = stored
        return value

    def encode(self, value: UOp, dtype: DType) -> UOp:
        """Encodes a value of an emulated dtype as it is stored."""
        known = self.stored.get((value, dtype))
        return encode(value, dtype) if known is None else known

    def constant(self, u: UOp) -> UOp:
        """A constant of an emulated dtype."""
        value = UOp.const(FLOAT32, round_float(u.arg, u.dtype))
        self.stored[value, u.dtype] = encode_constant(u.arg, u.dtype)
        return value

    def narrow_value(self, u: UOp, src: tuple[UOp, ...]) -> UOp:
        """An elementwise node that has or reads an emulated dtype."""
        op, dtype = u.op, u.dtype
        if op is Ops.CAST:
            return self.narrow_cast(u, src[0])
        if op is Ops.BITCAST:
            source = u.src[0].dtype
            bits = self.encode(src[0], source) if source in self.emulated else src[0]
            if dtype not in self.emulated:
                return bits.bitcast(dtype)
            return self.decode(bits.bitcast(NARROW[dtype].storage), dtype)
        if op in COMPARE:
            return UOp(op, dtype, src)
        if op is Ops.WHERE:
            return self.narrow_where(dtype, src)
        if op in EXACT_OPS:
            return self.apply(op, FLOAT32, src)
        if op is Ops.MULACC and dtypes.float64 in self.native:
            # float64 holds the product exactly, and for float16 every sum that is near a tie.
            wide = tuple([s.cast(dtypes.float64) for s in src])
            return self.round(cast_to_narrow(UOp(op, dtypes.float64, wide), dtype), dtype)
        return self.round(round_to(self.apply(op, FLOAT32, src), dtype), dtype)

    def round(self, value: UOp, dtype: DType) -> UOp:
        """A rounded value; for float16, notes the float16 that it was converted from."""
        if dtype is dtypes.float16:
            self.stored[value, dtype] = value.src[0]
        return value

    def narrow_cast(self, u: UOp, value: UOp) -> UOp:
        """CAST to or from an emulated dtype."""
        dtype = u.dtype
        if dtype not in self.emulated:
            return value.cast(dtype)
        return self.round(cast_to_narrow(value, dtype), dtype)

    def narrow_where(self, dtype: DType, src: tuple[UOp, ...]) -> UOp:
        """WHERE of an emulated dtype: on stored bits if both are known.

        So a value that is padded or masked and then stored is never converted.
        """
        x, y = self.stored.get((src[1], dtype)), self.stored.get((src[2], dtype))
        if x is None or y is None or dtype not in self.emulated:
            return UOp(Ops.WHERE, src[1].dtype, src)
        return self.decode(UOp(Ops.WHERE, x.dtype, (src[0], x, y)), dtype)


def cast_to_word(x: UOp) -> UOp:
    """A CAST to uint32; of a uint64 packed from two words, the low word itself."""
    return low_word(x) if x.dtype is dtypes.uint64 else x.cast(dtypes.uint32)


def split_mulacc(sink: UOp) -> UOp:
    """Every MULACC as a product and a sum."""
    changes: dict[UOp, UOp] = {}
    for u in toposort(sink):
        src = tuple(map(changes.get, u.src, u.src))
        if u.op is Ops.MULACC:
            changes[u] = UOp(Ops.ADD, u.dtype, (UOp(Ops.MUL, u.dtype, src[:2]), src[2]))
        elif src != u.src:
            changes[u] = UOp(u.op, u.dtype, src, u.arg)
    return changes.get(sink, sink)


def split_words(order: dict[UOp, None]) -> UOp:
    """The last node of the order, with each load of a packed word replaced by loads of elements."""
    words = [u for u in order if u.op is Ops.LOAD and u.dtype is not u.src[0].dtype]
    return substitute(list(order)[-1], {u: split_word(u) for u in words})


Replacement = Callable[[Decomposition, UOp, tuple[UOp, ...]], UOp]
REPLACEMENTS: dict[Ops, Replacement] = {
    Ops.EXP2: lambda d, u, s: d.exp2(s[0], u.arg is not None),
    Ops.LOG2: lambda d, u, s: d.function(log2_poly, Ops.LOG2, s[0]),
    Ops.SIN: lambda d, u, s: d.function(sin_poly, Ops.SIN, s[0]),
    Ops.TANH: lambda d, u, s: d.function(d.by_ldexp(tanh_poly), Ops.TANH, s[0]),
    Ops.POW: lambda d, u, s: d.power(s[0], s[1]),
    Ops.THREEFRY: lambda d, u, s: d.random(s[0], s[1]),
    Ops.DOT: lambda d, u, s: d.dot(u.dtype, s[0], s[1]),
    # Where the target lacks MULACC, `split_mulacc` splits it after the walk, which adds more of it.
    Ops.MULACC: lambda d, u, s: UOp(Ops.MULACC, u.dtype, s),
}
