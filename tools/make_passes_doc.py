"""Writes docs/reference/passes.md from the tables of passes; `--check` says whether it is true.

What stands there is read off the rows: the name, what the function says that it does, when it runs,
and why it stands where it stands.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from aster_ml.codegen import passes
from aster_ml.schedule import plan
from aster_ml.uop.passes import Pass

DOC = Path(__file__).resolve().parent.parent / "docs" / "reference" / "passes.md"
HEAD = """# Passes

Made by `tools/make_passes_doc.py` from the tables in `schedule/plan.py` and `codegen/passes.py`.

A pass is a step from graph to graph with a name. The tables run the passes in this order, time them
(`uop.passes.PASS_TOTALS`, and DEBUG=7 on stderr), hold what each has made to the specification of
its stage (SPEC=2), and hand it to who records (`uop.passes.recorded`). Passes marked *needed* run
on the plainest kernels too; all others only make programs faster.
"""
PARTS: tuple[tuple[str, str, Iterable[Pass]], ...] = (
    (
        "From a body of tensors to kernels (`schedule/plan.py`)",
        "Each changes the body; then values get memory, become kernels, and kernels are joined.",
        (*plan.BODY_PASSES, plan.MATERIALIZE, plan.KERNELIZE, *plan.DRAFT_PASSES),
    ),
    (
        "A kernel before its Opts (`codegen/passes.py`)",
        "Each changes the graph of a kernel. The schedule, a list of Opts, comes after these.",
        passes.BEFORE_OPTS,
    ),
    (
        "A kernel with its Opts (`codegen/passes.py`)",
        "Each changes the graph of a kernel, whose loops have lanes, threads and an order by now.",
        (*passes.AFTER_OPTS, passes.LINEARIZE),
    ),
    (
        "A list of nodes (`codegen/passes.py`)",
        "Each changes a linear program.",
        passes.ON_LINEAR,
    ),
)


def row(step: Pass) -> str:
    """A line of a table."""
    when = (step.applies.__doc__ or "").partition("\n")[0] if step.applies else "always"
    if step.carries_out:
        when = f"kernels with a plan {' or '.join(kind.__name__ for kind in step.carries_out)}"
    when = when.rstrip(".").replace("Kernels", "kernels", 1)
    needed = " *(needed)*" if step.needed else ""
    where = f"`{inspect.unwrap(step.run).__module__.removeprefix('aster_ml.')}`"
    return f"| {step.name}{needed} | {step.does} | {when} | {step.why} | {where} |"


def text() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, about, rows in PARTS:
        lines += [
            f"## {title}\n", f"{about}\n",
            "| pass | what it does | when | why here | where |", "|---|---|---|---|---|",
            *map(row, rows), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Writes the page, or with `--check` exits with 1 where it is not up to date."""
    made = text()
    if "--check" in sys.argv[1:]:
        if DOC.read_text(encoding="utf-8") != made:
            print("docs/reference/passes.md is out of date: run python tools/make_passes_doc.py")
            raise SystemExit(1)
        return
    DOC.parent.mkdir(parents=True, exist_ok=True)
    DOC.write_text(made, encoding="utf-8", newline="\n")
    print(f"{sum(len(list(rows)) for _, _, rows in PARTS)} passes in passes.md")


if __name__ == "__main__":
    main()
