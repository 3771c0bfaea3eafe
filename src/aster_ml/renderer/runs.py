"""Renders a run of kernels as one function: each kernel a function, and loops over the parts
around.

Receives the Linears of a run's kernels, each over one part and without a THREAD axis, and its
`RunArg`; returns source text for a CPU with one more function of the usual form,
`void NAME(slots, lo, hi)`, that runs the lanes lo to hi. What a kernel of its own looks like stands
in the language's renderer.
"""

from __future__ import annotations

from dataclasses import replace

from aster_ml.renderer.base import Renderer
from aster_ml.renderer.c import CRenderer
from aster_ml.renderer.llvm.renderer import LLVMRenderer, join_modules
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import RunArg


def render_run(
    renderer: Renderer, name: str, linears: list[Linear], arg: RunArg, lanes: int
) -> str:
    """The source of a run in `lanes` lanes."""
    named = [replace(linear, name=f"{name}_{i}") for i, linear in enumerate(linears)]
    if isinstance(renderer, LLVMRenderer):
        texts = [renderer.render(linear) for linear in named]
        driver = llvm_driver(name, named, arg, lanes)
        return join_modules([*texts, "\n".join([*driver, ""])])
    assert isinstance(renderer, CRenderer)
    return renderer.render_all(named, c_driver(name, named, arg, lanes))


def counts(arg: RunArg) -> list[int]:
    """Number of parts of each axis."""
    return [-(-size // part) for _, size, part in arg.axes]


def llvm_driver(name: str, linears: list[Linear], arg: RunArg, lanes: int) -> list[str]:
    """The loop over a lane's parts in LLVM IR."""
    shared = arg.shared_parts
    inner = arg.parts // shared
    lines = [f"define void @{name}(ptr %args, i64 %lo, i64 %hi) nounwind {{", "entry:"]
    for k, linear in enumerate(linears):
        words = max(1, len(linear.params) + len(linear.variables))
        lines.append(f"  %args{k} = alloca [{words} x i64], align 16")
    for slot in range(len(arg.scratch)):
        lines.append(f"  %p{slot} = getelementptr i64, ptr %args, i64 {slot}")
        lines.append(f"  %whole{slot} = load i64, ptr %p{slot}, align 8")
    lines += [
        "  %none = icmp sge i64 %lo, %hi",
        "  br i1 %none, label %done, label %lane",
        "lane:",
        "  %l = phi i64 [ %lo, %entry ], [ %l.next, %lane.end ]",
        "  %l.next = add i64 %l, 1",
        f"  %first.n = mul i64 %l, {shared}",
        f"  %last.n = mul i64 %l.next, {shared}",
        f"  %first.s = udiv i64 %first.n, {lanes}",
        f"  %last.s = udiv i64 %last.n, {lanes}",
        f"  %first = mul i64 %first.s, {inner}",
        f"  %last = mul i64 %last.s, {inner}",
    ]
    for slot, nbytes in enumerate(arg.scratch):
        lines.append(f"  %skip{slot} = mul i64 %l, {nbytes}")
        lines.append(f"  %at{slot} = add i64 %whole{slot}, %skip{slot}")
    for k, slots in enumerate(arg.slots):
        for i, slot in enumerate(slots):
            lines.append(f"  %a{k}.{i} = getelementptr i64, ptr %args{k}, i64 {i}")
            lines.append(f"  store i64 %at{slot}, ptr %a{k}.{i}, align 8")
    lines += [
        "  %some = icmp ult i64 %first, %last",
        "  br i1 %some, label %part, label %lane.end",
        "part:",
        "  %c = phi i64 [ %first, %lane ], [ %c.next, %part ]",
    ]
    rest = "%c"
    for axis in range(len(arg.axes) - 1, -1, -1):
        (_, size, part), count = arg.axes[axis], counts(arg)[axis]
        lines += [
            f"  %i{axis} = urem i64 {rest}, {count}",
            f"  %rest{axis} = udiv i64 {rest}, {count}",
            f"  %from{axis} = mul i64 %i{axis}, {part}",
            f"  %late{axis} = icmp ugt i64 %from{axis}, {size - part}",
            f"  %start{axis} = select i1 %late{axis}, i64 {size - part}, i64 %from{axis}",
        ]
        rest = f"%rest{axis}"
    number = {axis[0]: i for i, axis in enumerate(arg.axes)}
    for k, linear in enumerate(linears):
        for i, variable in enumerate(linear.variables, len(linear.params)):
            lines.append(f"  %v{k}.{i} = getelementptr i64, ptr %args{k}, i64 {i}")
            axis = number[variable.arg.name]
            lines.append(f"  store i64 %start{axis}, ptr %v{k}.{i}, align 8")
        lines.append(f"  call void @{linear.name}(ptr %args{k}, i64 0, i64 1)")
    lines += [
        "  %c.next = add i64 %c, 1",
        "  %more = icmp ult i64 %c.next, %last",
        "  br i1 %more, label %part, label %lane.end",
        "lane.end:",
        "  %another = icmp slt i64 %l.next, %hi",
        "  br i1 %another, label %lane, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return lines


def c_driver(name: str, linears: list[Linear], arg: RunArg, lanes: int) -> list[str]:
    """The same in C."""
    shared = arg.shared_parts
    inner = arg.parts // shared
    lines = [f"void {name}(uint64_t *args, int64_t lo, int64_t hi) {{"]
    lines.append("  for (int64_t l = lo; l < hi; l++) {")
    for slot, nbytes in enumerate(arg.scratch):
        skip = f" + l * {nbytes}" if nbytes else ""
        lines.append(f"    uint64_t at{slot} = args[{slot}]{skip};")
    lines.append(f"    int64_t first = l * {shared} / {lanes} * {inner};")
    lines.append(f"    int64_t last = (l + 1) * {shared} / {lanes} * {inner};")
    lines.append("    for (int64_t c = first; c < last; c++) {")
    lines.append("      int64_t rest = c;")
    for axis in range(len(arg.axes) - 1, -1, -1):
        (_, size, part), count = arg.axes[axis], counts(arg)[axis]
        lines += [
            f"      int64_t start{axis} = rest % {count} * {part};",
            f"      if (start{axis} > {size - part}) start{axis} = {size - part};",
            f"      rest /= {count};",
        ]
    number = {axis[0]: i for i, axis in enumerate(arg.axes)}
    for linear, slots in zip(linears, arg.slots, strict=True):
        words = [f"at{slot}" for slot in slots]
        words += [f"start{number[v.arg.name]}" for v in linear.variables]
        lines.append(f"      {linear.name}((uint64_t[]){{{', '.join(words)}}}, 0, 1);")
    return [*lines, "    }", "  }", "}", ""]
