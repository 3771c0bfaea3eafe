"""Prints one small example at every stage of the compiler, for docs/explanation/overview.md.

`python -m tools.show_stages` prints; with `--write` the blocks of that page between
`<!-- stage: NAME -->` or `<!-- table: NAME -->` and `<!-- end -->` are written anew; with `--check`
it says whether they are up to date. The target is a fixed one, so that the text is the same on
every machine. Lines of code change with every commit: those of the core are only held to about.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.codegen.policy.cpu.heuristic import choose_opts
from aster_ml.codegen.transforms.axes import merge_axes
from aster_ml.dtype import dtypes
from aster_ml.engine.realize import MIN_THREAD_LENGTH, THREAD_RESULTS
from aster_ml.renderer.c import CRenderer
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.renderer.llvm.renderer import LLVMRenderer
from aster_ml.schedule.capture import capture
from aster_ml.schedule.plan import plan
from aster_ml.schedule.steps import Schedule
from aster_ml.schedule.work import Workers
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_to_text, to_text
from tools.make_kernels_doc import shortened

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "explanation" / "overview.md"
PACKAGE = ROOT / "src" / "aster_ml"
TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=2)

# A product whose operands are copied to shared memory two steps ahead of their use.
CARD, PIPELINED = "sm_80", "LOCAL(r0,8) LOCAL(r1,8) STAGE(r2,8,local) PIPELINE(r2,3,copies)"

# What one reads first, by folder.
CORE = {
    "": "tensor gradient",
    "uop": "node interned ops infer graph pattern rewrite evaluate movement ranges linear passes",
    "uop/rules": "symbolic algebra linear_form",
    "schedule": "capture plan steps",
    "schedule/fusion": "uses policy costs materialize inline",
    "schedule/kernels": "kernelize order",
    "codegen": "passes opts kernel analysis lower/indices lower/linearize",
    "renderer": "base lanes language cstyle c",
    "engine": "realize storage memory compile launch",
}
# A count of lines may be off by so many, or so large a part, before it counts as out of date.
OFF_LINES, OFF_PART = 60, 0.2
COUNTED = re.compile(r"`([\w/]+)` (\d+)")


def product(n: int, k: int, m: int) -> UOp:
    """`x @ w` of [n, k] and [k, m], as nodes."""
    x = UOp.new_buffer("CPU", n * k, dtypes.float32)._mop(Ops.RESHAPE, (n, 1, k))
    w = UOp.new_buffer("CPU", k * m, dtypes.float32)._mop(Ops.RESHAPE, (k, m))
    w = w._mop(Ops.PERMUTE, (1, 0))._mop(Ops.RESHAPE, (1, m, k))
    terms = x._mop(Ops.EXPAND, (n, m, k)) * w._mop(Ops.EXPAND, (n, m, k))
    return terms._rop(Ops.ADD, (2,))._mop(Ops.RESHAPE, (n, m))


def planned(value: UOp) -> tuple[UOp, Schedule]:
    """The body of a value of two axes and its schedule."""
    n, m = value.shape
    out = UOp.new_buffer("CPU", n * m, dtypes.float32)._mop(Ops.RESHAPE, (n, m))
    # Ids of buffers count up in a process; the printed ones start from 0.
    captured = capture([out.store(value)], [], lambda u: None)
    workers = Workers(TARGET.threads, MIN_THREAD_LENGTH, THREAD_RESULTS * TARGET.threads)
    return captured.body, plan(captured, lambda device: workers)


def kernel_of(schedule: Schedule) -> UOp:
    """The kernel of a schedule that has one."""
    ast = schedule.steps[0].ast
    assert ast is not None
    return ast


def stages() -> dict[str, str]:
    """Name of a stage -> its text, of `(x @ w).relu()` and of a product that is pipelined."""
    y = product(8, 16, 32)
    body, schedule = planned((y.const_like(0) < y).where(y, y.const_like(0)))
    ast = kernel_of(schedule)
    kernel = Kernel(ast)
    merge_axes(kernel, TARGET)
    choose_opts(kernel, TARGET)
    linear, opts = lower(ast, TARGET)
    steps = "\n".join(
        f"{i}: {s.kind} on {s.device}, slots {s.slots}" for i, s in enumerate(schedule.steps)
    )
    card = cuda_target(CARD)
    ahead, given = lower(kernel_of(planned(product(64, 64, 32))[1]), card, parse_opts(PIPELINED))
    return {
        "body": to_text(body),
        "schedule": steps,
        "kernel": to_text(ast),
        "opts": " ".join(map(repr, opts)),
        "scheduled kernel": to_text(kernel.sink),
        "linear": linear_to_text(linear),
        "llvm": LLVMRenderer(TARGET).render(linear),
        "c": CRenderer(TARGET).render(linear),
        "pipelined opts": " ".join(map(repr, given)),
        "pipelined": CudaRenderer(card).render(ahead),
    }


# Where what the document shows of a source begins.
BEGINS = {"c": "\nvoid ", "pipelined": "\n  float acc0"}


def shown(name: str, text: str) -> str:
    """What the document shows of a stage: of a source the kernel, without what it repeats."""
    if name not in BEGINS:
        return text.rstrip("\n")
    source = text[text.index(BEGINS[name]) + 1 :]
    return "\n".join(shortened(source.rstrip("\n").split("\n"), few=1))


def code_lines(path: Path) -> int:
    """Lines of a module without blank ones, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    kept = {i for i, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            kept -= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(kept)


def core_counts() -> dict[str, int]:
    """Path of each module of the core -> its lines of code."""
    return {
        f"{folder}/{name}".lstrip("/"): code_lines(PACKAGE / folder / f"{name}.py")
        for folder, names in CORE.items()
        for name in names.split()
    }


def core_table() -> str:
    """The modules of the core with their lines of code, to the ten."""
    counts = core_counts()
    lines = ["| folder | modules | lines |", "|---|---|--:|"]
    for folder, names in CORE.items():
        found = {name: counts[f"{folder}/{name}".lstrip("/")] for name in names.split()}
        modules = ", ".join(f"`{name}` {round(n, -1)}" for name, n in found.items())
        where = f"`{folder}/`" if folder else ""
        lines.append(f"| {where} | {modules} | {round(sum(found.values()), -1):,} |")
    lines.append(f"| | all {len(counts)} | {round(sum(counts.values()), -2):,} |")
    return "\n".join(lines)


def is_about(old: str, new: str) -> bool:
    """Whether two tables of the core name the same modules, with about the same counts."""
    before, after = COUNTED.findall(old), COUNTED.findall(new)
    return [name for name, _ in before] == [name for name, _ in after] and all(
        abs(int(a) - int(b)) <= max(OFF_LINES, OFF_PART * int(b))
        for (_, a), (_, b) in zip(before, after, strict=True)
    )


def filled(text: str, exact: bool = False) -> str:
    """The document with every block up to date; not `exact`, one that is about right stays."""
    made = stages()
    tables = {"core": core_table}

    def block(match: re.Match[str]) -> str:
        kind, name, old = match.groups()
        if kind == "stage":
            body = f"```\n{shown(name, made[name])}\n```\n"
        else:
            body = tables[name]() + "\n"
            if name == "core" and not exact and is_about(old, body):
                body = old
        return f"<!-- {kind}: {name} -->\n{body}<!-- end -->"

    return re.sub(r"<!-- (stage|table): ([a-z ]+) -->\n(.*?)<!-- end -->", block, text, flags=re.S)


def main() -> int:
    """Entry point."""
    if len(sys.argv) == 1:
        for name, text in stages().items():
            print(f"=== {name}\n{text}\n")
        return 0
    old = DOC.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        DOC.write_text(filled(old, exact=True), encoding="utf-8", newline="\n")
        return 0
    if filled(old) != old:
        print("docs/explanation/overview.md is out of date: run make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
