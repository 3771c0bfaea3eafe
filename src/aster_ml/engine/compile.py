"""Hop 5: a kernel AST and a device become a Program.

Cached in memory by (AST, target, settings), and on disk by the same in a form that is equal in
every process, together with a hash of the compiler's own source.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aster_ml.backend import Backend, Program
from aster_ml.codegen.lower import lower
from aster_ml.codegen.opts import Opt
from aster_ml.config import (
    BEAM,
    CACHE,
    DEBUG,
    DETERMINISTIC,
    SAME_THREADS,
    SPEC,
    debug_shown,
    stage_key,
)
from aster_ml.engine.beside import Beside, Job
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.estimate import Estimates, estimate
from aster_ml.engine.explain import kernel_lines, run_name
from aster_ml.engine.search import can_search, find_opts
from aster_ml.errors import DeviceError
from aster_ml.renderer.base import Renderer
from aster_ml.renderer.c import CRenderer
from aster_ml.renderer.llvm import LLVMRenderer
from aster_ml.renderer.opencl import OpenCLRenderer
from aster_ml.renderer.runs import render_run
from aster_ml.runtime import object_cache
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RunArg
from aster_ml.uop.quiet import uncollected
from aster_ml.uop.spec import verify
from aster_ml.uop.text import linear_to_text, to_text


@dataclass
class Compiled:
    """A kernel ready to launch on one kind of device.

    `var_names` in argument order; `n` is the size of the range shared out over threads (1 when
    none is), `parts` the number of threads that it is worth; work-group sizes where the device has
    them. Sizes that depend on variables are expressions.
    """

    name: str
    program: Program
    var_names: tuple[str, ...]
    n: UOp | int
    parts: int
    global_size: tuple[UOp | int, ...]
    local_size: tuple[int, ...] | None
    estimates: Estimates
    source: str
    static: bool
    written: frozenset[int] = frozenset()


RENDERERS: dict[str, type[Renderer]] = {
    "llvm": LLVMRenderer,
    "c": CRenderer,
    "opencl": OpenCLRenderer,
}
MEMORY_CACHE: dict[tuple[object, ...], Compiled] = {}
# Past so many kernels the oldest half goes; what schedules in use need lives on with them.
MAX_KERNELS = 20_000


@functools.cache
def source_digest() -> str:
    """A hash of the compiler's own source files: a changed compiler compiles anew.

    Of when they were written and how large they are, which is what Python asks for its own compiled
    files: to read all of them takes 3 to 12 ms, this takes 1.
    """
    here = Path(__file__).resolve()
    root = here.parent.parent
    paths = [root / "dtype.py", root / "target.py", root / "config.py", here]
    for part in ("uop", "codegen", "renderer", "runtime"):
        paths.extend(sorted((root / part).glob("*.py")))
    stats = [(path.name, path.stat()) for path in paths]
    text = "|".join([f"{name} {stat.st_mtime_ns} {stat.st_size}" for name, stat in stats])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@functools.cache
def renderer_for(target: Target) -> Renderer:
    """The renderer of a target's language."""
    found = RENDERERS.get(target.language)
    if found is None:
        raise DeviceError(
            f"no renderer writes {target.language!r}; there are {', '.join(RENDERERS)}"
        )
    return found(target)


def render(linear: Linear, target: Target) -> str:
    """Source text in the target's language; for the interpreter, the list itself as text."""
    if target.language in ("python", "null"):
        return linear_to_text(linear)
    return renderer_for(target).render(linear)


@dataclass(eq=False)
class Draft:
    """A kernel in the compiler's hands: what is known of it, and the machine code to come."""

    backend: Backend
    kernel: functools.partial[Compiled]
    disk_key: str | None
    binary: Job[bytes]
    kept: Job[None] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = Job(self.keep)

    @property
    def name(self) -> str:
        """That of its function."""
        return str(self.kernel.keywords["name"])

    def keep(self) -> None:
        """Writes it to the disk cache, if it may go there."""
        if self.disk_key is not None:
            put_entry(self.disk_key, self.kernel.keywords, self.binary.result())


