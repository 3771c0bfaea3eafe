"""Writes each elementwise op in LLVM IR: one row an op, and the types and literals they are made
of.

A rule receives the writer, the dtype and width of the result, the text of the operands and the
source nodes; it writes lines and returns the name of the result. bfloat16 and fp8 are bits here:
their arithmetic and casts arrive decomposed.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import Any

from aster_ml.dtype import DType, bitcast_value, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.cell import Rule
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

BIT_TYPES = {dtypes.bfloat16: "i16", dtypes.fp8e4m3: "i8", dtypes.fp8e5m2: "i8"}
SCALAR_TYPES = {
    dtypes.bool: "i1", dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double",
    **{d: f"i{d.bits}" for d in dtypes.ints}, **BIT_TYPES,
}  # fmt: skip


@functools.cache
def llvm_type(dtype: DType, n: int) -> str:
    """The type of a value of width `n`."""
    scalar = SCALAR_TYPES.get(dtype)
    if scalar is None:
        raise InternalError(f"renderer: {dtype} does not exist at the linear stage")
    return scalar if n == 1 else f"<{n} x {scalar}>"


@functools.cache
def memory_type(dtype: DType, n: int) -> str:
    """The type of `n` elements in memory, where a bool is a byte."""
    return llvm_type(dtypes.uint8 if dtype is dtypes.bool else dtype, n)


def literal(value: Any, dtype: DType, n: int) -> str:
    """A number, or a tuple of `n` of them, as a constant of width `n`."""
    if value.__class__ is tuple:
        kind = llvm_type(dtype, 1)
        return "<" + ", ".join([f"{kind} {scalar_literal(v, dtype)}" for v in value]) + ">"
    # The two zeros are equal, and not the same.
    return same_literal(value, dtype, n, math.copysign(1.0, value) if value == 0 else 1.0)


# Most numbers stand in many instances.
@functools.lru_cache(1024)
def same_literal(value: Any, dtype: DType, n: int, sign: float) -> str:
    """A number in all elements of a constant; `sign` tells zeros apart."""
    text = scalar_literal(value, dtype)
    return text if n == 1 else f"splat ({llvm_type(dtype, 1)} {text})"


def scalar_literal(value: Any, dtype: DType) -> str:
    """A number as LLVM reads it; floats by their bits."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.kind != "float":
        return str(int(value))
    if dtype in BIT_TYPES:
        return str(float_bits(value, dtype))
    if dtype is dtypes.float16:
        return f"0xH{float_bits(value, dtype):04X}"
    # A float is written by the bits of the double of the same value.
    number = float(value)
    if dtype is dtypes.float32 and math.isfinite(number):
        number = struct.unpack("f", struct.pack("f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def float_bits(value: Any, dtype: DType) -> int:
    """The bits of a number as a 16-bit or 8-bit float."""
    return int(bitcast_value(value, dtype, dtypes.uint16 if dtype.itemsize == 2 else dtypes.uint8))


@functools.cache
def mangle(dtype: DType, n: int, memory: bool = False) -> str:
    """Writes a type as it stands in the name of an LLVM intrinsic."""
    kind = memory_type(dtype, 1) if memory else llvm_type(dtype, 1)
    short = {"half": "f16", "float": "f32", "double": "f64"}.get(kind, kind)
    return short if n == 1 else f"v{n}{short}"


def sources(u: UOp | None) -> tuple[UOp, ...]:
    """The sources of the node that a rule writes; a rule that asks is never part of a fold."""
    if u is None:
        raise InternalError("renderer: an op that has to see its sources cannot fold")
    return u.src


def binary(**names: str) -> Rule:
    """One instruction, by kind of dtype; `int` serves unsigned and bool where they have no own."""
    has_calls = any([name.startswith("llvm.") for name in names.values()])

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        name = names.get(dtype.kind) or names["int"]
        kind = llvm_type(dtype, n)
        if has_calls and name.startswith("llvm."):
            args = f"{kind} {x[0]}, {kind} {x[1]}"
            return str(w.call(kind, f"{name}.{mangle(dtype, n)}", args, f"{kind}, {kind}"))
        if dtype.kind == "int" and u is not None and name in WRAPPING:
            # Bounds narrower than the type's are proof that nothing wraps.
            if u.vmin > dtypes.min(dtype) and u.vmax < dtypes.max(dtype):
                name += " nsw"
        return str(w.emit(f"{name} {kind} {x[0]}, {x[1]}"))

    return rule


WRAPPING = frozenset({"add", "sub", "mul"})


def compare(float_: str, int_: str, uint: str) -> Rule:
    """A comparison, by the kind of its operands."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        source = sources(u)[0].dtype
        if source in BIT_TYPES:
            raise InternalError(f"renderer: a comparison of {source} is not decomposed")
        name = {"float": f"fcmp {float_}", "int": f"icmp {int_}"}.get(source.kind, f"icmp {uint}")
        found = str(w.emit(f"{name} {llvm_type(source, n)} {x[0]}, {x[1]}"))
        if n == 1 or source.kind == "float" or source.bits < 64:
            return found
        # A mask of lanes by their index: LLVM would compute it again beside each use, in every step
        # of a loop that it does not change in. What is frozen stays where it is.
        return str(w.emit(f"freeze {llvm_type(dtype, n)} {found}"))

    return rule


def unary_call(name: str) -> Rule:
    """An intrinsic of one float; integers stay as they are (TRUNC)."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        if dtype.kind != "float":
            return x[0]
        kind = llvm_type(dtype, n)
        return str(w.call(kind, f"{name}.{mangle(dtype, n)}", f"{kind} {x[0]}", kind))

    return rule


def library_call(name: str) -> Rule:
    """A function of the C library, element by element; targets that care decompose the op."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        if dtype not in (dtypes.float32, dtypes.float64):
            raise InternalError(f"renderer: {name} of {dtype} is not decomposed")
        function = name + ("f" if dtype is dtypes.float32 else "")
        kind = llvm_type(dtype, 1)
        parts = [x] if n == 1 else [[w.extract(v, dtype, n, i) for v in x] for i in range(n)]
        kinds = ", ".join([kind] * len(x))
        found = [
            w.call(kind, function, ", ".join(f"{kind} {v}" for v in part), kinds) for part in parts
        ]
        return str(found[0] if n == 1 else w.build(found, dtype))

    return rule


def select(w: Any, dtype: DType, n: int, condition: str, yes: str, no: str) -> str:
    """`yes` where the condition holds, else `no`."""
    kind = llvm_type(dtype, n)
    return str(w.emit(f"select {llvm_type(dtypes.bool, n)} {condition}, {kind} {yes}, {kind} {no}"))


def write_where(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """WHERE."""
    return select(w, dtype, n, *x)


def write_neg(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """NEG; of a bool, not."""
    kind = llvm_type(dtype, n)
    if dtype.kind == "float":
        return str(w.emit(f"fneg {kind} {x[0]}"))
    if dtype.kind == "bool":
        return str(w.emit(f"xor {kind} {x[0]}, {literal(True, dtype, n)}"))
    return str(w.emit(f"sub {kind} {literal(0, dtype, n)}, {x[0]}"))


def write_max(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MAX; of a float and its negative, the float without its sign."""
    if dtype.kind != "float":
        return MAX_OF_INTEGERS(w, dtype, n, x, u)
    kind, suffix = llvm_type(dtype, n), mangle(dtype, n)
    if u is not None:
        for i in (0, 1):
            if u.src[i].op is Ops.NEG and u.src[i].src[0] is u.src[1 - i]:
                return str(w.call(kind, f"llvm.fabs.{suffix}", f"{kind} {x[1 - i]}", kind))
    width = n * dtype.bits
    if width not in RANGE_WIDTHS or dtype.bits < 32 or not has_avx512(w.target):
        known = u is not None and any(s.op is Ops.CONST for s in u.src)
        if n > 1 and dtype.bits >= 32 and is_x86(w.target) and not known:
            return max_of_both_orders(w, dtype, n, x)
        args = f"{kind} {x[0]}, {kind} {x[1]}"
        return str(w.call(kind, f"llvm.maximum.{suffix}", args, f"{kind}, {kind}"))
    unordered = w.emit(f"fcmp uno {kind} {x[0]}, {x[1]}")
    # A constant, so that the register of an accumulator is free for its next value.
    nan = literal(math.nan, dtype, n)
    return select(w, dtype, n, unordered, nan, write_range(w, dtype, n, x))


def write_range(w: Any, dtype: DType, n: int, x: list[str]) -> str:
    """The larger by VRANGE, which knows +0 above -0, but takes a number before NaN."""
    kind, mask, width = llvm_type(dtype, n), f"i{max(n, 8)}", n * dtype.bits
    args = f"{kind} {x[0]}, {kind} {x[1]}, i32 {MAX_BY_VALUE}, {kind} poison, {mask} -1"
    kinds = f"{kind}, {kind}, i32, {kind}, {mask}"
    if width == 512:
        args, kinds = f"{args}, i32 {CURRENT_ROUNDING}", f"{kinds}, i32"
    form = "ps" if dtype.bits == 32 else "pd"
    return str(w.call(kind, f"llvm.x86.avx512.mask.range.{form}.{width}", args, kinds))


def write_ldexp(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """LDEXP by VSCALEF, of as many registers as the values fill."""
    width, most = n * dtype.bits, RANGE_WIDTHS[-1]
    kind = llvm_type(dtype, n)
    if width not in RANGE_WIDTHS:
        lanes = next(b for b in RANGE_WIDTHS if b >= min(width, most)) // dtype.bits
        parts = [[part_of(w, dtype, n, v, i, lanes) for v in x] for i in range(0, n, lanes)]
        return joined(w, dtype, n, [write_ldexp(w, dtype, lanes, p, u) for p in parts], lanes)
    mask = f"i{max(n, 8)}"
    args = f"{kind} {x[0]}, {kind} {x[1]}, {kind} zeroinitializer, {mask} -1"
    kinds = f"{kind}, {kind}, {kind}, {mask}"
    if width == most:
        args, kinds = f"{args}, i32 {CURRENT_ROUNDING}", f"{kinds}, i32"
    form = "ps" if dtype.bits == 32 else "pd"
    return str(w.call(kind, f"llvm.x86.avx512.mask.scalef.{form}.{width}", args, kinds))


def write_32nds(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """EXP2_32NDS by VPERMI2PS, whose table is two registers of 512 bits."""
    lanes = 16
    if n != lanes:
        parts = [part_of(w, dtype, n, x[0], i, lanes) for i in range(0, n, lanes)]
        found = [write_32nds(w, dtype, lanes, [p], u) for p in parts]
        return joined(w, dtype, n, found, lanes)
    kind, words = llvm_type(dtype, n), llvm_type(dtypes.uint32, n)
    powers = [f"float {scalar_literal(2.0 ** (i / 32), dtype)}" for i in range(32)]
    low, high = [f"{kind} <{', '.join(powers[i : i + lanes])}>" for i in (0, lanes)]
    at = f"{words} {w.emit(f'bitcast {kind} {x[0]} to {words}')}"
    name = "llvm.x86.avx512.vpermi2var.ps.512"
    return str(w.call(kind, name, f"{low}, {at}, {high}", f"{kind}, {words}, {kind}"))


def part_of(w: Any, dtype: DType, n: int, value: str, start: int, lanes: int) -> str:
    """So many lanes of a value from one on; what lies beyond its end is anything."""
    kind, wide = llvm_type(dtype, n), llvm_type(dtype, lanes)
    if n == 1:
        return str(w.emit(f"insertelement {wide} poison, {kind} {value}, i64 0"))
    places = [str(i) if i < n else "poison" for i in range(start, start + lanes)]
    mask = ", ".join([f"i32 {i}" for i in places])
    return str(w.emit(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{mask}>"))


def joined(w: Any, dtype: DType, n: int, parts: list[str], lanes: int) -> str:
    """The first lanes of some values, one behind the other."""
    while len(parts) > 1:
        two = llvm_type(dtype, lanes)
        mask = ", ".join([f"i32 {i}" for i in range(2 * lanes)])
        pairs = zip(parts[::2], [*parts[1::2], *["poison"] * (len(parts) % 2)], strict=True)
        parts = [
            w.emit(f"shufflevector {two} {a}, {two} {b}, <{2 * lanes} x i32> <{mask}>")
            for a, b in pairs
        ]
        lanes *= 2
    if n == lanes:
        return parts[0]
    if n == 1:
        return str(w.emit(f"extractelement {llvm_type(dtype, lanes)} {parts[0]}, i64 0"))
    return part_of(w, dtype, lanes, parts[0], 0, n)


def max_of_both_orders(w: Any, dtype: DType, n: int, x: list[str]) -> str:
    """MAX by what both orders of operands have in common; ones make NaN.

    LLVM's sequence has more instructions, each of which waits for the last.
    """
    bits = dtypes.uint32 if dtype is dtypes.float32 else dtypes.uint64
    kind, raw = llvm_type(dtype, n), llvm_type(bits, n)
    common = in_both_orders(w, dtype, n, x)
    unordered = w.emit(f"fcmp uno {kind} {x[0]}, {x[1]}")
    found = select(w, bits, n, unordered, literal(dtypes.max(bits), bits, n), common)
    return str(w.emit(f"bitcast {raw} {found} to {kind}"))


def in_both_orders(w: Any, dtype: DType, n: int, x: list[str]) -> str:
    """The bits of the larger by x86's own, which gives the second where neither is above the other.

    What both orders of operands have in common makes +0 of +0 and -0.
    """
    bits = dtypes.uint32 if dtype is dtypes.float32 else dtypes.uint64
    kind, raw = llvm_type(dtype, n), llvm_type(bits, n)
    sides = []
    for a, b in (x, x[::-1]):
        above = w.emit(f"fcmp ogt {kind} {a}, {b}")
        sides.append(w.emit(f"bitcast {kind} {select(w, dtype, n, above, a, b)} to {raw}"))
    return str(w.emit(f"and {raw} {sides[0]}, {sides[1]}"))


def is_x86(target: Target) -> bool:
    """Whether the processor is of that kind, by the first word of its name."""
    return target.arch.partition("-")[0] in ("x86_64", "i386", "i686", "AMD64")


MAX_OF_INTEGERS = binary(int="llvm.smax", uint="llvm.umax", bool="or")
# Of VRANGE: the greater one, with the sign that it has.
MAX_BY_VALUE, CURRENT_ROUNDING = 5, 4
RANGE_WIDTHS = (128, 256, 512)


def has_avx512(target: Target) -> bool:
    """Whether it is an x86 processor with SIMD registers of 512 bits: with VRANGE and scatters."""
    return target.vector_bits == 512 and target.arch.startswith("x86_64")


def write_reciprocal(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """RECIPROCAL is a division."""
    return str(w.emit(f"fdiv {llvm_type(dtype, n)} {literal(1.0, dtype, n)}, {x[0]}"))


def write_quotient(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """FDIV: the dividend of lanes stands behind a fence, which is no instruction.

    LLVM takes 0 / 0 for 0 where it knows both lanes to be zeros (as in `KnownZero` of its
    SimplifyDemandedVectorElts), and then drops a select that gives such lanes another value.
    """
    kind = llvm_type(dtype, n)
    dividend = x[0]
    if n > 1:
        fence = f"llvm.arithmetic.fence.{mangle(dtype, n)}"
        dividend = w.call(kind, fence, f"{kind} {dividend}", kind)
    return str(w.emit(f"fdiv {kind} {dividend}, {x[1]}"))


def write_mulacc(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MULACC: fused where the processor has that."""
    kind = llvm_type(dtype, n)
    if dtype.kind != "float":
        product = w.emit(f"mul {kind} {x[0]}, {x[1]}")
        return str(w.emit(f"add {kind} {product}, {x[2]}"))
    args = f"{kind} {x[0]}, {kind} {x[1]}, {kind} {x[2]}"
    return str(w.call(kind, f"llvm.fmuladd.{mangle(dtype, n)}", args, f"{kind}, {kind}, {kind}"))


# The widths for which x86 has instructions that a DOT is, and those that multiply pairs of int16.
DOT_WIDTHS = {4: "128", 8: "256", 16: "512"}
PAIRS_TO_WORDS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}


def add_dot(w: Any, dtype: DType, n: int, x: str, y: str, total: str) -> str:
    """A DOT added to `total`, by the instruction of x86; int8 in x become unsigned in passing."""
    if n not in DOT_WIDTHS:
        raise InternalError(f"renderer: there is no DOT of {n} words at once")
    words, kind = llvm_type(dtypes.uint32, n), llvm_type(dtype, n)
    if dtype.kind != "float" and not w.target.dots_at_once:
        return add_pairs(w, dtype, n, x, y, total)
    if dtype.kind == "float":
        parts, name = f"<{2 * n} x bfloat>", "avx512bf16.dpbf16ps"
    else:
        parts, name = f"<{4 * n} x i8>", "avx512.vpdpbusd"
        x = w.emit(f"xor {words} {x}, {literal(0x80808080, dtypes.uint32, n)}")
    x, y = (w.emit(f"bitcast {words} {v} to {parts}") for v in (x, y))
    args = f"{kind} {total}, {parts} {x}, {parts} {y}"
    kinds = f"{kind}, {parts}, {parts}"
    return str(w.call(kind, f"llvm.x86.{name}.{DOT_WIDTHS[n]}", args, kinds))


def add_pairs(w: Any, dtype: DType, n: int, x: str, y: str, total: str) -> str:
    """A DOT of int8 added to `total` as pairs: of every second element, twice, as int16.

    What is done to x and y alone is done once for all results that they serve: LLVM sees to it.
    """
    words, shorts = llvm_type(dtypes.uint32, n), llvm_type(dtypes.uint16, 2 * n)
    kind, byte = llvm_type(dtype, n), literal(8, dtypes.uint16, 2 * n)
    x = w.emit(f"xor {words} {x}, {literal(0x80808080, dtypes.uint32, n)}")
    x, y = (w.emit(f"bitcast {words} {v} to {shorts}") for v in (x, y))
    even = w.emit(f"and {shorts} {x}, {literal(0xFF, dtypes.uint16, 2 * n)}")
    signed = w.emit(f"shl {shorts} {y}, {byte}")
    pairs = (
        (even, w.emit(f"ashr {shorts} {signed}, {byte}")),
        (w.emit(f"lshr {shorts} {x}, {byte}"), w.emit(f"ashr {shorts} {y}, {byte}")),
    )
    name = PAIRS_TO_WORDS[n]
    for a, b in pairs:
        products = w.call(kind, name, f"{shorts} {a}, {shorts} {b}", f"{shorts}, {shorts}")
        total = w.emit(f"add {kind} {total}, {products}")
    return total


def write_dot(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """DOT on its own."""
    return add_dot(w, dtype, n, x[0], x[1], literal(dtypes.as_const(0, dtype), dtype, n))


def divides_safely(u: UOp) -> bool:
    """Whether a divisor is known to be neither 0 nor -1."""
    low, high = u.bounds
    return bool(low > 0 or high < -1)


def write_division(signed: str, unsigned: str) -> Rule:
    """IDIV and MOD: what would trap is replaced, and put right afterwards."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        src = sources(u)
        kind, zero = llvm_type(dtype, n), literal(0, dtype, n)
        positive = src[0].bounds[0] >= 0 and src[1].bounds[0] >= 0
        name = unsigned if positive or dtype.kind == "uint" else signed
        if divides_safely(src[1]):
            return str(w.emit(f"{name} {kind} {x[0]}, {x[1]}"))
        trap = is_zero = w.emit(f"icmp eq {kind} {x[1]}, {zero}")
        negative = ""
        if name == signed:
            negative = w.emit(f"icmp eq {kind} {x[1]}, {literal(-1, dtype, n)}")
            trap = w.emit(f"or {llvm_type(dtypes.bool, n)} {is_zero}, {negative}")
        divisor = select(w, dtype, n, trap, literal(1, dtype, n), x[1])
        result = w.emit(f"{name} {kind} {x[0]}, {divisor}")
        if name.endswith("rem"):
            return select(w, dtype, n, is_zero, x[0], result)
        if negative:
            opposite = w.emit(f"sub {kind} {zero}, {x[0]}")
            result = select(w, dtype, n, negative, opposite, result)
        return select(w, dtype, n, is_zero, zero, result)

    return rule


def write_shift(left: bool) -> Rule:
    """SHL and SHR: a count that is not below the width gives 0, or the sign."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        count = sources(u)[1]
        signed = dtype.kind == "int"
        name = "shl" if left else ("ashr" if signed else "lshr")
        kind, count_kind = llvm_type(dtype, n), llvm_type(count.dtype, n)
        low, high = count.bounds
        inside = 0 <= low and high < dtype.bits
        over = (
            ""
            if inside
            else w.emit(f"icmp uge {count_kind} {x[1]}, {literal(dtype.bits, count.dtype, n)}")
        )
        amount = x[1]
        if count.dtype.bits != dtype.bits:
            step = "trunc" if count.dtype.bits > dtype.bits else "zext"
            amount = w.emit(f"{step} {count_kind} {amount} to {kind}")
        if inside:
            return str(w.emit(f"{name} {kind} {x[0]}, {amount}"))
        keeps_sign = signed and not left
        limit = literal(dtype.bits - 1 if keeps_sign else 0, dtype, n)
        result = w.emit(f"{name} {kind} {x[0]}, {select(w, dtype, n, over, limit, amount)}")
        if keeps_sign:
            return str(result)
        return select(w, dtype, n, over, literal(0, dtype, n), result)

    return rule


def write_bitcast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """BITCAST; a bool is a byte."""
    source = sources(u)[0].dtype
    value = w.to_memory(x[0], source, n)
    before, after = memory_type(source, n), memory_type(dtype, n)
    if before != after:
        value = w.emit(f"bitcast {before} {value} to {after}")
    return str(w.from_memory(value, dtype, n))


def write_cast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CAST: integers wrap, floats round to nearest, floats to integers saturate, NaN gives 0."""
    source, value = sources(u)[0].dtype, x[0]
    if source is dtype:
        return value
    if source in BIT_TYPES or dtype in BIT_TYPES:
        raise InternalError(f"renderer: the cast of {source} to {dtype} is not decomposed")
    before, after = llvm_type(source, n), llvm_type(dtype, n)
    if dtype.kind == "bool":
        test = "fcmp une" if source.kind == "float" else "icmp ne"
        zero = literal(0.0 if source.kind == "float" else 0, source, n)
        return str(w.emit(f"{test} {before} {value}, {zero}"))
    if source.kind == "float" and dtype.kind == "float":
        if source is dtypes.float64 and dtype is dtypes.float16:
            value, before = round_to_odd(w, value, n), llvm_type(dtypes.float32, n)
            source = dtypes.float32
        step = "fpext" if dtype.bits > source.bits else "fptrunc"
        return str(w.emit(f"{step} {before} {value} to {after}"))
    if source.kind == "float":
        return cast_to_int(w, dtype, n, value, source)
    if dtype.kind == "float":
        # By way of float a half is rounded twice, but what would differ is infinite in half.
        step = "sitofp" if source.kind == "int" else "uitofp"
        middle = llvm_type(dtypes.float32, n) if dtype is dtypes.float16 else after
        value = w.emit(f"{step} {before} {value} to {middle}")
        return str(value if middle == after else w.emit(f"fptrunc {middle} {value} to {after}"))
    if dtype.bits == source.bits and source.kind != "bool":
        return value
    step = "trunc" if dtype.bits < source.bits else ("sext" if source.kind == "int" else "zext")
    return str(w.emit(f"{step} {before} {value} to {after}"))


def cast_to_int(w: Any, dtype: DType, n: int, value: str, source: DType) -> str:
    """A float as an integer; types below 32 bits are what int32 wraps to."""
    if source is dtypes.float16:
        value = w.emit(f"fpext {llvm_type(source, n)} {value} to {llvm_type(dtypes.float32, n)}")
        source = dtypes.float32
    wide = dtype if dtype.bits >= 32 else dtypes.int32
    name = "llvm.fptoui.sat" if wide.kind == "uint" else "llvm.fptosi.sat"
    before, after = llvm_type(source, n), llvm_type(wide, n)
    name += f".{mangle(wide, n)}.{mangle(source, n)}"
    value = w.call(after, name, f"{before} {value}", before)
    if wide is dtype:
        return value
    return str(w.emit(f"trunc {after} {value} to {llvm_type(dtype, n)}"))


def round_to_odd(w: Any, value: str, n: int) -> str:
    """A double as a float whose last bit remembers what was cut off.

    Rounding that to half gives what rounding the double at once gives.
    Source: Boldo and Melquiond, "When double rounding is odd" (2005).
    """
    single, double = llvm_type(dtypes.float32, n), llvm_type(dtypes.float64, n)
    bits, d = llvm_type(dtypes.uint32, n), dtypes.uint32
    near = w.emit(f"fptrunc {double} {value} to {single}")
    back = w.emit(f"fpext {single} {near} to {double}")
    inexact = w.emit(f"fcmp one {double} {back}, {value}")
    magnitude = f"llvm.fabs.{mangle(dtypes.float64, n)}"
    sizes = [w.call(double, magnitude, f"{double} {v}", double) for v in (back, value)]
    above = w.emit(f"fcmp ogt {double} {sizes[0]}, {sizes[1]}")
    raw = w.emit(f"bitcast {single} {near} to {bits}")
    less = w.emit(f"sub {bits} {raw}, {literal(1, d, n)}")
    odd = w.emit(f"or {bits} {select(w, d, n, above, less, raw)}, {literal(1, d, n)}")
    return str(w.emit(f"bitcast {bits} {select(w, d, n, inexact, odd, raw)} to {single}"))


LLVM_RULES: dict[Ops, Rule] = {
    Ops.CAST: write_cast,
    Ops.BITCAST: write_bitcast,
    Ops.NEG: write_neg,
    Ops.EXP2: library_call("exp2"),
    Ops.LOG2: library_call("log2"),
    Ops.SIN: library_call("sin"),
    Ops.TANH: library_call("tanh"),
    Ops.SQRT: unary_call("llvm.sqrt"),
    Ops.RECIPROCAL: write_reciprocal,
    Ops.TRUNC: unary_call("llvm.trunc"),
    Ops.ADD: binary(float="fadd", int="add", bool="or"),
    Ops.SUB: binary(float="fsub", int="sub"),
    Ops.MUL: binary(float="fmul", int="mul", bool="and"),
    Ops.FDIV: write_quotient,
    Ops.IDIV: write_division("sdiv", "udiv"),
    Ops.MOD: write_division("srem", "urem"),
    Ops.MAX: write_max,
    Ops.POW: library_call("pow"),
    Ops.CMPLT: compare("olt", "slt", "ult"),
    Ops.CMPNE: compare("une", "ne", "ne"),
    Ops.CMPEQ: compare("oeq", "eq", "eq"),
    Ops.XOR: binary(int="xor"),
    Ops.OR: binary(int="or"),
    Ops.AND: binary(int="and"),
    Ops.SHL: write_shift(left=True),
    Ops.SHR: write_shift(left=False),
    Ops.DOT: write_dot,
    Ops.LDEXP: write_ldexp,
    Ops.EXP2_32NDS: write_32nds,
    Ops.WHERE: write_where,
    Ops.MULACC: write_mulacc,
}
