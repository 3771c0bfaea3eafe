"""Writes the generated parts of docs/explanation/gpu.md: one product in each language of
work-groups, one whose operands are copied ahead, and a table.

`python -m tools.make_gpu_doc` writes the blocks between `<!-- source: LANGUAGE -->` and
`<!-- end -->` anew; with `--check` it says whether they are up to date. The targets are fixed ones.
`--table FILE` writes the block `<!-- table: compile -->` from what `tools.gpu_compile` has printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.dtype import DType, dtypes
from aster_ml.engine.compile import render
from aster_ml.schedule.capture import capture
from aster_ml.schedule.plan import plan
from aster_ml.schedule.work import Workers
from aster_ml.target import GPU, Target
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

F32 = dtypes.float32
DOC = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "gpu.md"
TARGETS = {
    "opencl": Target(
        "OPENCL", "opencl", kind=GPU, has_local=True, has_barrier=True, max_group=256,
        local_bytes=32 << 10, index_bits=32,
    ),
    "cuda": cuda_target("sm_90a"),
    "wgsl": Target(
        "WEBGPU", "wgsl", kind=GPU, move_bits=128, has_local=True, has_barrier=True, max_group=256,
        local_bytes=16 << 10, index_bits=32,
    ),
    "metal": metal_target(),
}  # fmt: skip


# What the product that is copied ahead runs as, and on which card.
AHEAD = parse_opts(
    "TC(r2,3) UPCAST(r1,2) LOCAL(r0,2) LOCAL(r1,2) STAGE(r2,2,local) PIPELINE(r2,3,copies)"
)
AMPERE = cuda_target("sm_80")


def product(rows: int = 8, steps: int = 16, columns: int = 64, dtype: DType = F32) -> UOp:
    """The kernel of `x @ w`, of [rows, steps] and [steps, columns]; sums are float32."""
    shape = (rows, columns, steps)
    x = UOp.new_buffer("CPU", rows * steps, dtype)._mop(Ops.RESHAPE, (rows, 1, steps))
    w = UOp.new_buffer("CPU", steps * columns, dtype)._mop(Ops.RESHAPE, (steps, columns))
    w = w._mop(Ops.PERMUTE, (1, 0))._mop(Ops.RESHAPE, (1, columns, steps))
    both = x._mop(Ops.EXPAND, shape).cast(F32) * w._mop(Ops.EXPAND, shape).cast(F32)
    y = both._rop(Ops.ADD, (2,))._mop(Ops.RESHAPE, (rows, columns))
    out = UOp.new_buffer("CPU", rows * columns, F32)._mop(Ops.RESHAPE, (rows, columns))
    captured = capture([out.store(y)], [], lambda u: None)
    ast = plan(captured, lambda device: Workers(1, 1, 1)).steps[0].ast
    assert ast is not None
    return ast


def sources() -> dict[str, str]:
    """Language -> source."""
    ast = product()
    found = {name: render(lower(ast, t)[0], t) for name, t in TARGETS.items()}
    half = product(32, 128, 32, dtypes.float16)
    return {**found, "ahead": render(lower(half, AMPERE, AHEAD)[0], AMPERE)}


def shown(source: str) -> str:
    """The kernel alone, without the functions before it."""
    lines = source.strip().split("\n")
    heads = ('extern "C"', "[[max_total", "__attribute__", "__kernel", "@compute", "@group")
    first = next(i for i, line in enumerate(lines) if line.startswith(heads))
    return "\n".join(lines[first:])


def filled(text: str) -> str:
    """The document with its blocks written anew."""
    for name, source in sources().items():
        block = f"<!-- source: {name} -->\n```\n{shown(source)}\n```\n<!-- end -->"
        pattern = rf"<!-- source: {name} -->.*?<!-- end -->"
        text = re.sub(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def with_table(text: str, printed: str) -> str:
    """The document with the rows of tables that `tools.gpu_compile` has printed."""
    rows = dict.fromkeys([line for line in printed.split("\n") if line.startswith("|")])
    block = "\n".join(["<!-- table: compile -->", *rows, "<!-- end -->"])
    return re.sub(r"<!-- table: compile -->.*?<!-- end -->", lambda m: block, text, flags=re.DOTALL)


def main() -> int:
    """Writes, or checks."""
    old = DOC.read_text(encoding="utf-8")
    new = filled(old)
    if "--table" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--table") + 1])
        new = with_table(new, path.read_text(encoding="utf-8"))
    if "--check" in sys.argv:
        print("docs/explanation/gpu.md is " + ("up to date" if old == new else "out of date"))
        return int(old != new)
    DOC.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
