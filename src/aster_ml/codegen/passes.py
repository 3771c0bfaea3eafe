"""The passes of code generation (hop 5, first part): from a kernel AST and a Target to a Linear.

The passes stand in the order in which they run, each with the reason for its place.
"""

from __future__ import annotations

import time
from dataclasses import replace

from aster_ml.codegen.cpu.block_prefetch import ask_for_next_blocks
from aster_ml.codegen.cpu.heuristic import choose_opts
from aster_ml.codegen.decompose.ops import decompose
from aster_ml.codegen.gpu.shared_memory import build_blocks
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.indices import lower_indices
from aster_ml.codegen.lower.linearize import linearize
from aster_ml.codegen.lower.program_order import lower_in_order
from aster_ml.codegen.opts import OF_REDUCTIONS, Opt, OptOps, parse_opts
from aster_ml.codegen.peeling import run_last_steps_apart
from aster_ml.codegen.pipelining import skew
from aster_ml.codegen.row_pipelining import fold_next_rows
from aster_ml.codegen.staging.accumulators import sum_rows
from aster_ml.codegen.staging.dot_packing import find_product, pack_words, words_of
from aster_ml.codegen.staging.epilogue import finish_in_loop
from aster_ml.codegen.staging.halo import fill_slab
from aster_ml.codegen.staging.panel import pack_panels
from aster_ml.codegen.staging.row import fill_rows, keep_rows
from aster_ml.codegen.transforms.axes import (
    loads_places,
    merge_axes,
    simplify_indices,
    split_divided_axes,
)
from aster_ml.codegen.transforms.horizontal import fold_together
from aster_ml.codegen.transforms.nonpositive_exp import mark_differences
from aster_ml.codegen.transforms.shared_division import prepare_divisors
from aster_ml.codegen.transforms.trip_counts import limit_reductions
from aster_ml.codegen.transforms.unroll_stacks import share_loads
from aster_ml.config import DETERMINISTIC, NOOPT, SAME_THREADS, SPEC
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.spec.verify import verify

# Scratch of a kernel on a CPU is on the stack: half of what most systems give a thread.
MAX_SCRATCH_NBYTES = 4 << 20

# Seconds spent in each pass since the process began.
PASS_TIMES: dict[str, float] = {}


class PassClock:
    """Adds the time between calls to the named pass; with SPEC=2 verifies what the pass made."""

    def __init__(self) -> None:
        self.verifies = SPEC >= 2
        self.last = time.perf_counter()

    def __call__(self, name: str, sink: UOp | None = None) -> None:
        now = time.perf_counter()
        PASS_TIMES[name] = PASS_TIMES.get(name, 0.0) + now - self.last
        self.last = now
        if self.verifies and sink is not None:
            verify(sink, "kernel")
            self.last = time.perf_counter()


def schedule_kernel(
    ast: UOp,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    by_hand: bool = False,
    rank: int = 0,
    plain: bool = False,
) -> Kernel:
    """The kernel with its axes arranged: by the given Opts, or by the cost; `plain` not at all.

    Of Opts that were written `by_hand`, an UPCAST may be SIMD. With a `rank`, the SIMD axis is not
    the one that costs least, but one of the next.
    """
    kernel = Kernel(ast)
    if plain or (NOOPT and opts is None):
        return kernel
    # First, because every choice below is better on fewer, longer axes.
    split_divided_axes(kernel)
    merge_axes(kernel)
    # Before a value that is computed in two places is kept: both have to stay the same.
    mark_differences(kernel, target)
    if target.language in ("llvm", "c"):
        keep_rows(kernel, target)
        share_loads(kernel)
    if opts is None:
        if DETERMINISTIC:
            # The same choices whatever the number of threads, so the same order of additions.
            target = replace(target, threads=SAME_THREADS)
        choose_opts(kernel, target, rank)
    else:
        for opt in opts:
            check_opt(kernel, opt, target)
            kernel.apply(as_simd(kernel, opt, opts) if by_hand else opt)
    return kernel


def as_simd(kernel: Kernel, opt: Opt, opts: tuple[Opt, ...]) -> Opt:
    """An UPCAST as VECTOR where its lanes are stored side by side and no other lanes are SIMD."""
    simd = OptOps.VECTOR in [o.op for o in (*opts, *kernel.applied)]
    outputs = kernel.axes[: kernel.first_reduction]
    if opt.op is not OptOps.UPCAST or simd or opt.axis >= len(outputs):
        return opt
    axis = outputs[opt.axis]
    lanes = opt.arg or size_of(axis)
    stores = [a for a in kernel.accesses() if a.is_store]
    fits = lanes & (lanes - 1) == 0 and all(a.stride(axis) == 1 for a in stores)
    return opt._replace(op=OptOps.VECTOR) if fits else opt


# Opts for devices with work-groups.
WORK_GROUPS = frozenset({OptOps.LOCAL, OptOps.GROUP, OptOps.GROUPTOP, OptOps.STAGE})
# Opts that leave iterations in their order.
KEEP_ORDER = frozenset({OptOps.PREFETCH, OptOps.NONTEMPORAL})


