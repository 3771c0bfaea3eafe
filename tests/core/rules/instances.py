"""Random nodes that fit a pattern, and random values for their leaves, dtype edges included.

A leaf of index dtype is a range or a variable; of another dtype a variable with narrow bounds, a
cast of an index, or a load, which can have any value of its dtype.
"""

from __future__ import annotations

import math
import random
import struct
from typing import Any

from aster_ml.dtype import DType, dtypes, round_float, truncate
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMPARE, AxisType, Ops, RangeArg, VarArg
from aster_ml.uop.pattern import ANY, PatternMatcher, Rule, UPat
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.rules.conditions import less_than

INDEX, BOOL = dtypes.index, dtypes.bool
VALUE_DTYPES = (
    BOOL,
    dtypes.int8,
    dtypes.uint8,
    dtypes.int16,
    dtypes.uint16,
    dtypes.int32,
    dtypes.uint32,
    dtypes.int64,
    dtypes.uint64,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float32,
    dtypes.float64,
    dtypes.fp8e4m3,
    dtypes.fp8e5m2,
)
DIVISORS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24)
FACTORS = (1, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, -1, -2, -3, -4, -12)


class DrawAgainError(Exception):
    """The dtypes of a draw do not go together."""


def random_value(rng: random.Random, dtype: DType) -> Any:
    """A value of a dtype, often one at its edge."""
    if dtype is BOOL:
        return rng.random() < 0.5
    if dtype.kind == "float":
        edges = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            math.inf,
            -math.inf,
            math.nan,
            5e-324,
            1e-45,
            6e-8,
            448.0,
            65504.0,
            3.4e38,
            1.7e308,
            0.5,
            2.0,
            3.0,
        ]
        value = rng.choice(edges) if rng.random() < 0.6 else rng.uniform(-100, 100)
        return round_float(value, dtype)
    low, high = int(dtype.min), int(dtype.max)
    if dtype is INDEX:
        return rng.randint(-30, 30)
    if rng.random() < 0.6:
        return rng.choice([low, low + 1, high, high - 1, 0, 1, truncate(-1, dtype), 2, 3])
    return rng.randint(low, high)


