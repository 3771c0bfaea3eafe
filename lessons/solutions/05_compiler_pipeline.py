"""Solutions of lesson 05."""

from aster_ml import Tensor, dtypes
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import Rule, UPat


def kernels_planned(t: Tensor) -> int:
    """How many kernels a realize() of `t` would launch, without running any."""
    return len(t.schedule())


def loops(kernel: UOp) -> list[tuple[int, str]]:
    """Size and kind of each loop (RANGE) of a kernel's graph, by its number: (8, "loop")."""
    found = sorted((u for u in toposort(kernel) if u.op is Ops.RANGE), key=lambda u: u.arg.id)
    return [(u.src[0].arg, u.arg.kind.value) for u in found]


def twice_flipped() -> Rule:
    """The rule "twice-flipped": (x ^ y) ^ y -> x, for whole numbers, wherever y stands."""
    x, y = UPat.var("x"), UPat.var("y")
    inner = UPat(Ops.XOR, src=(x, y), any_order=True)
    pattern = UPat(Ops.XOR, dtypes.ints, src=(inner, y), any_order=True)
    return Rule("twice-flipped", pattern, lambda x: x)


def refutation() -> tuple[float, float]:
    """Two numbers x, y (y not 0) for which (x * y) / y is not x in float64."""
    return 1e300, 1e300


def least_loops() -> str:
    """Opts for the product of lesson part 2, [8, 16] @ [16, 32], whose program has one loop."""
    return "VECTOR(1,8) UPCAST(1,4) UPCAST(0,8)"
