"""Hop 5: a kernel AST and a device become a Program.

Kept in memory by (AST, target, settings) (`engine.caches`), and on disk by the same in a form that
is equal in every process, together with a hash of the compiler's own source. Kernels of a body may
be begun while the rest of it is planned.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aster_ml.backend import Backend, Grid, Launch, Program, ThreadParts
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
from aster_ml.device import Device
from aster_ml.engine.caches import CACHES
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.disk_cache import DiskCache
from aster_ml.engine.estimate import Estimates, estimate
from aster_ml.engine.fallback import may_fall_back, report_fallback, take_plainer_way
from aster_ml.engine.module_batches import Batches, Draft
from aster_ml.engine.sources import source_digest
from aster_ml.engine.worker_pool import Job, WorkerPool
from aster_ml.errors import DeviceError, KernelOptError
from aster_ml.late import late
from aster_ml.schedule.steps import FinalKernel
from aster_ml.target import Target
from aster_ml.uop.gc_pause import uncollected
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RunArg
from aster_ml.watch import WATCHERS, all_writing

# A kernel from the disk needs none of these.
if TYPE_CHECKING:
    from aster_ml.codegen import estimate as cost
    from aster_ml.codegen import passes
    from aster_ml.codegen.opts import Opt
    from aster_ml.engine import explain
    from aster_ml.engine.search import beam as opts_search
    from aster_ml.renderer import runs
    from aster_ml.renderer.base import Renderer
    from aster_ml.uop.print import text
    from aster_ml.uop.spec import verify as spec
else:
    cost = late("codegen.estimate")
    passes = late("codegen.passes")
    explain = late("engine.explain")
    opts_search = late("engine.search.beam")
    runs = late("renderer.runs")
    spec = late("uop.spec.verify")
    text = late("uop.print.text")


@dataclass
class Compiled:
    """A kernel ready to launch on one kind of device.

    `var_names` in argument order; sizes of the `launch` that depend on variables are expressions.
    """

    name: str
    program: Program
    var_names: tuple[str, ...]
    launch: Launch
    estimates: Estimates
    source: str
    written: frozenset[int] = frozenset()
    # When a schedule of it was last asked for, as far as is known.
    used: int = 0
    # Whether no size depends on a variable.
    static: bool = field(init=False)

    def __post_init__(self) -> None:
        launch = self.launch
        sizes = (launch.n,) if isinstance(launch, ThreadParts) else launch.blocks
        self.static = all([isinstance(size, int) for size in sizes])

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        return self.program.nbytes + len(self.source)


# By language, the module below `renderer` and its class: imported when a kernel is
# first written in it, since a program has kernels in one language.
RENDERERS = {
    "llvm": "llvm.renderer LLVMRenderer",
    "c": "c CRenderer",
    "opencl": "opencl OpenCLRenderer",
    "wgsl": "wgsl.renderer WgslRenderer",
    "cuda": "cuda.renderer CudaRenderer",
    "metal": "metal.renderer MetalRenderer",
}


# Under what a kernel is kept: its graph, the target, and all else that it depends on.
Key = tuple[object, ...]
# Cycles of a part that leave its claim without weight, and most parts for each thread.
PART_CYCLES, PARTS_EACH = 1 << 16, 8

# Where nobody watches.
NOTHING = nullcontext()


@functools.cache
def renderer_for(target: Target) -> Renderer:
    """The renderer of a target's language."""
    found = RENDERERS.get(target.language)
    if found is None:
        raise DeviceError(
            f"no renderer writes {target.language!r}; there are {', '.join(RENDERERS)}"
        )
    home, name = found.split()
    module = importlib.import_module(f"aster_ml.renderer.{home}")
    made: Renderer = getattr(module, name)(target)
    return made


def render(linear: Linear, target: Target) -> str:
    """Source text in the target's language; for the interpreter, the list itself as text."""
    if not target.compiles:
        return text.linear_to_text(linear)
    return renderer_for(target).render(linear)


def compile_kernel(ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None = None) -> Compiled:
    """The kernel for this backend, from a cache where possible."""
    return compile_kernels([(ast, backend)], opts)[0]


