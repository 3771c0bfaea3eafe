"""`make pocl-bench`: kernels of work-groups on a CPU, by the CPU time that OpenCL's PoCL takes.

One table: what was asked, what was reached. Times are of all threads of the process, so that other
work on the machine counts little. Without an OpenCL device it says so in a line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aster_ml import Device, Tensor, TinyJit
from aster_ml.device import missing

SIZE, LENGTH, VECTOR = 1024, 1 << 20, 2048
EDGES, CUBE = (500, 300, 200), (512, 512, 512)


class Row(NamedTuple):
    """A call of tensors of these shapes, and the milliseconds asked for; 0 where there are none."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Tensor]
    asked: float = 0.0


def product(n: int, k: int, m: int) -> Row:
    """A product of [n, k] by [k, m]."""
    return Row(f"product {n} x {k} x {m}", ((n, k), (k, m)), lambda a, b: a @ b)


# A fifth of what row sums took once (5.1 ms), and a tenth of what a product with a vector did.
ROWS = (
    Row("softmax 1024 x 1024", ((SIZE, SIZE),), lambda a: a.softmax(-1), 30),
    Row("layernorm 1024 x 1024", ((SIZE, SIZE),), lambda a: a.layernorm(), 30),
    Row("sums of rows, 1024 x 1024", ((SIZE, SIZE),), lambda a: a.sum(-1), 1.02),
    Row("matrix by vector, 2048", ((VECTOR, VECTOR), (VECTOR,)), lambda a, b: a @ b, 2.59),
    product(*CUBE),
    product(*EDGES),
)


def milliseconds(row: Row, device: str, turns: int) -> float:
    """The least CPU time of a call, of several together."""
    tensors = [Tensor.rand(*shape, device=device).realize() for shape in row.shapes]
    step = TinyJit(lambda *given: row.run(*given).realize())
    for _ in range(3):
        step(*tensors)
    times = []
    for _ in range(turns):
        Device[device].synchronize()
        start = time.process_time()
        for _ in range(4):
            step(*tensors)
        Device[device].synchronize()
        times.append((time.process_time() - start) / 4)
    return min(times) * 1e3


def table(device: str, rows: Sequence[Row], turns: int) -> list[str]:
    """The lines of the table."""
    lines = ["| what | CPU ms | asked |", "|---|--:|--:|"]
    rates = []
    for row in rows:
        taken = milliseconds(row, device, turns)
        if not row.asked:
            (n, k), (_, m) = row.shapes
            rates.append(taken / (n * k * m))
        lines.append(f"| {row.name} | {taken:.3g} | {row.asked:g} |")
    lines.append(f"| a multiplication of the last product, beside one of the cube | "
                 f"{rates[-1] / rates[0]:.2f} times | 2 times |")  # fmt: skip
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 0 also where there is no OpenCL device, which a line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pocl", description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args(argv)
    reason = missing("OPENCL")
    if reason is not None:
        print(f"no OpenCL here: {reason}")
        return 0
    print("\n".join(table("OPENCL", ROWS, options.turns)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
