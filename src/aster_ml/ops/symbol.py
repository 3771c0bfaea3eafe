"""Nodes as numbers: sizes and variables, asked for what they are made of and what they come to.

Receives index nodes (or any integer expression); returns nodes, names, ints and text. What builds
nodes stands in `uop.node`; evaluating and simplifying stand above it and are reached by `ABOVE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import BindError
from aster_ml.plugins import MISSING, ask
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.infix import render_size

# Functions on nodes that stand above the node itself: each is put here by the module that has it.
ABOVE: dict[str, Callable[..., Any]] = {}


class SymbolMixin:
    """Questions about a size."""

    __slots__ = ()

    if TYPE_CHECKING:
        # What the node has.
        op: Ops
        dtype: DType
        src: tuple[Any, ...]
        arg: Any
        vmin: Any
        vmax: Any
        alu: Callable[..., Self]
        const_like: Callable[[Any], Self]

    @property
    def expr(self) -> str:
        """The name of a variable, bound or not.

        Raises: BindError for anything else.
        """
        u: Any = self.src[0] if self.op is Ops.BIND else self
        if u.op is not Ops.DEFINE_VAR:
            raise BindError(f"expr: {self.render()} is no Variable, so it has no name")
        return str(u.arg.name)

    def vars(self) -> set[Self]:
        """The variables in it: bound ones with their value, others as they are."""
        found: dict[Any, None] = {}
        seen: set[Any] = set()
        stack: list[Any] = [self]
        while stack:
            u = stack.pop()
            if u in seen:
                continue
            seen.add(u)
            if u.op is Ops.BIND or u.op is Ops.DEFINE_VAR:
                found[u] = None
            else:
                stack.extend(u.src)
        bound = {u.src[0] for u in found if u.op is Ops.BIND}
        return {u for u in found if u not in bound}

    def variables(self) -> list[Self]:
        """The variables in it without their values, by name."""
        found = {u.src[0] if u.op is Ops.BIND else u for u in self.vars()}
        return sorted(found, key=lambda u: u.arg)

    def unbind_all(self) -> tuple[Self, dict[Self, int]]:
        """The expression with plain variables, and their values.

        Raises: BindError for a variable with two values.
        """
        values: dict[Any, int] = {}
        changes: dict[Any, Any] = {}
        for u in self.vars():
            if u.op is Ops.BIND:
                variable, value = u.src[0], u.src[1].arg
                if values.setdefault(variable, value) != value:
                    raise BindError(two_values(variable.arg.name, values[variable], value))
                changes[u] = variable
        return self.substitute(changes), values

    def sym_infer(self, var_vals: Mapping[str, int]) -> int:
        """The number that it comes to, given the variables' values by name.

        A bound variable that is not named has the value that it is bound to.

        Raises: ArgumentError naming a variable without a value.
        """
        values: dict[Any, int] = {}
        for u in self.vars():
            variable = u.src[0] if u.op is Ops.BIND else u
            if variable.arg.name in var_vals:
                values[u] = var_vals[variable.arg.name]
        found = ABOVE["evaluate"](self, values)
        return found if isinstance(found, bool) else int(found)

    def substitute(self, dvars: Mapping[Any, Any], *args: Any) -> Self:
        """The expression with nodes replaced."""
        found: Self = ABOVE["substitute"](self, dict(dvars)) if dvars else self
        return found

    def simplify(self, *args: Any, **kwargs: Any) -> Self:
        """The same value in simplest form."""
        if self.dtype.vcount != 1:
            lanes: Any = ask("simplify_lanes", self)
            return self if lanes is MISSING else lanes
        found: Self = ABOVE["simplify"](self)
        return found

    def ssimplify(self) -> Self | int:
        """The simplest form, as an int where it is one."""
        found = self.simplify()
        return found.arg if found.op is Ops.CONST else found

    def render(self, simplify: bool = True, pm: Any = None) -> str:
        """The expression as text."""
        return render_size(self.simplify() if simplify else self)

    # sums and products

    def split_uop(self, sep: Ops) -> list[Self]:
        """The operands of a chain of `sep`, in order; itself alone when it is none."""
        found: list[Self] = []
        stack: list[Any] = [self]
        while stack:
            u = stack.pop()
            if u.op is sep:
                stack.extend(reversed(u.src))
            else:
                found.append(u)
        return found

    def pop_const(self, op: Ops = Ops.ADD) -> tuple[Self, Any]:
        """A sum (or product) without its number, and the number."""
        if self.op is op and self.src[1].op is Ops.CONST:
            return self.src[0], self.src[1].arg
        return self, 1 if op is Ops.MUL else 0

    def const_factor(self) -> int:
        """A number that divides it whatever its variables are: the largest that is to be seen."""
        if self.op is Ops.CONST:
            return int(self.arg)
        factors: dict[Any, int] = {}
        for u in ABOVE["toposort"](self, enter=is_sum_or_product):
            if is_sum_or_product(u):
                a, b = factors[u.src[0]], factors[u.src[1]]
                factors[u] = math.gcd(a, b) if u.op is Ops.ADD else a * b
            else:
                factors[u] = int(u.arg) if u.op is Ops.CONST else 1
        return factors[self]

    def divides(self, v: int) -> Self | None:
        """It divided by `v`, None where that does not come out even by its looks."""
        if v == 1:
            return self
        found: dict[Any, Any] = {}
        for u in ABOVE["toposort"](self, enter=is_sum_or_product):
            found[u] = None
            if u.op is Ops.CONST and u.arg % v == 0:
                found[u] = u.const_like(u.arg // v)
            elif is_sum_or_product(u):
                x, y = u.src
                a, b = found[x], found[y]
                if u.op is Ops.ADD:
                    found[u] = None if a is None or b is None else a.alu(Ops.ADD, b)
                elif a is not None:
                    found[u] = a.alu(Ops.MUL, y)
                elif b is not None:
                    found[u] = b.alu(Ops.MUL, x)
        divided: Self | None = found[self]
        return divided

    def divide_exact(self, v: Any) -> Self | None:
        """It divided by `v`, a number or a node that stands in it as a factor; None otherwise."""
        if not isinstance(v, int):
            result = self.const_like(1)
            if v is self:
                return result
            if v.op is not Ops.CONST:
                factors = self.split_uop(Ops.MUL)
                if v not in factors:
                    return None
                factors.remove(v)
                for f in factors:
                    result = result.alu(Ops.MUL, f)
                return result
            v = v.arg
        return self.divides(v)

    @staticmethod
    def gcd(*uops: Any) -> Any:
        """A number that divides all of them, as a node."""
        return uops[0].const_like(math.gcd(*[u.const_factor() for u in uops]))

    def is_increasing(self) -> bool:
        """Whether it never falls when a variable or range in it grows, by its looks."""
        order = ABOVE["toposort"](self, enter=keeps_order)
        return all([u.op in COUNTED or keeps_order(u) for u in order])

    def overflows(self, dtype: DType) -> bool:
        """Whether it may come to more, or less, than a dtype holds."""
        return bool(self.vmin < dtypes.min(dtype) or self.vmax > dtypes.max(dtype))


def is_sum_or_product(u: Any) -> bool:
    """Whether a node is a sum or product of two."""
    return u.op is Ops.ADD or u.op is Ops.MUL


# What a number is made of at the end: numbers, variables and ranges.
COUNTED = frozenset({Ops.CONST, Ops.DEFINE_VAR, Ops.BIND, Ops.RANGE})


def keeps_order(u: Any) -> bool:
    """Whether a node falls nowhere where none of its sources does."""
    if u.op in (Ops.MUL, Ops.IDIV) and u.src[1].op is Ops.CONST:
        return bool(u.src[1].arg >= 0)
    return u.op is Ops.ADD


def value_now(size: Any) -> int | None:
    """The number that a size comes to; None while one of its variables has no value."""
    if isinstance(size, int):
        return size
    if any([u.op is Ops.DEFINE_VAR for u in size.vars()]):
        return None
    return int(size.sym_infer({}))


def two_values(name: str, one: int, other: int) -> str:
    """The message for a variable with two values."""
    return (
        f"bind mismatch on {name}: it is bound to {one} and to {other} in one graph, and one value "
        "at a time is possible; realize what has the one before, or use two variables"
    )
