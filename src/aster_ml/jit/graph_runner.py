"""Items that run as one native graph, and recordings shown as items.

Receives `ExecItem`s, or a `Replay`; returns items to look at, or to run again. What a recording
runs, and how, is decided in `jit/replay`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from aster_ml.device import Buffer
from aster_ml.engine.estimate import Estimates
from aster_ml.engine.items import CompiledRunner, ExecItem, Runner, ast_of
from aster_ml.errors import ArgumentError
from aster_ml.jit.replay import Place, Recorded, Replay, Segment
from aster_ml.schedule.steps import Step
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class GraphRunner(Runner):
    """Kernels that run as one native graph, on the buffers that their items have.

    `input_buffers` are those that `set_input` may exchange.
    """

    def __init__(
        self,
        jit_cache: Sequence[ExecItem],
        input_buffers: Sequence[Buffer] = (),
        values: dict[str, int] | None = None,
    ) -> None:
        self.jit_cache = list(jit_cache)
        self.input_buffers = list(input_buffers)
        self.values = dict(values or {})
        runners = [runner for item in self.jit_cache if (runner := item.lower().prg) is not None]
        ops = sum([runner.estimates.ops for runner in runners])
        mem = sum([runner.estimates.mem for runner in runners])
        device = self.jit_cache[0].device if self.jit_cache else "CPU"
        super().__init__(f"graph of {len(self.jit_cache)}", device, Estimates(ops, mem))

    @functools.cached_property
    def replay(self) -> Replay:
        """The recording of the items."""
        return Replay([self.recorded(item) for item in self.jit_cache], self.input_buffers)

    def recorded(self, item: ExecItem) -> Recorded:
        """An item as what a recording has of it.

        Raises: ArgumentError for one whose memory each call brings along.
        """
        if any([b is None for b in item.bufs]):
            raise ArgumentError(
                "this graph reads arguments of a jitted function; call that function with them"
            )
        item.lower()
        compiled = item.prg.compiled if isinstance(item.prg, CompiledRunner) else None
        kind = "copy" if compiled is None else "kernel"
        step = item.step
        if step is None:
            ast = item.prg.ast if isinstance(item.prg, CompiledRunner) else item.ast
            step = Step(kind, tuple(range(len(item.bufs))), ast, item.device)
        buffers = [b.ensure_allocated() for b in item.bufs if b is not None]
        return Recorded(step, compiled, buffers, {**item.fixedvars, **self.values})

    def set_input(self, number: int, buffer: Buffer) -> None:
        """Exchanges one of the input buffers."""
        self.replay.set_input(number, buffer)

    def __call__(
        self, buffers: Sequence[Buffer], values: dict[str, int] | None = None, wait: bool = False
    ) -> float | None:
        self.replay.run({**self.values, **(values or {})})
        return None


def item_of(replay: Replay, recorded: Recorded) -> ExecItem:
    """A recorded step as an item; None stands for memory that each call brings along."""
    bufs: list[Buffer | None] = []
    shown: list[Buffer] = []
    for b in recorded.buffers:
        if isinstance(b, Place):
            own = b.number >= replay.borrowed
            bufs.append(b.show(replay.input(b.number)) if own else None)
            shown.append(Buffer(b.device, b.size, b.dtype))
        else:
            bufs.append(b)
            shown.append(b)
    ast = ast_of(recorded.step, shown)
    return ExecItem(ast, bufs, fixedvars=dict(recorded.values), step=recorded.step)


def items_of(replay: Replay) -> list[ExecItem]:
    """Lists the steps of a recording."""
    return [item_of(replay, recorded).lower() for recorded in replay.items]


def grouped_items_of(replay: Replay) -> list[ExecItem]:
    """Lists the steps of a recording, each native graph as one item."""
    result = []
    for part in replay.parts:
        if isinstance(part, Segment):
            items = [item_of(replay, recorded).lower() for recorded in part.items]
            bufs = list(dict.fromkeys([b for item in items for b in item.bufs]))
            runner = GraphRunner(items)
            result.append(ExecItem(UOp(Ops.SINK), bufs, prg=runner))
        else:
            result.append(item_of(replay, part).lower())
    return result
