"""The process in which schedules are tried: `python -m aster_ml.engine.search.worker`.

Requests and answers are a line of JSON each. `open` gives the kernel (as text) and its device;
`compile` compiles it with some Opts and leaves the result in the disk cache, which all workers of a
search share; `time` runs it, compares what it writes with what the default schedule writes, and
says how long it takes. An answer has "error" where that did not work, and "lost" where the device
does nothing any more for this process. Whatever goes wrong here, even a crash, costs the search one
candidate.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import zlib
from bisect import bisect_left
from typing import Any

import numpy as np

from aster_ml.backend import Backend
from aster_ml.codegen.opts import parse_opts
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.engine.compile import Compiled, compile_kernel
from aster_ml.errors import DeviceError
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import parse

Answer = dict[str, Any]
Array = np.ndarray[Any, Any]
# Results of another order of additions may differ so far, relative to the largest value; by size
# of the element in bytes (narrower ones are fp8).
TOLERANCES = {2: 2e-2, 4: 1e-4, 8: 1e-10}
# A sample is at least so long, so that the clock's grain does not matter.
MIN_SAMPLE_S = 2e-4
MAX_DRAWN = 1 << 20


def index_slots(ast: UOp) -> set[int]:
    """Slots of the buffers whose elements are used as indices: they have to lie inside others."""
    found = set()
    for u in toposort(ast):
        if u.op is Ops.INDEX:
            for x in toposort(u.src[1]):
                if x.op is Ops.LOAD:
                    found |= {p.arg.slot for p in toposort(x) if p.op is Ops.PARAM}
    return found


def index_count(ast: UOp) -> int:
    """Below which number all indices that a kernel loads may lie, so that they name places spread
    over what they are used on, and none beyond it.
    """
    loads = [u for u in toposort(ast) if u.op is Ops.LOAD and u.dtype.kind in ("int", "uint")]
    slots = index_slots(ast)
    mine = [
        u for u in loads if u.src[0].src[0].op is Ops.PARAM and u.src[0].src[0].arg.slot in slots
    ]
    used = [u for u in toposort(ast) if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
    used = [u for u in used if not toposort(u.src[1]).keys().isdisjoint(mine)]

    def reach(count: int) -> int | None:
        """The places named last, added up; None where one may lie outside."""
        values = {u: UOp.variable("i", 0, count - 1, u.dtype) for u in mine}
        places = substitute_all([u.src[1] for u in used], dict(values))
        ends = [(int(p.vmin), int(p.vmax)) for p in places]
        inside = all(0 <= a and b < u.src[0].arg.size for (a, b), u in zip(ends, used, strict=True))
        return sum(b for _, b in ends) if inside else None

    most = max([u.src[0].arg.size for u in used], default=1)
    limit = min([most, *[int(dtypes.max(u.dtype)) for u in mine]]) if mine else 1
    fits = bisect_left(range(1, limit + 1), True, key=lambda n: reach(n) is None)
    # Where indices are held inside an axis, all beyond its end would name the last place.
    end = reach(fits) if fits else None
    return 1 if end is None else 1 + bisect_left(range(1, fits), end, key=lambda n: reach(n) or 0)


def draw(slot: int, buffer: Buffer, count: int) -> Array:
    """Draws the content of a buffer for trials: small numbers; indices are below `count`."""
    size, dtype = buffer.size, buffer.dtype
    rng = np.random.default_rng(zlib.crc32(f"slot {slot}".encode()))
    if count:
        values = np.resize(rng.integers(0, count, min(size, MAX_DRAWN)), size)
    elif dtype.kind == "float":
        values = np.resize(rng.uniform(-1, 1, min(size, MAX_DRAWN)), size)
    elif dtype.kind == "int":
        values = np.resize(rng.integers(-8, 8, min(size, MAX_DRAWN)), size)
    else:
        values = np.resize(rng.integers(0, 2, min(size, MAX_DRAWN)), size)
    return values.astype(buffer.numpy().dtype)


class Bench:
    """One kernel, its buffers, and what the default schedule makes of them.

    There are buffers from the first run on: who only compiles needs none.
    """

    def __init__(self, ast: UOp, device: str) -> None:
        self.ast = ast
        self.device = device
        self.backend: Backend = Device[device]
        params = [u for u in toposort(ast) if u.op is Ops.PARAM]
        self.params = sorted(params, key=lambda u: u.arg.slot)
        self.slots = [p.arg.slot for p in self.params]
        self.expected: dict[int, Array] | None = None

    @functools.cached_property
    def buffers(self) -> list[Buffer]:
        """Memory of the device, in the order of slots."""
        return [Buffer(self.device, p.arg.size, p.dtype).allocate() for p in self.params]

    @functools.cached_property
    def contents(self) -> list[Array]:
        """Content before a run."""
        indices = index_slots(self.ast)
        count = index_count(self.ast) if indices else 0
        return [
            draw(slot, buffer, count if slot in indices else 0)
            for slot, buffer in zip(self.slots, self.buffers, strict=True)
        ]

    def compiled(self, opts: str | None) -> Compiled:
        """The kernel with these Opts; None are the default ones."""
        chosen = None if opts is None else parse_opts(opts)
        return compile_kernel(self.ast, self.backend, chosen)

    def is_lost(self) -> bool:
        """Whether the device does nothing any more for this process."""
        try:
            self.backend.synchronize()
        except DeviceError:
            return True
        return False

    def launch(self, kernel: Compiled) -> None:
        """Runs it once."""
        handles = tuple([b.handle for b in self.buffers])
        assert kernel.static, "a kernel with symbolic sizes is not searched"
        kernel.program(handles, (), kernel.launch)

    def results(self, kernel: Compiled) -> dict[int, Array]:
        """Results of a kernel when every buffer holds its first content."""
        for buffer, content in zip(self.buffers, self.contents):
            buffer.copyin(content)
        self.launch(kernel)
        return {
            slot: buffer.numpy(copy=True)
            for slot, buffer in zip(self.slots, self.buffers)
            if slot in kernel.written
        }

    def is_right(self, found: dict[int, Array]) -> bool:
        """Whether results are those of the default schedule, up to rounding."""
        if self.expected is None:
            self.expected = self.results(self.compiled(None))
        return found.keys() == self.expected.keys() and all(
            same_numbers(found[slot], self.expected[slot]) for slot in found
        )

    def seconds(self, kernel: Compiled, budget_s: float) -> float:
        """The quickest of as many runs as the budget has room for, by the device's own clock."""
        first = self.passed(kernel, 1)
        inner = max(1, min(1000, int(MIN_SAMPLE_S / max(first, 1e-7))))
        best, stop = float("inf"), time.perf_counter() + budget_s
        while True:
            best = min(best, self.passed(kernel, inner) / inner)
            if time.perf_counter() >= stop:
                return best

    def passed(self, kernel: Compiled, count: int) -> float:
        """Seconds from the queue's reaching so many runs to its having done them."""
        queue = self.backend.queue
        before = queue.signal()
        for _ in range(count):
            self.launch(kernel)
        return queue.signal().seconds_since(before)


