"""The kernel of a tensor, and memory for kernels to read, as the tests of codegen want them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.codegen.opts import Opt
from aster_ml.device import Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel
from aster_ml.engine.realize import schedule_uops
from aster_ml.runtime.cpu.program import CpuProgram, slot_packer
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify_around

# Caches so small that small kernels go past them.
SMALL_CACHES = Target(
    "CPU",
    "llvm",
    arch="x86_64-any",
    vector_bits=512,
    vector_registers=32,
    masks=True,
    broadcasts=True,
    cache_bytes=(1 << 10, 64 << 10, 32 << 10),
)


def kernel_of(t: Tensor) -> UOp:
    """The AST of the one kernel that computes `t`; fails where there are more."""
    schedule, _ = schedule_uops([t.contiguous().uop])
    [ast] = [s.ast for s in schedule.steps if s.ast is not None]
    return ast


def memory(*shape: int) -> Tensor:
    """Realized float32 numbers, the same for every call."""
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


# What stands where a kernel has stored nothing.
UNTOUCHED = 7


def run_parts(
    ast: UOp, opts: Iterable[Opt], x: Tensor, like: Any, parts: Iterable[tuple[int, int]]
) -> Iterator[Any]:
    """What a CPU kernel that reads `x` stores for each part of its threads' axis."""
    program = compile_kernel(ast, Device["CPU"], tuple(opts)).program
    assert isinstance(program, CpuProgram)
    source = storage.buffer_of(x.uop.base).ensure_allocated().handle
    for low, high in parts:
        out = np.full_like(like, UNTOUCHED)
        program.function(slot_packer(2)(out.ctypes.data, source.address), low, high)
        yield out


def check_any_part(
    ast: UOp, opts: Iterable[Opt], x: Tensor, wanted: Any, rtol: float, atol: float
) -> None:
    """Each part of the rows of a CPU kernel that reads `x` is stored, right, and no other row."""
    rows = len(wanted)
    parts = ((0, rows), (0, 1), (rows - 1, rows), (rows // 2, rows), (rows, rows))
    for (low, high), out in zip(parts, run_parts(ast, opts, x, wanted, parts), strict=True):
        np.testing.assert_allclose(out[low:high], wanted[low:high], rtol=rtol, atol=atol)
        assert (out[:low] == UNTOUCHED).all()
        assert (out[high:] == UNTOUCHED).all()


def places_of(index: UOp) -> list[int]:
    """What an index is at every step of its ranges."""
    ranges = sorted(index.ranges, key=lambda r: r.arg.id)
    found = []
    for steps in itertools.product(*[range(size_of(r)) for r in ranges]):
        at = {r: UOp.index_const(i) for r, i in zip(ranges, steps, strict=True)}
        place = simplify_around(substitute(index, at))
        assert place.op is Ops.CONST
        found.append(int(place.arg))
    return found
