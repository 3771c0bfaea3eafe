"""Random linear programs: what the renderers make of them does what the interpreter does.

Each has some loops, written-out lanes, a SIMD lane and a reduction, with loads of any stride,
gates, gathers and a small expression; the seed of one that fails is in the test's name.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from aster_ml.backend import Grid
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import dtypes
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.renderer.metal.renderer import MetalRenderer
from aster_ml.renderer.opencl import OpenCLRenderer
from aster_ml.runtime.cpu import clang
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.spec.verify import verify
from tests.core.linear_builder import (
    LOOP,
    REDUCE,
    UNROLL,
    UPCAST,
    VECTOR,
    Builder,
    at,
    run_c,
    run_llvm,
)
from tests.core.linear_programs import f32, i32
from tests.shim import on_cpu


class Draw:
    """A random program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = Builder(f"random_{seed}")
        self.count = 0

    def some(self, *values: int) -> int:
        """One of them."""
        return self.rng.choice(values)

    def sum_of(self, axes: list[UOp], *strides: int) -> tuple[UOp, int, int]:
        """Axes times random strides, with the least and greatest value."""
        total, low, high = i32(0), 0, 0
        for r in axes:
            step, last = self.some(*strides), r.src[0].arg - 1
            if step:
                shifted, by = self.new(r)
                total = total + shifted * i32(step)
                ends = (step * by, step * (last + by))
                low, high = low + min(ends), high + max(ends)
        return total, low, high

    def new(self, r: UOp) -> tuple[UOp, int]:
        """An axis plus a number that was never used.

        A node stands in the list once, so what one loop computes is no other loop's to use.
        """
        self.count += 1
        return r + i32(self.count), self.count

    def load(self, loops: list[UOp], lanes: list[UOp]) -> UOp:
        """A load of a buffer of its own, just as long as it has to be."""
        base, low, high = self.sum_of(loops, 0, 1, 3, 16)
        if lanes and self.rng.random() < 0.25:
            # A stride that is not constant stands in the base.
            lane, _ = self.new(self.rng.choice(lanes))
            base, high = base + (lane * lane + lane) % i32(5), high + 4
        offset, low2, high2 = self.sum_of(lanes, 0, 1, 1, 1, -1, 2, 8)
        start = -low - low2
        size = start + high + high2 + 1
        buffer = UOp.param(len(self.b.params), size, dtypes.float32)
        self.b.params.append(buffer)
        self.b.listed.add(buffer)
        self.b.uops.insert(0, buffer)
        start_of_all = i32(start) if base.op is Ops.CONST else self.b.add(base + i32(start))
        index = at(buffer, start_of_all, offset)
        gate = self.gate(loops + lanes) if self.rng.random() < 0.3 else None
        return self.b.load(index, gate)

    def gate(self, axes: list[UOp]) -> UOp:
        """A condition on some of the axes."""
        chosen = [r for r in axes if self.rng.random() < 0.5]
        if not chosen:
            return UOp.const(dtypes.bool, bool(self.some(0, 1)))
        left, low, high = self.sum_of(chosen, 1, 2, -1)
        return self.b.add(left < i32(self.rng.randint(low, high + 1)))

    def value(self, loops: list[UOp], lanes: list[UOp], depth: int) -> UOp:
        """An expression over loads, lanes as numbers and constants."""
        kind = self.rng.random()
        if depth == 0 or kind < 0.15:
            chosen = [r for r in lanes if self.rng.random() < 0.7]
            if self.rng.random() < 0.15 and chosen:
                return self.new(self.rng.choice(chosen))[0].cast(dtypes.float32)
            if self.rng.random() < 0.15:
                return f32(self.some(0, 1, 2) / 2)
            return self.load([r for r in loops if self.rng.random() < 0.8], chosen)
        x, y = (self.value(loops, lanes, depth - 1) for _ in range(2))
        if kind < 0.3:
            return self.gate(loops + lanes).where(x, y)
        op = self.rng.choice((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX))
        return x.alu(op, y)

    def program(self) -> Linear:
        """The whole of it: loops, a reduction, what is done with its result, a store."""
        b, some = self.b, self.some
        out = b.param(1)
        loops = [b.axis(some(1, 2, 3), LOOP) for _ in range(some(0, 1, 2))]
        lanes = [b.axis(some(2, 3), UPCAST) for _ in range(some(0, 1, 2))]
        simd = some(0, 1, 2)
        if simd == 1:
            lanes.append(b.axis(some(2, 4, 8), VECTOR))
        self.rng.shuffle(lanes)
        result = self.reduction(loops, lanes, simd == 2) if some(0, 1, 1) else f32(0)
        value = b.add(result + self.value(loops, lanes, some(0, 1, 2)))
        size, base, offset = 1, i32(0), i32(0)
        for r in reversed(lanes):
            offset, size = offset + r * i32(size), size * r.src[0].arg
        for r in reversed(loops):
            base, size = base + r * i32(size), size * r.src[0].arg
        if some(0, 0, 1):
            # Backwards.
            base, offset = base * i32(-1) + i32(size - 1), offset * i32(-1)
        index = at(UOp.param(0, size, dtypes.float32), b.add(base + i32(0)), offset)
        b.params[0] = index.src[0]
        b.uops[b.uops.index(out)] = index.src[0]
        b.listed.add(index.src[0])
        b.store(index, value, self.gate(loops + lanes) if some(0, 0, 1) else None)
        b.end(*reversed(loops))
        return b.build()

    def reduction(self, loops: list[UOp], lanes: list[UOp], simd: bool) -> UOp:
        """An accumulator with lanes of its own and of the result, and what it comes to."""
        b, some = self.b, self.some
        op = self.rng.choice((Ops.ADD, Ops.ADD, Ops.MAX))
        side = [b.axis(some(2, 3), UPCAST)] if some(0, 1) else []
        if simd:
            side.append(b.axis(some(2, 4), VECTOR))
        start = self.value(loops, lanes, 0) if some(0, 1) else f32(0.5)
        acc = b.reg(b.add(start), *lanes, *side)
        inner = [b.axis(some(1, 2, 4), REDUCE) for _ in range(some(1, 1, 2))]
        unrolled = [b.axis(some(2, 3), UNROLL)] if some(0, 1) else []
        value = self.value(loops + inner, lanes + side + unrolled, some(0, 1, 2))
        b.accumulate(acc, b.add(value), *unrolled, op=op)
        b.end(*reversed(inner))
        return b.reduce(acc, *side, op=op) if side else acc


