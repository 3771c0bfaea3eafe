"""Kernel: a kernel graph with its axes, the Opts that were applied, and the plans that they left.

Receives a canonical kernel AST; every change gives a new graph in `sink`. What each Opt does to it
stands in `codegen/apply`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from aster_ml.codegen.analysis import Access, Facts
from aster_ml.codegen.opts import OF_KERNELS, OF_OUTPUTS, OF_REDUCTIONS, WITH_OTHER, Opt, axis_name
from aster_ml.codegen.plans import (
    AxisPlan,
    ChainedProducts,
    Halo,
    KernelPlan,
    MaskedTail,
    Strips,
    Threads,
)
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import divisors
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp, index_alu, new_node
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from aster_ml.uop.ranges import tells_apart

P = TypeVar("P", bound=KernelPlan)
A = TypeVar("A", bound=AxisPlan)
INDEX = dtypes.index
# Names of a module are found faster than members of an Enum, and every node is asked for its op.
ADD, CONST, END, RANGE, REDUCE = Ops.ADD, Ops.CONST, Ops.END, Ops.RANGE, Ops.REDUCE
LOOP = AxisType.LOOP
# Of dtype index, but no arithmetic.
UNFOLDED = frozenset({Ops.STAGE, Ops.LOAD})


class Decision(NamedTuple):
    """A choice of the default schedule: what it is about, what was chosen, and what each costs."""

    about: str
    chosen: str
    costs: tuple[tuple[str, float], ...]


class Kernel:
    """One kernel while its axes are being arranged."""

    def __init__(self, sink: UOp) -> None:
        # What is known of the graph as it is now.
        self.facts = Facts(sink)
        self.outputs: list[UOp] = []
        self.applied: list[Opt] = []
        # Why they were chosen, where the cost did.
        self.notes: list[Decision] = []
        for end in sink.src:
            for r in end.src[1:] if end.op is Ops.END else ():
                if r not in self.outputs:
                    self.outputs.append(r)
        # What passes are to do.
        self.plans: tuple[KernelPlan, ...] = ()
        self.next_id = 1 + max([r.arg.id for r in self.facts.by_op[RANGE]], default=-1)

    # what there is

    @property
    def sink(self) -> UOp:
        """The graph as it is now."""
        return self.facts.sink

    @sink.setter
    def sink(self, sink: UOp) -> None:
        if sink is not self.facts.sink:
            self.facts = Facts(sink, self.facts.strides_of)

    @property
    def value(self) -> tuple[Any, ...]:
        """All that Opts have made of the kernel: where it is equal, so is the program."""
        return self.sink, tuple(self.outputs), frozenset(self.plans)

    @property
    def in_order(self) -> bool:
        """Whether its stores have an order, or will, as in kernels written by hand."""
        info = self.sink.arg
        return (info is not None and info.in_order) or self.plan(ChainedProducts) is not None

    @property
    def stores(self) -> list[UOp]:
        """The STORE nodes."""
        return self.facts.stores

    @property
    def reduces(self) -> list[UOp]:
        """The REDUCE nodes, sources first."""
        return self.facts.reduces

    @property
    def axes(self) -> list[UOp]:
        """Loops that Opts can name: outputs first, then those of reductions in order of id."""
        return self.output_loops + self.facts.reduced

    @property
    def output_loops(self) -> list[UOp]:
        """Output axes that Opts can name: all loops but the one that threads share out."""
        threads = self.plan(Threads)
        shared = None if threads is None else threads.axis
        return [r for r in self.outputs if r.arg.kind is LOOP and r.arg.id != shared]

    @property
    def first_reduction(self) -> int:
        """Where the axes of reductions begin in `axes`."""
        return len(self.output_loops)

    def plan(self, kind: type[P]) -> P | None:
        """The plan of a kind, None where there is none."""
        for p in self.plans:
            if isinstance(p, kind):
                return p
        return None

    def plan_of(self, kind: type[A], axis: UOp) -> A | None:
        """The plan of a kind for an axis, None where there is none."""
        for p in self.plans:
            if isinstance(p, kind) and p.axis == axis.arg.id:
                return p
        return None

    def plans_of(self, kind: type[P]) -> list[P]:
        """The plans of a kind."""
        return [p for p in self.plans if isinstance(p, kind)]

    def count(self, kind: type[KernelPlan]) -> int:
        """The count of the plan of a kind, 0 where there is none."""
        plan = self.plan(kind)
        return 0 if plan is None else plan.count

    def accesses(self) -> list[Access]:
        """Every load and store with its strides."""
        return self.facts.accesses

    def may_reorder(self, axis: UOp) -> bool:
        """Whether iterations of an output axis can run in any order, or at once.

        They cannot where a store writes what is read, unless different iterations are seen to store
        at different places; nor can the strips of a reduction, but all else can then.
        """
        strips = self.plan(Strips)
        if strips is not None:
            return bool(axis.arg.id != strips.axis)
        stores = self.facts.stores_over_reads
        if not stores or self.plan_of(MaskedTail, axis) is not None:
            return True
        return all([tells_apart(u.src[0].src[1], axis) for u in stores])

    # changing it

    def add(self, plan: KernelPlan) -> None:
        """Takes in a plan, in place of one that it replaces."""
        self.plans = (*[p for p in self.plans if not plan.replaces(p)], plan)

    def move_plans(self, axis: UOp, to: int, *kinds: type[AxisPlan]) -> None:
        """Moves the plans of these kinds from an axis to the one with another id."""
        self.plans = tuple([
            replace(p, axis=to) if isinstance(p, kinds) and p.axis == axis.arg.id else p
            for p in self.plans
        ])  # fmt: skip

    def new_range(self, size: Any, kind: AxisType) -> UOp:
        """A fresh axis."""
        r = UOp.range(size, self.next_id, kind)
        self.next_id += 1
        return r

    def axes_of(self, opt: Opt) -> list[UOp]:
        """The axes that an Opt names. Raises: KernelOptError where one is not there."""
        axes, of = self.axes, ""
        if opt.kind in OF_KERNELS:
            return []
        if opt.kind in OF_OUTPUTS:
            axes, of = self.output_loops, " of outputs"
        if opt.kind in OF_REDUCTIONS:
            axes, of = self.facts.reduced, " of reductions"
        found, name = [named_axis(axes, opt.axis)], opt.axis
        if opt.kind in WITH_OTHER and found[0] is not None:
            axes, of, name = self.output_loops, " of outputs", opt.arg
            found.append(named_axis(axes, name))
        if None not in found:
            return [r for r in found if r is not None]
        sizes = [r.src[0].arg if r.src[0].op is Ops.CONST else "symbolic size" for r in axes]
        shown = [f"{axis_name(r)} of {size}" for r, size in zip(axes, sizes, strict=True)]
        raise KernelOptError(
            f"{opt}: the kernel has no axis {name}{of}, but "
            f"{', '.join(shown) or 'none'}; positions count from 0"
        )

    def split(self, axis: UOp, lanes: int, kind: AxisType) -> None:
        """`axis` -> `outer * lanes + inner`, `inner` of the given kind."""
        size = axis.src[0]
        part = size.divides(lanes) if lanes else None
        if part is None:
            if size.op is not Ops.CONST:
                raise KernelOptError(
                    f"{lanes} does not divide the axis, whose size is symbolic; the factors of "
                    f"{size.const_factor()} would"
                )
            fitting = ", ".join(map(str, divisors(size.arg)[1:]))
            raise KernelOptError(
                f"{lanes} does not divide the axis of {size.arg}; {fitting or 'nothing'} would"
            )
        inner = self.new_range(lanes, kind)
        is_output = axis in self.outputs
        if part.op is Ops.CONST and part.arg == 1:
            whole: UOp = inner
            new_outputs = [inner if r is axis else r for r in self.outputs]
            parts: tuple[UOp, ...] = (inner,)
        else:
            outer = UOp(Ops.RANGE, axis.dtype, (part,), axis.arg)
            whole = index_alu(Ops.ADD, index_alu(Ops.MUL, outer, UOp.index_const(lanes)), inner)
            new_outputs = [x for r in self.outputs for x in ((outer, inner) if r is axis else (r,))]
            parts = (outer, inner)
        if is_output:
            self.outputs = new_outputs
        self.rewrite({axis: whole}, {axis: parts})

    def slab_stage(self) -> UOp | None:
        """Finds the scratch that windows load through, with the axes that it spans there."""
        halo = self.plan(Halo)
        if halo is None:
            return None
        stages = self.facts.by_op[Ops.STAGE]
        return next(u for u in stages if u.src[-1].arg.id == halo.slab.columns)

    def fills_slab(self, axis: UOp) -> bool:
        """Whether each step of an axis fills a slab of its own: such an axis stays a loop."""
        stage = self.slab_stage()
        return stage is not None and axis in stage.ranges

    def loads_slab(self, axis: UOp) -> bool:
        """Whether SIMD lanes along an output axis are loaded from a slab."""
        stage = self.slab_stage()
        return axis in self.outputs and any(
            a.buffer is stage and a.stride(axis) == 1 for a in self.accesses()
        )

    def both(self, a: UOp, b: UOp | None = None) -> UOp:
        """The conjunction."""
        return a if b is None else b.alu(Ops.AND, a)

    def rewrite(
        self, changes: dict[UOp, UOp], parts: dict[UOp, tuple[UOp, ...]] | None = None
    ) -> dict[UOp, None]:
        """Substitutes axes; where an axis is closed (END, REDUCE), its parts are.

        Returns what the graph then has, sources first; and, where something folds, maybe what that
        was made of, which has fallen away.
        """
        # What becomes another node.
        new: dict[UOp, UOp] = dict(changes)
        parts = parts or {}
        order: dict[UOp, None] = {}
        # Whether nothing has fallen away, numbers aside.
        whole = all([r.op is RANGE for r in changes])
        # A view: of what is in `new` by then.
        stay = new.keys().isdisjoint
        for u in self.facts.order:
            if u in new:
                toposort(new[u], done=order)
                continue
            op, src = u.op, u.src
            if stay(src):
                order[u] = None
                continue
            if op is END or op is REDUCE:
                closed = [p for r in src[1:] for p in parts.get(r, (new.get(r, r),))]
                value = new.get(src[0], src[0])
                fresh = new_node(op, u.dtype, (value, *closed), u.arg) if closed else value
            else:
                made = tuple(map(new.get, src, src))
                if u.dtype is not INDEX or len(made) != 2 or op in UNFOLDED:
                    fresh = new_node(op, u.dtype, made, u.arg)
                elif op is ADD and made[0].op is not CONST and made[1].op is not CONST:
                    # As index arithmetic makes it, but for the order, in which it is when lowered.
                    fresh = new_node(op, INDEX, made)
                else:
                    # Index arithmetic folds.
                    fresh = index_alu(op, *made)
                    whole = whole and fresh.op is op and fresh.src in (made, made[::-1])
            new[u] = fresh
            order[fresh] = None
        self.sink = new.get(self.sink, self.sink)
        if whole:
            self.facts.order = order
        return order


def named_axis(axes: list[UOp], name: int | str) -> UOp | None:
    """The one of these axes that has a name, or stands at a position."""
    if isinstance(name, int):
        return axes[name] if 0 <= name < len(axes) else None
    return next((r for r in axes if axis_name(r) == name), None)


def identity(op: Ops, dtype: Any) -> Any:
    """Neutral element of a fold."""
    return {
        Ops.ADD: 0,
        Ops.MUL: 1,
        Ops.MAX: dtypes.min(dtype),
        Ops.OR: 0,
        Ops.AND: dtypes.max(dtype),
        Ops.XOR: 0,
    }[op]


__all__ = ["Access", "Kernel", "ReduceArg", "identity"]
