"""Writes each elementwise op in WGSL, where it is not that of C: one row an op.

As in `cstyle_rules` a rule receives the writer, the dtype and width of the result, the text of the
operands and the node. Integers of 32 bits wrap by themselves, narrower ones are cut, and those of
64 bits are two words, for which there are functions in `functions.wgsl`.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.cell import Rule
from aster_ml.renderer.cstyle_rules import CSTYLE_RULES, require_arithmetic, sources, wraps
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# The least float32 that is a normal number; smaller ones have no literals.
LEAST_NORMAL = 2.0**-126


def is_wide(dtype: DType) -> bool:
    """Whether a number is two words."""
    return dtype.itemsize == 8


def arithmetic(symbol: str, word: str, bools: str) -> Rule:
    """`a + b`."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        if dtype is dtypes.bool:
            return f"({x[0]} {bools} {x[1]})"
        require_arithmetic(w, dtype)
        if is_wide(dtype):
            return str(w.call(word, *x))
        text = f"({x[0]} {symbol} {x[1]})"
        return str(w.wrap(text, dtype)) if dtype.kind != "float" and wraps(dtype, u) else text

    return rule


def bitwise(symbol: str, bools: str) -> Rule:
    """`a & b`, of numbers in one word or two, and of bools."""
    return lambda w, dtype, n, x, u: f"({x[0]} {bools if dtype is dtypes.bool else symbol} {x[1]})"


