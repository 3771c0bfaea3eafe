"""Lists algebraic identities that hold exactly for every value of a dtype.

Receives scalar nodes of any dtype with simplified sources, and returns their replacements. Float
rules keep NaN, infinities and the sign of zero. Rules of sums, divisions and comparisons of index
expressions are in `uop/rules/sums`, `uop/rules/divmod` and `uop/rules/conditions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aster_ml.dtype import can_lossless_cast, dtypes
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.infer import bounds_of_alu
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import BINARY, COMMUTATIVE, TERNARY, UNARY, Ops
from aster_ml.uop.pattern import Rule, UPat
from aster_ml.uop.rules.conditions import FALSE, TRUE, less_than, negate
from aster_ml.uop.rules.linear_form import form_of, least_value, number, order_of

INDEX, BOOL = dtypes.index, dtypes.bool
INTS, FLOATS = dtypes.ints, dtypes.floats
WHOLE = (*INTS, BOOL)
INT_KINDS = frozenset({"int", "uint", "index", "bool"})


# constants of any dtype


def fold(u: UOp) -> UOp | None:
    """rewrite: an elementwise op on constants -> its value."""
    if u.op is Ops.BITCAST and u.dtype.itemsize != u.src[0].dtype.itemsize:
        return None
    if u.op in (Ops.IDIV, Ops.MOD) and u.src[1].arg == 0:
        return None
    values = tuple([s.arg for s in u.src])
    return UOp.const(u.dtype, evaluate(u.op, u.dtype, values, [s.dtype for s in u.src]))


def constant_right(u: UOp, c: UOp, x: UOp) -> UOp | None:
    """rewrite: c + x -> x + c, for commutative ops."""
    return None if x.op is Ops.CONST else UOp(u.op, u.dtype, (x, c))


def fold_nested(u: UOp, x: UOp, c: UOp, d: UOp) -> UOp:
    """rewrite: (x + c) + d -> x + (c + d), for ops that are associative on whole numbers."""
    value = evaluate(u.op, u.dtype, (c.arg, d.arg), (u.dtype, u.dtype))
    return UOp(u.op, u.dtype, (x, UOp.const(u.dtype, value)))


def same_op_inside(u: UOp) -> bool:
    """Guard: the first source is of the same op."""
    return u.src[0].op is u.op


def like(u: UOp, value: Any) -> UOp:
    """A constant of u's dtype."""
    return UOp.const(u.dtype, value)


def is_zero(c: UOp, negative: bool) -> bool:
    """Whether a float constant is the zero of this sign."""
    return bool(c.arg == 0 and (math.copysign(1.0, c.arg) < 0) is negative)


def all_ones(u: UOp) -> int:
    """The value with every bit set."""
    return 1 if u.dtype is BOOL else -1 if u.dtype.kind in ("int", "index") else int(u.dtype.max)


def decided_by_bounds(u: UOp) -> UOp | None:
    """rewrite: a comparison of whole numbers -> its value. when: the bounds decide it."""
    low, high = u.bounds
    return (TRUE if low else FALSE) if low == high else None


def small_numerator(u: UOp, x: UOp, y: UOp) -> UOp | None:
    """rewrite: x // y -> 0; x % y -> x. when: 0 <= x < y."""
    if x.bounds[0] >= 0 and x.bounds[1] < y.bounds[0]:
        return like(u, 0) if u.op is Ops.IDIV else x
    return None


def exact_reciprocal(x: UOp, c: UOp) -> UOp | None:
    """rewrite: x / c -> x * (1/c). when: c is a power of two whose reciprocal the dtype holds."""
    value = c.arg
    if value == 0 or not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5:
        return None
    dts = (c.dtype, c.dtype)
    inverse = evaluate(Ops.FDIV, c.dtype, (1.0, value), dts)
    if not math.isfinite(inverse) or inverse == 0:
        return None
    return UOp(Ops.MUL, x.dtype, (x, UOp.const(x.dtype, inverse)))


# casts


def cast_twice(u: UOp, x: UOp) -> UOp | None:
    """rewrite: cast(cast(x, a), b) -> cast(x, b). when: a holds every value that x can have."""
    middle = u.src[0].dtype
    lossless = can_lossless_cast(x.dtype, middle)
    if not lossless and x.dtype.kind in INT_KINDS and middle.kind in ("int", "uint", "index"):
        low, high = x.bounds
        lossless = bool(dtypes.min(middle) <= low and high <= dtypes.max(middle))
    if not lossless:
        return None
    # float -> int saturates and int -> int wraps, so the results agree only without overflow.
    if middle.kind == "float" and x.dtype.kind != "float" and u.dtype.kind in ("int", "uint"):
        if not can_lossless_cast(x.dtype, u.dtype):
            return None
    return x if u.dtype is x.dtype else UOp(Ops.CAST, u.dtype, (x,))