def same_numbers(a: Array, b: Array) -> bool:
    """Equal integers; floats within rounding of the largest, infinities in the same place."""
    tolerance = TOLERANCES.get(a.dtype.itemsize, 0.2)
    if a.dtype.kind not in "fV":
        return bool(np.array_equal(a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    size = float(np.abs(b[finite]).max(initial=0.0))
    allowed = tolerance * size + 1e-30
    return bool((np.abs(a[finite] - b[finite]) <= allowed).all())


class Server:
    """Answers requests about one kernel at a time."""

    def __init__(self) -> None:
        self.bench: Bench | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        """One request."""
        what = request["do"]
        if what == "open":
            if request["runtime"]:
                kind = request["device"].partition(":")[0]
                Device.register(kind, request["runtime"])
            self.bench = Bench(parse(request["ast"]), request["device"])
            return {}
        assert self.bench is not None, "no kernel is open"
        kernel = self.bench.compiled(request["opts"])
        if what == "compile":
            spilled = kernel.program.spilled
            if spilled and spilled > self.bench.compiled(None).program.spilled:
                return {"error": f"{spilled} bytes of registers spill"}
            return {}
        if not self.bench.is_right(self.bench.results(kernel)):
            return {"error": "the results differ"}
        return {"seconds": self.bench.seconds(kernel, request["budget_s"])}


def main() -> None:
    """Serves until the input ends."""
    server = Server()
    for line in sys.stdin:
        try:
            answer = server.answer(json.loads(line))
        except Exception as error:
            # Any failure is one of the candidate; the search goes on.
            answer = {"error": f"{type(error).__name__}: {error}"}
            if isinstance(error, DeviceError) and (server.bench is None or server.bench.is_lost()):
                answer["lost"] = True
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