class Compilation:
    """Kernels that are compiled together: begun one after the other, and then finished.

    While the source of one is written, the backends' compilers work on others in as many threads.
    `close` ends the threads, whatever has happened.
    """

    def __init__(self, threads: int) -> None:
        self.beside = WorkerPool(threads)
        self.batches = Batches(self.beside)
        self.shelf = DiskCache()
        self.ready: dict[Backend, Job[None]] = {}
        self.drafts: dict[Key, Draft] = {}
        self.found: dict[Key, Compiled] = {}
        self.open = ExitStack()
        self.open.enter_context(self.beside)

    def close(self) -> None:
        """Ends the threads; what has not been finished is lost."""
        self.drafts.clear()
        self.open.close()

    def begin(self, key: Key, ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None) -> None:
        """Takes a kernel from the disk, or writes its source and hands it on, if that is new."""
        if key in self.found or key in self.drafts:
            return
        start = time.perf_counter()
        if backend not in self.ready and self.beside.threads > 0:
            self.ready[backend] = self.beside.begin(backend.prepare)
        target, is_run = backend.target, isinstance(ast.arg, RunArg)
        given = opts is not None
        if BEAM and opts is None and not is_run and opts_search.can_search(ast, backend):
            opts = search(ast, backend, target)
        disk_key = key_on_disk(ast, backend, opts)
        fields = self.shelf.get(disk_key, backend) if disk_key is not None else None
        if fields is not None:
            TOTALS.disk_hits += 1
            self.found[key] = Compiled(**fields, estimates=estimate(ast), source="")
        else:
            try:
                fields = write_kernel(ast, backend, target, opts)
            except Exception as error:
                ways = WAYS if given or opts is None else (DEFAULT, *WAYS)
                fields = write_plainly(ast, backend, target, error, given, ways)
                disk_key = None
            TOTALS.compiled_kernels += 1
            join = renderer_for(target).join if target.compiles else None
            self.drafts[key] = Draft(backend, fields, disk_key, join)
            self.batches.add(self.drafts[key])
        TOTALS.compile_s += time.perf_counter() - start

    def finish(self, wanted: Collection[Key]) -> dict[Key, Compiled]:
        """The kernels, compiled and loaded. Of those that nobody wants only what has begun is."""
        start = time.perf_counter()
        for key in [key for key in self.drafts if key not in wanted]:
            if self.batches.drop(self.drafts[key]):
                del self.drafts[key]
        try:
            self.batches.finish()
        except Exception as error:
            if not may_fall_back(error):
                raise
            self.compile_one_by_one(error)
        for key, draft in self.drafts.items():
            self.found[key] = Compiled(program=self.batches.programs[draft], **draft.fields)
        for job in self.ready.values():
            job.result()
        seconds = time.perf_counter() - start
        TOTALS.wait_s += seconds
        for w in WATCHERS:
            w.waited(start)
        TOTALS.compile_s += seconds
        return self.found

    def compile_one_by_one(self, error: Exception) -> None:
        """Compiles what is not loaded, each kernel alone, and plainly if it has to be.

        Raises: what a kernel raises that cannot be compiled in any way.
        """
        programs = self.batches.programs
        left = [(key, draft) for key, draft in self.drafts.items() if draft not in programs]
        told = False
        for key, draft in left:
            ast: UOp = key[0]  # type: ignore[assignment]
            try:
                programs[draft] = load_alone(draft.backend, draft.fields)
            except Exception as own:
                draft.fields, programs[draft] = compile_plainly(ast, draft.backend, own)
                told = True
        if left and not told:
            first = left[0][0][0]
            assert isinstance(first, UOp)
            target = left[0][1].backend.target
            report_fallback("compile", first, target, error, "a module for each kernel")


class Way(NamedTuple):
    """A plainer way to write a kernel: what it is called, its Opts, and whether it is `plain`."""

    name: str
    opts: tuple[Opt, ...] | None
    plain: bool


# What is tried where the default fails inside, one after the other.
WAYS = Way("a kernel without Opts", (), False), Way("plain loops", (), True)
# And before these, where a search has found something else.
DEFAULT = Way("the default schedule", None, False)


def search(ast: UOp, backend: Backend, target: Target) -> tuple[Opt, ...] | None:
    """The Opts that a search finds; None, for the default schedule, where it fails inside."""
    try:
        return opts_search.find_opts(ast, backend.name, target)
    except Exception as error:
        none = (DEFAULT.name, lambda: None)
        return take_plainer_way("search", ast, target, error, [none])


