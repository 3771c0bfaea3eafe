"""Prints how Python calls, processor time and memory grow with the size of a program.

    python -m tools.growth [--only NAME] [--sizes 1000,2000,5000] [--no-calls]

Each case makes a function for `n` things. A process of its own runs it twice, once under a profiler
that counts calls (those of built-in functions included) and once for time and memory: the first
call, and one after it. Twice the things are to cost at most 2.3 times as much (`MOST`); a walk over
all there is for each of n things shows as a factor near 4. `tests/core/test_cost_growth.py` asserts
the same of the calls, for fewer things.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import math
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Context, Tensor, nn
from benchmarks.memory import resident, restart_peak

# Twice the n, at most so many times the calls.
MOST = 2.3
SIZES = (1000, 2000, 5000)
Work = Callable[[], Any]


def calls_of(work: Work) -> int:
    """Python and built-in calls of one run, where no other program's nodes count as its own."""
    gc.collect()
    profile = cProfile.Profile()
    with Context(GRAPH_LIMIT=1 << 40):
        profile.enable()
        try:
            work()
        finally:
            profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def tensors(n: int, *shape: int) -> list[Tensor]:
    """So many tensors that are memory."""
    return [Tensor(np.full(shape, i, np.float32)).realize() for i in range(n)]


def training_step(n: int) -> Work:
    """A step of Adam over n matrices in a chain."""
    weights = [t - 0.5 for t in tensors(n, 8, 8)]
    for w in weights:
        w.realize().requires_grad = True
    optimizer = nn.optim.Adam(weights, lr=1e-3)
    x = Tensor.rand(4, 8).realize()

    @Tensor.train()
    def step() -> None:
        h = x
        for w in weights:
            h = (h @ w).relu()
        optimizer.zero_grad()
        h.sum().backward()
        optimizer.step()

    return step


def stack(n: int) -> Work:
    """n tensors side by side."""
    parts = tensors(n, 4, 4)
    return lambda: Tensor.stack(*parts).realize()


def stack_of_computed(n: int) -> Work:
    """n values side by side that are still to be computed."""
    return lambda: Tensor.stack(*[Tensor.full((4, 4), i).contiguous() for i in range(n)]).realize()


def cat(n: int) -> Work:
    """n tensors one after the other."""
    parts = tensors(n, 4, 4)
    return lambda: Tensor.cat(*parts).realize()


def backward_of_cat(n: int) -> Work:
    """Gradients of n values that are put together."""
    parts = tensors(n, 8, 8)
    for t in parts:
        t.requires_grad = True

    def work() -> None:
        Tensor.cat(*[t * 2 for t in parts]).square().sum().backward()
        Tensor.realize(*[t.grad for t in parts if t.grad is not None])
        for t in parts:
            t.grad = None

    return work


def backward_of_split(n: int) -> Work:
    """The gradient of a tensor that is read in n parts."""
    x = Tensor.rand(4 * n, 4).realize()
    x.requires_grad = True

    def work() -> None:
        sum([(p * i).sum() for i, p in enumerate(x.split(4))], Tensor(0.0)).backward()
        x.grad.realize()

    return work


def training_of_layers(n: int) -> Work:
    """A step of SGD over n convolutions with norms."""
    chain = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm(4)) for _ in range(n)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(chain), lr=0.1)
    x = Tensor.rand(2, 4, 8, 8).realize()

    @Tensor.train()
    def step() -> None:
        h = x
        for convolution, norm in chain:
            h = norm(convolution(h)).relu()
        optimizer.zero_grad()
        h.mean().backward()
        optimizer.step()

    return step


def moving_averages(n: int) -> Work:
    """n tensors that follow n others."""
    parts, means = tensors(n, 4, 4), tensors(n, 4, 4)

    def work() -> None:
        for t, mean in zip(parts, means):
            mean.assign(mean * 0.9 + t * 0.1)
        Tensor.realize(*means)

    return work


def sum_of_tensors(n: int) -> Work:
    """n tensors added up one by one."""
    parts = tensors(n, 4, 4)
    return lambda: sum(parts[1:], parts[0]).realize()


