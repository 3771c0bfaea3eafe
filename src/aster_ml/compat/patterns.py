"""Patterns and rules as a user writes them: (UPat, function) pairs over nodes.

`graph_rewrite(node, PatternMatcher([(UPat.cvar("x") + 0, lambda x: x)]))` gives the node with the
rules applied everywhere until none applies. A `UPat` says what a node looks like and hands parts of
it to the function by name; a function that gives None leaves the node to the next rule. The tables
of the compiler itself are of `uop/pattern`, whose rules have names and are compiled; these are for
anything that a user wants to find in a graph or change in it.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import marshal
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.extend import ElementwiseMixin
from aster_ml.extend import graph_rewrite as rewrite_graph
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMMUTATIVE, COMPARE, Ops

Found = dict[str, UOp]
Function = Callable[..., Any]


def as_tuple(x: Any, kind: type) -> tuple[Any, ...] | None:
    """One or several of a kind as a tuple; None for any."""
    return None if x is None else (x,) if isinstance(x, kind) else tuple(x)


def caller_outside() -> tuple[str, int]:
    """File and line of whoever called into this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in HERE:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


HERE = frozenset({caller_outside.__code__.co_filename, ElementwiseMixin.add.__code__.co_filename})


class UPat(ElementwiseMixin):
    """Pattern of a node; each part that is not given matches anything.

    `src` is a tuple of patterns in order, a list of patterns in any order, or one pattern that all
    sources match; with `allow_any_len` more sources may follow. A dtype also stands for vectors of
    it. A `name` hands the node to the rule's function; the same name twice asks for the same node.
    Of `UPat.any(...)` one has to match.
    """

    __slots__ = ("allow_any_len", "any_of", "arg", "dtypes", "location", "name", "op", "src")

    def __init__(
        self,
        op: Any = None,
        dtype: DType | Iterable[DType] | None = None,
        src: tuple[UPat, ...] | list[UPat] | UPat | None = None,
        arg: Any = None,
        name: str | None = None,
        allow_any_len: bool = False,
        custom_early_reject: Any = None,
        location: tuple[str, int] | None = None,
        is_any: bool = False,
    ) -> None:
        self.op = as_tuple(op, IntEnum)
        self.dtypes = as_tuple(dtype, DType)
        self.src = src
        self.arg = arg
        self.name = name
        self.allow_any_len = allow_any_len
        self.any_of: tuple[UPat, ...] | None = None
        if is_any and isinstance(src, tuple):
            self.any_of, self.src = src, None
        self.location = location or caller_outside()

    def __reduce__(self) -> tuple[Any, ...]:
        src = self.src if self.any_of is None else self.any_of
        rest = (self.arg, self.name, self.allow_any_len, None, self.location)
        return UPat, (self.op, self.dtypes, src, *rest, self.any_of is not None)

    def __repr__(self) -> str:
        if self.any_of is not None:
            return f"UPat.any{self.any_of!r}"
        parts = [] if self.op is None else ["|".join([op.name for op in self.op])]
        for name in ("dtypes", "src", "arg", "name"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)!r}")
        return f"UPat({', '.join(parts)})"

    # making patterns

    @staticmethod
    def var(name: str | None = None, dtype: Any = None) -> UPat:
        """Any node, under this name."""
        return UPat(None, dtype, name=name)

    @staticmethod
    def cvar(name: str | None = None, dtype: Any = None, vec: bool = True, arg: Any = None) -> UPat:
        """Any constant, with `vec` one of different lanes too."""
        return UPat((Ops.CONST, Dialect.VCONST) if vec else Ops.CONST, dtype, name=name, arg=arg)

    @staticmethod
    def const(dtype: Any, b: Any) -> UPat:
        """The constant `b`."""
        return UPat(Ops.CONST, dtype, arg=b)

    @staticmethod
    def any(*src: Any) -> UPat:
        """Pattern that matches where one of these does."""
        return UPat(src=src, is_any=True)

    def named(self, name: str) -> UPat:
        """The same pattern under a name."""
        made = UPat(self.op, self.dtypes, self.src, self.arg, name, self.allow_any_len)
        made.any_of = self.any_of
        return made

    def or_casted(self, name: str | None = None) -> UPat:
        """Self, or a cast of it."""
        return UPat.any(self if name is None else self.named(name), self.cast(name=name))

    def or_after(self, name: str | None = None) -> UPat:
        """Self, or an AFTER of it."""
        after = UPat(Ops.AFTER, src=(self,), name=name, allow_any_len=True)
        return UPat.any(self if name is None else self.named(name), after)

    def f(self, op: Any, **kwargs: Any) -> UPat:
        """An op with self as its first source."""
        return UPat(op, src=(self,), **kwargs)

    def alu(self, op: Any, *src: Any) -> UPat:
        """The elementwise op of self and others; a commutative one matches in any order."""
        sources = (self, *src)
        own = self.dtypes if op not in COMPARE else (dtypes.bool,)
        dtype = own if op is not Ops.WHERE or not src else src[-1].dtypes
        return UPat(op, dtype, list(sources) if op in COMMUTATIVE else sources)

    def _binop(self, op: Ops, x: Any, reverse: bool = False) -> UPat:
        """`op` of self and `x`, which may be a number."""
        other = self.ufix(x)
        return other.alu(op, self) if reverse else self.alu(op, other)

    def ufix(self, x: Any) -> UPat:
        """`x` as a pattern."""
        return x if isinstance(x, UPat) else self.const_like(x)

    def const_like(self, b: Any) -> UPat:
        """The pattern of a constant of our dtype."""
        return UPat.const(self.dtypes, b)

    def sub(self, x: Any, reverse: bool = False) -> UPat:
        """self - x, as it stands in graphs: self + x * -1."""
        first, second = (self.ufix(x), self) if reverse else (self, self.ufix(x))
        return first.alu(Ops.ADD, second.alu(Ops.MUL, UPat.const(None, -1)))

    def neg(self) -> UPat:
        """-self, as it stands in graphs: self * -1."""
        return self.alu(Ops.MUL, UPat.const(None, -1))

    def logical_not(self) -> UPat:
        """Not self."""
        return self.alu(Ops.CMPNE, UPat.const(dtypes.bool, True))

    def where(self, x: Any, y: Any) -> UPat:
        """x where self holds, else y."""
        x = x if isinstance(x, UPat) else y.const_like(x)
        return self.alu(Ops.WHERE, x, x.ufix(y))

    def cast(self, dtype: Any = None, **kwargs: Any) -> UPat:
        """Self as another dtype."""
        return UPat(Ops.CAST, dtype, (self,), **kwargs)

    def bitcast(self, dtype: Any = None) -> UPat:
        """The bits of self as another dtype."""
        return UPat(Ops.BITCAST, dtype, (self,))

    def gep(self, i: int | None = None, **kwargs: Any) -> UPat:
        """A lane of self."""
        return UPat(Dialect.GEP, None, (self,), None if i is None else (i,), **kwargs)

    def index(self, idx: Any, valid: Any = None, **kwargs: Any) -> UPat:
        """An element of self."""
        return UPat(Ops.INDEX, None, (self, idx) if valid is None else (self, idx, valid), **kwargs)

    def load(self, *src: Any, **kwargs: Any) -> UPat:
        """Pattern of a load from self."""
        return UPat(Ops.LOAD, src=(self, *src), **kwargs)

    def store(self, *src: Any, **kwargs: Any) -> UPat:
        """A store to self."""
        return UPat(Ops.STORE, dtypes.void, (self, *src), **kwargs)

    def reduce(self, *src: Any, **kwargs: Any) -> UPat:
        """Self, folded."""
        return UPat(Ops.REDUCE, self.dtypes, (self, *src), **kwargs)

    def broadcast(self, **kwargs: Any) -> UPat:
        """Self in each lane."""
        return UPat(Dialect.VECTORIZE, self.dtypes, self, **kwargs)

    def contiguous(self, **kwargs: Any) -> UPat:
        """Self, stored."""
        return UPat(Ops.CONTIGUOUS, self.dtypes, (self,), **kwargs)

    def after(self, *src: Any, **kwargs: Any) -> UPat:
        """Self, once effects have happened."""
        return UPat(Ops.AFTER, self.dtypes, (self, *src), **kwargs)

    def end(self, *src: Any, **kwargs: Any) -> UPat:
        """Self for every value of some axes."""
        return UPat(Ops.END, dtypes.void, (self, *src), **kwargs)

    def sink(self, *src: Any, **kwargs: Any) -> UPat:
        """The root over self and others."""
        return UPat(Ops.SINK, dtypes.void, (self, *src), **kwargs)

    # matching

    def match(self, uop: UOp, store: Found) -> list[Found]:
        """The ways in which a node matches, each with the nodes by name, `store` among them."""
        if self.any_of is not None:
            ways = [w for p in self.any_of for w in p.match(uop, store)]
            return [w for way in ways for w in self.bind(uop, way)]
        if self.op is not None and uop.op not in self.op:
            return []
        if self.dtypes is not None and uop.dtype not in self.dtypes:
            if uop.dtype.scalar() not in self.dtypes:
                return []
        if self.arg is not None and self.arg != uop.arg:
            return []
        ways = self.bind(uop, store)
        if self.src is None or not ways:
            return ways
        if isinstance(self.src, UPat):
            orders: Iterable[tuple[UPat, ...]] = [(self.src,) * len(uop.src)]
        else:
            if len(uop.src) != len(self.src) and not (
                self.allow_any_len and len(uop.src) > len(self.src)
            ):
                return []
            orders = itertools.permutations(self.src) if isinstance(self.src, list) else [self.src]
        result = []
        for order in orders:
            found = ways
            for pattern, source in zip(order, uop.src):
                found = [w for way in found for w in pattern.match(source, way)]
                if not found:
                    break
            result += found
        return result

    def bind(self, uop: UOp, store: Found) -> list[Found]:
        """The node under our name, unless another one has it."""
        if self.name is None:
            return [store]
        if store.get(self.name, uop) is not uop:
            return []
        return [{**store, self.name: uop}]