def write_kernel(
    ast: UOp,
    backend: Backend,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    plain: bool = False,
) -> dict[str, Any]:
    """The fields of a kernel, or a run, but for its program."""
    with all_writing(ast, target) if WATCHERS else NOTHING:
        if isinstance(ast.arg, RunArg):
            return write_run(ast, backend, target, opts, plain)
        if SPEC:
            spec.verify(ast, "kernel")
        linear, applied = passes.lower(ast, target, opts, plain=plain)
        if SPEC:
            spec.verify(linear, "linear")
        source = render(linear, target)
        for w in WATCHERS:
            w.written(ast, linear, source)
        show(ast, linear, source, backend, applied, opts)
        return fields_of(ast, linear, target, source)


def write_plainly(
    ast: UOp,
    backend: Backend,
    target: Target,
    error: Exception,
    given: bool,
    ways: tuple[Way, ...] = WAYS,
) -> dict[str, Any]:
    """The fields of a kernel that could not be written otherwise, for which there is an `error`.

    Raises: that error, where it is a user's, or where no way does it.
    """
    by_hand = given or getattr(ast.arg, "opts", None) is not None
    if by_hand and isinstance(error, KernelOptError):
        raise error

    def write(way: Way) -> dict[str, Any]:
        return write_kernel(ast, backend, target, way.opts, way.plain)

    tried = [(way.name, functools.partial(write, way)) for way in ways]
    return take_plainer_way("kernel", ast, target, error, tried)


def load_alone(backend: Backend, fields: dict[str, Any]) -> Program:
    """The program of one source, compiled in the calling thread. Raises: CompileError."""
    return backend.load(fields["name"], backend.compile(fields["source"]))


def compile_plainly(ast: UOp, backend: Backend, error: Exception) -> tuple[dict[str, Any], Program]:
    """The fields and the program of a kernel whose source the backend's compiler did not take.

    Raises: that error, where it is a user's, or where no way does it.
    """

    def compiled(way: Way) -> tuple[dict[str, Any], Program]:
        fields = write_kernel(ast, backend, backend.target, way.opts, way.plain)
        return fields, load_alone(backend, fields)

    tried = [(way.name, functools.partial(compiled, way)) for way in WAYS]
    return take_plainer_way("compile", ast, backend.target, error, tried)


def key_of(ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None = None) -> Key:
    """Under what a kernel is kept in memory."""
    return (ast, backend.target.key, opts, *stage_key("codegen"))


def compile_kernels(
    wanted: Sequence[tuple[UOp, Backend]],
    opts: tuple[Opt, ...] | None = None,
    begun: Compilation | None = None,
) -> list[Compiled]:
    """The kernels for their backends, from a cache where possible.

    Some may have been `begun` before.
    """
    keys = [key_of(ast, backend, opts) for ast, backend in wanted]
    known = CACHES.kernels.entries
    missing = {key: w for key, w in zip(keys, wanted, strict=True) if key not in known}
    TOTALS.kernel_hits += len(keys) - len(missing)
    if not missing:
        return [known[key] for key in keys]
    found = {key: known[key] for key in keys if key not in missing}
    threads = min([backend.compile_threads for _, backend in missing.values()])
    with uncollected():
        compilation = begun or Compilation(min(threads, len(missing)) - 1)
        try:
            for key, (ast, backend) in missing.items():
                compilation.begin(key, ast, backend, opts)
            made = compilation.finish(missing)
        finally:
            # Before circles are looked for again: the search would go through all of it.
            compilation.close()
    for key, kernel in made.items():
        CACHES.kernels.put(key, kernel, CACHES.turn)
    found |= made
    return [found[key] for key in keys]


class EarlyKernels:
    """Kernels that one call of `realize` has begun to compile while it plans."""

    compilation: Compilation | None = None
    # Kernels that could not be written.
    failed: frozenset[Key] = frozenset()

    def take(self, kernel: FinalKernel) -> None:
        """Goes on to compile a kernel, where a thread has nothing else to do.

        Not where the kernel is searched for or shown: those wait for their turn.
        """
        ast, backend = kernel.ast, Device[kernel.device]
        key = key_of(ast, backend)
        quick = key in CACHES.kernels.entries or key in self.failed
        if backend.compile_threads < 2 or BEAM or DEBUG >= 2 or quick:
            return
        if self.compilation is None:
            self.compilation = Compilation(backend.compile_threads - 1)
        try:
            self.compilation.begin(key, ast, backend, None)
        except Exception:
            # Whoever runs the kernel meets the error, which is not one of planning.
            self.failed |= {key}

    def close(self) -> None:
        """Ends the threads, where any were begun."""
        if self.compilation is not None:
            self.compilation.close()
            self.compilation = None


