"""Opts that somebody asks for, by hand or from a search: what they may be done to.

Receives a kernel and Opts; applies them, or raises KernelOptError where the kernel would be wrong
with one. What an Opt does to the graph says `apply`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.staging.dot_packing import find_product, words_of
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.ranges import size_of


def apply_given(
    kernel: Kernel, opts: tuple[Opt, ...], target: Target, by_hand: bool = False
) -> None:
    """Applies Opts that somebody asks for; written `by_hand`, an UPCAST may be SIMD.

    Raises: KernelOptError where the kernel would be wrong with one of them.
    """
    for opt in opts:
        check_opt(kernel, opt, target)
        apply(kernel, as_simd(kernel, opt, opts) if by_hand else opt)


def as_simd(kernel: Kernel, opt: Opt, opts: tuple[Opt, ...]) -> Opt:
    """An UPCAST as VECTOR where its lanes are stored side by side and no other lanes are SIMD."""
    simd = OptOps.VECTOR in [o.op for o in (*opts, *kernel.applied)]
    if opt.kind != "UPCAST" or simd:
        return opt
    axis = kernel.axes_of(opt)[0]
    if axis not in kernel.outputs:
        return opt
    lanes = opt.arg or size_of(axis)
    stores = [a for a in kernel.accesses() if a.is_store]
    fits = lanes & (lanes - 1) == 0 and all(a.stride(axis) == 1 for a in stores)
    return opt._replace(op=OptOps.VECTOR) if fits else opt


# Opts for devices with work-groups.
WORK_GROUPS = frozenset(
    {
        "LOCAL", "GROUP", "STAGE local", "STAGE out", "PIPELINE copies", "PIPELINE producer",
        "BLOCKS order", "BLOCKS loop", "BLOCKS cluster",
    }
)  # fmt: skip
# Opts that keep values in scratch that one thread has for itself, as CPUs have on their stack.
OWN_SCRATCH = frozenset(
    {
        "KBLOCK row", "STAGE halo", "STAGE row", "STAGE panel", "STAGE tile", "STAGE results",
        "SPLIT last", "PIPELINE stores",
    }
)  # fmt: skip
# Opts that leave iterations in their order.
KEEP_ORDER = frozenset({OptOps.PREFETCH, OptOps.NONTEMPORAL})


def check_opt(kernel: Kernel, opt: Opt, target: Target) -> None:
    """Raises KernelOptError where a kernel would be wrong with an Opt that somebody asks for."""
    if opt.kind in WORK_GROUPS and not target.has_local:
        raise KernelOptError(f"{opt}: this device has no work-groups")
    if opt.op is OptOps.TC:
        names = {i: c.name for i, c in enumerate(ROWS) if c.name in target.tensor_cores}
        if opt.arg not in names:
            there = ", ".join([f"{i} {name}" for i, name in names.items()]) or "none"
            raise KernelOptError(f"{opt}: there is no TC on this device but {there}")
    shares = target.has_local if opt.kind == "STAGE words" else not target.is_cpu
    if (opt.kind in OWN_SCRATCH or opt.kind == "STAGE words") and shares:
        raise KernelOptError(f"{opt}: scratch of a thread's own is wanted, which CPUs have")
    if opt.kind == "STAGE words":
        product = find_product(kernel)
        groups = {1} if product is None else {1, words_of(product.narrow)}
        if product is None or opt.arg not in groups:
            raise KernelOptError(
                f"{opt}: a sum of products of loaded narrow numbers over one axis is wanted, "
                f"and groups of {' or '.join(map(str, sorted(groups)))}"
            )
    for axis in kernel.axes_of(opt) if opt.op not in KEEP_ORDER else []:
        if axis in kernel.outputs and not kernel.may_reorder(axis):
            raise KernelOptError(f"{opt}: iterations of {axis_name(axis)} add to the same elements")
