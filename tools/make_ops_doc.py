"""Writes docs/reference/ops, a page for each kind of op; `--check` says whether they are true.

The meaning of an op is its row of `OP_TABLE`, its gradient what `gradient.py` says of its rule, the
result of an example what it gives here. Only the examples themselves are written by hand.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

from aster_ml import Tensor, dtypes
from aster_ml.gradient import GRADIENT
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import COMMUTATIVE, OP_TABLE, Group, Ops

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference" / "ops"


class Page(NamedTuple):
    """A kind of op: its file, its title, the groups of it, what is said of all of them."""

    name: str
    title: str
    groups: tuple[Group, ...]
    about: str


PAGES = (
    Page(
        "elementwise", "Elementwise ops", (Group.UNARY, Group.BINARY, Group.TERNARY),
        "One result for each place, from the values at that place. Sources have one shape;\n"
        "scalars and axes of size 1 are expanded before. Any chain of them is one loop.",
    ),
    Page(
        "reduce", "Ops that reduce", (Group.REDUCE,),
        "Fewer results than sources: what lies along an axis, or meets at a place, is folded with\n"
        "ADD, MUL or MAX.",
    ),
    Page(
        "movement", "Movement ops", (Group.MOVEMENT,),
        "The same values at other places. None computes anything, and none is a kernel by itself:\n"
        "each becomes index arithmetic in the kernels that read its result. PAD alone has values\n"
        "that its source has not, zeros, which are a condition on the index.",
    ),
)  # fmt: skip
# An expression that has the op in its graph. Of ops without one the compiler alone makes use.
EXAMPLES: dict[Ops, str] = {
    Ops.CAST: "Tensor([1.7, -1.7]).cast(dtypes.int32)",
    Ops.BITCAST: "Tensor([1.0]).bitcast(dtypes.int32)",
    Ops.NEG: "-Tensor([1.0, -2.0])",
    Ops.EXP2: "Tensor([0.0, 3.0]).exp2()",
    Ops.LOG2: "Tensor([1.0, 8.0]).log2()",
    Ops.SIN: "Tensor([0.0]).sin()",
    Ops.TANH: "Tensor([0.0]).tanh()",
    Ops.SQRT: "Tensor([4.0, 9.0]).sqrt()",
    Ops.RECIPROCAL: "Tensor([2.0, 4.0]).reciprocal()",
    Ops.TRUNC: "Tensor([1.7, -1.7]).trunc()",
    Ops.ADD: "Tensor([1, 2]) + Tensor([10, 20])",
    Ops.SUB: "Tensor([1, 2]) - Tensor([10, 20])",
    Ops.MUL: "Tensor([3, 4]) * Tensor([10, 20])",
    Ops.FDIV: "Tensor([1.0, 3.0]) / Tensor([2.0, 2.0])",
    Ops.IDIV: "Tensor([7, -7]).idiv(2)",
    Ops.MOD: "Tensor([7, 8]) % 4",
    Ops.MAX: "Tensor([1, 5]).maximum(Tensor([3, 2]))",
    Ops.POW: "Tensor([2.0, 3.0]) ** Tensor([3.0, 2.0])",
    Ops.CMPLT: "Tensor([1, 2]) < Tensor([2, 2])",
    Ops.CMPNE: "Tensor([1, 2]) != Tensor([2, 2])",
    Ops.CMPEQ: "Tensor([1, 2]) == Tensor([2, 2])",
    Ops.XOR: "Tensor([6]) ^ Tensor([3])",
    Ops.OR: "Tensor([6]) | Tensor([3])",
    Ops.AND: "Tensor([6]) & Tensor([3])",
    Ops.SHL: "Tensor([3]) << 2",
    Ops.SHR: "Tensor([-8]) >> 1",
    Ops.WHERE: "(Tensor([1, 5]) > 2).where(10, 20)",
    Ops.REDUCE: "Tensor([[1, 2], [3, 4]]).sum(axis=1)",
    Ops.SCATTER: 'Tensor.zeros(3).scatter_reduce(0, Tensor([2, 0, 2]), Tensor([1, 2, 3.0]), "sum")',
    Ops.RESHAPE: "Tensor([[1, 2, 3], [4, 5, 6]]).reshape(3, 2)",
    Ops.EXPAND: "Tensor([[1], [2]]).expand(2, 3)",
    Ops.PERMUTE: "Tensor([[1, 2, 3], [4, 5, 6]]).permute(1, 0)",
    Ops.PAD: "Tensor([1, 2]).pad((1, 2))",
    Ops.SHRINK: "Tensor([1, 2, 3, 4])[1:3]",
    Ops.FLIP: "Tensor([1, 2, 3]).flip(0)",
    Ops.NAME: "(lambda x: [x.relu(), x.relu()][1])(Tensor([1.0, -2.0]))",
}


def gradient_of(op: Ops) -> str:
    """What the rule of an op says; of a rule that is one expression, that expression."""
    rule = GRADIENT.get(op)
    if rule is None:
        return "none passes"
    if rule.__name__ != "<lambda>":
        return " ".join((rule.__doc__ or "").split())
    text = inspect.getsource(rule).strip().rstrip(",").partition(": lambda g, u, i: ")[2]
    return f"`{text}`"


def value_of(op: Ops, example: str) -> Any:
    """What an example gives. Raises: SystemExit where its graph has no such op."""
    scope: dict[str, Any] = {"Tensor": Tensor, "dtypes": dtypes}
    tensor = eval(example, scope)
    if op not in {u.op for u in toposort(tensor.uop)}:
        raise SystemExit(f"make_ops_doc: {example} has no {op}")
    return tensor.tolist()


def section(op: Ops) -> str:
    """What there is to say of one op."""
    lines = [f"## {op.name}", "", OP_TABLE[op].doc]
    if op in COMMUTATIVE:
        lines[-1] += " Its sources may change places."
    lines += ["", f"Gradient: {gradient_of(op)}", ""]
    example = EXAMPLES.get(op)
    if example is None:
        return "\n".join([*lines, "Made by the compiler alone, for targets that have it.", ""])
    value = value_of(op, example)
    code = f"result = {example}\nassert result.tolist() == {value}"
    return "\n".join([*lines, "```python", code, "```", ""])


def text(page: Page) -> str:
    """A whole page."""
    ops = [op for op, row in OP_TABLE.items() if row.group in page.groups]
    imports = "```python\nfrom aster_ml import Tensor, dtypes\n```"
    head = f"# {page.title}\n\n{page.about}\n\nMade by `tools/make_ops_doc.py`. In gradients `g`\n"
    head += (
        "is that of the result, `u` the node, `i` the number of the source. Examples begin with\n"
    )
    return "\n".join([head, imports, "", *(section(op) for op in ops)])


def main() -> int:
    """Writes the pages, or says which are out of date."""
    stale = []
    for page in PAGES:
        path, new = FOLDER / f"{page.name}.md", text(page)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != new:
            stale.append(path.name)
    print(f"out of date: {', '.join(stale)}" if stale else "docs/reference/ops is up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
