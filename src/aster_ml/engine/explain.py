"""Explains what realizing tensors would run: the text of `Tensor.explain` and of DEBUG=3.

Receives a Schedule; returns text. Nothing is compiled or run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from aster_ml.codegen.explain import explain_kernel
from aster_ml.codegen.opts import Opt
from aster_ml.codegen.passes import kernel_name, schedule_kernel
from aster_ml.device import Device
from aster_ml.engine.estimate import Estimates, estimate
from aster_ml.helpers import pluralize
from aster_ml.schedule.steps import Schedule, Step
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import RunArg


def amount(count: float, unit: str) -> str:
    """`1.23 MB`."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {prefix}{unit}"
    return f"{count:.0f} {unit}"


def show_work(e: Estimates) -> str:
    """Operations, bytes, and how many of the one an each of the other."""
    per_byte = f", {e.ops / e.mem:.2f} a byte" if e.mem else ""
    return f"{amount(e.ops, 'FLOP')}, {amount(e.mem, 'B')}{per_byte}"


def kernel_lines(ast: UOp, target: Target, opts: tuple[Opt, ...] | None = None) -> list[str]:
    """Lists the lines about one kernel, its work first; of a run, about each of its kernels."""
    work = estimate(ast)
    if isinstance(ast.arg, RunArg):
        return run_lines(ast, target)
    return [f"work: {show_work(work)}", *explain_kernel(ast, target, opts)]


def run_lines(ast: UOp, target: Target) -> list[str]:
    """Lists the lines about a run."""
    arg: RunArg = ast.arg
    parts = ", ".join([f"{part} of {size:,}" for _, size, part in arg.axes])
    scratch = amount(sum(arg.scratch), "B")
    lines = [
        f"work: {show_work(estimate(ast))}",
        f"{pluralize('kernel', len(ast.src))}, one after another for each part ({parts}) of their "
        f"outer axes; {scratch} of scratch for each of at most {pluralize('lane', arg.lanes)}",
    ]
    for kernel in ast.src:
        lines.append(f"{name_of(kernel, target)}")
        lines += [f"   {line}" for line in kernel_lines(kernel, replace(target, threads=1))]
    return lines


def run_name(ast: UOp) -> str:
    """`run_3_8x512`: how many kernels go over which axes."""
    return f"run_{len(ast.src)}_{'x'.join([str(size) for _, size, _ in ast.arg.axes])}"


def name_of(ast: UOp, target: Target) -> str:
    """The name that the kernel will have."""
    if isinstance(ast.arg, RunArg):
        return run_name(ast)
    if ast.arg is not None and ast.arg.name:
        return str(ast.arg.name)
    if ast.arg is not None and ast.arg.in_order:
        return "ordered"
    return kernel_name(schedule_kernel(ast, target))


def show_slots(schedule: Schedule, step: Step) -> Iterator[str]:
    """Lists what a step writes: a result, or a value that has memory for a reason."""
    slot = schedule.slots[step.slots[0]]
    size = f"{slot.size:,} x {slot.dtype.name}"
    if step.slots[0] < schedule.n_args:
        yield f"writes a result, {size}"
    else:
        later = [
            i for i, s in enumerate(schedule.steps) if s is not step and step.slots[0] in s.slots
        ]
        readers = f"read by {', '.join(map(str, later))}"
        yield f"writes a temporary, {size}, {readers}, stored because: {slot.why}"


def explain_steps(schedule: Schedule) -> Iterator[str]:
    """Line by line."""
    yield pluralize("step", len(schedule.steps))
    for number, step in enumerate(schedule.steps):
        if step.ast is None:
            what = f"{step.kind} of {step.nbytes:,} bytes" if step.nbytes else step.kind
            yield f"{number}: {what} on {step.device}"
            continue
        target = Device[step.device].target
        yield f"{number}: kernel {name_of(step.ast, target)} on {step.device}"
        for line in (*show_slots(schedule, step), *kernel_lines(step.ast, target)):
            yield f"   {line}"


def explain_schedule(schedule: Schedule) -> str:
    """The text for a schedule."""
    return "\n".join(explain_steps(schedule))
