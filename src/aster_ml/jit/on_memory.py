"""A recording that is run on addresses: of memory of others, for its arguments and its results.

Receives a recording that does no more than to compute results from arguments; runs it where
somebody else's tensors lie, without tensors or buffers of ours. Whoever calls it says that the
memory is there, is as large as recorded, and that results lie apart from all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aster_ml.device import Buffer
from aster_ml.engine.counters import TOTALS
from aster_ml.jit.pytree import Template, leaves
from aster_ml.jit.recording import Recording
from aster_ml.thread_state import ENGINE, take_turn


class OnMemory:
    """A recording as a function of addresses: arguments in order, then results in order.

    It takes the recording over: nobody else may replay it afterwards.
    """

    def __init__(self, recording: Recording[Any]) -> None:
        self.replay = recording.replay
        self.count = recording.n_inputs + len(recording.places)
        recording.forget_results()
        recording.places.clear()
        # Results are written where the caller says: what was recorded on is not needed.
        for number in range(self.replay.borrowed, self.count):
            self.replay.current[number] = Buffer(*self.replay.sizes[number])
        self.look_again()

    @staticmethod
    def of(recording: Recording[Any] | None, n_inputs: int) -> OnMemory | None:
        """A recording taken over, or None where it is more than a function of `n_inputs` tensors.

        Each result has to be all of a memory of its own, and the whole has to be one native graph.
        """
        if recording is None or not recording.is_pure or recording.is_bound:
            return None
        graph = recording.replay.single
        if not hasattr(graph, "set_address") or recording.states or recording.watch.conditions:
            return None
        results = [leaf for _, leaf in leaves(recording.result)]
        slots = [leaf.whole[0] for leaf in results if isinstance(leaf, Template) and leaf.whole]
        wanted = list(range(recording.n_inputs, recording.n_inputs + len(recording.places)))
        is_plain = len(slots) == len(results) and slots == wanted
        return OnMemory(recording) if is_plain and recording.n_inputs == n_inputs else None

    def look_again(self) -> None:
        """Finds the words of the native graph that say where arguments and results lie."""
        graph: Any = self.replay.single
        self.graph = graph
        self.launch = graph.entry()
        self.addresses: list[int] = [0] * self.count
        self.words = [
            [(graph, call, slot, start) for _, call, slot, start, _ in uses]
            for uses in self.replay.uses
        ]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Runs it: the memory at these addresses is read and written."""
        with ENGINE:
            take_turn()
            if self.replay.is_free or self.replay.single is not self.graph:
                self.replay.prepare()
                self.look_again()
            known = self.addresses
            for number, address in enumerate(addresses):
                if known[number] != address:
                    known[number] = address
                    for graph, call, slot, start in self.words[number]:
                        graph.set_address(call, slot, address + start)
            self.launch()
            TOTALS.kernel_count += self.replay.kernels
            TOTALS.global_ops += self.replay.ops
            TOTALS.global_mem += self.replay.mem
