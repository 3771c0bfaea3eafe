"""Jitted functions in use, against NumPy: state that they read and write, all sorts of arguments.

A case draws one function and calls it a dozen times, with new memory, views, results of before;
between the calls state is written from outside, memory is given back or moved, and results are
kept and looked at again in the end. What a recording cannot honour may be refused with JitError,
which is counted apart.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aster_ml import Context, Tensor, TinyJit
from aster_ml.errors import JitError
from tests.fuzz.budget import check_all, draws
from tests.fuzz.jit_programs import Drawer, Program, Shape

Array = np.ndarray[Any, Any]
# Sizes of axes: small ones, and now and then such that threads share the work.
SMALL, LARGE = (1, 2, 3, 5, 8, 16), (1, 7, 64, 96, 200)
CALLS = 12


def numbers(rng: random.Random, shape: Shape) -> Array:
    return np.random.default_rng(rng.getrandbits(32)).integers(-9, 10, shape, dtype=np.int32)


class Caller:
    """A jitted function, its state, and the same in NumPy."""

    def __init__(self, rng: random.Random, program: Program) -> None:
        self.rng = rng
        self.program = program
        self.state = [numbers(rng, shape) for shape in program.states]
        self.tensors = [Tensor(a.copy()).clone().realize() for a in self.state]
        # State comes as an argument, or the function has it from around.
        self.passed = rng.random() < 0.3
        self.jitted = TinyJit(self.with_state if self.passed else self.function)
        self.kept: list[tuple[Tensor, Array]] = []
        self.refused: JitError | None = None

    def function(self, *inputs: Tensor) -> list[Tensor]:
        return self.program.run(inputs, self.tensors)

    def with_state(self, states: list[Tensor], *inputs: Tensor) -> list[Tensor]:
        return self.program.run(inputs, states)

    def argument(self, shape: Shape) -> tuple[Tensor, Array]:
        """Memory of this shape, and what is there."""
        rng = self.rng
        kind = rng.choice(("new", "new", "view", "kept", "flip", "transposed"))
        kept = [(t, a) for t, a in self.kept if a.shape == shape]
        if kind == "kept" and kept:
            return rng.choice(kept)
        if kind == "view":
            whole = numbers(rng, (3, *shape))
            return Tensor(whole).realize()[1], whole[1]
        a = numbers(rng, shape)
        if kind == "flip" and shape:
            return Tensor(a).realize().flip(0), np.flip(a, 0)
        if kind == "transposed":
            return Tensor(a.T.copy()).realize().permute(tuple(range(len(shape)))[::-1]), a
        return Tensor(a).realize(), a

    def call(self, inputs: Sequence[tuple[Tensor, Array]]) -> str | None:
        """One call on both sides; what is wrong with it."""
        tensors = [t for t, _ in inputs]
        before = [t.numpy().copy() for t in tensors]
        try:
            got = self.jitted(self.tensors, *tensors) if self.passed else self.jitted(*tensors)
        except JitError as error:
            self.refused = error
            return None
        wanted = self.program.run([a.copy() for _, a in inputs], self.state)
        for i, (t, a) in enumerate(zip(got, wanted, strict=True)):
            if not same(t, a):
                return f"result {i}: {t.numpy().tolist()} in place of {a.tolist()}"
        for i, (t, a) in enumerate(zip(self.tensors, self.state, strict=True)):
            if not same(t, a):
                return f"state {i}: {t.numpy().tolist()} in place of {a.tolist()}"
        if any(not same(t, a) for t, a in zip(tensors, before, strict=True)):
            return "an argument has changed"
        if self.rng.random() < 0.4:
            # Views of state go on showing it on both sides.
            self.kept += list(zip(got, wanted, strict=True))
        return None

    def do_between(self) -> None:
        """What a program may do between two calls."""
        kind = self.rng.choice(("nothing", "nothing", "nothing", "write", "free", "move", "drop"))
        if kind == "write":
            self.write_from_outside()
        elif kind == "drop":
            del self.kept[: len(self.kept) // 2]
        elif self.jitted.captured is not None:
            if kind == "free":
                self.jitted.captured.free_intermediates()
            elif kind == "move":
                self.jitted.captured.replan_buffers_memory_layout()

    def write_from_outside(self) -> None:
        number = self.rng.randrange(len(self.state))
        a = numbers(self.rng, self.state[number].shape)
        self.tensors[number].assign(Tensor(a)).realize()
        self.state[number][...] = a


def same(t: Tensor, a: Array) -> bool:
    found = t.numpy()
    return found.shape == a.shape and found.dtype == a.dtype and bool((found == a).all())


class World:
    """Other tensors of the program, most of which wait: for a write to be read, to be computed."""

    def __init__(self, seed: int, program: Program) -> None:
        self.rng = random.Random(seed)
        self.shapes = [s for s in (*program.states, *program.inputs) if s and 0 not in s]
        self.kept: list[tuple[Tensor, Array]] = []
        self.other = TinyJit(lambda x: (x * 2 + 1).realize())

    def turn(self) -> None:
        """What goes on beside the function."""
        for _ in range(self.rng.randrange(3)):
            shape = self.rng.choice(self.shapes) if self.shapes else (3,)
            a = numbers(self.rng, shape)
            t = Tensor(a.copy()).realize().clone()
            kind = self.rng.choice(("write", "write", "add", "lazy", "jitted", "drop"))
            if kind == "write":
                t[0] = 7
                a[0] = 7
            elif kind == "add":
                t += 5
                a += 5
            elif kind == "lazy":
                t, a = t * 3 + 1, a * 3 + 1
            elif kind == "jitted":
                t, a = self.other(t.realize()), a * 2 + 1
            else:
                del self.kept[: len(self.kept) // 2]
            self.kept.append((t, a))

    def wrong(self) -> bool:
        """Whether one of them is not what it is to be."""
        return any(not same(t, a) for t, a in self.kept)


def try_function(seed: int, refused: list[str], beside: bool = False) -> str | None:
    """One function and its calls, alone or in a world of other tensors."""
    rng = random.Random(seed)
    sizes = LARGE if rng.random() < 0.2 else SMALL
    program = Drawer(rng, sizes, writes=rng.random() < 0.7).program
    threads, stress, spec = rng.choice((1, 2, 3)), rng.choice((0, 0, 1 + seed)), rng.choice((0, 1))
    with Context(THREADS=threads, POOL_STRESS=stress, SPEC=spec):
        caller = Caller(rng, program)
        world = World(seed, program) if beside else None
        inputs = [caller.argument(shape) for shape in program.inputs]
        for number in range(CALLS):
            if rng.random() < 0.3:
                inputs = [caller.argument(shape) for shape in program.inputs]
            if world is not None:
                world.turn()
            said = caller.call(inputs)
            if caller.refused is not None:
                refused.append(str(caller.refused))
                return None
            if said is not None:
                return f"call {number}: {said[:200]} ({program.show()})"
            caller.do_between()
        if any(not same(t, a) for t, a in caller.kept):
            return f"a result that was kept has changed ({program.show()})"
        if world is not None and world.wrong():
            return f"another tensor has changed ({program.show()})"
    return None


def try_beside(seed: int) -> str | None:
    """A function among tensors that do not matter: right, and refused only where it is so alone."""
    refused: list[str] = []
    said = try_function(seed, refused, beside=True)
    if said is None and refused:
        alone: list[str] = []
        try_function(seed, alone)
        return None if alone else f"refused beside others alone: {refused[0][:150]}"
    return said


def test_jitted_functions_beside_others(record_property: Callable[[str, str], None]) -> None:
    check_all("jitted functions beside others", draws(15, 2000), try_beside, record_property)


def test_jitted_functions(record_property: Callable[[str, str], None]) -> None:
    seeds = draws(25, 3000)
    refused: list[str] = []
    check_all("jitted functions", seeds, lambda seed: try_function(seed, refused), record_property)
    record_property("fuzz", f"jitted functions: {len(refused)} refused")
    assert len(refused) <= 2 + len(seeds) // 10


def wrong_of_threads(seed: int) -> str | None:
    """Threads that call one jitted function, each with arguments of its own.

    State is read and not written: which call is first would be left to chance.
    """
    rng = random.Random(seed)
    program = Drawer(rng, SMALL if rng.random() < 0.8 else LARGE, writes=False).program
    caller = Caller(rng, program)
    caller.passed = False
    jitted = TinyJit(caller.function)
    wrong: list[str] = []

    def call_often(own: int) -> None:
        try:
            call_in_turn(random.Random(own))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error} ({program.show()})")

    def call_in_turn(own: random.Random) -> None:
        arrays = [numbers(own, shape) for shape in program.inputs]
        tensors = [Tensor(a).realize() for a in arrays]
        for number in range(CALLS):
            if own.random() < 0.4:
                arrays = [numbers(own, shape) for shape in program.inputs]
                tensors = [Tensor(a).realize() for a in arrays]
            got = jitted(*tensors) if own.random() < 0.8 else caller.function(*tensors)
            wanted = program.run([a.copy() for a in arrays], caller.state)
            for i, (t, a) in enumerate(zip(got, wanted, strict=True)):
                if not same(t, a):
                    wrong.append(f"call {number}, result {i} ({program.show()})")

    threads = [threading.Thread(target=call_often, args=(rng.getrandbits(30),)) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    return wrong[0] if wrong else None


def test_jitted_functions_that_threads_share(record_property: Callable[[str, str], None]) -> None:
    check_all(
        "jitted functions of three threads", draws(12, 1500), wrong_of_threads, record_property
    )
