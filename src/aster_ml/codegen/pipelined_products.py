"""Overlaps exponentials of a tile with the second of two chained products of the tile before.

Receives a kernel of the Opt TC chain that a producer copies for, once it is a list; returns the
Linear in which a turn of those who multiply begins two products, the scores of its tile and the
results of the tile before, and computes powers of the first while the second goes on. Powers, and
what results are rescaled by, wait for the next turn in memory of each work-item's own.

rewrite: for k: s = q @ keys(k); p, a = powers of s; o = o * a; o += p @ values(k)
-> p, a = powers of q @ keys(0); for k from 1 on: s = q @ keys(k) begins; o = o * a; o += p @
values(k - 1) begins; p, a = powers of s; and behind the loop o = o * a; o += p @ values of the last
why: a tensor core multiplies while other units compute powers
"""

from __future__ import annotations

from collections.abc import Iterable

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.pipelined_copies import is_private, loop_of, needed_by
from aster_ml.codegen.producer import CopiesApart, ended
from aster_ml.codegen.products_in_place import is_begun, settle_where_read
from aster_ml.codegen.staging.stage import new_stage
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of


def pipeline_products(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """A producer copies, and powers are computed while those of the tile before are multiplied."""
    return ProductsAhead(*loop_of(linear, kernel, target)).run()


class Kept:
    """A value with lanes that waits for the next turn in memory of a work-item's own."""

    def __init__(self, value: UOp, nodes: Iterable[UOp]) -> None:
        self.value = value
        self.lanes = sorted([r for r in value.ranges if r.arg.kind.is_lane], key=lambda r: r.arg.id)
        room = prod([size_of(r) for r in self.lanes])
        self.memory = new_stage(nodes, value.dtype, size=room, private=True).memory

    def place(self, version: int = 0) -> UOp:
        """Where it lies; loads at two times are of two versions."""
        offset, step = UOp.const(dtypes.int32, 0), 1
        for r in self.lanes:
            offset = offset.alu(Ops.ADD, r.alu(Ops.MUL, UOp.const(dtypes.int32, step)))
            step *= size_of(r)
        number = UOp.const(dtypes.int32, version)
        memory = UOp(Ops.AFTER, self.value.dtype, (self.memory, number)) if version else self.memory
        zero = UOp.const(dtypes.int32, 0)
        return UOp(Ops.INDEX, self.value.dtype, (memory, zero, offset))


class ProductsAhead(CopiesApart):
    """State of one rewriting.

    Of a turn, `multiply` are the nodes of the product of scores, `mix` those of the product of
    powers, `finish` what stores its sums, and `rest` all others.
    """

    def __init__(self, linear: Linear, start: int, stop: int, stages: int, target: Target) -> None:
        super().__init__(linear, start, stop, stages, target)
        begun = [u for u in self.use if is_begun(u)]
        if self.tiles is not None or [u.src[1].arg.majors for u in begun] != ["kk", "rn"]:
            raise KernelOptError(f"{linear.name}: PIPELINE products wants chained products")
        scores, mixed = begun
        sums = mixed.src[0]
        powers, start_of = mixed.src[1].src[0].src[0], sums.src[0]
        again = next(s for s in start_of.src if s.op is not Ops.LOAD)
        nodes = list(linear.uops)
        self.kept = []
        for value in (powers, again):
            self.kept.append(Kept(value, nodes))
            nodes.append(self.kept[-1].memory)
        self.multiply = needed_by([scores, self.end_of(scores)], self.use)
        cut = {powers, again}
        found: dict[UOp, None] = {}
        for root in (mixed, self.end_of(mixed)):
            found |= dict.fromkeys(toposort(root, enter=lambda u: u not in cut))
        self.mix = [u for u in self.use if u in found and u not in cut]
        self.finish = [u for u in self.use if is_private(u) and sums in u.src]
        others = {*self.mix, *self.finish}
        roots = [u for u in self.use if u not in others and (is_private(u) or is_effect(u))]
        first = set(self.multiply)
        self.rest = [u for u in needed_by(roots, self.use) if u not in first]
        self.rest += [k.place().store(k.value) for k in self.kept]
        self.versions = 2 + max([version_of(u) for u in linear.uops], default=0)
        self.regs = max([u.arg.id for u in linear.uops if u.op is Ops.DEFINE_REG])

    def end_of(self, product: UOp) -> UOp:
        """The END of the loop of one step in which a list has a product."""
        at = self.use.index(product)
        loop = next(u for u in reversed(self.use[:at]) if u.op is Ops.RANGE)
        return next(u for u in self.use[at:] if u.op is Ops.END and u.src[0] is loop)

    def first(self) -> list[UOp]:
        """Prologue: the statements before the loop."""
        return [*[k.memory for k in self.kept], *super().first()]

    def renumbered(self, nodes: list[UOp]) -> list[UOp]:
        """A second copy of a list: its accumulators and loops are others, and so are its loads."""
        own = set(nodes)
        new: dict[UOp, UOp] = {}
        versions: dict[UOp, UOp] = {}
        for root in nodes:
            for u in toposort(root, enter=lambda u: u in own or u.op in (Ops.INDEX, Ops.AFTER)):
                if u in new:
                    continue
                src, arg = tuple([new.get(s, s) for s in u.src]), u.arg
                if u.op is Ops.AFTER:
                    self.versions += 1
                    number = UOp.const(dtypes.int32, self.versions)
                    src = (src[0], versions.setdefault(u, number))
                elif u not in own and u.op is not Ops.INDEX:
                    src = u.src
                elif u.op is Ops.RANGE:
                    new[u] = self.again(u)
                    continue
                elif u.op is Ops.DEFINE_REG:
                    self.regs += 1
                    arg = arg._replace(id=self.regs)
                new[u] = u if (src, arg) == (u.src, u.arg) else new_node(u.op, u.dtype, src, arg)
        return [new[u] for u in nodes]

    def consumers(self) -> list[UOp]:
        """Multiply keys of a tile, and values of the one before."""
        size, zero = self.loop.src[0], UOp.const(self.loop.dtype, 0)
        last = size.alu(Ops.ADD, UOp.const(size.dtype, -1))
        if size.op is Ops.CONST:
            last = UOp.const(size.dtype, size.arg - 1)
        before = self.again(self.loop.replace(src=(last,)))
        turn = before.alu(Ops.ADD, UOp.const(self.loop.dtype, 1))
        listed = [*self.there_once(), *self.turn_of(Ops.WAIT, zero, 0)]
        listed += settle_where_read(self.renumbered(self.powers(zero)))
        body = [turn, *self.turn_of(Ops.WAIT, turn, 0), *self.moved_to(self.multiply, turn)]
        loads = self.loads(1)
        body += [*loads.values(), *self.moved_to(self.mix, before, loads)]
        body += self.moved_to(self.rest, turn)
        # A look at a barrier that is done: no compiler takes what is before it behind the wait.
        body += self.turn_of(Ops.WAIT, turn, 0)
        body += self.moved_to(self.finish, before, loads)
        released = self.released(before, UOp.const(dtypes.bool, True))
        listed += [last] if last.op is not Ops.CONST else []
        listed += [before, *settle_where_read(body), *released, ended(before)]
        loads = self.loads(2)
        rest = [*loads.values(), *self.moved_to([*self.mix, *self.finish], last, loads)]
        listed += settle_where_read(self.renumbered(rest))
        return [*[u for u in listed if u.op is not Ops.CONST], *self.behind]

    def moved_to(self, nodes: list[UOp], turn: UOp, new: dict[UOp, UOp] | None = None) -> list[UOp]:
        """Nodes for another turn."""
        return self.moved(nodes, turn, {self.loop: turn, **(new or {})}, None)

    def powers(self, turn: UOp) -> list[UOp]:
        """All of a turn but the product of powers."""
        return [*self.moved_to(self.multiply, turn), *self.moved_to(self.rest, turn)]

    def loads(self, version: int) -> dict[UOp, UOp]:
        """Loads the values that have been kept."""
        return {k.value: k.place(version).load() for k in self.kept}


def is_effect(u: UOp) -> bool:
    """Whether a node is one that a turn is there for."""
    return u.op in (Ops.ACCUMULATE, Ops.END)


def version_of(u: UOp) -> int:
    """The number of the AFTER that a LOAD reads through, or 0."""
    memory = u.src[0].src[0] if u.op is Ops.LOAD else u
    return int(memory.src[1].arg) if memory.op is Ops.AFTER else 0