def cast_inward(u: UOp, x: UOp) -> UOp | None:
    """rewrite: cast(x + y, index) -> cast(x, index) + cast(y, index). when: x + y cannot wrap.

    why: positions in an integer tensor become index arithmetic, which has more rules.
    """
    if x.dtype.kind not in ("int", "uint"):
        return None
    if x.op in (Ops.IDIV, Ops.MOD) and not (x.src[0].bounds[0] >= 0 and x.src[1].bounds[0] > 0):
        return None
    if x.op is not Ops.WHERE:
        # Bounds of the node, which wrap as it does, imply that bounds of the sources are known.
        found = bounds_of_alu(x) if x.bounds else None
        if found is None or found[0] < dtypes.min(x.dtype) or found[1] > dtypes.max(x.dtype):
            return None
    values = x.src[1:] if x.op is Ops.WHERE else x.src
    if not any([v.op in ARITHMETIC for v in values]):
        return None
    src = tuple([s if s.dtype is BOOL else UOp(Ops.CAST, INDEX, (s,)) for s in x.src])
    return UOp(x.op, INDEX, src)


ARITHMETIC = frozenset(
    {
        Ops.CAST,
        Ops.WHERE,
        Ops.ADD,
        Ops.SUB,
        Ops.MUL,
        Ops.IDIV,
        Ops.MOD,
        Ops.MAX,
    }
)


def compare_as_index(u: UOp, x: UOp, y: UOp) -> UOp | None:
    """rewrite: cast(x, int) < c -> x < c. when: x, an index, fits the int type."""
    low, high = x.bounds
    d = u.src[0].dtype
    if not (dtypes.min(d) <= low and high <= dtypes.max(d)):
        return None
    return UOp(u.op, BOOL, (x, number(y.arg)))


# conditions and choices


def where_to_bool(c: UOp, x: UOp, y: UOp) -> UOp | None:
    """rewrite: a choice between bools, one of them constant -> and, or, not."""
    if x is TRUE:
        return c if y is FALSE else UOp(Ops.OR, BOOL, (c, y))
    if x is FALSE:
        return negate(c) if y is TRUE else UOp(Ops.AND, BOOL, (negate(c), y))
    if y is FALSE:
        return UOp(Ops.AND, BOOL, (c, x))
    return UOp(Ops.OR, BOOL, (negate(c), x)) if y is TRUE else None


def max_by_difference(u: UOp, x: UOp, y: UOp) -> UOp | None:
    """rewrite: max(x, y) -> x or y. when: the sign of x - y is known; else in canonical order."""
    gap = form_of(x).plus(form_of(y), -1)
    if least_value(gap) >= 0:
        return x
    if least_value(gap.scaled(-1)) >= 0:
        return y
    if y.op is not Ops.CONST and order_of(x) > order_of(y):
        return UOp(Ops.MAX, INDEX, (y, x))
    return None


def fixed_by_bounds(u: UOp) -> UOp | None:
    """rewrite: x -> n. when: n is both the least and the greatest value of x."""
    low, high = u.bounds
    return number(low) if low == high else None


def ordered_choice(c: UOp, x: UOp, y: UOp) -> UOp | None:
    """rewrite: the smaller of x and y -> x, or the larger -> y. when: x <= y; and the reverse."""
    gap = form_of(x).plus(form_of(y), -1)
    low, high = gap.bounds()
    if low < 0 < high:
        return None
    if less_than(x, y) is c:
        return x if high <= 0 else y
    if less_than(y, x) is c:
        return y if high <= 0 else x
    return None


def shift_to_arithmetic(u: UOp, x: UOp, c: UOp) -> UOp | None:
    """rewrite: x << c -> x * 2**c; x >> c -> x // 2**c (index; exact, rounded down)."""
    if not 0 <= c.arg < 64:
        return None
    op = Ops.MUL if u.op is Ops.SHL else Ops.IDIV
    return UOp(op, INDEX, (x, number(1 << c.arg)))


def mask_to_mod(x: UOp, c: UOp) -> UOp | None:
    """rewrite: x & (2**k - 1) -> x % 2**k."""
    return (
        UOp(Ops.MOD, INDEX, (x, number(c.arg + 1)))
        if c.arg > 0 and not (c.arg & (c.arg + 1))
        else None
    )


X, Y, Z = UPat.var("x"), UPat.var("y"), UPat.var("z")
C, D = UPat.cvar("c"), UPat.cvar("d")
COND = UPat.var("b", BOOL)