def run_opencl(linear: Linear, arrays: list[np.ndarray]) -> None:
    """Renders, builds and runs on the OpenCL device."""
    backend = Device["OPENCL"]
    program = backend.load(
        linear.name, backend.compile(OpenCLRenderer(backend.target).render(linear))
    )
    memory = [
        Buffer("OPENCL", x.size, p.dtype).copyin(x)
        for x, p in zip(arrays, linear.params, strict=True)
    ]
    program(tuple(m.handle for m in memory), launch=Grid((1,), (1,)))
    for m, x in zip(memory, arrays, strict=True):
        m.copyout(x)


def run_cuda(linear: Linear, arrays: list[np.ndarray]) -> None:
    """Renders, and runs on the CPU."""
    on_cpu.run(CudaRenderer(cuda_target("sm_80")).render(linear), linear, arrays)


def run_metal(linear: Linear, arrays: list[np.ndarray]) -> None:
    """Renders, and runs on the CPU."""
    on_cpu.run(MetalRenderer(metal_target()).render(linear), linear, arrays)


RUNNERS = {
    "LLVM": run_llvm, "C": run_c, "OPENCL": run_opencl, "CUDA": run_cuda, "METAL": run_metal,
}  # fmt: skip
ABSENT = missing("OPENCL")
SEEDS = [pytest.param("LLVM", seed) for seed in range(150)]
SEEDS += [
    pytest.param(
        "C",
        seed,
        marks=[
            pytest.mark.cc,
            pytest.mark.skipif(clang.find_compiler() is None, reason="no C compiler on PATH"),
        ],
    )
    for seed in range(0, 150, 6)
]
SEEDS += [
    pytest.param(
        "OPENCL",
        seed,
        marks=[
            pytest.mark.opencl,
            pytest.mark.skipif(ABSENT is not None, reason=f"OpenCL: {ABSENT}"),
        ],
    )
    for seed in range(0, 150, 6)
]
SEEDS += [
    pytest.param(
        device,
        seed,
        marks=[
            pytest.mark.cc,
            pytest.mark.slow,
            pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH"),
        ],
    )
    for device in ("CUDA", "METAL")
    for seed in range(150)
]


@pytest.mark.parametrize("device, seed", SEEDS)
def test_random_program(device: str, seed: int) -> None:
    linear = Draw(seed).program()
    verify(linear, "linear")
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(-2, 2, p.arg.size).astype(np.float32) for p in linear.params]
    want, found = [x.copy() for x in arrays], [x.copy() for x in arrays]
    Interpreter(linear).run(want)
    RUNNERS[device](linear, found)
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
