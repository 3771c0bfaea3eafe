"""Ctrl-C reaches the program whenever it comes, and leaves a state to go on with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.runtime_kernels import python_environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

IN_A_FINALISER = """
import os, signal, time
from aster_ml.uop.interned import Interned
from aster_ml import Tensor

class Ending:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))

for _ in range(5):
    try:
        end = Ending()
        del end
        time.sleep(30)
    except KeyboardInterrupt:
        print("reached")
print((Tensor([1.0, 2.0]) + 1).tolist())
"""


def output_of(program: str, *arguments: str) -> tuple[str, str]:
    """What a program says in a process of its own, and what Python complains of."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=python_environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_an_interrupt_in_a_finaliser_is_raised_after_it() -> None:
    said, complaints = output_of(IN_A_FINALISER)
    assert said == "reached\n" * 5 + "[2.0, 3.0]\n"
    assert complaints == ""
