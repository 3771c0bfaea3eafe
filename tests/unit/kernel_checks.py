"""The kernel of a tensor, and memory for kernels to read, as the tests of codegen want them."""

from __future__ import annotations

import itertools

import numpy as np

from aster_ml import Tensor
from aster_ml.codegen.lower import schedule_kernel
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.symbolic import simplify_around

# Caches so small that small kernels go past them.
SMALL_CACHES = Target(
    "CPU",
    "llvm",
    arch="x86_64-any",
    vector_bits=512,
    vector_registers=32,
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


def opts_of(t: Tensor, target: Target = SMALL_CACHES) -> list[str]:
    """The names of the Opts that the kernel of `t` gets."""
    return [o.op.name for o in schedule_kernel(kernel_of(t), target).applied]
