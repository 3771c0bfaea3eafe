"""C through a compiler on PATH."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from aster_ml.backend import ThreadParts
from aster_ml.config import Context
from aster_ml.device import Device
from aster_ml.errors import CompileError, DeviceError
from aster_ml.runtime.cpu import clang
from tests.core.runtime_kernels import SHIFT_C

needs_cc = pytest.mark.skipif(clang.find_compiler() is None, reason="no C compiler on PATH")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        "CLANG=1 needs a C compiler: none of cc, clang, gcc is on PATH; install one or unset CLANG"
    )
    with Context(CLANG=1):
        for action in (
            lambda: Device["CPU"].target,
            lambda: Device["CPU"].compile(SHIFT_C),
            lambda: Device["CPU"].disassemble(SHIFT_C),
        ):
            with pytest.raises(DeviceError) as caught:
                action()
            assert str(caught.value) == message
    assert Device["CPU"].target.language == "llvm"


@pytest.mark.cc
@needs_cc
def test_c_runs_like_ir() -> None:
    with Context(CLANG=1):
        backend = Device["CPU"]
        assert backend.target.language == "c"
        program = backend.load("shift", backend.compile(SHIFT_C))
        assert "shift" in backend.disassemble(SHIFT_C)
    # What is loaded runs whatever the setting says later.
    x, y = np.arange(50), np.zeros(50, np.int64)
    a, b = (backend.allocator.wrap(array, array.nbytes) for array in (x, y))
    assert program((a, b), (50, 7), ThreadParts(50, 3)) is None
    assert y.tolist() == ((np.arange(50) + 7) % 50 + 1).tolist()


@pytest.mark.cc
@needs_cc
def test_targets_of_the_two_languages_differ() -> None:
    plain = Device["CPU"].target
    with Context(CLANG=1):
        assert Device["CPU"].target.key != plain.key
        assert Device["CPU"].target.vector_bits == plain.vector_bits
    assert Device["CPU"].target == plain


@pytest.mark.cc
@needs_cc
def test_libraries_load_again_and_again() -> None:
    loaded = []
    for value in range(8):
        binary = clang.compile_c(f"int f(void) {{ return {value}; }}")
        loaded.append(clang.load_library(binary, "f"))
    del loaded[::2]
    calls = [ctypes.CFUNCTYPE(ctypes.c_int)(library.address("f")) for library in loaded]
    assert [call() for call in calls] == [1, 3, 5, 7]


@pytest.mark.cc
@needs_cc
def test_math_functions_resolve() -> None:
    source = "#include <math.h>\nfloat f(float x, float y) { return fmodf(x, y); }"
    library = clang.load_library(clang.compile_c(source), "f")
    function = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_float)
    assert function(library.address("f"))(7.5, 2.0) == 1.5


@pytest.mark.cc
@needs_cc
def test_bad_c_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(CompileError, match=r"refused generated C:\n(?s:.)*error"):
        clang.compile_c("void f(void) { nonsense; }")
    with pytest.raises(CompileError, match="could not be loaded"):
        clang.load_library(b"this is no library", "f")
    with pytest.raises(CompileError, match="defines no function g"):
        clang.load_library(clang.compile_c("void f(void) {}"), "g")


@pytest.mark.cc
@needs_cc
def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library = clang.load_library(clang.compile_c("void f(void) {}"), "f")
    address = library.address("f")
    assert address
    del library
    assert list(tmp_path.iterdir()) == []
