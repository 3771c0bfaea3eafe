"""Exported C, compiled with the machine's compiler and called with arrays."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml.runtime.cpu.clang import find_compiler

FLAGS = ("-O1", "-fno-math-errno", "-fPIC", "-shared")


class Library:
    """A folder with exported C as a function of arrays."""

    def __init__(
        self, folder: Path, name: str, flags: Sequence[str] = FLAGS, compiler: str | None = None
    ) -> None:
        path = folder / f"lib{name}.so"
        command = [compiler or find_compiler() or "cc", *flags, f"{name}.c", "-o", str(path), "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        self.name = name
        self.library = ctypes.CDLL(str(path))
        self.init: Callable[..., Any] = getattr(self.library, f"{name}_init")
        self.init.restype = ctypes.c_void_p  # type: ignore[attr-defined]
        self.weights = folder / f"{name}.safetensors"
        self.model = self.open(self.weights)

    def open(self, weights: Path) -> int | None:
        """A model; None where it cannot be."""
        found: int | None = self.init(os.fsencode(weights))
        return found

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], model: int | None = None
    ) -> list[Any]:
        """The outputs, of which `outputs` give shapes and dtypes, filled with rubbish before."""
        model = model or self.model
        assert model is not None
        given = [np.ascontiguousarray(x).reshape(np.shape(x)) for x in inputs]
        found = [np.full(x.shape, 77, x.dtype) for x in outputs]
        call = getattr(self.library, f"{self.name}_run")
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in [*given, *found]]
        assert call(ctypes.c_void_p(model), *pointers) == 0
        return found

    def close(self) -> None:
        """Gives the model back."""
        getattr(self.library, f"{self.name}_free")(ctypes.c_void_p(self.model))
