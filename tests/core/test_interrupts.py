"""Ctrl-C reaches the program whenever it comes, and leaves a state to go on with."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aster_ml.interrupts import Held
from aster_ml.runtime.cpu import llvm_jit
from tests.core.runtime_kernels import python_environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where a shell started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


AT_THE_END_OF_CALLS = """
import os, signal
import llvmlite.binding.ffi as ffi
from aster_ml import Tensor
from aster_ml.runtime.cpu import llvm_jit

calls = caught = 0
Plain = ffi._lib_fn_wrapper.__call__

def call(self, *args, **kwargs):
    global calls
    found = Plain(self, *args, **kwargs)
    calls += 1
    os.kill(os.getpid(), signal.SIGINT)
    return found

ffi._lib_fn_wrapper.__call__ = call
for i in range(60):
    try:
        if i % 2:
            print(llvm_jit.assemble("define i64 @f() { ret i64 7 }", 2)[:0], end="")
        (Tensor([1.0, 2.0]) * (i + 2.5)).tolist()
    except KeyboardInterrupt:
        caught += 1
while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        caught += 1
assert calls > caught > 0, (calls, caught)
print((Tensor([1.0, 2.0]) * 33.5).tolist())
"""

AT_ANY_TIME = """
import os, random, signal, sys, threading, time
import numpy as np
from aster_ml import Tensor, TinyJit

rng, left, caught = random.Random(int(sys.argv[1])), [25], 0
begun = threading.Event()

def interrupt():
    begun.wait()
    while left[0]:
        time.sleep(rng.uniform(0.001, 0.05))
        left[0] -= 1
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

thread = threading.Thread(target=interrupt)
thread.start()
number = 0
while thread.is_alive():
    try:
        begun.set()
        number += 1
        x = Tensor.arange(number % 9 + 1).realize()
        jitted = TinyJit(lambda y: (y * number).sum())
        for _ in range(3):
            assert jitted(x).item() == number * sum(range(number % 9 + 1))
    except KeyboardInterrupt:
        caught += 1
try:
    thread.join()
    time.sleep(0.1)
except KeyboardInterrupt:
    caught += 1
assert caught
print((Tensor([1.0, 2.0]) * 33.5).tolist())
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


def test_an_interrupt_at_the_end_of_each_call_of_the_compiler_frees_nothing_twice() -> None:
    said, complaints = output_of(AT_THE_END_OF_CALLS)
    assert said == "[33.5, 67.0]\n"
    assert complaints == ""


@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_any_time(seed: int) -> None:
    said, complaints = output_of(AT_ANY_TIME, str(seed))
    assert said == "[33.5, 67.0]\n"
    assert complaints == ""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_held_interrupt_is_raised_at_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held():
        with Held():
            press()
            done.append("inner")
        press()
        done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_a_held_block_is_raised_where_nobody_interrupts() -> None:
    with pytest.raises(ZeroDivisionError), Held():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_hold_nothing() -> None:
    found = []

    def hold() -> None:
        with Held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_libraries_in_a_circle_go_before_what_they_live_in() -> None:
    binary = llvm_jit.compile_ir("define i64 @f() { ret i64 7 }")
    homes = len(llvm_jit.HOMES)
    kept: list[Any] = []
    while len(llvm_jit.HOMES) <= homes + 1:
        kept.append(llvm_jit.load_object(binary, "f"))
    circle: dict[str, Any] = {"libraries": kept}
    circle["itself"] = circle
    del circle, kept
    gc.collect()
    assert len(llvm_jit.HOMES) <= homes + 1
    assert llvm_jit.load_object(binary, "f").address("f") != 0