class Instance:
    """One draw: the node, and the leaves that need values."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.leaves: dict[UOp, None] = {}
        self.bound: dict[str, UOp] = {}

    # leaves

    def range(self, size: UOp | None = None) -> UOp:
        """A range."""
        if size is None:
            size = UOp.index_const(self.rng.choice([1, 2, 3, 4, 5, 6, 8, 12, 16]))
        number = self.rng.randrange(4)
        r = UOp(Ops.RANGE, INDEX, (size,), RangeArg(number, AxisType.LOOP))
        self.leaves[r] = None
        return r

    def variable(self, dtype: DType, low: int, high: int) -> UOp:
        """A variable between these bounds."""
        v = UOp(Ops.DEFINE_VAR, dtype, (), VarArg(f"v{low}_{high}", low, high))
        self.leaves[v] = None
        return v

    def size_variable(self) -> UOp:
        """A variable that can be the size of an axis."""
        return self.variable(INDEX, 1, self.rng.choice([1, 3, 4, 9]))

    def load(self, dtype: DType) -> UOp:
        """An unknown of a dtype."""
        number = UOp.index_const(self.rng.randrange(3))
        u = UOp.param(0, 8, dtype).index(number).load()
        self.leaves[u] = None
        return u

    def atom(self) -> UOp:
        """An index that is no sum."""
        k = self.rng.random()
        if k < 0.65:
            return self.range()
        if k < 0.75:
            return self.variable(INDEX, self.rng.randint(-9, 2), self.rng.randint(2, 9))
        if k < 0.8:
            n = self.size_variable()
            return self.rng.choice([n, self.range(n), UOp(Ops.MUL, INDEX, (n, self.range()))])
        op = self.rng.choice([Ops.IDIV, Ops.MOD])
        c = UOp.index_const(self.rng.choice(DIVISORS))
        return UOp(op, INDEX, (self.sum(2) if self.rng.random() < 0.5 else self.range(), c))

    def sum(self, most: int = 3) -> UOp:
        """A linear index expression."""
        total: UOp | None = None
        for _ in range(self.rng.randint(1, most)):
            term = self.atom()
            factor = self.rng.choice(FACTORS)
            if factor != 1:
                term = UOp(Ops.MUL, INDEX, (term, UOp.index_const(factor)))
            total = term if total is None else UOp(Ops.ADD, INDEX, (total, term))
        assert total is not None
        if self.rng.random() < 0.4:
            c = UOp.index_const(self.rng.choice([1, 2, 3, 4, 8, -1, -2, -5, 12]))
            total = UOp(Ops.ADD, INDEX, (total, c))
        return total

    def multiple(self, d: UOp) -> UOp:
        """A sum with a multiple of `d` in it, and sometimes a range that stays below `d`."""
        product = UOp(Ops.MUL, INDEX, (self.range(), d))
        if self.rng.random() < 0.3:
            return product
        rest = self.range(d) if d.vmin > 0 and self.rng.random() < 0.7 else self.sum(2)
        return UOp(Ops.ADD, INDEX, (product, rest))

    def condition(self) -> UOp:
        """A bool."""
        k = self.rng.random()
        if k < 0.25:
            return self.load(BOOL)
        if k < 0.35:
            return UOp.const(BOOL, self.rng.random() < 0.5)
        x = self.sum(2)
        y = UOp.index_const(self.rng.randint(-3, 12)) if self.rng.random() < 0.8 else self.sum(1)
        op = self.rng.choice([Ops.CMPLT, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ])
        return UOp(op, BOOL, (x, y) if self.rng.random() < 0.7 else (y, x))

    def leaf(self, dtype: DType) -> UOp:
        """Anything of a dtype."""
        k = self.rng.random()
        if dtype is INDEX:
            return self.sum() if k < 0.8 else self.atom()
        if dtype is BOOL:
            return self.condition()
        if dtype.kind == "float" or k < 0.4:
            return self.load(dtype)
        if k < 0.7:
            low = self.rng.choice([0, 0, 1, 3, int(dtype.min)])
            return self.variable(dtype, low, low + self.rng.choice([0, 1, 4, 100]))
        return UOp(Ops.CAST, dtype, (self.atom(),))

    # patterns

    def source_dtype(self, pats: tuple[UPat, ...]) -> DType:
        """A dtype that the patterns of the sources of a comparison or cast allow."""
        for p in pats:
            if p.name in self.bound:
                return self.bound[p.name].dtype
        options = [set(p.dtypes) for p in pats if p.dtypes is not None]
        allowed = sorted(set.intersection(*options)) if options else [INDEX, INDEX, *VALUE_DTYPES]
        return self.rng.choice([d for d in allowed if d is not dtypes.void])

    def node(self, pat: UPat, dtype: DType | None) -> UOp:
        """A node that fits `pat`, of `dtype` where one is wanted."""
        if pat.name is not None and pat.name in self.bound:
            found = self.bound[pat.name]
            if dtype is not None and found.dtype is not dtype:
                raise DrawAgainError
            return found
        if pat.dtypes is not None:
            if dtype is None:
                dtype = self.rng.choice(sorted(pat.dtypes))
            elif dtype not in pat.dtypes:
                raise DrawAgainError
        op = None if pat.ops is None else self.rng.choice(pat.ops)
        if op in COMPARE:
            dtype = BOOL
        elif dtype is None:
            dtype = self.rng.choice([INDEX, *VALUE_DTYPES])
        u = self.build(pat, op, dtype)
        if pat.name is not None:
            self.bound[pat.name] = u
        return u

    def build(self, pat: UPat, op: Ops | None, dtype: DType) -> UOp:
        """The node itself."""
        if op is None:
            return self.leaf(dtype)
        if op is Ops.CONST:
            return self.constant(pat, dtype)
        pats = pat.src
        if op in COMPARE:
            pats = pats or (UPat(), UPat())
            wanted = [self.source_dtype(pats)] * 2
        elif op is Ops.WHERE:
            pats = pats or (UPat(), UPat(), UPat())
            wanted = [BOOL, dtype, dtype]
            if pats[0].ops == (Ops.CMPLT,) and dtype is INDEX:
                return self.choice()
        elif op is Ops.CAST:
            pats = pats or (UPat(),)
            wanted = [self.source_dtype(pats)]
            if pats[0].src is not None and pats[0].ops == (Ops.CAST,):
                wanted = [self.rng.choice([INDEX, *VALUE_DTYPES])]
        elif op is Ops.BITCAST:
            pats = pats or (UPat(),)
            same = [d for d in VALUE_DTYPES if d.itemsize == dtype.itemsize and d is not BOOL]
            if dtype in (INDEX, BOOL):
                raise DrawAgainError
            wanted = [self.rng.choice(same)]
        else:
            count = 1 if op in ONE_SOURCE else 3 if op is Ops.MULACC else 2
            pats = pats or (UPat(),) * count
            self.need_dtype(op, dtype)
            wanted = [dtypes.uint32 if op is Ops.DOT else dtype] * len(pats)
        src = self.sources(op, pats, wanted)
        return UOp(op, dtype, src)

    def choice(self) -> UOp:
        """The smaller or larger of a sum and one of its bounds, the condition in normal form."""
        x = self.sum()
        y = UOp.index_const(self.rng.choice([x.vmin, x.vmax]))
        src = [x, y]
        self.rng.shuffle(src)
        condition = less_than(*src)
        self.rng.shuffle(src)
        return UOp(Ops.WHERE, INDEX, (condition, *src))

    def sources(self, op: Ops, pats: tuple[UPat, ...], wanted: list[DType]) -> tuple[UOp, ...]:
        """Nodes for the sources; numerators often are multiples of what divides them."""
        divides = op in (Ops.IDIV, Ops.MOD) and wanted[0] is INDEX
        if divides and pats[1].ops is None and pats[1].name not in self.bound:
            d = self.size_variable()
            if self.rng.random() < 0.3:
                d = UOp(Ops.MUL, INDEX, (d, self.variable(INDEX, 2, 3)))
            if self.rng.random() < 0.2:
                d = UOp(Ops.ADD, INDEX, (d, UOp.index_const(1)))
            if pats[1].name is not None:
                self.bound[pats[1].name] = d
            if pats[0].ops is None:
                x = self.multiple(d) if self.rng.random() < 0.8 else self.sum()
                if pats[0].name is not None:
                    self.bound[pats[0].name] = x
                return x, d
            return self.node(pats[0], INDEX), d
        return tuple([self.node(p, d) for p, d in zip(pats, wanted)])

    def constant(self, pat: UPat, dtype: DType) -> UOp:
        """A constant."""
        if pat.arg is not ANY:
            if dtype.kind == "float" and isinstance(pat.arg, float):
                return UOp.const(dtype, round_float(pat.arg, dtype))
            return UOp.const(dtype, pat.arg)
        if dtype is INDEX:
            k = self.rng.random()
            return UOp.index_const(
                self.rng.choice(DIVISORS)
                if k < 0.8
                else self.rng.choice([-1, -2, -4, -7, 0, 15, 31])
            )
        return UOp.const(dtype, random_value(self.rng, dtype))

    def need_dtype(self, op: Ops, dtype: DType) -> None:
        """Draws again where the op has no meaning on the dtype."""
        is_float, is_bool = dtype.kind == "float", dtype is BOOL
        if op in FLOAT_ONLY and not is_float:
            raise DrawAgainError
        if op in WHOLE_ONLY and is_float:
            raise DrawAgainError
        if op in (Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR, Ops.POW, Ops.SUB, Ops.NEG) and is_bool:
            raise DrawAgainError
        if op is Ops.THREEFRY and dtype is not dtypes.uint64:
            raise DrawAgainError
        if op is Ops.DOT and dtype not in (dtypes.int32, dtypes.float32):
            raise DrawAgainError
        if op is Ops.EXP2_32NDS and dtype is not dtypes.float32:
            raise DrawAgainError
        if op in (Ops.POW, Ops.SHL) and dtype is INDEX:
            # Numbers without a width would grow without end.
            raise DrawAgainError

    # values

    def draw_values(self) -> dict[UOp, Any]:
        """A value for each leaf."""
        values: dict[UOp, Any] = {}
        for u in self.leaves:
            if u.op is Ops.DEFINE_VAR:
                values[u] = self.rng.choice(
                    [u.arg.min, u.arg.max, self.rng.randint(u.arg.min, u.arg.max)]
                )
            elif u.op is Ops.LOAD:
                values[u] = random_value(self.rng, u.dtype)
        for u in self.leaves:
            if u.op is Ops.RANGE:
                size = evaluate_expr(u.src[0], values)
                values[u] = self.rng.choice([0, size - 1, self.rng.randrange(size)])
        return values


ONE_SOURCE = frozenset(
    {
        Ops.NEG, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TANH, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC,
        Ops.EXP2_32NDS,
    }
)  # fmt: skip
FLOAT_ONLY = ONE_SOURCE - {Ops.NEG} | {Ops.FDIV, Ops.LDEXP}
WHOLE_ONLY = frozenset({Ops.IDIV, Ops.MOD, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR})


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are of one type and have the same bits; all NaNs are one."""
    if a.__class__ is not b.__class__:
        return False
    if a.__class__ is float:
        return (a != a and b != b) or struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


TRIES, VALUES = 20_000, 6


def fired_instances(rule: Rule, wanted: int) -> int:
    """How many of the wanted instances were found, each compared on several values."""
    rng = random.Random(rule.name)
    alone = PatternMatcher([rule])
    found = 0
    for _ in range(TRIES):
        instance = Instance(rng)
        try:
            before = instance.node(rule.pattern, None)
        except DrawAgainError:
            continue
        after = alone.rewrite(before)
        if after is None:
            continue
        found += 1
        assert after.dtype is before.dtype, f"{rule.name}: {before!r} became {after!r}"
        for _ in range(VALUES):
            values = instance.draw_values()
            expected, given = evaluate_expr(before, values), evaluate_expr(after, values)
            assert same_value(expected, given), (
                f"{rule.name}: {render_expr(before)} is {expected!r}, as {render_expr(after)} it "
                f"is {given!r}, with { {render_expr(u): v for u, v in values.items()} }"
            )
        if found == wanted:
            break
    return found
