"""Writes each elementwise op in C-like languages: one row an op.

A rule receives the writer, the dtype and width of the result, the text of the operands and the
node; it returns an expression in which each operand stands once, in parentheses where needed.
"""

from __future__ import annotations

import string
from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.renderer.cell import Rule
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

UNSIGNED = {
    dtypes.int8: dtypes.uint8, dtypes.int16: dtypes.uint16, dtypes.int32: dtypes.uint32,
    dtypes.int64: dtypes.uint64,
}  # fmt: skip


# Characters of a product, and of a sum, of names and numbers.
PLAIN_PRODUCT = frozenset(string.ascii_letters + string.digits + "_ *")
PLAIN_SUM = PLAIN_PRODUCT | {"+"}


def bare(text: str) -> str:
    """An expression without the parentheses around the whole of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for i, x in enumerate(text):
        depth += (x == "(") - (x == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def require_arithmetic(w: Any, dtype: DType) -> None:
    """Raises InternalError for a dtype whose arithmetic had to be decomposed."""
    if w.is_bits(dtype):
        raise InternalError(f"renderer: arithmetic of {dtype} is not decomposed")


def sources(u: UOp | None) -> tuple[UOp, ...]:
    """The sources of the node that a rule writes; a rule that asks is never part of a fold."""
    if u is None:
        raise InternalError("renderer: an op that has to see its sources cannot fold")
    return u.src


def wraps(dtype: DType, u: UOp | None) -> bool:
    """Whether a result may leave its dtype; narrower bounds are proof that it does not."""
    if u is None:
        return True
    low, high = u.bounds
    return not (low > dtypes.min(dtype) and high < dtypes.max(dtype))


def arithmetic(symbol: str, bools: str = "") -> Rule:
    """`a + b`; unsigned where a signed result could overflow, cut to the type where C widens."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        if dtype.kind == "bool":
            return f"({x[0]} {bools} {x[1]})"
        require_arithmetic(w, dtype)
        if dtype.kind == "float" or (dtype.kind == "uint" and (n > 1 or dtype.bits >= 32)):
            return f"({x[0]} {symbol} {x[1]})"
        if not wraps(dtype, u):
            if symbol == "+":
                x = [drop_parentheses(x[0], PLAIN_SUM), drop_parentheses(x[1], PLAIN_PRODUCT)]
            return f"({x[0]} {symbol} {x[1]})"
        return unsigned_result(w, dtype, n, symbol, x)

    return rule


def drop_parentheses(text: str, plain: frozenset[str]) -> str:
    """An operand of a sum without the parentheses that it does not need there."""
    inner = bare(text)
    return inner if plain.issuperset(inner) else text


def unsigned_result(w: Any, dtype: DType, n: int, symbol: str, x: list[str]) -> str:
    """Integer arithmetic that wraps: done on the unsigned type, of at least 32 bits."""
    if n > 1:
        unsigned = UNSIGNED.get(dtype, dtype)
        a, b = (w.reinterpret(v, dtype, unsigned, n) for v in x)
        return str(w.reinterpret(f"({a} {symbol} {b})", unsigned, dtype, n))
    wide = w.type_of(dtypes.uint64 if dtype.bits == 64 else dtypes.uint32, 1)
    return f"({w.type_of(dtype, 1)})(({wide}){x[0]} {symbol} ({wide}){x[1]})"


def bitwise(symbol: str) -> Rule:
    """`a & b`, of ints and bools."""
    return lambda w, dtype, n, x, u: f"({x[0]} {symbol} {x[1]})"


