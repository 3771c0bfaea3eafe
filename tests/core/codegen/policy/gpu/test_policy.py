"""What a search may change on work-groups: each proposal fits or is refused, and all kinds come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.policy.gpu import policy
from aster_ml.codegen.policy.protocol import Opts
from aster_ml.codegen.search_space import changed, neighbours, starts
from aster_ml.errors import KernelOptError
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target
from aster_ml.uop.node import UOp
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of

HOPPER, AMPERE = cuda_target("sm_90a"), cuda_target("sm_80")


def product(n: int = 256, k: int = 256, m: int = 256, dtype: str = "float16") -> UOp:
    """The kernel of a product."""
    a, b = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    return kernel_of(a.matmul(b, dtype=dtypes.float32))


KERNELS: dict[str, Callable[[], UOp]] = {
    "product": product,
    "odd product": lambda: product(33, 70, 100),
    "product of float32": lambda: product(64, 33, 96, "float32"),
    "row sums": lambda: kernel_of(Tensor.empty(40, 1000).sum(1)),
    "softmax": lambda: kernel_of(Tensor.empty(40, 500).softmax()),
    "elementwise": lambda: kernel_of(Tensor.empty(7, 100) * 2 + 1),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [HOPPER, metal_target("METAL")], ids=["sm_90a", "metal"])
def test_proposals_fit_or_are_refused(name: str, target) -> None:  # type: ignore[no-untyped-def]
    ast = KERNELS[name]()
    start = schedule_kernel(ast, target)
    fitting = 0
    for opts in [*list(starts(ast, target))[:3], *changed(start, tuple(start.applied), target)]:
        try:
            linear, _ = lower(ast, target, opts)
        except KernelOptError:
            continue
        verify_linear(linear)
        fitting += 1
    assert fitting > 4


def kinds(ast: UOp, target, opts: str | None = None) -> set[str]:  # type: ignore[no-untyped-def]
    """The kinds of Opts that come with a change, and numbers that others then have."""
    kernel = schedule_kernel(ast, target, None if opts is None else parse_opts(opts))
    before = tuple(kernel.applied)
    found = list(neighbours(ast, target, before))
    return {o.kind for c in found for o in c if o not in before}


def test_all_kinds_of_work_groups_are_proposed() -> None:
    ast = product()
    plain = kinds(ast, HOPPER, "")
    assert {"TC", "LOCAL", "UPCAST", "GROUP", "STAGE local", "VECTOR"} <= plain
    boxes = "TC(r2,13) STAGE(r2,4,local)"
    assert {"PIPELINE copies", "PIPELINE producer"} <= kinds(ast, HOPPER, boxes)
    assert "BLOCKS order" in kinds(ast, HOPPER, boxes + " PIPELINE(r2,3,copies)")
    assert "BLOCKS loop" in kinds(ast, HOPPER, boxes + " PIPELINE(r2,3,producer)")


def test_rows_of_tensor_cores_and_depths_are_proposed() -> None:
    ast, opts = product(), parse_opts("TC(r2,13) STAGE(r2,4,local) PIPELINE(r2,3,copies)")
    kernel = schedule_kernel(ast, HOPPER, opts)
    found = list(changed(kernel, opts, HOPPER))
    rows = {o.arg for c in found for o in c if o.kind == "TC"}
    assert {13, 14, 15} <= rows
    depths = {(o.how, o.arg) for c in found for o in c if o.op is OptOps.PIPELINE}
    assert {("copies", 2), ("copies", 3), ("copies", 4), ("producer", 3)} <= depths


def test_a_search_sets_out_from_whole_schedules() -> None:
    """No single change leads to several stages that are faster at each step."""
    found = list(starts(product(), AMPERE))
    assert len(found) > 8
    tiles = {tuple(o for o in opts if o.op is not OptOps.PIPELINE) for opts in found}
    depths = {o.arg for opts in found for o in opts if o.kind == "PIPELINE copies"}
    assert len(tiles) > 3
    assert {2, 3, 4} <= depths


def test_opts_stand_in_their_order() -> None:
    opts = parse_opts("TC(r2,3) LOCAL(r0,2) STAGE(r2,2,local) PIPELINE(r2,4,copies)")
    more = (Opt(OptOps.SPLIT, "r0", 64, "mask"), Opt(OptOps.LOCAL, "r0", 2))
    found = [o.op.name for o in policy.insert(opts, more)]
    assert found == ["SPLIT", "TC", "LOCAL", "LOCAL", "STAGE", "PIPELINE"]


def arranged(opts: str, ast: UOp) -> Kernel:
    """The kernel with these Opts."""
    return schedule_kernel(ast, AMPERE, parse_opts(opts))


def test_what_a_block_has_no_room_for_is_left_out() -> None:
    ast = product(512, 64, 512, "float32")
    assert policy.fits(arranged("LOCAL(r0,32) LOCAL(r1,32)", ast), AMPERE)
    assert not policy.fits(arranged("LOCAL(r0,64) LOCAL(r1,32)", ast), AMPERE)
    assert policy.fits(arranged("UPCAST(r0,16) UPCAST(r1,8)", ast), AMPERE)
    assert not policy.fits(arranged("UPCAST(r0,32) UPCAST(r1,8)", ast), AMPERE)
    many = "UPCAST(r0,16) UPCAST(r1,8) LOCAL(r0,32) LOCAL(r1,32)"
    assert not policy.fits(arranged(many, ast), AMPERE)
    # More is known to the compiler of kernels, which says so.
    with pytest.raises(KernelOptError, match="work-items is asked for"):
        lower(ast, AMPERE, parse_opts("LOCAL(r0,64) LOCAL(r1,32)"))
    small = replace(AMPERE, local_bytes=1024)
    with pytest.raises(KernelOptError, match="bytes of local memory"):
        lower(ast, small, parse_opts("UPCAST(r0,4) LOCAL(r0,8) LOCAL(r1,8) STAGE(r2,16,local)"))


def test_processors_without_blocks_count_as_idle() -> None:
    ast = product(512, 64, 512, "float32")

    def of(opts: str) -> float:
        return policy.idle(arranged(opts, ast), AMPERE)

    few, many = "UPCAST(r0,8) LOCAL(r0,16) UPCAST(r1,8) LOCAL(r1,16)", "LOCAL(r0,16) LOCAL(r1,16)"
    assert of(few) == AMPERE.units / 16
    assert 1.0 <= of(many) < 1.1
    rows = kernel_of(Tensor.empty(1080, 500).softmax())
    # Those that reduce a row are those that have its results.
    shared = schedule_kernel(rows, AMPERE)
    own = next(o.arg for o in shared.applied if o.op is OptOps.LOCAL)
    assert policy.items_of(shared) == own
    assert policy.idle(shared, AMPERE) == 1.0


def test_no_opts_of_simd_registers_are_proposed() -> None:
    start = schedule_kernel(product(64, 33, 96, "float32"), AMPERE)
    found: list[Opts] = list(changed(start, tuple(start.applied), AMPERE))
    unwanted = {"THREAD", "NONTEMPORAL", "PREFETCH", "KBLOCK output", "UPCAST shift"}
    assert not unwanted & {o.kind for opts in found for o in opts}


def test_tiles_along_one_axis_have_one_order() -> None:
    ast = kernel_of(Tensor.empty(4096) + 1)
    with pytest.raises(KernelOptError, match="a second axis of tiles is wanted"):
        lower(ast, AMPERE, parse_opts("LOCAL(r0,64) BLOCKS(r0,2,order)"))
