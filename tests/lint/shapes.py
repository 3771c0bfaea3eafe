"""The language of `Shapes:` lines: parsed, drawn and compared. It knows nothing of tensors.

    Shapes: self [*b, n, k], other [*b, k, m] -> [*b, n, m]; b broadcasts.

    line    form; form or note; ...            the full stop at the end may be left out
    form    value, value, ... -> result, ...
    value   NAME [dims]                        a tensor; `NAME int [dims]` one of another dtype;
                                               `NAME a pair of [dims]` a tuple of two
            NAME=expr                          any other argument, of the sizes: shape=(*b, n)
    result  [dims]   NAME [dims]   a pair of [dims]
    dims    Python's own list display: a name is a size, *name any number of sizes, n // 2 + 1 a sum
    note    b broadcasts      b and c broadcast      each place of b may have ones, or lack axes
            t = n // 2 + 1    what a name stands for
            k <= n            sizes are drawn until this holds; len(s) is a number of axes

A name that only results have, and that no note defines, stands for any size.
"""

from __future__ import annotations

import ast
import math
import random
import re
from typing import Any, NamedTuple

Env = dict[str, Any]

SECTION = re.compile(r"^\s*(Shapes|Dtype|Raises|Error|Source):\s*(.*)$")
VALUE = re.compile(
    r"^(?P<name>[A-Za-z_]\w*)\s+(?:(?P<pair>a pair of)\s+)?"
    r"(?:(?P<kind>[a-z]\w*)\s+)?(?P<dims>\[.*\])$"
)
ARGUMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)\s*=(?!=)\s*(?P<text>.+)$")
RESULT = re.compile(r"^(?:(?P<pair>a pair of)\s+|[A-Za-z_]\w*\s+)?(?P<dims>\[.*\])$")
BROADCAST = re.compile(r"^(?P<names>\w+(?:(?:\s*,\s*|\s+and\s+)\w+)*)\s+broadcasts?$")
KINDS = ("int", "bool", "float", "double", "half")
FUNCTIONS = {"min": min, "max": max, "len": len, "prod": math.prod, "abs": abs, "sum": sum}
ALLOWED = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Starred, ast.List, ast.Tuple, ast.BinOp,
    ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Compare, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Call, ast.BoolOp, ast.And, ast.Or,
)  # fmt: skip


class ShapesError(ValueError):
    """A line that is not in the language above."""


class Expr(NamedTuple):
    """A checked expression over sizes, and the names in it; `stars` are those that have many."""

    text: str
    names: frozenset[str]
    stars: frozenset[str]

    def value(self, env: Env) -> Any:
        """What it is for these sizes."""
        return eval(self.text, {"__builtins__": {}, **FUNCTIONS}, env)


class Value(NamedTuple):
    """An argument: a tensor (dims) of some kind, a pair of them, or, with no kind, a value."""

    name: str
    kind: str
    expr: Expr
    is_pair: bool = False


class Form(NamedTuple):
    """What goes in and the shapes that come out."""

    values: tuple[Value, ...]
    results: tuple[Expr, ...]

    def names(self) -> frozenset[str]:
        """The names that the arguments give."""
        return frozenset().union(*(value.expr.names for value in self.values))


class Line(NamedTuple):
    """A whole `Shapes:` section."""

    forms: tuple[Form, ...]
    broadcasts: frozenset[str]
    definitions: tuple[tuple[str, Expr], ...]
    conditions: tuple[Expr, ...]


def shapes_text(docstring: str | None) -> str | None:
    """The `Shapes:` section of a docstring in one line, or None."""
    found: list[str] | None = None
    for line in (docstring or "").splitlines():
        head = SECTION.match(line)
        if head and head[1] == "Shapes":
            found = [head[2]]
        elif found is not None:
            if head or not line.strip():
                break
            found.append(line.strip())
    return None if found is None else " ".join(found)


def split_outside(text: str, mark: str) -> list[str]:
    """`text` cut at each `mark` that no bracket and no quotes enclose."""
    parts, depth, start, quote = [], 0, 0, ""
    for at, char in enumerate(text):
        if quote or char in "\"'":
            quote = "" if char == quote else quote or char
            continue
        depth += (char in "([") - (char in ")]")
        if depth == 0 and text.startswith(mark, at):
            parts.append(text[start:at])
            start = at + len(mark)
    return [part.strip() for part in [*parts, text[start:]]]