def compare(symbol: str, masks: str) -> Rule:
    """`a < b`; `masks` is what the comparison of two SIMD bools comes to."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        source = sources(u)[0].dtype
        require_arithmetic(w, source)
        if n == 1:
            return f"({x[0]} {symbol} {x[1]})"
        if source is dtypes.bool:
            return f"({masks.format(*x)})"
        return str(w.to_mask(f"({x[0]} {symbol} {x[1]})", source, n))

    return rule


def write_neg(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """NEG; of a bool, not."""
    if dtype.kind == "bool":
        return f"(!{x[0]})" if n == 1 else f"(~{x[0]})"
    require_arithmetic(w, dtype)
    if dtype.kind == "float":
        return f"(-{x[0]})"
    if dtype.kind == "int" and not wraps(dtype, u):
        return f"(-{x[0]})"
    return unsigned_result(w, dtype, n, "-", [w.text(0, dtype, n), x[0]])


def write_max(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MAX: +0 above -0, NaN if either is."""
    if dtype.kind == "bool":
        return f"({x[0]} | {x[1]})"
    require_arithmetic(w, dtype)
    if dtype.kind == "float":
        return str(w.maximum(x, dtype, n))
    kind = w.type_of(dtype, 1)
    name = w.scalar_helper(
        f"max_{w.short(dtype, 1)}", dtype, f"{kind} a, {kind} b", "return a < b ? b : a;"
    )
    return str(w.each(name, dtype, n, x, [dtype, dtype]))


