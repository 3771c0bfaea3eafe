"""Cycles of a kernel, by what they are spent on: the formula that all who ask for a time share.

Receives a kernel as it is scheduled by now, and a Target; returns an Estimate. Whether threads pay,
into how many parts they share a kernel, what `explain` calls its bound, and which candidates a
search tries are decided by it. What an access takes along an axis stands in `policy/cpu/costs`, the
figures of processors in `target/costs`; nothing is chosen here.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.decompose.slots import slots_of
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import PackedWords
from aster_ml.codegen.staging.panel import panel_of
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
ADD, LOAD, MUL, PARAM, STAGE = Ops.ADD, Ops.LOAD, Ops.MUL, Ops.PARAM, Ops.STAGE
UPCAST, VECTOR = AxisType.UPCAST, AxisType.VECTOR


class Estimate(NamedTuple):
    """Cycles that one core is busy with each of these for a kernel, all of which go on at once.

    `moved` is what each level of memory takes to hand over what is touched, the first cache aside:
    second cache, third cache, memory.
    """

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    begun: float = 0.0
    moved: tuple[float, ...] = ()
    startup: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """Resources in words, with their cycles."""
        levels = zip(("second cache", "third cache", "memory"), self.moved)
        return {
            "arithmetic": self.arithmetic,
            "loads": self.loads,
            "stores": self.stores,
            "instructions": self.begun,
            **dict(levels),
        }

    @property
    def bound(self) -> str:
        """Resource that takes longest, so that all else waits for it."""
        found = self.resources
        return max(found, key=found.__getitem__)

    @property
    def busy(self) -> float:
        """The cycles of what takes longest."""
        return max(self.arithmetic, self.loads, self.stores, self.begun, *self.moved, 0.0)

    @property
    def cycles(self) -> float:
        """Cycles from the call to the last result."""
        return self.busy + self.startup

    def shared(self, threads: int) -> Estimate:
        """The same where so many cores share it: all of them have one memory."""
        if threads < 2:
            return self
        return self._replace(
            arithmetic=self.arithmetic / threads,
            loads=self.loads / threads,
            stores=self.stores / threads,
            begun=self.begun / threads,
            moved=(*[x / threads for x in self.moved[:-1]], *self.moved[-1:]),
        )

    def __str__(self) -> str:
        each = ", ".join([f"{name} {n:,.0f}" for name, n in self.resources.items() if n])
        return f"{self.cycles:,.0f} cycles ({each}): bound by {self.bound}"


def estimate(kernel: Kernel, target: Target) -> Estimate:
    """Estimates a kernel on one core, with the Opts that it has by now."""
    return Count(kernel, target).total()


def pays_threads(kernel: Kernel, target: Target) -> bool:
    """Whether there is enough to do for a second thread."""
    return estimate(kernel, target).busy >= target.costs.thread


def of_work(operations: int, nbytes: int, target: Target) -> Estimate:
    """Estimates the work of a kernel at best: all lanes busy, each byte moved once."""
    lanes = max(target.vector_bits // 32, 1)
    # A multiplication and the addition of its result are one instruction.
    arithmetic = operations / (2 * lanes * target.issue)
    return Estimate(arithmetic, moved=(0.0, 0.0, nbytes / target.costs.memory_bytes))


class Count:
    """Instructions and bytes of one kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.costs = target.costs
        self.outputs = [r for r in kernel.outputs if not r.arg.kind.is_lane]
        # The loops around what changes with an axis of a reduction.
        self.around: dict[UOp, frozenset[UOp]] = {}
        for u in kernel.reduces:
            loops = frozenset([r for r in u.ranges if not r.arg.kind.is_lane])
            for r in u.src[1:]:
                self.around[r] = loops
        self.known: dict[frozenset[UOp], float] = {}
        # What lies in scratch as it is read, so that its lanes are neighbours.
        self.laid_out = panel_of(kernel) if target.is_cpu else None
        # The axes of rows and halos that are kept in scratch.
        self.scratch = {r for u in kernel.facts.by_op[STAGE] for r in u.src[1:]}

    def total(self) -> Estimate:
        """All of it."""
        arithmetic = self.arithmetic()
        costs, loads, stores = self.costs, 0.0, 0.0
        for a in self.kernel.accesses():
            # In cycles of the units that load, or store, where lanes are neighbours.
            if a.is_store:
                stores += self.times(a) * self.each(a) / costs.stores
            else:
                loads += self.times(a) * self.each(a) / costs.loads
        begun = (arithmetic + loads * costs.loads + stores * costs.stores) / costs.begun
        arithmetic /= self.target.issue
        return Estimate(arithmetic, loads, stores, begun, self.moved(), costs.launch)

    def arithmetic(self) -> float:
        """Instructions of arithmetic: those of SIMD values, and of what has no lanes."""
        total = 0.0
        products = set()
        for u in self.kernel.reduces:
            s = u.src[0]
            # The multiplication and the addition of its result are one instruction.
            if u.arg.op is ADD and s.op is MUL and self.target.has_op("MULACC"):
                products.add(s)
            total += self.count(s.ranges.union(u.src[1:]), s)
        for u in self.kernel.facts.order:
            if u.op in VALUES and u.op is not LOAD and u.dtype.itemsize and u not in products:
                if u.dtype.kind != "index":
                    total += self.count(u.ranges, u) * self.instructions(u)
        # A word has several numbers, which one instruction multiplies.
        return total / max(self.kernel.count(PackedWords), 1)

    def instructions(self, u: UOp) -> float:
        """Those of a node for each SIMD value."""
        busy = self.costs.busy.get(u.op.name)
        return slots_of(u, self.target) if busy is None else busy

    def count(self, ranges: frozenset[UOp], u: UOp) -> float:
        """Instructions for one node in its loops: SIMD values of its dtype."""
        found = self.known.get(ranges)
        if found is None:
            loops = set(ranges)
            for r in ranges:
                loops |= self.around.get(r, frozenset())
            found = self.known[ranges] = float(iterations([r for r in loops if not is_simd(r)]))
        lanes, width = iterations([r for r in ranges if is_simd(r)]), self.lanes(u)
        if lanes > 1:
            return found * float(ceildiv(lanes, width))
        # Scratch is filled in SIMD values once lanes are final.
        return found / width if any([r in self.scratch for r in ranges]) else found

    def lanes(self, u: UOp) -> int:
        """Elements of a dtype in one SIMD value."""
        return self.target.lanes(u.dtype.itemsize)

    def times(self, a: Access) -> float:
        """Counts how often an access runs, in loops down to the last that changes it."""
        loops: set[UOp] = set(a.strides)
        for r in a.strides:
            loops |= self.around.get(r, frozenset())
        # Output loops outside of one that it changes with.
        mine = [i for i, r in enumerate(self.outputs) if r in loops]
        loops.update(self.outputs[: mine[-1] + 1] if mine else ())
        return float(iterations([r for r in loops if not is_simd(r)]))

    def each(self, a: Access) -> float:
        """Instructions of one access, as many as there are lanes where these lie apart."""
        simd = [r for r in a.strides if is_simd(r)]
        lanes, costs = float(iterations(simd)), self.costs
        if lanes == 1:
            return 1.0
        if a is self.laid_out or self.kernel.plan(PackedWords) is not None:
            return float(ceildiv(lanes, self.target.lanes(a.buffer.dtype.itemsize)))
        stride = a.strides[simd[0]]
        whole = float(ceildiv(lanes, self.target.lanes(a.buffer.dtype.itemsize)))
        if stride in (0, 1):
            return whole * (costs.masked if len(a.node.src) > 1 + a.is_store else 1.0)
        if stride in costs.every and not a.is_store:
            return whole * costs.every[stride] / self.target.instruction
        # Beside others in a run they are loaded and stored whole, and change places.
        beside = [size_of(r) for r, n in a.strides.items() if n == 1 and r.arg.kind is UPCAST]
        if beside:
            return lanes * max(costs.transposed / self.target.instruction, 1 / max(beside))
        return lanes * (costs.scatter if a.is_store else costs.gather) / self.target.instruction

    def moved(self) -> tuple[float, ...]:
        """Cycles of each level of memory beyond the first cache, for what is touched once."""
        touched: dict[UOp, int] = {}
        for a in self.kernel.accesses():
            if a.buffer.op is PARAM:
                count = min(iterations(a.strides), a.buffer.arg.size) * a.buffer.dtype.itemsize
                touched[a.buffer] = max(touched.get(a.buffer, 0), count)
        nbytes, costs = sum(touched.values()), self.costs
        rates = (*costs.cache_bytes[1:], costs.memory_bytes)
        return tuple(
            [
                nbytes / rate if nbytes > size else 0.0
                for size, rate in zip(self.target.cache_bytes, rates, strict=True)
            ]
        )


def is_simd(r: UOp) -> bool:
    """Whether the steps of an axis are lanes of one SIMD value."""
    return bool(r.arg.kind is VECTOR)
