"""Prints one small example at every stage of the compiler, and keeps docs/architecture.md true.

`python tools/show_stages.py` prints; with `--write` the blocks between `<!-- stage: NAME -->` and
`<!-- end -->` in docs/architecture.md are written anew; with `--check` it says whether they are up
to date. The target is a fixed one, so that the text is the same on every machine.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from aster_ml.codegen.cpu.heuristic import choose_opts
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.passes import lower
from aster_ml.codegen.transforms.axes import merge_axes
from aster_ml.dtype import dtypes
from aster_ml.engine.realize import MIN_THREAD_LENGTH, THREAD_RESULTS
from aster_ml.renderer.c import CRenderer
from aster_ml.renderer.llvm import LLVMRenderer
from aster_ml.schedule.capture import capture
from aster_ml.schedule.plan import plan
from aster_ml.schedule.work import Workers
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_to_text, to_text

DOC = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=2)


def example() -> UOp:
    """`(x @ w).relu()` of [8, 16] and [16, 32], as nodes."""
    x = UOp.new_buffer("CPU", 128, dtypes.float32).mop(Ops.RESHAPE, (8, 1, 16))
    w = UOp.new_buffer("CPU", 512, dtypes.float32).mop(Ops.RESHAPE, (16, 32))
    w = w.mop(Ops.PERMUTE, (1, 0)).mop(Ops.RESHAPE, (1, 32, 16))
    product = x.mop(Ops.EXPAND, (8, 32, 16)) * w.mop(Ops.EXPAND, (8, 32, 16))
    y = product.rop(Ops.ADD, (2,)).mop(Ops.RESHAPE, (8, 32))
    return (y.const_like(0) < y).where(y, y.const_like(0))


def stages() -> dict[str, str]:
    """Name of a stage -> its text."""
    value = example()
    out = UOp.new_buffer("CPU", 256, dtypes.float32).mop(Ops.RESHAPE, (8, 32))
    # Ids of buffers count up in a process; the printed ones start from 0.
    captured = capture([out.store(value)], [], lambda u: None)
    workers = Workers(TARGET.threads, MIN_THREAD_LENGTH, THREAD_RESULTS * TARGET.threads)
    schedule, _ = plan(captured, lambda device: workers)
    ast = schedule.steps[0].ast
    assert ast is not None
    kernel = Kernel(ast)
    merge_axes(kernel, TARGET)
    choose_opts(kernel, TARGET)
    linear, opts = lower(ast, TARGET)
    steps = "\n".join(
        f"{i}: {s.kind} on {s.device}, slots {s.slots}" for i, s in enumerate(schedule.steps)
    )
    return {
        "body": to_text(captured.body),
        "schedule": steps,
        "kernel": to_text(ast),
        "opts": " ".join(map(repr, opts)),
        "scheduled kernel": to_text(kernel.sink),
        "linear": linear_to_text(linear),
        "llvm": LLVMRenderer(TARGET).render(linear),
        "c": CRenderer(TARGET).render(linear),
    }


def filled(text: str) -> str:
    """The document with every block up to date."""
    made = stages()

    def block(match: re.Match[str]) -> str:
        name, lines = match[1], made[match[1]].rstrip("\n")
        return f"<!-- stage: {name} -->\n```\n{lines}\n```\n<!-- end -->"

    return re.sub(r"<!-- stage: ([a-z ]+) -->\n.*?<!-- end -->", block, text, flags=re.S)


def main() -> int:
    """Entry point."""
    if len(sys.argv) == 1:
        for name, text in stages().items():
            print(f"=== {name}\n{text}\n")
        return 0
    old = DOC.read_text(encoding="utf-8")
    new = filled(old)
    if "--write" in sys.argv:
        DOC.write_text(new, encoding="utf-8")
        return 0
    if new != old:
        print("docs/architecture.md is out of date: run python tools/show_stages.py --write")
    return int(new != old)


if __name__ == "__main__":
    sys.exit(main())