def write_where(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """WHERE."""
    return f"({x[0]} ? {x[1]} : {x[2]})" if n == 1 else str(w.select(*x, dtype, n))


def write_fdiv(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """FDIV."""
    require_arithmetic(w, dtype)
    return f"({x[0]} / {x[1]})"


def write_reciprocal(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """RECIPROCAL is a division."""
    require_arithmetic(w, dtype)
    return f"({w.text(1.0, dtype, n)} / {x[0]})"


def division(symbol: str) -> Rule:
    """IDIV and MOD: plain where the divisor is known to be neither 0 nor -1, else in a helper."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        low, high = sources(u)[1].bounds
        if low > 0 or high < -1:
            return f"({x[0]} {symbol} {x[1]})"
        kind = w.type_of(dtype, 1)
        zero, minus = ("0", "0 - a") if symbol == "/" else ("a", "0")
        if symbol == "/" and dtype.kind == "int":
            minus = unsigned_result(w, dtype, 1, "-", ["0", "a"])
        cases = f"b == 0 ? {zero} : "
        if dtype.kind == "int":
            cases += f"b == -1 ? {minus} : "
        name = w.scalar_helper(
            f"{'div' if symbol == '/' else 'mod'}_{w.short(dtype, 1)}",
            dtype,
            f"{kind} a, {kind} b",
            f"return {cases}a {symbol} b;",
        )
        return str(w.each(name, dtype, n, x, [dtype, dtype]))

    return rule


def shift(symbol: str) -> Rule:
    """SHL and SHR: a count that is not below the width gives 0, or the sign."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        count = sources(u)[1]
        low, high = count.bounds
        keeps_sign = symbol == ">>" and dtype.kind == "int"
        unsigned = UNSIGNED.get(dtype, dtype)
        kind = w.type_of(dtype, 1)
        cast = f"({w.type_of(unsigned, 1)})" if not keeps_sign else ""
        if n == 1 and 0 <= low and high < dtype.bits:
            return f"({kind})({cast}{x[0]} {symbol} {x[1]})"
        over = "a < 0 ? -1 : 0" if keeps_sign else "0"
        # A count that is negative is huge as an unsigned number.
        inside = f"b < {dtype.bits}" + ("" if count.dtype.kind == "uint" else " && b >= 0")
        name = w.scalar_helper(
            f"{'shl' if symbol == '<<' else 'shr'}_{w.short(dtype, 1)}_{w.short(count.dtype, 1)}",
            dtype,
            f"{kind} a, {w.type_of(count.dtype, 1)} b",
            f"return {inside} ? ({kind})({cast}a {symbol} b) : {f'({over})'};",
        )
        return str(w.each(name, dtype, n, x, [dtype, count.dtype]))

    return rule


def call(name: str) -> Rule:
    """A function of the math library; of an integer (TRUNC) the value itself."""

    def rule(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
        if dtype.kind != "float":
            return x[0]
        require_arithmetic(w, dtype)
        return str(w.math_call(name, x, dtype, n))

    return rule


def write_power(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """EXP2; of float32 that is not above 0 by a shorter function, where the language has one."""
    falls = u is not None and u.arg is not None and dtype is dtypes.float32
    return call(w.falling_power if falls else "exp2")(w, dtype, n, x, u)


def write_mulacc(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """MULACC."""
    require_arithmetic(w, dtype)
    if dtype.kind == "float":
        return str(w.multiply_add(x, dtype, n))
    product = CSTYLE_RULES[Ops.MUL](w, dtype, n, x[:2], None)
    return CSTYLE_RULES[Ops.ADD](w, dtype, n, [product, x[2]], None)


def write_bitcast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """BITCAST; a bool is a byte."""
    source, value = sources(u)[0].dtype, x[0]
    if source is dtypes.bool:
        value, source = CSTYLE_RULES[Ops.CAST](w, dtypes.uint8, n, x, u), dtypes.uint8
    if dtype is dtypes.bool:
        value = w.reinterpret(value, source, dtypes.uint8, n)
        return f"({value} != 0)" if n == 1 else str(w.to_mask(f"({value} != 0)", dtypes.uint8, n))
    return str(w.reinterpret(value, source, dtype, n))


def write_cast(w: Any, dtype: DType, n: int, x: list[str], u: UOp | None) -> str:
    """CAST: integers wrap, floats round to nearest, floats to integers saturate, NaN gives 0."""
    source, value = sources(u)[0].dtype, x[0]
    if source is dtype:
        return value
    if w.is_bits(source):
        return cast_from_bits(w, dtype, n, value, source, u)
    if w.is_bits(dtype):
        return str(w.to_bits(value, source, dtype, n))
    if dtype is dtypes.bool:
        zero = w.text(dtypes.as_const(0, source), source, n)
        return (
            f"({value} != {zero})" if n == 1 else str(w.to_mask(f"({value} != {zero})", source, n))
        )
    if source.kind == "float" and dtype.kind != "float":
        wide = dtype if dtype.bits >= 32 else dtypes.int32
        value, source = w.saturate(value, source, wide, n), wide
        if wide is dtype:
            return str(value)
    if source is dtypes.bool and n > 1:
        # A mask is -1 where a bool is 1.
        value, source = f"(-{value})", dtypes.int8
        if dtype is source:
            return value
    return str(w.convert(value, source, dtype, n))


def cast_from_bits(w: Any, dtype: DType, n: int, value: str, source: DType, u: UOp | None) -> str:
    """The cast of a half that the language has only in memory: by way of float."""
    value = w.from_bits(value, source, n)
    if dtype is dtypes.float32:
        return value
    single = UOp.const(dtypes.float32, 0.0)
    return write_cast(w, dtype, n, [value], UOp(Ops.CAST, dtype, (single,)))


CSTYLE_RULES: dict[Ops, Rule] = {
    Ops.CAST: write_cast,
    Ops.BITCAST: write_bitcast,
    Ops.NEG: write_neg,
    Ops.EXP2: write_power,
    Ops.LOG2: call("log2"),
    Ops.SIN: call("sin"),
    Ops.TANH: call("tanh"),
    Ops.SQRT: call("sqrt"),
    Ops.RECIPROCAL: write_reciprocal,
    Ops.TRUNC: call("trunc"),
    Ops.ADD: arithmetic("+", bools="|"),
    Ops.SUB: arithmetic("-"),
    Ops.MUL: arithmetic("*", bools="&"),
    Ops.FDIV: write_fdiv,
    Ops.IDIV: division("/"),
    Ops.MOD: division("%"),
    Ops.MAX: write_max,
    Ops.POW: call("pow"),
    Ops.CMPLT: compare("<", "~{0} & {1}"),
    Ops.CMPNE: compare("!=", "{0} ^ {1}"),
    Ops.CMPEQ: compare("==", "~({0} ^ {1})"),
    Ops.XOR: bitwise("^"),
    Ops.OR: bitwise("|"),
    Ops.AND: bitwise("&"),
    Ops.SHL: shift("<<"),
    Ops.SHR: shift(">>"),
    Ops.WHERE: write_where,
    Ops.MULACC: write_mulacc,
}