def write_less(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CMPLT."""
    source = sources(u)[0].dtype
    require_arithmetic(w, source)
    if source is dtypes.bool:
        return f"(!{x[0]} & {x[1]})"
    return str(w.call(f"less_{source.name}", *x)) if is_wide(source) else f"({x[0]} < {x[1]})"


def write_differs(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CMPNE: true of NaN and anything."""
    first, second = sources(u)[:2]
    require_arithmetic(w, first.dtype)
    if first.dtype.kind == "float":
        x = x if first.dtype is dtypes.float32 else [f"f32({v})" for v in x]
        return str(w.call("is_nan", x[0]) if first is second else w.call("differs", *x))
    return f"any({x[0]} != {x[1]})" if is_wide(first.dtype) else f"({x[0]} != {x[1]})"


def write_equal(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CMPEQ: false of NaN and anything."""
    first, second = sources(u)[:2]
    require_arithmetic(w, first.dtype)
    if first.dtype.kind == "float" and first is second:
        return f"(!{write_differs(w, dtype, n, x, u)})"
    return f"all({x[0]} == {x[1]})" if is_wide(first.dtype) else f"({x[0]} == {x[1]})"


def write_neg(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """NEG; of a bool, not."""
    if dtype is dtypes.bool:
        return f"(!{x[0]})"
    require_arithmetic(w, dtype)
    if is_wide(dtype):
        return str(w.call("sub_words", w.text(0, dtype, 1), x[0]))
    if dtype.kind == "float":
        return f"(-{x[0]})"
    text = f"(-{x[0]})" if dtype.kind == "int" else f"(0u - {x[0]})"
    return str(w.wrap(text, dtype)) if wraps(dtype, u) else text


def write_max(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MAX."""
    if dtype is dtypes.bool:
        return f"({x[0]} | {x[1]})"
    require_arithmetic(w, dtype)
    if dtype.kind == "float":
        return str(w.maximum(x, dtype, n))
    if is_wide(dtype):
        return str(w.call(f"max_{dtype.name}", *x))
    return f"max({x[0]}, {x[1]})"


def write_where(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """WHERE."""
    return str(w.select(*x, dtype, n))


def division(symbol: str) -> Rule:
    """IDIV and MOD: by zero 0, and the number itself."""
    word = "div" if symbol == "/" else "mod"

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        low, high = sources(u)[1].bounds
        if is_wide(dtype):
            return str(w.call(f"{word}_{dtype.name}", *x))
        if low > 0 or high < -1:
            return f"({x[0]} {symbol} {x[1]})"
        kind = w.type_of(dtype, 1)
        zero = f"{kind}(0)" if symbol == "/" else "a"
        cases = f"if (b == {kind}(0)) {{ return {zero}; }}"
        if dtype.kind == "int":
            minus = "-a" if symbol == "/" else "0"
            cases += f"\n  if (b == -1) {{ return {minus}; }}"
        name = f"{word}_{kind}"
        body = f"{cases}\n  return a {symbol} b;"
        w.helper(name, w.function(kind, name, f"a: {kind}, b: {kind}", body))
        return str(w.wrap(f"{name}({x[0]}, {x[1]})", dtype))

    return rule


def shift(symbol: str) -> Rule:
    """SHL and SHR: a count that is not below the width gives 0, or the sign."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        count = sources(u)[1]
        low, high = count.bounds
        known = 0 <= low and high < dtype.bits
        places = x[1] if count.dtype.kind == "uint" else f"u32({x[1]})"
        if count.op is Ops.CONST and known:
            places = f"{count.arg}u"
        elif is_wide(count.dtype):
            places = f"{x[1]}.x" if known else w.call("count_of_words", x[1])
        if is_wide(dtype):
            word = "shl_words" if symbol == "<<" else f"shr_{dtype.name}"
            return str(w.call(word, x[0], places))
        if known:
            text = f"({x[0]} {symbol} {places})"
            return str(w.wrap(text, dtype)) if symbol == "<<" else text
        kind, bits = w.type_of(dtype, 1), dtype.bits
        name = f"{'shl' if symbol == '<<' else 'shr'}_{w.short(dtype, 1)}"
        body = f"return select({kind}(0), a {symbol} (b & 31u), b < {bits}u);"
        if symbol == ">>" and dtype.kind == "int":
            body = "return a >> min(b, 31u);"
        w.helper(name, w.function(kind, name, f"a: {kind}, b: u32", body))
        text = f"{name}({x[0]}, {places})"
        return str(w.wrap(text, dtype)) if symbol == "<<" else text

    return rule


def write_bitcast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """BITCAST; a bool is a byte."""
    source, value = sources(u)[0].dtype, x[0]
    if source is dtypes.bool:
        value, source = f"u32({value})", dtypes.uint8
    if dtype is dtypes.bool:
        return f"({w.reinterpret(value, source, dtypes.uint8, n)} != 0u)"
    return str(w.reinterpret(value, source, dtype, n))


def write_cast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CAST; to bool all but zero is true, NaN too."""
    source = sources(u)[0].dtype
    if dtype is not dtypes.bool or source is dtypes.bool:
        return CSTYLE_RULES[Ops.CAST](w, dtype, n, x, u)
    value = x[0]
    if w.is_bits(source):
        value, source = w.from_bits(value, source, n), dtypes.float32
    if source.kind == "float":
        value = value if source is dtypes.float32 else f"f32({value})"
        return str(w.call("is_not_zero", value))
    zero = w.text(0, source, 1)
    return f"any({value} != {zero})" if is_wide(source) else f"({value} != {zero})"


PLAIN_ADD = arithmetic("+", "add_words", "|")
# A sum with such a number, or a larger one, is rounded to whole numbers or nearly so.
ROUNDING = 2.0**22


def write_add(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """ADD; what rounds by a large number is no sum that a compiler may put together with others."""
    text = PLAIN_ADD(w, dtype, n, x, u)
    if u is None or dtype is not dtypes.float32:
        return text
    numbers = [abs(s.arg) for s in u.src if s.op is Ops.CONST]
    return str(w.call("kept", text)) if numbers and max(numbers) >= ROUNDING else text


def write_mulacc(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MULACC."""
    if dtype.kind == "float":
        require_arithmetic(w, dtype)
        return str(w.multiply_add(x, dtype, n))
    product = WGSL_RULES[Ops.MUL](w, dtype, n, x[:2], None)
    return WGSL_RULES[Ops.ADD](w, dtype, n, [product, x[2]], None)


WGSL_RULES: dict[Ops, Rule] = {
    **CSTYLE_RULES,
    Ops.CAST: write_cast,
    Ops.BITCAST: write_bitcast,
    Ops.NEG: write_neg,
    Ops.ADD: write_add,
    Ops.SUB: arithmetic("-", "sub_words", "-"),
    Ops.MUL: arithmetic("*", "mul_words", "&"),
    Ops.IDIV: division("/"),
    Ops.MOD: division("%"),
    Ops.MAX: write_max,
    Ops.CMPLT: write_less,
    Ops.CMPNE: write_differs,
    Ops.CMPEQ: write_equal,
    Ops.XOR: bitwise("^", "!="),
    Ops.OR: bitwise("|", "|"),
    Ops.AND: bitwise("&", "&"),
    Ops.SHL: shift("<<"),
    Ops.SHR: shift(">>"),
    Ops.WHERE: write_where,
    Ops.MULACC: write_mulacc,
}
