"""Plans: each field of each kind tells kernels apart, and a kernel has what its last Opt says."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from aster_ml.codegen import plans
from aster_ml.codegen.apply import APPLY, apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import WAYS, OptOps, parse_opts
from aster_ml.codegen.passes import AFTER_OPTS, ON_LINEAR
from aster_ml.codegen.plans import (
    ComputedEpilogue,
    CopiesAhead,
    KernelPlan,
    MaskedTail,
    OverlappedExp,
    PackedWords,
    ProducerWarp,
    Threads,
    TileEpilogue,
)
from aster_ml.errors import KernelOptError
from tests.core.kernel_checks import kernel_of, memory

KINDS = [
    kind
    for kind in vars(plans).values()
    if isinstance(kind, type) and issubclass(kind, KernelPlan) and kind.__module__ == plans.__name__
]


def product() -> Kernel:
    """A kernel without Opts."""
    return Kernel(kernel_of(memory(100, 24) @ memory(24, 32)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_tells_kernels_apart(kind: type[KernelPlan]) -> None:
    plain = dict.fromkeys([f.name for f in fields(kind)], 1)
    kernels = [product() for _ in range(len(plain) + 2)]
    kernels[1].add(kind(**plain))
    for kernel, name in zip(kernels[2:], plain, strict=True):
        kernel.add(kind(**{**plain, name: 2}))
    assert len({kernel.value for kernel in kernels}) == len(kernels)
    with pytest.raises(FrozenInstanceError):
        kernels[1].plans[0].count = 3  # type: ignore[misc]


def test_passes_carry_out_kinds_of_plans() -> None:
    carried = [kind for step in (*AFTER_OPTS, *ON_LINEAR) for kind in step.carries_out]
    assert carried
    assert set(carried) <= set(KINDS)


def test_a_plan_takes_the_place_of_one_of_its_kind() -> None:
    kernel = product()
    for copies in (CopiesAhead, ProducerWarp, OverlappedExp, CopiesAhead):
        kernel.add(copies(axis=2, count=3))
        assert kernel.plans == (copies(axis=2, count=3),)
    kernel.add(PackedWords(count=4))
    kernel.add(TileEpilogue(count=8))
    kernel.add(ComputedEpilogue(count=4))
    kernel.add(PackedWords(count=1))
    assert kernel.plans[1:] == (ComputedEpilogue(count=4), PackedWords(count=1))
    assert kernel.plan(TileEpilogue) == ComputedEpilogue(count=4)
    assert kernel.count(PackedWords) == 1


def test_many_axes_have_a_plan_of_a_kind() -> None:
    kernel = product()
    first, second = kernel.outputs
    for axis in (first, second, first):
        kernel.add(MaskedTail(axis=axis.arg.id))
    assert len(kernel.plans_of(MaskedTail)) == 2
    assert kernel.plan_of(MaskedTail, second) == MaskedTail(axis=second.arg.id)
    assert kernel.plan_of(Threads, second) is None


def test_strips_are_refused_where_a_tile_of_tiles_starts_early() -> None:
    """Strips add up once what the tail of one split has twice, and not that of a split of it."""
    *tiles, strips = parse_opts("UPCAST(r0,6,shift) UPCAST(r0,4,shift) KBLOCK(r2,8,output)")
    kernel = product()
    for opt in tiles[:1]:
        apply(kernel, opt)
    apply(kernel, strips)
    kernel = product()
    for opt in tiles:
        apply(kernel, opt)
    with pytest.raises(KernelOptError, match="KBLOCK"):
        apply(kernel, strips)


def test_opts_are_rows_of_one_table_with_the_ways_that_they_can_be_done_in() -> None:
    assert set(APPLY) == set(OptOps)
    ways = {op: tuple(row) for op, row in APPLY.items() if isinstance(row, dict)}
    assert ways == WAYS
