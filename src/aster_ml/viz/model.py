"""Turns a recorded run into plain lists, dicts, numbers, texts (docs/how-to/visualiser.md).

Receives a Recorder; returns what `json.dumps` takes. All that the page, the command line and the
comparison of two runs show comes from here.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

from aster_ml.config import SETTINGS
from aster_ml.device import Device
from aster_ml.errors import AsterError
from aster_ml.extend import estimate, kernel_passes, schedule_passes, show_slots
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RunArg
from aster_ml.uop.print.text import linear_lines
from aster_ml.viz.accesses import accesses_of
from aster_ml.viz.assembly import assembly_of
from aster_ml.viz.callers import Frame
from aster_ml.viz.nodes import NodeTable, Words
from aster_ml.viz.origins import alike
from aster_ml.viz.recorder import KernelPart, KernelRecord, PassEntry, Recorder, ScheduleRecord

FORMAT, VERSION = "aster-viz", 1
# Largest source file of a program that is kept, and most nodes of one graph that are drawn.
MOST_SOURCE = 400_000


def said_by(function: Any) -> dict[str, str]:
    """Reads the words after rewrite, when and why from a docstring."""
    text = " ".join((getattr(function, "__doc__", None) or "").split())
    found = re.split(r"\b(rewrite|when|why): ", text)
    return dict(zip(found[1::2], [said.strip() for said in found[2::2]], strict=True))


class Maker:
    """Makes the data of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.nodes = NodeTable()
        self.files: dict[str, int] = {}
        self.frames: dict[Frame, int] = {}
        self.calls: dict[Any, int] = {}
        self.rules: dict[str, dict[str, str]] = {}
        self.schedules: dict[int, int] = {}
        self.by_ast: dict[UOp, int] = {}
        self.shapes = Words()
        self.shape_of: dict[int, int] = {}
        self.backends: dict[Any, Any] = {}
        for name in recorder.devices:
            backend = Device[name]
            self.backends[backend.target.key] = backend

    def data(self) -> dict[str, Any]:
        """All of it."""
        r = self.recorder
        kernels: list[dict[str, Any]] = []
        for (ast, _, _), record in list(r.kernels.items()):
            self.by_ast[ast] = len(kernels)
            kernels.append(self.kernel(record))
        schedules: list[dict[str, Any]] = []
        for planned in list(r.schedules.values()):
            if planned.body is not None:
                self.schedules[id(planned.schedule)] = len(schedules)
                schedules.append(self.schedule(planned))
        realizes = [self.realize(x) for x in list(r.realizes)]
        events = [self.event(e) for e in list(r.events)]
        memory = [
            [round((t - r.began) * 1e6, 1), device, number, nbytes]
            for t, device, number, nbytes in list(r.memory)
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "made": self.about(),
            "files": [{"path": path, "text": text_of(path)} for path in self.files],
            "frames": [[self.files[f.file], f.line, f.function, f.module] for f in self.frames],
            "calls": [self.call(c) for c in list(self.calls)],
            "nodes": {**self.nodes.data(), "shapes": self.shapes.texts, "shape": self.shape_of},
            "realizes": realizes,
            "schedules": schedules,
            "kernels": kernels,
            "rules": self.rules,
            "passes": {
                p.name: {"does": p.does, "why": p.why}
                for p in (*schedule_passes(), *kernel_passes())
            },
            "events": events,
            "memory": memory,
            "held_before": r.held_before,
            "dropped": r.dropped,
            "failures": r.failures[:20],
        }

    def about(self) -> dict[str, Any]:
        """Of which run this is."""
        r = self.recorder
        changed = {s.name: s.value for s in SETTINGS.values() if s.value != s.default}
        return {
            "at": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(r.began_at)),
            "seconds": round(time.perf_counter() - r.began, 4),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "script": sys.argv[0] if sys.argv else "",
            "arguments": sys.argv[1:],
            "settings": {k: str(v) for k, v in changed.items() if k not in ("VIZ", "TRACEMETA")},
            "devices": {
                b.name: {
                    "language": b.target.language,
                    "arch": b.target.arch,
                    "vector_bits": b.target.vector_bits,
                    "threads": b.target.threads,
                }
                for b in self.backends.values()
            },
            "error": r.error,
        }

    # calls

    def frame(self, f: Frame) -> int:
        """The number of a line of the program."""
        self.files.setdefault(f.file, len(self.files))
        return self.frames.setdefault(f, len(self.frames))

    def call(self, made: Any) -> dict[str, Any]:
        """A call of a Tensor method."""
        return {"name": made.name, "stack": [self.frames[f] for f in made.stack]}

    def call_number(self, made: Any) -> int:
        """The number of a call."""
        for f in made.stack:
            self.frame(f)
        return self.calls.setdefault(made, len(self.calls))

    # passes

    def entries(self, start: UOp | None, entries: list[PassEntry]) -> list[dict[str, Any]]:
        """The passes that have changed something, or in which a rule has fired."""
        result: list[dict[str, Any]] = []
        before: Any = start
        for e in entries:
            made = e.made
            changed = made is not None and made is not before
            if not changed and not e.fired:
                continue
            row: dict[str, Any] = {"name": e.name, "us": round(e.seconds * 1e6, 1)}
            if e.opt:
                row["opt"] = e.opt
            if isinstance(made, UOp):
                row["root"] = self.nodes.number(made)
            elif isinstance(made, Linear):
                row["linear"] = self.linear_text(made)
            if e.fired:
                row["fired"] = [self.firing(*f) for f in e.fired]
            result.append(row)
            before = made if changed else before
        return result

    def firing(self, rule: Any, before: UOp, after: UOp) -> list[Any]:
        """A rewrite."""
        if rule.name not in self.rules:
            said = said_by(rule.replace)
            if rule.guard is not None and "when" not in said:
                said |= {k: v for k, v in said_by(rule.guard).items() if k == "when"}
            self.rules[rule.name] = said
        return [rule.name, self.nodes.number(before), self.nodes.number(after)]

    def linear_text(self, linear: Linear) -> dict[str, Any]:
        """A Linear as lines, each with the place in the list of its node, or -1."""
        place = {u: i for i, u in enumerate(linear.uops)}
        lines = linear_lines(linear)
        for u in linear.uops:
            self.nodes.number(u)
        return {
            "name": linear.name,
            "lines": [text for text, _ in lines],
            "places": [-1 if u is None else place.get(u, -1) for _, u in lines],
            "uops": [self.nodes.number(u) for u in linear.uops],
        }

    # kernels

    def part(self, part: KernelPart, written: set[int]) -> dict[str, Any]:
        """One kernel: its graph, its passes, what decided.

        `written` are the places of its list that have lines of their own in the source.
        """
        assert part.ast is not None
        assert part.linear is not None
        return {
            "ast": self.nodes.number(part.ast),
            "passes": self.entries(part.ast, part.entries),
            "opts": part.opts,
            "why": part.lines,
            "decisions": [
                {"about": d.about, "chosen": d.chosen, "costs": [[n, c] for n, c in d.costs]}
                for d in part.decisions
            ],
            "linear": self.linear_text(part.linear),
            "lowered": {
                self.nodes.number(u): with_readers(part.linear, places, written)
                for u, places in alike(part.ast, part.linear.uops).items()
            },
            "accesses": accesses_of(part.linear, self.nodes),
        }

    def kernel(self, record: KernelRecord) -> dict[str, Any]:
        """A kernel, or a run, with its texts."""
        backend = self.backends.get(record.target.key)
        asm: tuple[list[str], list[int], str] = [], [], "the device was not opened"
        if backend is not None and record.source:
            asm = assembly_of(backend, record.source)
        work = estimate(record.ast)
        source = record.source.rstrip("\n").split("\n")
        places = self.source_places(record, source)
        written = [
            {found[1] for found in places if found and found[0] == k}
            for k in range(len(record.parts))
        ]
        return {
            "name": record.name,
            "names": record.names,
            "device": backend.name if backend is not None else "",
            "language": record.target.language,
            "run": isinstance(record.ast.arg, RunArg),
            "digest": record.ast.key[:16],
            "lower_us": round(record.seconds * 1e6, 1),
            "ops": work.ops,
            "bytes": work.mem,
            "parts": [self.part(p, w) for p, w in zip(record.parts, written, strict=True)],
            "source": source,
            "places": places,
            "asm": asm[0],
            "asm_lines": asm[1],
            "no_asm": asm[2],
        }

    def source_places(self, record: KernelRecord, source: list[str]) -> list[Any]:
        """For each line of the source [part, place in its list], or 0 where it is of no node."""
        result: list[Any] = [0] * len(source)
        heads = {line: i for i, line in reversed([*enumerate(source)]) if line}
        for k, part in enumerate(record.parts):
            assert part.linear is not None
            found = [x for x in record.rendered if x[0] is part.linear.uops]
            if not found:
                continue
            _, places, text = found[-1]
            lines = text.split("\n")
            first = next((i for i, line in enumerate(lines) if f"{record_name(line)}"), 0)
            at = heads.get(lines[first])
            if at is None:
                continue
            for i in range(first, len(lines)):
                where = at + i - first
                if where < len(source) and source[where] == lines[i] and places[i] >= 0:
                    result[where] = [k, places[i]]
        return result

    # schedules

    def schedule(self, record: ScheduleRecord) -> dict[str, Any]:
        """A schedule: its passes, steps, slots, memory."""
        plan, body = record.schedule, record.body
        assert body is not None
        number = self.nodes.number(body)
        for u in toposort(body):
            if u.dtype.name != "void" and u.op not in (Ops.DEVICE, Ops.PARAM):
                self.note_shape(u)
        steps = []
        for i, step in enumerate(plan.steps):
            row: dict[str, Any] = {
                "kind": step.kind, "device": step.device, "slots": list(step.slots),
                "bytes": step.nbytes,
            }  # fmt: skip
            if step.ast is not None:
                row["kernel"] = self.by_ast.get(step.ast, -1)
                row["why"] = list(show_slots(plan, step))
                origins = record.origins[i] if i < len(record.origins) else []
                row["from"] = [self.origin(k) for k in origins]
            steps.append(row)
        bound = next(iter(plan.bound.values()), None)
        memory = bound.memory if bound is not None else None
        return {
            "body": number,
            "passes": self.entries(body, record.entries),
            "steps": steps,
            "args": plan.n_args,
            "slots": [
                [s.size, s.dtype.name, s.dtype.itemsize, s.device, s.why] for s in plan.slots
            ],
            "why": {self.nodes.number(u): text for u, text in record.why.items()},
            "places": {} if memory is None else {k: list(v) for k, v in memory.place.items()},
            "lifetimes": (
                {} if memory is None else {k: list(v) for k, v in memory.lifetimes.items()}
            ),
            "arena": {} if memory is None else dict(memory.arena_nbytes),
        }

    def note_shape(self, u: UOp) -> None:
        """The shape of a node of a tensor's graph."""
        try:
            text = "x".join([str(n) if isinstance(n, int) else "n" for n in u.shape])
        except AsterError:
            return
        self.shape_of[self.nodes.number(u)] = self.shapes.add(text)

    def origin(self, found: dict[UOp, list[UOp]]) -> dict[int, list[int]]:
        """Node of a kernel -> nodes of the body, by number."""
        return {
            self.nodes.number(node): sorted({self.nodes.number(u) for u in us})
            for node, us in found.items()
        }

    # what happened

    def realize(self, x: Any) -> dict[str, Any]:
        """A request."""
        return {
            "stack": [self.frame(f) for f in x.stack],
            "schedule": self.schedules[id(x.schedule.schedule)],
            "at_us": round((x.start - self.recorder.began) * 1e6, 1),
            "us": round(x.seconds * 1e6, 1),
            "hit": x.hit,
            "times": x.times,
            "values": x.values,
            "calls": {self.nodes.number(u): self.call_number(c) for u, c in x.calls.items()},
        }

    def event(self, e: Any) -> list[Any]:
        """[kind, name, device, thread, start, microseconds, kernel, buffers]"""
        kernel = self.by_ast.get(e.what, -1) if isinstance(e.what, UOp) else -1
        start = round((e.start - self.recorder.began) * 1e6, 2)
        us = round(e.seconds * 1e6, 2)
        return [e.kind, e.name, e.device, e.thread, start, us, kernel, list(e.buffers)]


def with_readers(linear: Linear, places: list[int], written: set[int]) -> list[int]:
    """Places of a list; of a node without lines of its own, as a fused product, its readers too."""
    found = set(places)
    for place in places:
        if place not in written:
            u = linear.uops[place]
            found |= {j for j, reader in enumerate(linear.uops) if u in reader.src}
    return sorted(found)


def record_name(line: str) -> str:
    """The line where a kernel's function begins, else nothing."""
    return line if line.startswith(("define void @", "void ", "__kernel ", "kernel ")) else ""


def text_of(path: str) -> str:
    """The source of a file of the program; nothing where there is none."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size > MOST_SOURCE:
        return ""
    return file.read_text(encoding="utf-8", errors="replace")


def make_data(recorder: Recorder) -> dict[str, Any]:
    """The data of what was recorded until now."""
    return Maker(recorder).data()