def layers(n: int) -> Work:
    """n linear layers in a chain."""
    chain = [nn.Linear(8, 8) for _ in range(n)]
    Tensor.realize(*nn.state.get_parameters(chain))
    x = Tensor.rand(4, 8).realize()
    return lambda: x.sequential([f for layer in chain for f in (layer, Tensor.relu)]).realize()


def models_dropped(n: int) -> Work:
    """n small models, each used once."""

    def work() -> None:
        for _ in range(n):
            nn.Linear(8, 8)(Tensor.ones(2, 8)).realize()

    return work


def backward_through_a_chain(n: int) -> Work:
    """The gradient of n products and sums."""
    x = Tensor.ones(4).contiguous().realize()
    x.requires_grad = True

    def work() -> None:
        h = x
        for _ in range(n):
            h = (h * 1.0001).sin()
        h.sum().backward()

    return work


def write_and_realize(n: int) -> Work:
    """n rows written by index, each at once."""
    x = Tensor.zeros(n, 4).contiguous().realize()

    def work() -> None:
        for i in range(n):
            x[i] = i
            x.realize()

    return work


def write_each_and_realize(n: int) -> Work:
    """n tensors that are changed in place, each at once, while all are alive."""
    parts = tensors(n, 4, 4)

    def work() -> None:
        for t in parts:
            t += 1
            t.realize()

    return work


def moving_averages_one_by_one(n: int) -> Work:
    """n tensors that follow n others, each at once."""
    parts, means = tensors(n, 4, 4), tensors(n, 4, 4)

    def work() -> None:
        for t, mean in zip(parts, means):
            mean.assign(mean * 0.9 + t * 0.1).realize()

    return work


def models_kept(n: int) -> Work:
    """n small models, each used once, and their results, all of which stay."""

    def work() -> None:
        kept = []
        for _ in range(n):
            model = nn.Linear(8, 8)
            kept.append((model, model(Tensor.ones(2, 8)).realize()))

    return work


def loading_a_state_dict(n: int) -> Work:
    """n values into the tensors of a model, of n other tensors that are alive."""
    values = {str(i): t for i, t in enumerate(tensors(n, 4, 4))}
    model = {str(i): t for i, t in enumerate(tensors(n, 4, 4))}
    return lambda: nn.state.load_state_dict(model, values, verbose=False)


def writes_by_index(n: int) -> Work:
    """n rows written by index and then computed together."""
    x = Tensor.zeros(n, 4).contiguous().realize()

    def work() -> None:
        for i in range(n):
            x[i] = i
        x.realize()

    return work


def writes_to_no_memory(n: int) -> Work:
    """n rows written by index to a value that is still to be computed."""
    parts = tensors(n, 4)
    rows = Tensor(np.ones((n, 4), np.float32)).realize()

    def work() -> None:
        x = rows * 2
        for i, t in enumerate(parts):
            x[i] = t
        x.realize()

    return work


def chain_of_choices(n: int) -> Work:
    """n choices, each between the last one and something made of it."""
    x = Tensor(np.linspace(-1, 1, 16, dtype=np.float32)).realize()

    def work() -> None:
        h = x
        for i in range(n):
            h = (h > i / n).where(h * 0.5, h + 0.25)
        h.realize()

    return work


def chain_of_ops(n: int) -> Work:
    """n products and sums."""
    x = Tensor(np.ones(16, np.float32)).realize()

    def work() -> None:
        h = x
        for i in range(n):
            h = h * 1.5 if i % 2 else h + x
        h.realize()

    return work


