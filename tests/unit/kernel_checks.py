"""The kernel of a tensor, and memory for kernels to read, as the tests of codegen want them."""

from __future__ import annotations

import numpy as np

from aster_ml import Tensor
from aster_ml.engine.realize import schedule_uops
from aster_ml.uop.node import UOp


def kernel_of(t: Tensor) -> UOp:
    """The AST of the one kernel that computes `t`; fails where there are more."""
    schedule, _ = schedule_uops([t.contiguous().uop])
    [ast] = [s.ast for s in schedule.steps if s.ast is not None]
    return ast


def memory(*shape: int) -> Tensor:
    """Realized float32 numbers, the same for every call."""
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()
