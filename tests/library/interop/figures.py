"""Figures of interop, as `make interop` prints them: ordinary lines, bytes copied, array API."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np

import aster_ml.array_api as xp
from aster_ml import Tensor
from tests.library.interop.counting import Copied
from tests.library.interop.test_lines import LINES, Line, holds

SIZE = 1 << 20


def is_there(line: Line) -> bool:
    """Whether the packages of a line are installed."""
    return all([importlib.util.find_spec(name) is not None for name in line.packages])


def copied_bytes() -> list[tuple[str, int]]:
    """For each way across, the bytes that are copied of an array of 4 MB."""
    ours = Tensor(np.zeros(SIZE, np.float32)).realize()
    theirs = np.zeros(SIZE, np.float32)
    ways = [
        ("np.from_dlpack(t)", lambda: np.from_dlpack(ours)),
        ("np.asarray(t)", lambda: np.asarray(ours)),
        ("Tensor.from_dlpack(array)", lambda: Tensor.from_dlpack(theirs)),
    ]
    if importlib.util.find_spec("torch") is not None:
        import torch

        tensor = torch.zeros(SIZE)
        ways += [
            ("torch.from_dlpack(t)", lambda: torch.from_dlpack(ours)),
            ("Tensor.from_dlpack(torch tensor)", lambda: Tensor.from_dlpack(tensor)),
        ]
    found = []
    for name, way in ways:
        with Copied() as copied:
            way()
        found.append((name, copied.nbytes))
    return found


def main() -> None:
    """Prints the figures."""
    warnings.simplefilter("ignore")
    known = [line for line in LINES if is_there(line)]
    wrong = [line.name for line in known if not holds(line)]
    print(f"ordinary lines: {len(known) - len(wrong)} of {len(LINES)} as the tests say")
    for line in LINES:
        if line not in known:
            print(f"  not run, {', '.join(line.packages)} absent: {line.name}")
    for name in wrong:
        print(f"  otherwise: {name}")
    for name, nbytes in copied_bytes():
        print(f"bytes copied of {4 * SIZE}, {name}: {nbytes}")
    functions = len(xp.__all__) + len(xp.linalg.__all__) + len(xp.fft.__all__)
    print(f"array API {xp.__array_api_version__}: {functions} names, linalg and fft included")


if __name__ == "__main__":
    main()