def check_opt(kernel: Kernel, opt: Opt, target: Target) -> None:
    """Raises KernelOptError where a kernel would be wrong with an Opt that somebody asks for."""
    if opt.op in WORK_GROUPS and not target.has_local:
        raise KernelOptError(f"{opt}: this device has no work-groups")
    if opt.op is OptOps.PACK_DOT:
        product = find_product(kernel)
        groups = {1} if product is None else {1, words_of(product.narrow)}
        if product is None or opt.arg not in groups:
            raise KernelOptError(
                f"{opt}: a sum of products of loaded narrow numbers over one axis is wanted, "
                f"and groups of {' or '.join(map(str, sorted(groups)))}"
            )
    outputs = kernel.axes[: kernel.first_reduction]
    if opt.op not in OF_REDUCTIONS | KEEP_ORDER and 0 <= opt.axis < len(outputs):
        if not kernel.may_reorder(outputs[opt.axis]):
            raise KernelOptError(f"{opt}: iterations of this axis add to the same elements")


def lower(
    ast: UOp,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    by_hand: bool = False,
    plain: bool = False,
) -> tuple[Linear, tuple[Opt, ...]]:
    """The kernel as a list of nodes for this target, and the Opts that it was given.

    A `plain` one has none, and no pass that only makes kernels faster.
    """
    clock = PassClock()
    if opts is None and ast.arg is not None and ast.arg.opts is not None:
        opts, by_hand = parse_opts(ast.arg.opts), True
    if ast.arg is not None and ast.arg.in_order:
        linear = lower_in_order(ast, target, ast.arg.name or "ordered")
        clock("codegen.lower_in_order")
        return linear, ()
    kernel = schedule_kernel(ast, target, opts, by_hand, plain=plain)
    clock("codegen.schedule_kernel", kernel.sink)
    # Before indices are simplified: block and work-item numbers come in as divisions.
    if target.has_local:
        kernel.sink = build_blocks(kernel)
        clock("codegen.build_blocks", kernel.sink)
    elif pack_words(kernel, target):
        # After the loop order is final: it says how often a panel is filled.
        clock("codegen.pack_words", kernel.sink)
    elif target.language in ("llvm", "c") and not NOOPT and not plain:
        # For the same reason.
        pack_panels(kernel, target)
        clock("codegen.pack_panels", kernel.sink)
        # After panels, which are filled for every step.
        limit_reductions(kernel)
        clock("codegen.limit_reductions", kernel.sink)
        run_last_steps_apart(kernel)
        clock("codegen.run_last_steps_apart", kernel.sink)
    if target.language in ("llvm", "c") and not plain:
        # Once it is known which part of a row a thread has.
        sum_rows(kernel, target)
        clock("codegen.sum_rows", kernel.sink)
        fill_rows(kernel, target)
        fill_slab(kernel, target)
        clock("codegen.fill_rows", kernel.sink)
        if len(kernel.reduces) > 1:
            kernel.sink = fold_together(kernel.sink)
        clock("codegen.fold_together", kernel.sink)
        # After all that changes the loops of sums.
        finish_in_loop(kernel, target)
        clock("codegen.finish_in_loop", kernel.sink)
    # Once lanes say for how many results a divisor is the same.
    if not plain:
        prepare_divisors(kernel, target)
    clock("codegen.prepare_divisors", kernel.sink)
    sink = ask_for_next_blocks(kernel)
    # Splitting axes leaves sums of products in the indices. Addresses are simplified where lanes
    # are set apart from them; before that only where one reads what has an address itself.
    order = kernel.facts.order if sink is kernel.sink else toposort(sink)
    simple = simplify_indices(sink, order, addresses=loads_places(order))
    clock("codegen.simplify_indices", simple)
    # Before lanes are set apart: a decomposition may add integer arithmetic of its own.
    order, sink = order if simple is sink else toposort(simple), simple
    native = decompose(sink, target, order)
    clock("codegen.decompose", native)
    # Last of the rewrites: bounds and floor division end here.
    whole = dtypes.int64 if target.index_bits == 64 else dtypes.int32
    shared = next((r for r in kernel.outputs if r.arg.id == kernel.shared), None)
    sink = lower_indices(native, whole, order if native is sink else None, shared)
    changed = {r.arg.id: r for end in sink.src for r in end.src[1:] if r.op is Ops.RANGE}
    outputs = [changed.get(r.arg.id, r) for r in kernel.outputs]
    clock("codegen.lower_indices")
    linear = linearize(sink, outputs, (ast.arg and ast.arg.name) or kernel_name(kernel))
    clock("codegen.linearize")
    if kernel.following is not None:
        linear = fold_next_rows(linear, kernel.following)
        clock("codegen.fold_next_rows")
    if kernel.skewed is not None:
        # Last: a row and the next one are not told apart in a graph.
        linear = skew(linear, kernel.skewed)
        clock("codegen.skew")
    if target.language in ("llvm", "c"):
        check_scratch(linear, kernel)
    return linear, tuple(kernel.applied)


def check_scratch(linear: Linear, kernel: Kernel) -> None:
    """Raises KernelOptError for a kernel with more scratch than fits on a stack beside the rest."""
    scratch = [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
    nbytes = sum([u.arg.size * u.dtype.itemsize for u in scratch])
    if nbytes > MAX_SCRATCH_NBYTES:
        opts = " ".join(map(repr, kernel.applied))
        raise KernelOptError(
            f"{linear.name}: {opts} want {nbytes:,} bytes of scratch, and a stack has room for "
            f"{MAX_SCRATCH_NBYTES:,}; smaller tiles or panels would do"
        )


def kernel_name(kernel: Kernel) -> str:
    """`r_64_32_16` for a reduction, `E_1024` without one: sizes of the axes, outermost first."""
    sizes = [
        str(r.src[0].arg) if r.src[0].op is Ops.CONST else "n"
        for r in kernel.outputs + [a for u in kernel.reduces for a in u.src[1:]]
    ]
    return "_".join(["r" if kernel.reduces else "E", *sizes[:8]])
