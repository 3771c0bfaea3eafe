"""Exercises of lesson 05. Replace each `raise` and run `aster lesson check 05`."""

from aster_ml import Tensor
from aster_ml.uop.node import UOp
from aster_ml.uop.pattern import Rule


def kernels_planned(t: Tensor) -> int:
    """How many kernels a realize() of `t` would launch, without running any."""
    raise NotImplementedError


def loops(kernel: UOp) -> list[tuple[int, str]]:
    """Size and kind of each loop (RANGE) of a kernel's graph, by its number: (8, "loop")."""
    raise NotImplementedError


def twice_flipped() -> Rule:
    """The rule "twice-flipped": (x ^ y) ^ y -> x, for whole numbers, wherever y stands."""
    raise NotImplementedError


def refutation() -> tuple[float, float]:
    """Two numbers x, y (y not 0) for which (x * y) / y is not x in float64."""
    raise NotImplementedError


def least_loops() -> str:
    """Opts for the product of lesson part 2, [8, 16] @ [16, 32], whose program has one loop."""
    raise NotImplementedError
