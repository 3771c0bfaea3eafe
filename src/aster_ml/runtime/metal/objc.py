"""Sends Objective-C messages by ctypes, without a package.

Receives names of classes and of messages with their arguments; returns objects and numbers. `PATHS`
are the libraries, which a test may replace.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FRAMEWORKS = "/System/Library/Frameworks"
# A command-line program finds no device without CoreGraphics.
PATHS = {
    "objc": "/usr/lib/libobjc.dylib",
    "Foundation": f"{FRAMEWORKS}/Foundation.framework/Foundation",
    "CoreGraphics": f"{FRAMEWORKS}/CoreGraphics.framework/CoreGraphics",
    "Metal": f"{FRAMEWORKS}/Metal.framework/Metal",
}
POINTER, WORD, BOOL = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_bool


class Size(ctypes.Structure):
    """MTLSize: blocks of a launch, or threads of a block."""

    _fields_ = [("width", WORD), ("height", WORD), ("depth", WORD)]


class Range(ctypes.Structure):
    """NSRange."""

    _fields_ = [("location", WORD), ("length", WORD)]


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """One of the libraries. Raises: OSError where it is not there."""
    return ctypes.CDLL(PATHS[name])


@functools.cache
def function(where: str, name: str, result: Any, *kinds: Any) -> Any:
    """A function of a library with its types."""
    return ctypes.CFUNCTYPE(result, *kinds)((name, library(where)))


@functools.cache
def selector(name: str) -> int:
    """The selector of a message."""
    found: int = function("objc", "sel_registerName", POINTER, ctypes.c_char_p)(name.encode())
    return found


@functools.cache
def message(name: str, result: Any, *kinds: Any) -> Any:
    """A message as a function of the receiver and the arguments."""
    call = function("objc", "objc_msgSend", result, POINTER, POINTER, *kinds)
    number = selector(name)
    return lambda receiver, *values: call(receiver, number, *values)


def forget() -> None:
    """Clears caches of libraries and messages, after a change of `PATHS`."""
    for cached in (library, function, selector, message):
        cached.cache_clear()
    for listener in FORGETTING:
        listener()


# Functions that clear further caches of messages.
FORGETTING: list[Callable[[], None]] = []


def class_named(name: str) -> int:
    """A class. Raises: OSError where there is none."""
    found: int | None = function("objc", "objc_getClass", POINTER, ctypes.c_char_p)(name.encode())
    if not found:
        raise OSError(f"Objective-C has no class {name}")
    return found


@contextmanager
def pool() -> Iterator[None]:
    """An autorelease pool for the block."""
    mark = function("objc", "objc_autoreleasePoolPush", POINTER)()
    try:
        yield
    finally:
        function("objc", "objc_autoreleasePoolPop", None, POINTER)(mark)


def text_of(string: int | None) -> str:
    """An NSString as text."""
    if not string:
        return ""
    found = message("UTF8String", ctypes.c_char_p)(string)
    return str(found.decode()) if found else ""


def error_text(error: int | None) -> str:
    """Text of an NSError."""
    if not error:
        return "no reason was given"
    return text_of(message("localizedDescription", POINTER)(error)) or "no reason was given"


def string(text: str) -> int:
    """An autoreleased NSString."""
    make = message("stringWithUTF8String:", POINTER, ctypes.c_char_p)
    found: int = make(class_named("NSString"), text.encode())
    return found


def make(name: str) -> Object:
    """A new object of a class."""
    return Object(message("new", POINTER)(class_named(name)))


class Object:
    """An owned object, released with the last reference."""

    __slots__ = ("address", "release")

    def __init__(self, address: int | None, keep: bool = False) -> None:
        self.address = address
        self.release = message("release", None)
        if keep and address:
            message("retain", POINTER)(address)

    def __bool__(self) -> bool:
        return bool(self.address)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.address and not finalizing():
            self.release(self.address)
            self.address = None