class Table(dict[Any, "Callable[[UOp, Any], UOp | None]"]):
    """Op -> a function that tries the rules of a matcher which may apply to nodes of that op."""

    def __init__(self, patterns: Sequence[tuple[UPat, Function]]) -> None:
        self.patterns = patterns

    def __missing__(self, op: Any) -> Callable[[UOp, Any], UOp | None]:
        rules = [(p, f) for p, f in self.patterns if p.op is None or op in p.op]
        self[op] = found = functools.partial(try_rules, rules)
        return found


def try_rules(rules: Sequence[tuple[UPat, Function]], u: UOp, ctx: Any) -> UOp | None:
    """Applies the first rule that matches a node."""
    for pattern, function in rules:
        for found in pattern.match(u, {}):
            result = call(function, found, ctx)
            if result is not None and result is not u:
                return result  # type: ignore[no-any-return]
    return None


def call(function: Function, found: Found, ctx: Any) -> Any:
    """A rule's function with the nodes that it names; `ctx` is the rewriting's own."""
    code = getattr(function, "__code__", None)
    if code is not None and "ctx" in code.co_varnames[: code.co_argcount]:
        return function(ctx=ctx, **found)
    return function(**found)


class PatternMatcher:
    """Rules, tried in order. Matchers add up with `+`."""

    def __init__(self, patterns: Sequence[tuple[UPat, Function]], compiled: bool = True) -> None:
        self.patterns = list(patterns)
        self.table = Table(self.patterns)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ([(p, pack_function(f)) for p, f in self.patterns],)

    def __add__(self, other: PatternMatcher) -> PatternMatcher:
        return PatternMatcher(self.patterns + other.patterns)

    def rewrite(self, uop: UOp, ctx: Any = None) -> Any:
        """Applies the first rule that matches a node; None when none does."""
        for pattern, function in self.patterns:
            if pattern.op is None or uop.op in pattern.op:
                for found in pattern.match(uop, {}):
                    result = call(function, found, ctx)
                    if result is not None:
                        return result
        return None

    def explain(self, uop: UOp, ctx: Any = None) -> tuple[str, Any] | None:
        """Where the rule that applies to a node stands, and what it makes of it."""
        for pattern, function in self.patterns:
            result = PatternMatcher([(pattern, function)]).rewrite(uop, ctx)
            if result is not None:
                return "{}:{}".format(*pattern.location), result
        return None