def models_trained_and_kept(n: int) -> Work:
    """n small models, each trained for a step, all of which stay, and their losses."""

    @Tensor.train()
    def work() -> None:
        kept = []
        for _ in range(n):
            model = nn.Linear(8, 8)
            optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
            loss = model(Tensor.ones(2, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append((model, optimizer, loss.realize()))

    return work


def models_trained_and_dropped(n: int) -> Work:
    """n small models, each trained for a step."""

    @Tensor.train()
    def work() -> None:
        for _ in range(n):
            model = nn.Linear(8, 8)
            optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
            model(Tensor.ones(2, 8)).square().mean().backward()
            optimizer.step()

    return work


def backward_of_stack(n: int) -> Work:
    """Gradients of n tensors side by side."""
    parts = tensors(n, 4)
    for t in parts:
        t.requires_grad = True

    def work() -> None:
        Tensor.stack(*parts).square().sum().backward()
        Tensor.realize(*[t.grad for t in parts if t.grad is not None])
        for t in parts:
            t.grad = None

    return work


CASES: dict[str, Callable[[int], Work]] = {
    f.__name__: f
    for f in (
        training_step,
        stack,
        stack_of_computed,
        cat,
        sum_of_tensors,
        backward_of_stack,
        backward_of_cat,
        backward_of_split,
        layers,
        training_of_layers,
        models_dropped,
        models_kept,
        models_trained_and_dropped,
        models_trained_and_kept,
        chain_of_ops,
        chain_of_choices,
        backward_through_a_chain,
        writes_by_index,
        writes_to_no_memory,
        write_and_realize,
        write_each_and_realize,
        moving_averages,
        moving_averages_one_by_one,
        loading_a_state_dict,
    )
}  # fmt: skip


def measure(name: str, n: int) -> dict[str, float]:
    """What one case costs in this process: calls and seconds, of the first call and a later one.

    Memory, in MB, is the most that the first call takes beyond what was there.
    """
    work = CASES[name](n)
    gc.collect()
    before = resident()
    restart_peak()
    found: dict[str, float] = {}
    for call in ("first", "later"):
        if PROFILED in os.environ:
            found[f"{call}, calls"] = calls_of(work)
        else:
            start = time.process_time()
            work()
            found[f"{call}, s"] = time.process_time() - start
            found.setdefault("memory, MB", resident(peak=True) - before)
    return found


PROFILED = "GROWTH_PROFILED"


def measure_apart(name: str, n: int, limit: float, calls: bool) -> dict[str, float]:
    """`measure` in processes of their own, without a profiler and, to count calls, with one."""
    found: dict[str, float] = {}
    ways: list[dict[str, str]] = [{}, {PROFILED: "1"}]
    for more in ways[: 1 + calls]:
        command = [sys.executable, "-m", "tools.growth", "--only", name, "--one", str(n)]
        done = subprocess.run(
            command, env={**os.environ, **more}, check=True, timeout=limit, capture_output=True
        )
        found.update(json.loads(done.stdout.splitlines()[-1]))
    return found


def show(name: str, sizes: list[int], limit: float, calls: bool) -> bool:
    """Prints a row for each thing that is counted, with the factor for twice the n between sizes.

    Returns whether none of these exceeds what is asked.
    """
    found = [measure_apart(name, n, limit, calls) for n in sizes]
    good = True
    for what in found[0]:
        values = [f[what] for f in found]
        factors = []
        for (n, before), (m, value) in zip(zip(sizes, values), list(zip(sizes, values))[1:]):
            small = before < LEAST[what.split(", ")[1]]
            power = math.log(max(value, 1e-9) / max(before, 1e-9)) / math.log(m / n)
            factors.append("     -" if small else f"{2**power:6.2f}")
            good = good and (small or 2**power <= MOST)
        shown = " ".join([f"{v:12,.2f}" if v < 1000 else f"{v:12,.0f}" for v in values])
        print(f"{name:28s} {what:14s} {shown}   {' '.join(factors)}", flush=True)
    return good


# What is too little for its factor to say anything.
LEAST = {"calls": 2000, "s": 0.1, "MB": 4.0}


def main() -> int:
    """Measures all cases, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a case, or several with commas between")
    parser.add_argument("--sizes", default=",".join([str(n) for n in SIZES]))
    parser.add_argument("--limit", type=float, default=600, help="seconds for each process")
    parser.add_argument("--no-calls", action="store_true", help="seconds and memory alone")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.only, options.one)))
        return 0
    sizes = [int(n) for n in options.sizes.split(",")]
    heads = " ".join([f"{f'n={n:,}':>12s}" for n in sizes])
    print(f"{'':28s} {'':14s} {heads}   for twice the n (at most {MOST})")
    names = options.only.split(",") if options.only else list(CASES)
    results = []
    for name in names:
        try:
            results.append(show(name, sizes, options.limit, not options.no_calls))
        except subprocess.TimeoutExpired as error:
            print(f"{name:28s} more than {error.timeout} s", flush=True)
            results.append(False)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