def key_on_disk(ast: UOp, backend: Backend, opts: tuple[Opt, ...] | None) -> str | None:
    """Under what a kernel is kept on the disk; None where it is not."""
    if not CACHE or not backend.keeps_binaries or DEBUG >= 3 or SPEC or WATCHERS:
        return None
    parts = [ast.key, backend.target.key, repr(opts), repr(stage_key("codegen")), source_digest()]
    return hashlib.blake2b("|".join(parts).encode(), digest_size=20).hexdigest()


def fields_of(ast: UOp, linear: Linear, target: Target, source: str) -> dict[str, Any]:
    """The fields of a kernel but for its program."""
    estimates = estimate(ast)
    return {
        "name": linear.name,
        "var_names": tuple([v.arg.name for v in linear.variables]),
        "launch": launch_of(linear, target, estimates),
        "estimates": estimates,
        "source": source,
        "written": linear.written,
    }


def launch_of(linear: Linear, target: Target, estimates: Estimates) -> Launch:
    """Spreads a kernel over the device."""
    if target.has_local:
        return Grid(tuple(linear.global_size), tuple(linear.local_size))
    if linear.thread is None:
        return ThreadParts()
    n = linear.thread.src[0]
    parts = part_count(linear, target, estimates)
    return ThreadParts(n.arg if n.op is Ops.CONST else n, parts)


def part_count(linear: Linear, target: Target, estimates: Estimates) -> int:
    """Into how many parts threads share out a kernel; 1 where they do not.

    More than one for each thread where it takes long: a thread whose processor is slow, or is taken
    from it for a while, leaves some of its parts to others. Not where every part begins with work
    of its own, as with a panel that is packed.
    """
    if linear.thread is None:
        return 1
    before = linear.uops[: linear.uops.index(linear.thread)]
    if any([u.op is Ops.RANGE for u in before]):
        return target.threads
    busy = cost.of_work(estimates.ops, estimates.mem, target).busy
    each = int(busy / (target.threads * PART_CYCLES))
    return target.threads * max(1, min(each, PARTS_EACH))


def write_run(
    ast: UOp,
    backend: Backend,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    plain: bool = False,
) -> dict[str, Any]:
    """The fields of a run, which is one function: each kernel for one thread, and the lanes that
    threads share out.
    """
    arg: RunArg = ast.arg
    alone = replace(target, threads=1)
    linears = []
    for kernel in ast.src:
        if SPEC:
            spec.verify(kernel, "kernel")
        linear, applied = passes.lower(kernel, alone, opts, plain=plain)
        if SPEC:
            spec.verify(linear, "linear")
        show(kernel, linear, render(linear, target) if DEBUG >= 4 else "", backend, applied, None)
        for w in WATCHERS:
            w.written(kernel, linear, "")
        linears.append(linear)
    lanes = min(arg.lanes, SAME_THREADS if DETERMINISTIC else target.threads)
    written = [
        slots[i] for slots, linear in zip(arg.slots, linears, strict=True) for i in linear.written
    ]
    source = runs.render_run(renderer_for(target), explain.run_name(ast), linears, arg, lanes)
    for w in WATCHERS:
        w.written(ast, None, source)
    return {
        "name": explain.run_name(ast),
        "var_names": (),
        "launch": ThreadParts(lanes, lanes),
        "estimates": estimate(ast),
        "source": source,
        "written": frozenset(written),
    }


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
        print("\n".join(f"   {line}" for line in explain.kernel_lines(ast, backend.target, asked)))
    if DEBUG >= 5:
        print(f"--- IR of {linear.name}\n{text.to_text(ast)}")
    if DEBUG >= 6:
        print(f"--- linear program of {linear.name}\n{text.linear_to_text(linear)}")
    if DEBUG >= 4:
        print(f"--- source of {linear.name}\n{source}")
    if DEBUG >= 7:
        print(f"--- assembly of {linear.name}\n{backend.disassemble(source)}")
