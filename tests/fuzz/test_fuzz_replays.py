"""Jitted steps under stress: whatever the threads do first, every step gives the same numbers.

A case is one jitted step of a network (forward, backward, optimizer) while the pool's threads, more
than the machine has processors, dawdle and take any part. The oracle is the same step without the
jit and without stress: equal to the bit with DETERMINISTIC=1, within rounding without; and a replay
gives the bits of the recording in either case. With a learning rate of 0 all steps lose the same;
with another one the weights are put back after each visit, and every step of it is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Context, Tensor, TinyJit
from aster_ml.jit.replay import Segment
from aster_ml.runtime.cpu.program import NativeGraph
from tests.fuzz.budget import check_all, draws
from tests.fuzz.jitted_networks import NETWORKS

# Steps of one network before the next one has its turn.
VISIT = 8
RTOL = 2e-4


class Config(NamedTuple):
    """A network and the settings that it runs under."""

    name: str
    rate: float
    threads: int
    deterministic: int


# Every network once, then again with the other settings.
CONFIGS = [
    Config(name, (0.0, 0.01)[(i + turn) // 2 % 2], threads, (i + turn + 1) % 2)
    for turn, threads in enumerate((4, 5, 3, 8))
    for i, name in enumerate(NETWORKS)
]


class Trial:
    """A network with its jitted step, and what each step of a visit has to give."""

    def __init__(self, config: Config) -> None:
        self.config = config
        with self.settings(0):
            Tensor.manual_seed(7)
            network = NETWORKS[config.name](config.rate)
            self.state = network.state
            for t in self.state:
                # Weights that are still to be drawn are a constant of every step otherwise.
                t.assign(t.contiguous()).realize()
            self.start = [t.numpy().copy() for t in self.state]
            with Context(JIT=0):
                self.wanted = [read(network.step()) for _ in range(VISIT)]
            self.step: Callable[[], tuple[Tensor, ...]] = TinyJit(network.step)
            self.recorded: list[np.ndarray[Any, Any]] = []
            self.put_back()
            for _ in range(VISIT):
                self.recorded.append(read(self.step()))

    def settings(self, stress: int) -> Any:
        """The context that this runs in."""
        c = self.config
        return Context(THREADS=c.threads, DETERMINISTIC=c.deterministic, POOL_STRESS=stress)

    def put_back(self) -> None:
        """Everything is as before the first step."""
        for t, values in zip(self.state, self.start, strict=True):
            t.assign(Tensor(values)).realize()

    def check(self, turn: int) -> str | None:
        """One step under stress, which is number `turn` of its visit."""
        got, wanted, recorded = read(self.step()), self.wanted[turn], self.recorded[turn]
        if got.tobytes() != recorded.tobytes():
            return f"{self.config}, step {turn}: {got} in place of {recorded}"
        if self.config.deterministic and got.tobytes() != wanted.tobytes():
            return f"{self.config}, step {turn}: {got} in place of {wanted} without the jit"
        if not np.allclose(got, wanted, RTOL):
            return f"{self.config}, step {turn}: {got}, and about {wanted} without the jit"
        return None


def read(losses: tuple[Tensor, ...]) -> np.ndarray[Any, Any]:
    return np.array([loss.item() for loss in losses], np.float32)


class Visits:
    """The network whose turn it is, in its settings."""

    def __init__(self) -> None:
        self.trials: dict[Config, Trial] = {}
        self.visit = -1
        self.open = ExitStack()

    def check(self, seed: int) -> str | None:
        """Step number `seed` of all."""
        visit, turn = divmod(seed, VISIT)
        config = CONFIGS[visit % len(CONFIGS)]
        trial = self.trials.get(config) or self.trials.setdefault(config, Trial(config))
        if visit != self.visit:
            self.open.close()
            trial.put_back()
            self.visit = visit
            self.open.enter_context(trial.settings(1 + visit))
            for _ in range(turn):
                # Seeds begin in the middle of a visit, whose steps follow from one another.
                trial.step()
        return trial.check(turn)


def test_jitted_steps_under_stress(record_property: Callable[[str, str], None]) -> None:
    seeds = draws(len(NETWORKS) * VISIT, 200_000)
    visits = Visits()
    with visits.open:
        check_all("jitted steps under stress", seeds, visits.check, record_property)
    # Where one thread does all in turn, nothing could be done too early.
    idle = {config.name for config in visits.trials}
    for config, trial in visits.trials.items():
        if any(len(graph.groups()) > 1 for graph in graphs_of(trial.step)):
            idle.discard(config.name)
    assert not idle


def graphs_of(step: Any) -> list[NativeGraph]:
    parts = step.latest.replay.parts
    return [p.graph for p in parts if isinstance(p, Segment) and isinstance(p.graph, NativeGraph)]
