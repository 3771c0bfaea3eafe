"""Wraps native code as Python functions that cost less to call than ctypes' functions.

Receives addresses; returns functions that the interpreter calls as its own, half a microsecond
faster than ctypes. `cpu/worker` and `cpu/program` define the code and data at the addresses.

Such a function is a `PyCFunction` over a few instructions of ours. Its `self` is a bytes object
with the addresses that these need: the code to run, and the three functions of Python's C API that
release the GIL, reacquire it, and make the returned int. The object code itself holds no address,
so one copy in the disk cache serves every process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.kept_object import load_kept
from aster_ml.runtime.cpu.worker import Native, native

# Offset of the content of a bytes object: the size of an empty one, less its trailing zero.
BYTES_AT = bytes.__basicsize__ - 1
# Calling conventions, as methodobject.h numbers them.
METH_NOARGS, METH_FASTCALL = 0x0004, 0x0080


def of_self(*words: str) -> str:
    """The IR that reads the words of `self`: "type name"."""
    return llvm_jit.read_words("%self", BYTES_AT, *words)


OF_PYTHON = ("ptr release", "ptr take", "ptr number")


SOURCE = f"""
; No arguments. Words: release, take, number; run, its two arguments.
define ptr @aster_call_serial(ptr %self, ptr %ignored) {{
  {of_self(*OF_PYTHON, "ptr run", "i64 first", "i64 second")}
  %thread = call ptr %release()
  call void %run(i64 %first, i64 %second)
  call void %take(ptr %thread)
  %result = call ptr %number(i64 0)
  ret ptr %result
}}

; Two integers: a list, and how many workers may help. Words: release, take, number, integer;
; announce, run, state. Runs the list unless a worker is asleep; returns how many are.
define ptr @aster_call_list(ptr %self, ptr %arguments, i64 %count) {{
entry:
  {of_self(*OF_PYTHON, "ptr integer", "ptr announce", "ptr run", "i64 state")}
  %list.object = load ptr, ptr %arguments
  %p.helpers = getelementptr ptr, ptr %arguments, i64 1
  %helpers.object = load ptr, ptr %p.helpers
  %list = call i64 %integer(ptr %list.object)
  %helpers = call i64 %integer(ptr %helpers.object)
  %asleep = call i64 %announce(i64 %state, i64 %helpers)
  %awake = icmp eq i64 %asleep, 0
  br i1 %awake, label %go, label %done
go:
  %threads = add i64 %helpers, 1
  %thread = call ptr %release()
  call void %run(i64 %state, i64 %list, i64 %threads)
  call void %take(ptr %thread)
  br label %done
done:
  %result = call ptr %number(i64 %asleep)
  ret ptr %result
}}
"""


class MethodDef(ctypes.Structure):
    """Declaration of a function in native code for Python (`PyMethodDef`)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("convention", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Entries(NamedTuple):
    """The two kinds of function, the functions of Python that they call, and their object."""

    serial: MethodDef
    listed: MethodDef
    release: int
    take: int
    number: int
    integer: int
    loaded: llvm_jit.LoadedObject


@functools.cache
def entries() -> Entries:
    """The native functions: compiled once a machine, then cached; loaded once a process."""
    names = "aster_call_serial", "aster_call_list"
    digest = hashlib.blake2b(SOURCE.encode(), digest_size=16).hexdigest()
    key = f"native_call {llvm_jit.host().key} {llvm_jit.QUICK_LEVEL} {digest}"
    loaded = load_kept(key, SOURCE, *names)
    return Entries(
        new_definition(loaded.address(names[0]), METH_NOARGS),
        new_definition(loaded.address(names[1]), METH_FASTCALL),
        python_function("PyEval_SaveThread"),
        python_function("PyEval_RestoreThread"),
        python_function("PyLong_FromLongLong"),
        python_function("PyLong_AsLongLong"),
        loaded,
    )


def new_definition(code: int, convention: int) -> MethodDef:
    """A definition that is never freed, since a function reads its definition when it is freed.

    why: at the interpreter's end a function may outlive the tables of this module
    """
    definition = MethodDef(b"run", code, convention, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return definition


def python_function(name: str) -> int:
    """The address of a function of Python's C API."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def address_of(function: Any) -> int:
    """The address that a ctypes function calls."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def maker() -> Any:
    """`PyCFunction_NewEx`, called with the GIL held."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(python_function("PyCFunction_NewEx"))


def new_function(definition: MethodDef, words: tuple[int, ...]) -> Callable[..., int]:
    """A Python function over native code, with these words in its `self`."""
    packed = struct.pack(f"={len(words)}q", *words)
    function: Callable[..., int] = maker()(ctypes.addressof(definition), packed, None)
    return function


def serial_call(records: int, count: int) -> Callable[[], int]:
    """A function that runs these undivided records on the calling thread."""
    e = entries()
    run = address_of(native().run_serial)
    return new_function(e.serial, (e.release, e.take, e.number, run, records, count))


def list_call(functions: Native, state: int) -> Callable[[int, int], int]:
    """A function of a list's address and the number of workers that may help.

    The function returns 0 when it has run the list. Else it has only announced the list, and
    returns the number of workers to wake first.
    """
    e = entries()
    announce, run = address_of(functions.announce), address_of(functions.run_list)
    words = (e.release, e.take, e.number, e.integer, announce, run, state)
    return new_function(e.listed, words)
