"""Compiles tables of rewrite rules to Python: a function for each root op.

Receives rows (name, pattern, replacement, guard) and provides `PatternMatcher.rewrite`. The
generated function of an op shares tests of consecutive rules: ops of the sources first, then
dtypes, arguments and deeper nodes. It is compiled at the first node of the op. `uop/rewrite`
applies rules to graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from aster_ml.dtype import DType
from aster_ml.thread_state import SharedWeakSet
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import COMMUTATIVE, Ops
from aster_ml.watch import WATCHERS

ANY: Any = type("Any", (), {"__repr__": lambda self: "ANY"})()
Matcher = Callable[[UOp, Any], "UOp | None"]


class UPat:
    """Pattern of a node: op, dtype, argument and sources, each of which may be left open.

    `src` lists the patterns of the sources in order; with `prefix` more sources may follow; with
    `any_order` sources match in any order. A `name` passes the node to the rule; a repeated name
    matches the same node only. `arg` is compared with `==`, so 0 matches False and both float
    zeros.
    """

    __slots__ = ("any_order", "arg", "dtypes", "name", "ops", "prefix", "src")

    def __init__(
        self,
        op: Ops | Iterable[Ops] | None = None,
        dtype: DType | Iterable[DType] | None = None,
        src: tuple[UPat, ...] | None = None,
        arg: Any = ANY,
        name: str | None = None,
        *,
        any_order: bool = False,
        prefix: bool = False,
    ) -> None:
        self.ops = None if op is None else (op,) if isinstance(op, IntEnum) else tuple(sorted(op))
        self.dtypes = (
            None if dtype is None else (dtype,) if isinstance(dtype, DType) else tuple(dtype)
        )
        self.src = src
        self.arg = arg
        self.name = name
        self.any_order = any_order
        self.prefix = prefix

    @staticmethod
    def var(name: str | None = None, dtype: DType | Iterable[DType] | None = None) -> UPat:
        """Any node, under this name."""
        return UPat(None, dtype, name=name)

    @staticmethod
    def cvar(name: str | None = None, dtype: DType | Iterable[DType] | None = None) -> UPat:
        """Any constant, under this name."""
        return UPat(Ops.CONST, dtype, name=name)

    @staticmethod
    def const(value: Any, dtype: DType | Iterable[DType] | None = None) -> UPat:
        """The constant that equals `value`."""
        return UPat(Ops.CONST, dtype, arg=value)

    def named(self, name: str) -> UPat:
        """The same pattern under a name."""
        return UPat(
            self.ops,
            self.dtypes,
            self.src,
            self.arg,
            name,
            any_order=self.any_order,
            prefix=self.prefix,
        )

    def of(self, *dtypes: DType) -> UPat:
        """The same pattern for nodes of these dtypes alone."""
        return UPat(
            self.ops,
            dtypes,
            self.src,
            self.arg,
            self.name,
            any_order=self.any_order,
            prefix=self.prefix,
        )

    def alu(self, op: Ops, *others: Any) -> UPat:
        """The elementwise op over self and the others; commutative ops match in any order."""
        src = (self, *[o if isinstance(o, UPat) else UPat.const(o) for o in others])
        return UPat(op, None, src, any_order=op in COMMUTATIVE)

    def __repr__(self) -> str:
        ops = "?" if self.ops is None else "|".join(op.name for op in self.ops)
        parts = [self.name] if self.name else []
        if self.dtypes is not None:
            parts.append("|".join(d.name for d in self.dtypes))
        if self.arg is not ANY:
            parts.append(f"arg={self.arg!r}")
        if self.src is not None:
            inner = ", ".join(map(repr, self.src))
            parts.append(
                f"({inner}{', ...' if self.prefix else ''})"
                f"{' in any order' if self.any_order else ''}"
            )
        return f"UPat({' '.join([ops, *parts])})"

    def __add__(self, x: Any) -> UPat:
        return self.alu(Ops.ADD, x)

    def __sub__(self, x: Any) -> UPat:
        return self.alu(Ops.SUB, x)

    def __mul__(self, x: Any) -> UPat:
        return self.alu(Ops.MUL, x)

    def __floordiv__(self, x: Any) -> UPat:
        return self.alu(Ops.IDIV, x)

    def __truediv__(self, x: Any) -> UPat:
        return self.alu(Ops.FDIV, x)

    def __mod__(self, x: Any) -> UPat:
        return self.alu(Ops.MOD, x)

    def __and__(self, x: Any) -> UPat:
        return self.alu(Ops.AND, x)

    def __or__(self, x: Any) -> UPat:
        return self.alu(Ops.OR, x)

    def __xor__(self, x: Any) -> UPat:
        return self.alu(Ops.XOR, x)

    def __lshift__(self, x: Any) -> UPat:
        return self.alu(Ops.SHL, x)

    def __rshift__(self, x: Any) -> UPat:
        return self.alu(Ops.SHR, x)

    def __lt__(self, x: Any) -> UPat:
        return self.alu(Ops.CMPLT, x)

    def ne(self, x: Any) -> UPat:
        """The pattern of self != x."""
        return self.alu(Ops.CMPNE, x)

    def eq(self, x: Any) -> UPat:
        """The pattern of self == x."""
        return self.alu(Ops.CMPEQ, x)

    def max(self, x: Any) -> UPat:
        """The pattern of the larger of self and x."""
        return self.alu(Ops.MAX, x)

    def where(self, x: Any, y: Any) -> UPat:
        """The pattern of x where self holds, else y."""
        return self.alu(Ops.WHERE, x, y)

    def cast(self, dtype: DType | Iterable[DType] | None = None) -> UPat:
        """The pattern of self as another dtype."""
        return UPat(Ops.CAST, dtype, (self,))

    def logical_not(self) -> UPat:
        """The pattern of not self, a bool."""
        return self.alu(Ops.CMPNE, UPat.const(True))


class Rule:
    """A row of a table: where `pattern` matches and `guard` holds, the node becomes `replace(...)`.

    Functions receive arguments by parameter name: named nodes of the pattern, `u` (the node itself
    unless the pattern names it otherwise), `ctx` (the driver's context), `info` (the result of
    `prepare`). `prepare` runs once for consecutive rules that share it and the pattern. If the
    replacement returns None, or the node itself, the next rule is tried.
    """

    __slots__ = ("__weakref__", "fired", "guard", "name", "pattern", "prepare", "replace")

    def __init__(
        self,
        name: str,
        pattern: UPat,
        replace: Callable[..., UOp | None],
        guard: Callable[..., Any] | None = None,
        prepare: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.replace = replace
        self.guard = guard
        self.prepare = prepare
        self.fired = 0
        RULES.add(self)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {self.pattern!r})"


# All live rules, for the report of rules that never fire.
RULES: SharedWeakSet[Rule] = SharedWeakSet()


def fired_counts() -> dict[str, int]:
    """Counts how often each rule has fired in this process, by name."""
    counts: dict[str, int] = {}
    for rule in RULES:
        counts[rule.name] = counts.get(rule.name, 0) + rule.fired
    return dict(sorted(counts.items()))


class Table(dict[Ops, "Matcher | None"]):
    """Op -> the compiled matcher of its rules, None where there are none; compiled on demand."""

    __slots__ = ("__weakref__", "rules")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        TABLES.add(self)

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __missing__(self, op: Ops) -> Matcher | None:
        rules = [r for r in self.rules if r.pattern.ops is None or op in r.pattern.ops]
        found = compile_rules(op, rules) if rules else None
        self[op] = found
        return found


# All live tables, which are compiled again when watchers come or go.
TABLES: SharedWeakSet[Table] = SharedWeakSet()


def compile_anew() -> None:
    """Discards all compiled matchers; new ones report to watchers, if there are any."""
    for table in list(TABLES):
        table.clear()


def tell_rewritten(rule: Rule, before: UOp, after: UOp) -> None:
    """Reports a fired rule to watchers."""
    for w in WATCHERS:
        w.rewritten(rule, before, after)


class PatternMatcher:
    """A table of rules, tried in order; the first that applies wins. `+` concatenates tables.

    `table[op]` is the compiled matcher of an op, or None; drivers read it directly.
    """

    __slots__ = ("rules", "table")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.table = Table(self.rules)

    def rewrite(self, u: UOp, ctx: Any = None) -> UOp | None:
        """Applies the first rule that matches `u`; None when no rule does."""
        matcher = self.table[u.op]
        return None if matcher is None else matcher(u, ctx)

    def explain(self, u: UOp, ctx: Any = None) -> tuple[str, UOp] | None:
        """The name of the rule that applies to `u`, and its result."""
        before = [rule.fired for rule in self.rules]
        result = self.rewrite(u, ctx)
        if result is None:
            return None
        name = next(r.name for r, n in zip(self.rules, before) if r.fired != n)
        return name, result

    def __add__(self, other: PatternMatcher) -> PatternMatcher:
        return PatternMatcher(self.rules + other.rules)


# From here on: a table's rules for one op as source text.


class Step(NamedTuple):
    """One line of a match: `test` is a condition to go on, else the line is a statement."""

    text: str
    test: bool


class Namespace:
    """Globals of generated code, for values without a literal."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def name(self, prefix: str, value: Any, key: Any = None) -> str:
        """A global name that stands for `value`; equal keys share one."""
        key = (prefix, id(value) if key is None else key)
        if key not in self.names:
            self.names[key] = f"{prefix}{len(self.names)}"
            self.values[self.names[key]] = value
        return self.names[key]