def typed(name: str, dtypes_: Iterable[Any]) -> UPat:
    """A variable of these dtypes."""
    return UPat.var(name, tuple(dtypes_))


IX, WX, FX = UPat.var("x", INTS), UPat.var("x", WHOLE), UPat.var("x", FLOATS)

CONSTANT_RULES: list[Rule] = [
    Rule("fold-unary", UPat(UNARY, None, (C,)), fold),
    Rule("fold-binary", UPat(BINARY, None, (C, D)), fold),
    Rule("fold-ternary", UPat(TERNARY, None, (UPat.cvar(), C, D)), fold),
    Rule("constant-right", UPat(COMMUTATIVE, None, (C, X)), constant_right),
    Rule(
        "fold-nested",
        UPat(
            (Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR, Ops.MAX),
            WHOLE,
            (UPat((Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR, Ops.MAX), None, (X, C)), D),
        ),
        fold_nested,
        same_op_inside,
    ),
]

WHOLE_NUMBER_RULES: list[Rule] = [
    Rule(
        "compare-by-bounds",
        UPat((Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ), BOOL, (WX, Y)),
        decided_by_bounds,
    ),
    Rule("add-zero", IX + 0, lambda x: x),
    Rule("subtract-zero", IX - 0, lambda x: x),
    Rule("subtract-itself", IX - X, lambda u: like(u, 0)),
    Rule("times-one", IX * 1, lambda x: x),
    Rule("times-zero", IX * 0, lambda u: like(u, 0)),
    Rule("divide-by-one", IX // 1, lambda x: x),
    Rule("remainder-of-one", IX % 1, lambda u: like(u, 0)),
    Rule("small-numerator", UPat((Ops.IDIV, Ops.MOD), INTS, (X, Y)), small_numerator),
    Rule("or-zero", IX | 0, lambda x: x),
    Rule("xor-zero", IX ^ 0, lambda x: x),
    Rule("and-zero", IX & 0, lambda u: like(u, 0)),
    Rule("and-all-ones", IX & C, lambda x: x, lambda u, c: c.arg == all_ones(u)),
    Rule("or-all-ones", IX | C, lambda c: c, lambda u, c: c.arg == all_ones(u)),
    Rule("shift-by-zero", UPat((Ops.SHL, Ops.SHR), INTS, (X, UPat.const(0))), lambda x: x),
    Rule("xor-itself", IX ^ X, lambda u: like(u, 0)),
    Rule("and-itself", IX & X, lambda x: x),
    Rule("or-itself", IX | X, lambda x: x),
    Rule("not-less-than-itself", X < X, lambda: FALSE),
    Rule("equals-itself", WX.eq(X), lambda: TRUE),
    Rule("differs-from-itself", WX.ne(X), lambda: FALSE),
    Rule(
        "compare-as-index",
        UPat(
            (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE),
            BOOL,
            (UPat(Ops.CAST, INTS, (UPat.var("x", INDEX),)), UPat.cvar("y")),
        ),
        compare_as_index,
    ),
    Rule("shift-to-arithmetic", UPat((Ops.SHL, Ops.SHR), INDEX, (X, C)), shift_to_arithmetic),
    Rule("mask-to-remainder", UPat(Ops.AND, INDEX, (X, C)), mask_to_mod),
    Rule("max-by-difference", UPat(Ops.MAX, INDEX, (X, Y)), max_by_difference),
    Rule(
        "ordered-choice", UPat(Ops.WHERE, INDEX, (UPat(Ops.CMPLT, name="c"), X, Y)), ordered_choice
    ),
    Rule("fixed-by-bounds", UPat((Ops.WHERE, Ops.CAST), INDEX), fixed_by_bounds),
]

FLOAT_RULES: list[Rule] = [
    Rule("float-times-one", FX * 1, lambda x: x),
    Rule("float-divide-by-one", FX / 1, lambda x: x),
    Rule("float-add-minus-zero", FX + C, lambda x: x, lambda c: is_zero(c, True)),
    Rule("float-subtract-zero", FX - C, lambda x: x, lambda c: is_zero(c, False)),
    Rule("float-max-minus-infinity", FX.max(-math.inf), lambda x: x),
    Rule("float-exact-reciprocal", FX / C, exact_reciprocal),
]

ANY_DTYPE_RULES: list[Rule] = [
    Rule("max-itself", X.max(X), lambda x: x),
    Rule("negate-twice", UPat(Ops.NEG, None, (UPat(Ops.NEG, None, (X,)),)), lambda x: x),
    Rule("cast-to-itself", X.cast(), lambda x: x, lambda u, x: u.dtype is x.dtype),
    Rule("cast-twice", X.cast().cast(), cast_twice),
    Rule(
        "bitcast-to-itself",
        UPat(Ops.BITCAST, None, (X,)),
        lambda x: x,
        lambda u, x: u.dtype is x.dtype,
    ),
    Rule(
        "bitcast-twice",
        UPat(Ops.BITCAST, None, (UPat(Ops.BITCAST, None, (X,)),)),
        lambda u, x: UOp(Ops.BITCAST, u.dtype, (x,)),
        # A float cast in between may change the payload of NaN.
        lambda u: u.src[0].dtype.kind != "float",
    ),
    Rule(
        "cast-inward",
        UPat(
            Ops.CAST,
            INDEX,
            (
                UPat(
                    (Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.WHERE),
                    None,
                    None,
                    name="x",
                ),
            ),
        ),
        cast_inward,
    ),
    Rule("where-constant", UPat.cvar("c").where(X, Y), lambda c, x, y: x if c.arg else y),
    Rule("where-same", COND.where(X, X), lambda x: x),
    Rule(
        "where-not",
        COND.logical_not().where(X, Y),
        lambda b, x, y: UOp(Ops.WHERE, x.dtype, (b, y, x)),
    ),
    Rule(
        "where-different",
        UPat(Ops.CMPNE, BOOL, (Z, UPat.var("w"))).where(X, Y),
        lambda x, y, z, w: UOp(Ops.WHERE, x.dtype, (UOp(Ops.CMPEQ, BOOL, (z, w)), y, x)),
        lambda z: z.dtype is not BOOL,
    ),
    Rule(
        "where-inner-true",
        COND.where(COND.where(X, Y), Z),
        lambda b, x, z: UOp(Ops.WHERE, x.dtype, (b, x, z)),
    ),
    Rule(
        "where-inner-false",
        COND.where(X, COND.where(Y, Z)),
        lambda b, x, z: UOp(Ops.WHERE, x.dtype, (b, x, z)),
    ),
    Rule(
        "where-and",
        COND.where(UPat.var("e", BOOL).where(X, Y), Y),
        lambda b, e, x, y: UOp(Ops.WHERE, x.dtype, (UOp(Ops.AND, BOOL, (b, e)), x, y)),
    ),
    Rule(
        "where-or",
        COND.where(X, UPat.var("e", BOOL).where(X, Y)),
        lambda b, e, x, y: UOp(Ops.WHERE, x.dtype, (UOp(Ops.OR, BOOL, (b, e)), x, y)),
    ),
]

BOOL_RULES: list[Rule] = [
    Rule("where-to-bool", UPat(Ops.WHERE, BOOL, (UPat.var("c"), X, Y)), where_to_bool),
    Rule("not-not", COND.logical_not().logical_not(), lambda b: b),
    Rule("differs-from-false", COND.ne(False), lambda b: b),
    Rule("equals-true", COND.eq(True), lambda b: b),
    Rule("equals-false", COND.eq(False), lambda b: negate(b)),
    Rule(
        "bool-add", UPat((Ops.ADD, Ops.MAX), BOOL, (X, Y)), lambda x, y: UOp(Ops.OR, BOOL, (x, y))
    ),
    Rule("bool-multiply", UPat(Ops.MUL, BOOL, (X, Y)), lambda x, y: UOp(Ops.AND, BOOL, (x, y))),
    Rule(
        "bool-less-than",
        UPat(Ops.CMPLT, BOOL, (UPat.var("x", BOOL), Y)),
        lambda x, y: UOp(Ops.AND, BOOL, (negate(x), y)),
    ),
    Rule("bool-xor", UPat(Ops.XOR, BOOL, (X, Y)), lambda x, y: UOp(Ops.CMPNE, BOOL, (x, y))),
    Rule(
        "cast-to-bool-compare",
        X.cast((BOOL,)),
        lambda x: UOp(Ops.CMPNE, BOOL, (x, UOp.const(x.dtype, 0))),
        lambda x: x.dtype is INDEX,
    ),
]

GATE_RULES: list[Rule] = [
    Rule(
        "load-gate-true",
        UPat(Ops.LOAD, None, (X, UPat.const(True))),
        lambda u, x: UOp(Ops.LOAD, u.dtype, (x,), u.arg),
    ),
    Rule("load-gate-false", UPat(Ops.LOAD, None, (X, UPat.const(False))), lambda u: like(u, 0)),
    Rule(
        "store-gate-true",
        UPat(Ops.STORE, None, (X, Y, UPat.const(True))),
        lambda u, x, y: UOp(Ops.STORE, u.dtype, (x, y), u.arg),
    ),
]
