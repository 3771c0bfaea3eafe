"""Prints scalar expressions as infix text, for shapes, errors and comments: `(r0*3+r1)//4`.

Receives nodes (anything with op, dtype, src and arg) and returns text for people; `uop/print/text`
writes text that parses back. It does not import UOp, which is in a higher layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aster_ml.dtype import dtypes
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.ops import Ops

if TYPE_CHECKING:
    from aster_ml.uop.node import UOp

# Op -> sign and precedence.
INFIX: dict[Ops, tuple[str, int]] = {
    Ops.OR: (" | ", 1),
    Ops.AND: (" & ", 2),
    Ops.CMPLT: (" < ", 4),
    Ops.CMPNE: (" != ", 4),
    Ops.CMPEQ: (" == ", 4),
    Ops.XOR: (" ^ ", 5),
    Ops.SHL: ("<<", 6),
    Ops.SHR: (">>", 6),
    Ops.ADD: ("+", 7),
    Ops.SUB: ("-", 7),
    Ops.MUL: ("*", 8),
    Ops.IDIV: ("//", 8),
    Ops.MOD: ("%", 8),
    Ops.FDIV: ("/", 8),
}
NOT, PREFIX, ATOM = 3, 9, 10
# Ops whose right operand of equal precedence needs no brackets.
FLAT = frozenset({Ops.OR, Ops.AND, Ops.ADD})
LIMIT = 2000
Piece = tuple[str, int]

LEAVES: dict[Ops, Callable[[Any], str]] = {
    Ops.RANGE: lambda u: f"r{u.arg.id}",
    Ops.DEFINE_VAR: lambda u: u.arg.name,
    Ops.BIND: lambda u: f"{u.src[0].arg.name}={u.src[1].arg}",
    Ops.PARAM: lambda u: f"p{u.arg.slot}",
    Ops.BUFFER: lambda u: f"b{u.arg.id}",
    Ops.DEFINE_LOCAL: lambda u: f"local{u.arg.id}",
    Ops.DEFINE_REG: lambda u: f"acc{u.arg.id}",
}


def render_expr(u: UOp) -> str:
    """The expression in infix form; ranges as `r0`, buffers as `p0`; truncated if it is long."""
    return render_below(u, render_node)[0]


def render_size(u: Any) -> str:
    """A size in infix form, in brackets, without a minus between two terms."""
    return bracket(render_below(u, render_term), ATOM)


def render_below(u: Any, render: Callable[[Any, list[Piece]], Piece]) -> Piece:
    """The text of a graph from the texts of its sources; truncated if it is long."""
    pieces: dict[Any, Piece] = {}
    stack = [u]
    while stack:
        x = stack[-1]
        sources = () if x.op in LEAVES else x.src
        pending = [s for s in sources if s not in pieces]
        if pending and x not in pieces:
            stack.extend(pending)
            continue
        stack.pop()
        if x not in pieces:
            text, binds = render(x, [pieces[s] for s in sources])
            pieces[x] = (text, binds) if len(text) <= LIMIT else ("...", ATOM)
    return pieces[u]


def render_term(x: Any, parts: list[Piece]) -> Piece:
    """One node of a size."""
    if x.op is Ops.BIND:
        return LEAVES[Ops.DEFINE_VAR](x.src[0]), ATOM
    if x.op in INFIX:
        sign, binds = INFIX[x.op]
        # A chain of sums or products needs brackets around its right operands alone.
        chain = binds >= INFIX[Ops.ADD][1]
        left = bracket(parts[0], binds if chain else ATOM)
        right = bracket(parts[1], binds + (x.op not in FLAT) if chain else ATOM)
        return f"{left}{sign.strip()}{right}", binds
    if x.op is Ops.WHERE:
        condition, yes, no = [bracket(p, ATOM) for p in parts]
        return f"({yes} if {condition} else {no})", ATOM
    if x.op is Ops.MAX:
        return f"max({bracket(parts[0], ATOM)}, {bracket(parts[1], ATOM)})", ATOM
    if x.op is Ops.CAST:
        return f"({x.dtype.name.removesuffix('32')})({parts[0][0]})", ATOM
    if x.op is Ops.CONST or x.op is Dialect.VCONST:
        return repr(x.arg), ATOM
    if x.op is Dialect.VECTORIZE:
        lanes = [p[0] for p in parts]
        same = len(lanes) > 1 and len(set(lanes)) == 1
        return f"{{{lanes[0]}, ...}}" if same else f"{{{','.join(lanes)}}}", ATOM
    return render_node(x, parts)


def bracket(piece: Piece, least: int) -> str:
    """The text, in brackets if its precedence is lower than `least`."""
    return piece[0] if piece[1] >= least else f"({piece[0]})"


def render_node(u: UOp, parts: list[Piece]) -> Piece:
    """One node over the texts of its sources."""
    op = u.op
    if op in LEAVES:
        return LEAVES[op](u), 0 if op is Ops.BIND else ATOM
    if op is Ops.CONST:
        negative = u.dtype is not dtypes.bool and u.arg < 0
        return repr(u.arg), PREFIX if negative else ATOM
    if op is Ops.CMPNE and u.src[1].op is Ops.CONST and u.src[1].arg is True:
        return f"not {bracket(parts[0], NOT + 1)}", NOT
    if op in INFIX:
        sign, binds = INFIX[op]
        if op is Ops.ADD:
            minus = negated(u.src[1], parts[1])
            if minus is not None:
                return f"{bracket(parts[0], binds)}-{minus}", binds
        right = binds if op in FLAT else binds + 1
        return f"{bracket(parts[0], binds)}{sign}{bracket(parts[1], right)}", binds
    texts = [p[0] for p in parts]
    if op is Ops.WHERE:
        return f"{bracket(parts[1], 1)} if {bracket(parts[0], 1)} else {bracket(parts[2], 1)}", 0
    if op is Ops.NEG:
        return f"-{bracket(parts[0], PREFIX)}", PREFIX
    if op is Ops.INDEX:
        return f"{bracket(parts[0], ATOM)}[{', '.join(texts[1:])}]", ATOM
    if op is Ops.LOAD and len(texts) == 1:
        return parts[0]
    name = u.dtype.name if op is Ops.CAST else op.name.lower()
    return f"{name}({', '.join(texts)})", ATOM


def negated(u: UOp, piece: Piece) -> str | None:
    """The text of -u, if `u` is printed as a negative term; else None."""
    if u.op is Ops.CONST and u.dtype is not dtypes.bool and u.arg < 0:
        return repr(-u.arg)
    if u.op is Ops.MUL and u.src[1].op is Ops.CONST and u.src[1].arg == -1:
        return bracket((piece[0][:-3], 8), 8) if piece[0].endswith("*-1") else None
    return None