def orders_of(pat: UPat) -> Iterator[UPat]:
    """The pattern in each order of the sources that `any_order` allows."""
    if pat.src is None:
        yield pat
        return
    options = [list(orders_of(p)) for p in pat.src]
    seen = set()
    for choice in itertools.product(*options):
        arrangements = itertools.permutations(choice) if pat.any_order else (choice,)
        for src in arrangements:
            text = repr(src)
            if text not in seen:
                seen.add(text)
                yield UPat(pat.ops, pat.dtypes, src, pat.arg, pat.name, prefix=pat.prefix)


def op_test(pat: UPat, var: str, space: Namespace) -> list[Step]:
    """The test of a node's op."""
    if pat.ops is None:
        return []
    if len(pat.ops) == 1:
        name = space.name("OP_", pat.ops[0], pat.ops[0].name)
        return [Step(f"{var}.op is {name}", True)]
    name = space.name("OPS_", frozenset(pat.ops), pat.ops)
    return [Step(f"{var}.op in {name}", True)]


def match_steps(pat: UPat, var: str, space: Namespace, bound: dict[str, str]) -> Iterator[Step]:
    """Lists the tests of the node in `var`, after the test of its op; fills `bound`."""
    if pat.dtypes is not None:
        if len(pat.dtypes) == 1:
            name = space.name("DT_", pat.dtypes[0], pat.dtypes[0].name)
            yield Step(f"{var}.dtype is {name}", True)
        else:
            names = tuple(d.name for d in pat.dtypes)
            yield Step(f"{var}.dtype in {space.name('DTS_', frozenset(pat.dtypes), names)}", True)
    if pat.arg is not ANY:
        if pat.arg is None or pat.arg.__class__ in (int, bool):
            yield Step(f"{var}.arg == {pat.arg!r}", True)
        else:
            yield Step(f"{var}.arg == {space.name('ARG_', pat.arg)}", True)
    if pat.name is not None:
        if pat.name in bound:
            yield Step(f"{var} is {bound[pat.name]}", True)
        bound.setdefault(pat.name, var)
    if not pat.src:
        if pat.src is not None and not pat.prefix:
            yield Step(f"not {var}.src", True)
        return
    parts = [f"{var}_{i}" for i in range(len(pat.src))]
    compare = ">=" if pat.prefix else "=="
    yield Step(f"len({var}.src) {compare} {len(parts)}", True)
    cut = f"[:{len(parts)}]" if pat.prefix else ""
    yield Step(f"{', '.join(parts)}, = {var}.src{cut}", False)
    for source, part in zip(pat.src, parts):
        yield from op_test(source, part, space)
    for source, part in zip(pat.src, parts):
        yield from match_steps(source, part, space, bound)


