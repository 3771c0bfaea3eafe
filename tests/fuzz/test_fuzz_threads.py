"""Threads that compute at once, eagerly and jitted, on values of their own and on shared ones.

Each case draws a program for each of several threads; NumPy says what comes out. Shared are a
tensor that all read, and a jitted function that all call.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit
from tests.fuzz.budget import check_all, draws

THREADS = 5
ROUNDS = 4
Array = np.ndarray[Any, Any]


def eager(draw: random.Random, shared: Tensor, known: Array) -> str | None:
    """A small program whose results are read on the way."""
    rows, columns = draw.choice([1, 3, 8, 17]), known.shape[0]
    x = np.array([draw.uniform(-1, 1) for _ in range(rows * columns)], np.float32)
    x = x.reshape(rows, columns)
    t = Tensor(x)
    kind = draw.randrange(5)
    if kind == 0:
        made, want = (t + shared).exp().sum(1), np.exp(x + known).sum(1)
    elif kind == 1:
        made, want = t @ (shared.reshape(-1, 1) * shared), x @ np.outer(known, known)
    elif kind == 2:
        made, want = t.softmax().max(0), (np.exp(x) / np.exp(x).sum(1, keepdims=True)).max(0)
    elif kind == 3:
        made = t.clone().realize()
        made[0] = shared
        want = x.copy()
        want[0] = known
    else:
        t.requires_grad = True
        (t * t * shared).sum().backward()
        assert t.grad is not None
        made, want = t.grad, 2 * x * known
    return wrong("eager", kind, made, want)


def wrong(what: str, kind: int, made: Tensor, want: Array) -> str | None:
    """What is wrong with a result, if something is."""
    found = made.numpy()
    if found.shape == want.shape and np.allclose(found, want, rtol=1e-4, atol=1e-5):
        return None
    return f"{what} {kind}: {found.ravel()[:4]} for {want.ravel()[:4]}"


def own_jit(draw: random.Random) -> Callable[[], str | None]:
    """A jitted function of this thread, with state."""
    n = draw.choice([4, 9, 16])
    total = Tensor.zeros(n).contiguous().realize()
    known = np.zeros(n, np.float32)
    factor = float(draw.randrange(1, 5))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        total.assign(total + x * factor)
        return (total * 2).realize()

    def call() -> str | None:
        x = np.array([draw.randrange(8) for _ in range(n)], np.float32)
        known[:] += x * factor
        return wrong("own jit", n, step(Tensor(x).realize()), known * 2)

    return call


def run_case(seed: int) -> str | None:
    """All threads of one case; what any of them found wrong."""
    draw = random.Random(seed)
    known = np.array([draw.uniform(0.5, 1) for _ in range(draw.choice([2, 5, 8]))], np.float32)
    shared = Tensor(known).realize()
    shared_jit = TinyJit(lambda x, y: (x * y + shared).relu())
    found: list[str] = []
    begin = threading.Barrier(THREADS)

    def work(number: int) -> None:
        mine = random.Random(1000 * seed + number)
        try:
            step = own_jit(mine)
            begin.wait(60)
            for turn in range(ROUNDS):
                x = np.full(known.shape, number + turn, np.float32)
                y = np.full(known.shape, 1.0 - number, np.float32)
                made = shared_jit(Tensor(x).realize(), Tensor(y).realize())
                with Context(NOOPT=mine.randrange(2)):
                    said = [
                        wrong("shared jit", number, made, np.maximum(x * y + known, 0)),
                        eager(mine, shared, known),
                        step(),
                    ]
                found.extend([s for s in said if s is not None])
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        if thread.is_alive():
            return "a thread does not end"
    return "; ".join(found[:3]) or None


@pytest.fixture
def often() -> Iterator[None]:
    """Python goes from thread to thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often")
def test_threads_compute_at_once(record_property: Callable[[str, str], None]) -> None:
    check_all(f"programs of {THREADS} threads", draws(6, 400), run_case, record_property)
