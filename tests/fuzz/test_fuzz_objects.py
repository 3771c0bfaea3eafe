"""Objects of native code that are damaged: refused, or linked, and never the end of the process.

LLVM's linker ends the process where an object is not as it expects, so what a damaged entry of the
disk cache holds must not get there. Each object is tried in a process of its own, a fork.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.errors import CompileError
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.object_file import fault_of
from tests.fuzz.budget import check_all, draws

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="objects of ELF, each tried in a forked process"
)


@pytest.fixture(scope="module")
def objects() -> list[tuple[list[bytes], tuple[str, ...]]]:
    """What LLVM has made of some kernels, and the functions of it."""
    found: list[tuple[list[bytes], tuple[str, ...]]] = []
    load = llvm_jit.load_library

    def note(binaries: list[bytes], names: tuple[str, ...]) -> llvm_jit.LoadedObject:
        found.append((list(binaries), names))
        return load(binaries, names)

    with pytest.MonkeyPatch.context() as patch, Context(CACHE=0):
        patch.setattr(llvm_jit, "load_library", note)
        x = Tensor(np.arange(64 * 65, dtype=np.float32).reshape(64, 65) / 4161)
        (x @ x.T * 0.617).softmax().log().sum().item()
        (x.sin() + 0.0613).sort()[0].realize()
        source = "define void @f(ptr %a) {\n ret void\n}"
        llvm_jit.load_library([llvm_jit.compile_ir(source)], ("f",))
    return found


def damage(whole: bytes, draw: random.Random) -> bytes:
    """Cuts it, or writes over some bytes: anywhere, or in its tables."""
    if draw.random() < 0.1:
        return whole[: draw.randrange(len(whole))]
    changed = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 8])):
        tables = draw.choice([0, max(0, len(whole) - 3000)])
        at = draw.choice([draw.randrange(len(whole)), draw.randrange(tables, len(whole))])
        if draw.random() < 0.5:
            changed[at] = draw.randrange(256)
        else:
            begin = at & ~7
            end = min(begin + 8, len(whole))
            changed[begin:end] = bytes([draw.choice([0, 1, 127, 128, 255])]) * (end - begin)
    return bytes(changed)


def ended_by(function: Callable[[], object]) -> int:
    """The signal that ends a forked process which calls this; 0 where it ends by itself."""
    number = os.fork()
    if number == 0:
        try:
            # What LLVM says of the object.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            function()
        except CompileError:
            os._exit(1)
        finally:
            os._exit(0)
    _, status = os.waitpid(number, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_damaged_objects_end_no_process(
    objects: list[tuple[list[bytes], tuple[str, ...]]],
    record_property: Callable[[str, str], None],
) -> None:
    machine = llvm_jit.host().machine
    assert all(fault_of(binary, machine) is None for binaries, _ in objects for binary in binaries)

    def check(seed: int) -> str | None:
        draw = random.Random(seed)
        binaries, names = draw.choice(objects)
        place = draw.randrange(len(binaries))
        damaged = damage(binaries[place], draw)
        if fault_of(damaged, machine) is not None:
            return None
        given = [*binaries[:place], damaged, *binaries[place + 1 :]]
        signal = ended_by(lambda: llvm_jit.load_library(given, names))
        return f"ended by signal {signal}" if signal else None

    check_all("damaged objects", draws(100, 20_000), check, record_property)


@pytest.mark.parametrize(
    ("binary", "why"),
    [
        (b"", "no ELF file"),
        (b"BC\xc0\xde" + bytes(100), "no ELF file"),
        (b"\xcf\xfa\xed\xfe" + bytes(100), "no ELF file"),
        (b"\x7fELF\x02\x01\x01", "cut short"),
    ],
)
def test_what_is_no_object_is_refused(binary: bytes, why: str) -> None:
    with pytest.raises(CompileError):
        llvm_jit.load_object(binary, "f")
    fault = fault_of(binary, "x86_64")
    assert fault is not None
    assert why in fault


def test_an_object_for_another_processor_is_refused() -> None:
    whole = bytearray(llvm_jit.compile_ir("define void @f(ptr %a) {\n ret void\n}"))
    whole[18] ^= 0xFF
    with pytest.raises(CompileError, match="for processor"):
        llvm_jit.load_object(bytes(whole), "f")
