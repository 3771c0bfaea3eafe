"""Values of GGUF metadata: their types, which type a Python value has, and the bytes it becomes.

A type is a name such as "uint32" or "string", or a list for arrays: `["float32"]` has elements of
one type, `[["int8"], ["string"]]` an array of each. Reading values out of a file belongs to
`formats.gguf`.

Source: the public GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from aster_ml.errors import ArgumentError
from aster_ml.formats.fileio import show_value
from aster_ml.helpers import kind_of

# The number of each type in a file, and its code for `struct`.
NUMBERS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {number: "<" + code for number, code in NUMBERS.values()}
NAMES = {**{number: name for name, (number, _) in NUMBERS.items()}, STRING: "string"}
MAX_DEPTH = 8
Type = str | list[Any]


class Metadata(dict[str, Any]):
    """Metadata by key, and in `types` the types that values have in the file they come from.

    A value that is set keeps the type of its key; `types[key] = "float64"` gives it another, and
    keys without one get it from the value (`type_of`).
    """

    def __init__(self, values: Any = (), types: dict[str, Type] | None = None) -> None:
        super().__init__(values)
        self.types: dict[str, Type] = dict(types or {})

    def copy(self) -> Metadata:
        """The same keys, values and types."""
        return Metadata(self, self.types)

    def __or__(self, other: dict[str, Any]) -> Metadata:  # type: ignore[override]
        types = self.types | (other.types if isinstance(other, Metadata) else {})
        return Metadata({**self, **other}, types)


def type_of(value: Any, what: str, depth: int = 0) -> Type:
    """The type that a value without one is written as.

    NumPy's numbers and arrays have their own. Whole numbers are uint32 where they fit, as llama.cpp
    wants them, in lists int32; else uint64 and the signed ones. Other numbers are float32, which is
    all that llama.cpp reads, or float64 beyond its range.

    Raises: ArgumentError for values without a type in the format, and for an empty list.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.name in NUMBERS:
        kind: Type = value.dtype.name
        for _ in range(value.ndim):
            kind = [kind]
        return kind
    if isinstance(value, (str, bytes)):
        return "string"
    if isinstance(value, (list, tuple)):
        return type_of_list(list(value), what, depth)
    return type_of_numbers([value], what, ("uint32", "int32", "uint64", "int64"))


def type_of_list(values: list[Any], what: str, depth: int) -> Type:
    """The type of a list by its elements."""
    if depth >= MAX_DEPTH:
        raise ArgumentError(f"{what}: lists in lists, more than {MAX_DEPTH} deep")
    if not values:
        raise ArgumentError(
            f"{what}: an empty list does not tell its type; np.array([], np.int32) does, and so "
            "does metadata.types"
        )
    nested = (str, bytes, list, tuple, np.ndarray)
    if not any([isinstance(value, nested) for value in values]):
        own = {value.dtype.name if isinstance(value, np.generic) else "" for value in values}
        if len(own) == 1 and own <= NUMBERS.keys():
            return [own.pop()]
        numbers = [value.item() if isinstance(value, np.generic) else value for value in values]
        order = ("int32", "uint32", "int64", "uint64")
        return [type_of_numbers(numbers, what, order, "float64" in own)]
    types = [type_of(value, what, depth + 1) for value in values]
    if all([t == types[0] for t in types]):
        return [types[0]]
    if any([isinstance(t, str) for t in types]):
        raise ArgumentError(
            f"{what}: the elements of a list are of one type; these are {show_value(types)}"
        )
    return types


def type_of_numbers(
    values: list[Any], what: str, order: tuple[str, ...], wide: bool = False
) -> str:
    """The first type that holds all of them."""
    if all([isinstance(value, bool) for value in values]):
        return "bool"
    for value in values:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ArgumentError(
                f"{what}: {show_value(value)} is {kind_of(value)}; numbers, truth values, texts, "
                "and lists of one kind are wanted"
            )
    if any([isinstance(value, float) for value in values]):
        order = ("float64",) if wide else ("float32", "float64")
    for name in order:
        try:
            struct.pack(f"<{len(values)}{NUMBERS[name][1]}", *values)
        except (struct.error, OverflowError):
            continue
        return name
    raise ArgumentError(f"{what}: {show_value(values)} fits no type of 64 bits")


def pack_string(text: str | bytes, what: str) -> bytes:
    """The length of a text, and its UTF-8."""
    if not isinstance(text, (str, bytes)):
        raise ArgumentError(f"{what}: {show_value(text)} is {kind_of(text)}; a text is wanted")
    try:
        raw = text if isinstance(text, bytes) else text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what}: {show_value(text)} cannot be UTF-8: {error.reason}") from None
    return struct.pack("<Q", len(raw)) + raw


def pack_values(values: list[Any], kind: Type, what: str) -> bytes:
    """Values of one type, one after another."""
    if kind == "string":
        return b"".join([pack_string(value, what) for value in values])
    if isinstance(kind, list):
        return b"".join([pack_array(value, kind, what) for value in values])
    number_of(kind, what)
    code = NUMBERS[kind][1]
    numbers = [value.item() if isinstance(value, np.generic) else value for value in values]
    if kind == "bool" and not all([value in (0, 1) for value in numbers]):
        raise ArgumentError(f"{what}: {show_value(numbers)} as bool; True or False is wanted")
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except (struct.error, OverflowError, TypeError) as error:
        raise ArgumentError(
            f"{what}: {show_value(values if len(values) > 1 else values[0])} does not fit {kind}: "
            f"{error}; metadata.types has the type of each key"
        ) from None


def pack_array(values: Any, kind: list[Any], what: str) -> bytes:
    """The type of the elements, their number, and they."""
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.ndim == 1 else list(values)
    if not isinstance(values, (list, tuple)):
        raise ArgumentError(f"{what}: {show_value(values)} is {kind_of(values)}; a list is wanted")
    if not kind or len(kind) not in (1, len(values)) or (len(kind) > 1 and str in map(type, kind)):
        raise ArgumentError(
            f"{what}: {len(values)} elements of types {show_value(kind)}; metadata.types has one "
            "type for all, or the type of each array in an array"
        )
    head = struct.pack("<IQ", number_of(kind[0], what), len(values))
    if len(kind) == 1:
        return head + pack_values(list(values), kind[0], what)
    return head + b"".join([pack_values([v], t, what) for v, t in zip(values, kind)])


def number_of(kind: Type, what: str) -> int:
    """The number of a type in a file."""
    if isinstance(kind, list):
        return ARRAY
    if kind == "string":
        return STRING
    if not isinstance(kind, str) or kind not in NUMBERS:
        raise ArgumentError(
            f"{what}: the type {show_value(kind)}; known are string, {', '.join(NUMBERS)}, and "
            "lists of them"
        )
    return NUMBERS[kind][0]


def pack_value(value: Any, kind: Type, what: str) -> bytes:
    """A value with the number of its type before it.

    Raises: ArgumentError where the value does not fit the type.
    """
    return struct.pack("<I", number_of(kind, what)) + pack_values([value], kind, what)