def graph_rewrite(
    sink: UOp,
    pm: PatternMatcher,
    ctx: Any = None,
    bottom_up: bool = False,
    name: str | None = None,
    bpm: PatternMatcher | None = None,
    **kwargs: Any,
) -> UOp:
    """A graph with rules applied everywhere until none applies any more.

    A rule sees a node after its sources have been rewritten, with `bottom_up` before. Rules of
    `bpm` are applied that way before those of `pm`.
    """
    if bpm is not None:
        sink = rewrite_graph(sink, bpm, ctx, True)  # type: ignore[arg-type]
    return rewrite_graph(sink, pm, ctx, bottom_up)  # type: ignore[arg-type]


# Functions without a name of their own are pickled by their code.


def reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Pickles a code object."""
    return marshal.loads, (marshal.dumps(code),)


copyreg.pickle(types.CodeType, reduce_code)


def pack_function(function: Function) -> tuple[Any, ...]:
    """A function as what can be pickled: by its code, with what it is defined over."""
    if not isinstance(function, types.FunctionType):
        return (function,)
    cells = tuple([c.cell_contents for c in function.__closure__ or ()])
    return function.__code__, function.__module__, function.__defaults__, cells


def unpack_function(packed: tuple[Any, ...]) -> Function:
    """The reverse of `pack_function`; names outside of it are those of its module."""
    if len(packed) == 1:
        return packed[0]  # type: ignore[no-any-return]
    code, module, defaults, cells = packed
    if module not in sys.modules:
        raise ArgumentError(f"a rule of this matcher is of {module}; import that first")
    names = vars(sys.modules[module])
    closure = tuple([types.CellType(c) for c in cells])
    return types.FunctionType(code, names, code.co_name, defaults, closure)


def restore(packed: list[tuple[UPat, tuple[Any, ...]]]) -> PatternMatcher:
    """A matcher from what pickling wrote."""
    return PatternMatcher([(p, unpack_function(f)) for p, f in packed])
