"""Prints how much memory a process takes after more and more shapes, and what jits hold.

    python tools/memory_curves.py [--shapes 10000]

Each line of the first part is one process's resident memory after so many shapes, less what it was
before; each line of the second what a jitted function holds beside its arguments and results.
Compiled kernels are not taken from the disk, so a whole run takes some minutes.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from aster_ml import Tensor, TinyJit, nn
from aster_ml.config import KEPT_BYTES
from aster_ml.engine.caches import CACHES
from aster_ml.nn.state import get_parameters

PARTS = 4


def resident() -> float:
    """Resident memory of this process, in MB."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def one_shape(n: int) -> float:
    """A small program whose kernel is of one shape."""
    return float((Tensor(np.ones(n, np.float32)) * 2 + 1).sum().item())


def shapes(most: int) -> None:
    """The curve of eager programs of different shapes."""
    for n in range(1, 30):
        one_shape(n)
    begin = resident()
    print(f"eager programs of different shapes (KEPT_BYTES {KEPT_BYTES.value / 1e6:.0f} MB)")
    print(f"  {0:6d} shapes: {0:6.1f} MB more")
    done = 0
    for part in range(1, PARTS + 1):
        while done < most * part // PARTS:
            done += 1
            one_shape(100 + done)
        more, kept = resident() - begin, CACHES.nbytes / 1e6
        print(
            f"  {done:6d} shapes: {more:6.1f} MB more, {kept:6.1f} MB by the count of what is kept"
        )


def convolutions() -> Callable[[], object]:
    """Six convolutions, jitted."""
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)]
    x = Tensor.rand(4, 8, 16, 16).realize()
    Tensor.realize(*get_parameters(layers))

    @TinyJit
    def forward(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x).relu()
        return x.realize()

    return lambda: forward(x)


def training_step() -> Callable[[], object]:
    """A training step of a small convolutional network, jitted."""
    layers = [nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8 * 24 * 24, 10)]
    optimizer = nn.optim.Adam(get_parameters(layers))
    x, y = Tensor.rand(8, 1, 28, 28).realize(), Tensor(np.arange(8) % 10).realize()

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            h = layers[1](layers[0](x).relu()).relu()
            optimizer.zero_grad()
            loss = layers[2](h.flatten(1)).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
            return loss.realize()

    return lambda: step(x, y)


FUNCTIONS = {"six convolutions": convolutions, "a training step": training_step}


def warm_up() -> None:
    """Loads what any program needs, so that it is not counted for the first that is measured."""
    jitted = TinyJit(lambda x: (x @ x).relu().sum(1).softmax())
    for _ in range(4):
        jitted(Tensor.rand(70, 70).realize())


def jitted(name: str) -> None:
    """What a jitted function holds after its third call."""
    warm_up()
    begin = resident()
    call = FUNCTIONS[name]()
    for _ in range(4):
        call()
    print(f"  {name}: {resident() - begin:.1f} MB")


def main() -> int:
    """Measures all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=10_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.only == "shapes":
        shapes(options.shapes)
        return 0
    if options.only:
        jitted(options.only)
        return 0
    again = [sys.executable, __file__, "--shapes", str(options.shapes), "--only"]
    quiet = {**os.environ, "CACHE": "0"}
    subprocess.run([*again, "shapes"], env=quiet, check=True)
    print("jitted functions", flush=True)
    for name in FUNCTIONS:
        subprocess.run([*again, name], env=quiet, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