def parameters_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the positional parameters."""
    return fn.__code__.co_varnames[: fn.__code__.co_argcount]


def call_text(fn: Callable[..., Any], bound: dict[str, str], space: Namespace) -> str:
    """A call of a rule's function with arguments by parameter name."""
    known = {"u": "u", "ctx": "ctx", "info": "info", **bound}
    return f"{space.name('F_', fn)}({', '.join([known[n] for n in parameters_of(fn)])})"


def rule_steps(rule: Rule, pat: UPat, space: Namespace) -> tuple[list[Step], str, str]:
    """The steps of one arrangement of a rule, its replacement call, and its name in the code."""
    bound: dict[str, str] = {}
    steps = list(match_steps(pat, "u", space, bound))
    prepare = rule.prepare and Step(f"info = {call_text(rule.prepare, bound, space)}", False)
    guard = rule.guard and Step(call_text(rule.guard, bound, space), True)
    # A guard without `info` runs before `prepare`.
    needs_info = rule.guard is not None and "info" in parameters_of(rule.guard)
    steps += [s for s in ((prepare, guard) if needs_info else (guard, prepare)) if s]
    return steps, call_text(rule.replace, bound, space), space.name("R_", rule)


def write_steps(
    rows: list[tuple[list[Step], str, str]], depth: int, indent: str, lines: list[str]
) -> None:
    """Rows as nested code; consecutive rows share their common first tests."""
    position = 0
    while position < len(rows):
        steps, call, rule = rows[position]
        if len(steps) == depth:
            lines += [
                f"{indent}r = {call}",
                f"{indent}if r is not None and r is not u:",
                f"{indent}    {rule}.fired += 1",
                *([f"{indent}    TELL({rule}, u, r)"] if WATCHERS else []),
                f"{indent}    return r",
            ]
            position += 1
            continue
        step = steps[depth]
        stop = position + 1
        while stop < len(rows) and len(rows[stop][0]) > depth and rows[stop][0][depth] == step:
            stop += 1
        if step.test:
            lines.append(f"{indent}if {step.text}:")
            write_steps(rows[position:stop], depth + 1, indent + "    ", lines)
        else:
            lines.append(indent + step.text)
            write_steps(rows[position:stop], depth + 1, indent, lines)
        position = stop


def source_of_rules(op: Ops, rules: list[Rule], space: Namespace) -> str:
    """The Python text of the matcher of `op`."""
    rows = [rule_steps(rule, pat, space) for rule in rules for pat in orders_of(rule.pattern)]
    lines = [f"def match_{op.name.lower()}(u, ctx):"]
    write_steps(rows, 0, "    ", lines)
    return "\n".join(lines)


def compile_rules(op: Ops, rules: list[Rule]) -> Matcher:
    """One function that tries the rules, in order, on nodes of `op`."""
    space = Namespace()
    text = source_of_rules(op, rules, space)
    space.values["TELL"] = tell_rewritten
    exec(compile(text, f"<rules of {op.name}>", "exec"), space.values)
    matcher: Matcher = space.values[f"match_{op.name.lower()}"]
    return matcher