def parse_expr(text: str) -> Expr:
    """A Python expression that holds nothing but sizes and arithmetic."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ShapesError(f"no expression: {text!r}") from error
    nodes = list(ast.walk(tree))
    for node in nodes:
        if not isinstance(node, ALLOWED):
            raise ShapesError(f"{type(node).__name__} has no place in {text!r}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in FUNCTIONS:
            raise ShapesError(f"unknown function in {text!r}; there are {', '.join(FUNCTIONS)}")
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - set(FUNCTIONS)
    many = [node.value for node in nodes if isinstance(node, ast.Starred)]
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("len", "prod", "sum"):
            many += node.args
    stars = {node.id for node in many if isinstance(node, ast.Name)}
    return Expr(text, frozenset(names), frozenset(stars))


def parse_form(text: str) -> Form:
    """`value, value -> result`."""
    sides = split_outside(text, "->")
    if len(sides) != 2:
        raise ShapesError(f"a form has one arrow, not {len(sides) - 1}: {text!r}")
    values = []
    for part in split_outside(sides[0], ",") if sides[0] else []:
        if match := VALUE.match(part):
            if match["kind"] not in (None, *KINDS):
                raise ShapesError(f"{match['kind']!r} is none of {', '.join(KINDS)}: {part!r}")
            kind = match["kind"] or "float"
            dims = parse_expr(match["dims"])
            values.append(Value(match["name"], kind, dims, match["pair"] is not None))
        elif match := ARGUMENT.match(part):
            values.append(Value(match["name"], "", parse_expr(match["text"])))
        else:
            raise ShapesError(f"neither `name [dims]` nor `name=expr`: {part!r}")
    results = []
    for part in split_outside(sides[1], ","):
        match = RESULT.match(part)
        if match is None:
            raise ShapesError(f"a result is `[dims]`, not {part!r}")
        results += [parse_expr(match["dims"])] * (2 if match["pair"] else 1)
    return Form(tuple(values), tuple(results))


def parse_line(text: str) -> Line:
    """A whole `Shapes:` section; raises ShapesError with the part that is not in the language."""
    forms: list[Form] = []
    broadcasts: set[str] = set()
    definitions: list[tuple[str, Expr]] = []
    conditions: list[Expr] = []
    for part in split_outside(text.strip().removesuffix("."), ";"):
        if len(split_outside(part, "->")) > 1:
            forms.append(parse_form(part))
        elif match := BROADCAST.match(part):
            broadcasts |= set(re.split(r"\s*,\s*|\s+and\s+", match["names"]))
        elif match := ARGUMENT.match(part):
            definitions.append((match["name"], parse_expr(match["text"])))
        else:
            conditions.append(parse_expr(part))
    if not forms:
        raise ShapesError(f"no `... -> ...` in {text!r}")
    return Line(tuple(forms), frozenset(broadcasts), tuple(definitions), tuple(conditions))


class Draw(NamedTuple):
    """One choice of sizes: each argument with its value, and the sizes that results speak of."""

    arguments: list[tuple[Value, Any]]
    sizes: Env


def is_star(name: str, line: Line) -> bool:
    """Whether a name stands for any number of sizes."""
    exprs = [
        expr for form in line.forms for expr in (*form.results, *(v.expr for v in form.values))
    ]
    exprs += [expr for _, expr in line.definitions] + list(line.conditions)
    return any(name in expr.stars for expr in exprs)


def narrow(value: Any, rng: random.Random) -> Any:
    """A size, or sizes, that broadcast to `value`: ones in places, leading axes left out."""
    if isinstance(value, tuple):
        kept = value[rng.randint(0, len(value)) :]
        return tuple(1 if rng.random() < 0.3 else size for size in kept)
    return 1 if rng.random() < 0.3 else value


def join(one: Any, other: Any) -> Any:
    """The size, or sizes, to which two broadcast."""
    if not isinstance(one, tuple):
        return max(one, other)
    rank = max(len(one), len(other))
    one, other = (1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other
    return tuple(max(a, b) for a, b in zip(one, other))


def draw(line: Line, form: Form, rng: random.Random) -> Draw:
    """Sizes for which every condition holds; raises ShapesError when 1,000 tries find none."""
    names = {name for value in form.values for name in value.expr.names}
    for _, expr in line.definitions:
        names |= expr.names
    defined = {name for name, _ in line.definitions}
    for expr in line.conditions:
        if not expr.names <= names | defined:
            unknown = ", ".join(sorted(expr.names - names - defined))
            raise ShapesError(f"condition {expr.text!r} speaks of {unknown}, which nothing gives")
    for _ in range(1000):
        env: Env = {
            name: tuple(rng.randint(1, 5) for _ in range(rng.randint(0, 2)))
            if is_star(name, line)
            else rng.randint(1, 7)
            for name in sorted(names - defined)
        }
        for name, expr in line.definitions:
            env[name] = expr.value(env)
        if all(expr.value(env) for expr in line.conditions):
            break
    else:
        raise ShapesError("no sizes were found for which the conditions hold")
    arguments: list[tuple[Value, Any]] = []
    joined: Env = {}
    for value in form.values:
        local = dict(env)
        for name in sorted(line.broadcasts & value.expr.names):
            local[name] = narrow(env[name], rng)
            joined[name] = join(joined.get(name, local[name]), local[name])
        arguments.append((value, value.expr.value(local)))
    return Draw(arguments, {**env, **joined})


def matches(result: Expr, sizes: Env, shape: tuple[int, ...]) -> bool:
    """Whether `shape` is what `result` says; names without a size take whatever stands there."""
    tree = ast.parse(result.text, mode="eval").body
    assert isinstance(tree, ast.List)
    pattern: list[int | None] = []
    rest = False  # whether an unknown *name has taken any number of axes
    tail: list[int | None] = []
    for node in tree.elts:
        expr = parse_expr(f"[{ast.unparse(node)}]")
        into = tail if rest else pattern
        if expr.names <= sizes.keys():
            into += expr.value(sizes)
        elif isinstance(node, ast.Starred):
            rest = True
        else:
            into.append(None)
    if len(shape) < len(pattern) + len(tail) or (not rest and len(shape) != len(pattern)):
        return False
    given = [*shape[: len(pattern)], *shape[len(shape) - len(tail) :]]
    return all(want is None or want == have for want, have in zip([*pattern, *tail], given))
