"""The kernel of a tensor, and memory for kernels to read, as the tests of codegen want them."""

from __future__ import annotations

import numpy as np

from aster_ml import Tensor
from aster_ml.codegen.lower import schedule_kernel
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.node import UOp

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


def opts_of(t: Tensor, target: Target = SMALL_CACHES) -> list[str]:
    """The names of the Opts that the kernel of `t` gets."""
    return [o.op.name for o in schedule_kernel(kernel_of(t), target).applied]
