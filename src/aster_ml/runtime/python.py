"""Opens PYTHON: the device that interprets linear programs.

Thousands of times slower than other devices, and their reference. Its source language is the text
form of a linear program, which `interpreter` runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml.backend import ONCE, Backend, Launch, Program
from aster_ml.dtype import dtypes, to_numpy_dtype
from aster_ml.errors import CompileError, InternalError
from aster_ml.runtime.host_memory import HostAllocator, HostHandle
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target import INTERPRETER, Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import ELEMENTWISE
from aster_ml.uop.print.text import linear_from_text

DOC = "interprets kernels in Python: slow, exact, and checks every access"

# All ops and dtypes are native. The SIMD width is arbitrary, so that kernels have lanes as on other
# devices.
TARGET = Target(
    "PYTHON",
    "python",
    kind=INTERPRETER,
    vector_bits=128,
    vector_registers=16,
    native_dtypes=frozenset(d.name for d in dtypes.all if d is not dtypes.index),
    native_ops=frozenset(op.name for op in ELEMENTWISE),
)


class PythonProgram(Program):
    """A linear program for the interpreter."""

    def __init__(self, linear: Linear) -> None:
        self.name = linear.name
        self.linear = linear
        self.interpreter = Interpreter(linear)

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Runs the program, with its own launch sizes."""
        arrays = [self.array_of(p, h) for p, h in zip(self.linear.params, handles, strict=True)]
        self.interpreter.run(arrays, vars)

    def array_of(self, param: Any, handle: HostHandle) -> Any:
        """The memory of an argument as an array of its dtype. Raises: InternalError."""
        dtype = param.dtype
        count = handle.nbytes // dtype.itemsize
        if handle.readonly and param.arg.slot in self.linear.written:
            raise InternalError(f"{self.name}: buffer {param.arg.slot} is written and read-only")
        if count == 0:
            return np.empty(0, dtype=to_numpy_dtype(dtype))
        return np.frombuffer(handle.memoryview(count * dtype.itemsize), to_numpy_dtype(dtype))


class PythonBackend(Backend):
    """The interpreter as a device."""

    @property
    def target(self) -> Target:
        """The same on every machine."""
        return TARGET

    def compile(self, source: str) -> bytes:
        """The text of a linear program is its own binary. Raises: CompileError."""
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        """The program, ready to run. Raises: CompileError when the text does not parse."""
        program = PythonProgram(linear_from_text(binary.decode()))
        if program.name != name:
            raise CompileError(f"the program is named {program.name}, not {name}")
        return program


def missing() -> str | None:
    """Nothing is needed, so nothing is missing."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "PYTHON" or "PYTHON:1"."""
    return PythonBackend(name, HostAllocator(name), HostQueue())