class Loader:
    """Loads kernels as their machine code gets there, all that is there at once."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.waiting = list(drafts)
        self.programs: dict[Draft, Program] = {}
        # Linkers take one thread at a time in any case.
        self.lock = threading.Lock()

    def load_compiled(self) -> None:
        """Loads what has been compiled by now. Raises: CompileError."""
        with self.lock:
            ready = dict.fromkeys([d for d in self.waiting if d.binary.has_run])
            self.waiting = [d for d in self.waiting if d not in ready]
            for backend in dict.fromkeys([d.backend for d in ready]):
                mine = [d for d in ready if d.backend is backend]
                programs = backend.load_all([(d.name, d.binary.result()) for d in mine])
                self.programs |= zip(mine, programs, strict=True)

    def finish(self) -> None:
        """Loads the rest, waiting for it. Raises: CompileError."""
        self.load_compiled()
        for draft in list(self.waiting):
            draft.binary.result()
        self.load_compiled()

    def kernel(self, draft: Draft) -> Compiled:
        """A kernel that is loaded."""
        return draft.kernel(program=self.programs[draft])


def compile_kernel(ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None = None) -> Compiled:
    """The kernel for this backend, from a cache where possible."""
    return compile_kernels([(ast, backend)], opts)[0]


def compile_kernels(
    wanted: Sequence[tuple[UOp, Backend]], opts: tuple[Opt, ...] | None = None
) -> list[Compiled]:
    """The kernels for their backends, from a cache where possible.

    While the source of one is written, the backend's compiler works on others in threads.
    """
    settings = stage_key("codegen")
    keys = [(ast, backend.target.key, opts, *settings) for ast, backend in wanted]
    missing = {key: w for key, w in zip(keys, wanted, strict=True) if key not in MEMORY_CACHE}
    if not missing:
        return [MEMORY_CACHE[key] for key in keys]
    start = time.perf_counter()
    found = {key: MEMORY_CACHE[key] for key in keys if key not in missing}
    while len(MEMORY_CACHE) >= MAX_KERNELS:
        for old in list(MEMORY_CACHE)[: MAX_KERNELS // 2]:
            del MEMORY_CACHE[old]
    threads = min([b.target.threads if b.compiles_beside else 1 for _, b in missing.values()])
    with uncollected(), Beside(min(threads, len(missing)) - 1) as beside:
        backends = dict.fromkeys([backend for _, backend in missing.values()])
        ready = [beside.begin(b.prepare) for b in backends if beside.threads > 0]
        made: dict[tuple[object, ...], Draft | Compiled] = {}
        for key, (ast, backend) in missing.items():
            made[key] = make_draft(ast, backend, opts, beside)
        found |= load_made(made, beside)
        for job in ready:
            job.result()
        # Before circles are looked for again: the search would go through all of it.
        made.clear()
    MEMORY_CACHE.update({key: found[key] for key in missing})
    TOTALS.compile_s += time.perf_counter() - start
    return [found[key] for key in keys]


def load_made(
    made: dict[tuple[object, ...], Draft | Compiled], beside: Beside
) -> dict[tuple[object, ...], Compiled]:
    """The kernels ready to launch, which the threads and the caller go on to compile.

    They are loaded by the caller and written to the disk by a thread, both once all sources are
    written: a thread that asks for Python's lock before that waits each time. Whoever has nothing
    left to compile begins, with what is there.
    """
    drafts = [d for d in made.values() if isinstance(d, Draft)]
    loader = Loader(drafts)
    waiting = time.perf_counter()
    finishing = beside.begin(functools.partial(finish_compiled, drafts, loader))
    # The threads take them in order; whoever takes a long one last lets the others wait.
    for draft in sorted(drafts, key=lambda d: len(d.kernel.keywords["source"]), reverse=True):
        draft.binary.run_now()
    loader.finish()
    finishing.result()
    for draft in drafts:
        draft.kept.result()
    found = {key: loader.kernel(d) if isinstance(d, Draft) else d for key, d in made.items()}
    TOTALS.wait_s += time.perf_counter() - waiting
    return found


def finish_compiled(drafts: Sequence[Draft], loader: Loader) -> None:
    """Writes to the disk and loads what has been compiled by now."""
    for draft in drafts:
        if draft.binary.has_run:
            draft.kept.run_now()
    loader.load_compiled()


def make_draft(
    ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None, beside: Beside
) -> Draft | Compiled:
    """The kernel from the disk cache, or else its source, handed on to the backend's compiler."""
    target = backend.target
    is_run = isinstance(ast.arg, RunArg)
    if BEAM and opts is None and not is_run and can_search(ast, target):
        opts = find_opts(ast, backend.name, target)
    disk_key = None
    if CACHE and target.language in ("llvm", "c") and DEBUG < 3 and not SPEC:
        disk_key = hashlib.blake2b(
            "|".join(
                [ast.key, target.key, repr(opts), repr(stage_key("codegen")), source_digest()]
            ).encode(),
            digest_size=20,
        ).hexdigest()
        entry = object_cache.get(disk_key)
        if entry is not None:
            loaded = from_entry(entry, ast, backend)
            if loaded is not None:
                return loaded
    if is_run:
        return compile_run(ast, backend, target, disk_key)
    if SPEC:
        verify(ast, "kernel")
    linear, applied = lower(ast, target, opts)
    if SPEC:
        verify(linear, "linear")
    source = render(linear, target)
    show(ast, linear, source, backend, applied, opts)
    TOTALS.compiled_kernels += 1
    threads = linear.thread.src[0] if linear.thread is not None else 1
    n = threads.arg if isinstance(threads, UOp) and threads.op is Ops.CONST else threads
    static = isinstance(n, int) and all([isinstance(size, int) for size in linear.global_size])
    kernel = functools.partial(
        Compiled,
        name=linear.name,
        var_names=tuple([v.arg.name for v in linear.variables]),
        n=n,
        parts=target.threads if linear.thread is not None else 1,
        global_size=tuple(linear.global_size),
        local_size=tuple(linear.local_size) if target.has_local else None,
        estimates=estimate(ast),
        source=source,
        static=static,
        written=linear.written,
    )
    kept = disk_key if static and not target.has_local else None
    return Draft(backend, kernel, kept, beside.begin(functools.partial(backend.compile, source)))


