"""Kernels that are final before the rest of a body is planned.

The walk down goes from the outputs to the inputs. Once it has passed all that goes into a stored
value, its expression is settled, and so is its kernel, if nothing is merged with it later: a
reduction of much work stays alone. Such kernels are handed on at once, so that the compiler has
something to do while the rest is planned. What a schedule is does not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aster_ml.config import DEPTH_FIRST
from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.fusion.uses import LEAVES, Materialized
from aster_ml.schedule.kernels.horizontal_fusion import LARGE_WORK
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.steps import Draft, FinalKernel, HazardError
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import iterations
from aster_ml.uop.rules.linear_form import form_of

# Consumes a kernel.
Take = Callable[[FinalKernel], None]
# Bodies with fewer nodes are planned before a kernel would be compiled.
MANY_NODES = 300
# The compiler is busy with so many kernels; where layers are alike there are fewer, and others that
# were looked at were there already.
MOST_KERNELS, MOST_IN_VAIN = 16, 8


@dataclass
class Candidate:
    """A stored value with a large reduction, and how far it has been looked at.

    `nodes` are what it is made of as far as that is known, `ahead` those that the walk has not
    come to.
    """

    root: UOp
    nodes: set[UOp]
    ahead: list[UOp]


class Ahead:
    """The stored values of one body whose kernels may be known early."""

    def __init__(self, planner: StagePlanner, params: list[UOp], take: Take) -> None:
        self.planner = planner
        self.take = take
        self.place = {u: i for i, u in enumerate(planner.order)}
        # Numbers memory for itself, as it comes.
        self.splitter = Splitter(planner, params)
        self.waiting: dict[UOp, list[Candidate]] = {}
        self.met: set[UOp] = set()
        self.known: set[UOp] = set()
        self.in_vain = 0

    def meet(self, u: UOp, root: UOp) -> None:
        """A reduction that a stored value is, or is made of."""
        if root in self.met or len(self.known) >= MOST_KERNELS or self.in_vain >= MOST_IN_VAIN:
            return
        if self.planner.numel(u.src[0].shape) > LARGE_WORK:
            self.met.add(root)
            self.waiting.setdefault(u, []).append(Candidate(root, {root}, [root]))

    def look(self, passed: UOp) -> None:
        """The walk has passed a node: hands on what is known now."""
        for candidate in self.waiting.pop(passed):
            self.spread(candidate, self.place[passed])
            if candidate.ahead:
                last = min(candidate.ahead, key=self.place.__getitem__)
                self.waiting.setdefault(last, []).append(candidate)
            elif candidate.nodes:
                kernel = self.kernel_of(candidate)
                if kernel is not None:
                    self.take(kernel)

    def spread(self, candidate: Candidate, passed: int) -> None:
        """Goes on to the sources of nodes that the walk has passed.

        A candidate is left without nodes where effects come in between.
        """
        planner, place, root, nodes = self.planner, self.place, candidate.root, candidate.nodes
        stack, candidate.ahead = candidate.ahead, []
        while stack:
            u = stack.pop()
            if u is not root:
                if u.op in LEAVES or u in planner.stored:
                    continue
                if place[u] < passed:
                    candidate.ahead.append(u)
                    continue
            if u.op is Ops.AFTER:
                candidate.nodes, candidate.ahead = set(), []
                return
            for s in u.src:
                if s not in nodes and any([r.root is root for r in planner.readings.get(s, ())]):
                    nodes.add(s)
                    stack.append(s)

    def kernel_of(self, candidate: Candidate) -> FinalKernel | None:
        """The kernel of a stored value, if it is one that stays as it is and was not known."""
        nodes = sorted(candidate.nodes, key=self.place.__getitem__)
        self.planner.go_up(nodes, candidate.root)
        draft = self.draft_of(self.planner.stored[candidate.root])
        if draft is None or not draft.parts:
            return None
        sums = self.splitter.walk(draft.exprs).sums
        if sums is None or iterations({*draft.ranges, *sums}) <= LARGE_WORK:
            return None
        if any([self.planner.divides(e) for e in draft.exprs]) or self.may_run(draft):
            # Where runs are looked for, ranges that are divided are split.
            return None
        ast = self.splitter.close(draft).ast
        if ast is None or ast in self.known:
            self.in_vain += 1
            return None
        self.known.add(ast)
        return FinalKernel(ast, draft.step.device)

    def may_run(self, draft: Draft) -> bool:
        """Whether a run may take a kernel: it reads and makes large temporaries, place by place
        along the outermost axis of both.
        """
        slots, n_args = self.splitter.slots, self.splitter.n_args

        def outermost(slot: int, place: UOp) -> UOp | None:
            s = slots[slot]
            if slot < n_args or 8 * s.size * s.dtype.itemsize < ASSUMED.large_nbytes:
                return None
            terms = form_of(place).terms
            return max(terms, key=terms.__getitem__, default=None)

        made = {outermost(p.slot, p.place) for p in draft.parts} - {None}
        loads = [u.src for u in self.splitter.walk(draft.exprs).order if u.op is Ops.INDEX]
        read = {outermost(draft.leaves[leaf].slot, place) for leaf, place in loads}
        return bool(DEPTH_FIRST) and not made.isdisjoint(read)

    def draft_of(self, stored: Materialized) -> Draft | None:
        """The kernel of a stored value; None where there is none, or where effects collide."""
        if stored.value is None or stored.node.op is Ops.SCATTER:
            return None
        try:
            self.splitter.draft_kernel(stored)
        except HazardError:
            # Whoever splits the whole body meets it again, and the body is planned anew.
            return None
        return self.splitter.drafts.pop()