def compile_run(ast: UOp, backend: Backend, target: Target, disk_key: str | None) -> Compiled:
    """A run as one function: each kernel for one thread, and lanes that threads share out."""
    arg: RunArg = ast.arg
    alone = replace(target, threads=1)
    linears = []
    for kernel in ast.src:
        if SPEC:
            verify(kernel, "kernel")
        linear, applied = lower(kernel, alone)
        if SPEC:
            verify(linear, "linear")
        show(kernel, linear, render(linear, target) if DEBUG >= 4 else "", backend, applied, None)
        linears.append(linear)
    lanes = min(arg.lanes, SAME_THREADS if DETERMINISTIC else target.threads)
    source = render_run(renderer_for(target), run_name(ast), linears, arg, lanes)
    waiting = time.perf_counter()
    binary = backend.compile(source)
    TOTALS.wait_s += time.perf_counter() - waiting
    TOTALS.compiled_kernels += 1
    written = [
        slots[i] for slots, linear in zip(arg.slots, linears, strict=True) for i in linear.written
    ]
    compiled = Compiled(
        run_name(ast),
        backend.load(run_name(ast), binary),
        (),
        lanes,
        lanes,
        (1, 1, 1),
        None,
        estimate(ast),
        source,
        True,
        frozenset(written),
    )
    if disk_key is not None:
        put_entry(disk_key, vars(compiled), binary)
    return compiled


def put_entry(disk_key: str, fields: Mapping[str, Any], binary: bytes) -> None:
    """Keeps a compiled kernel, a `Compiled` of these fields, on disk."""
    header = json.dumps(
        {
            "name": fields["name"],
            "vars": fields["var_names"],
            "n": fields["n"],
            "parts": fields["parts"],
            "written": sorted(fields["written"]),
        }
    ).encode()
    object_cache.put(disk_key, len(header).to_bytes(4, "little") + header + binary)


def from_entry(entry: bytes, ast: UOp, backend: Backend) -> Compiled | None:
    """A Compiled from a disk entry, or None when the entry is not of our form."""
    size = int.from_bytes(entry[:4], "little")
    try:
        header = json.loads(entry[4 : 4 + size])
        program = backend.load(header["name"], entry[4 + size :])
    except (ValueError, KeyError, RuntimeError):
        # What is in the cache is only a shortcut: anything odd is compiled again.
        return None
    return Compiled(
        header["name"],
        program,
        tuple(header["vars"]),
        header["n"],
        header["parts"],
        (1, 1, 1),
        None,
        estimate(ast),
        "",
        True,
        frozenset(header["written"]),
    )


def show(
    ast: UOp,
    linear: Linear,
    source: str,
    backend: Backend,
    opts: tuple[Opt, ...],
    asked: tuple[Opt, ...] | None,
) -> None:
    """Prints what DEBUG asks for: Opts, IR, linear program, source, assembly of one kernel."""
    if not debug_shown("codegen"):
        return
    if DEBUG >= 3:
        print(f"{linear.name}: {' '.join(map(repr, opts)) or 'no Opts'}")
        print("\n".join(f"   {line}" for line in kernel_lines(ast, backend.target, asked)))
    if DEBUG >= 5:
        print(f"--- IR of {linear.name}\n{to_text(ast)}")
    if DEBUG >= 6:
        print(f"--- linear program of {linear.name}\n{linear_to_text(linear)}")
    if DEBUG >= 4:
        print(f"--- source of {linear.name}\n{source}")
    if DEBUG >= 7:
        print(f"--- assembly of {linear.name}\n{backend.disassemble(source)}")
