"""Pickles read as data: nothing is imported, called or changed.

Receives the bytes of a pickle; returns numbers, texts, lists, tuples, dicts and sets as they were
saved. What a pickle names is an inert `Placeholder`, and so is what it would make of one, unless
the reader has a maker for that name. Written out here and not a subclass of Python's own reader:
that one takes memory for whatever a pickle claims, and gives attributes to what it has found.
Tensors and storages do not belong here.

Source: the opcodes as described by Python's module pickletools, protocols 0 to 5.
"""

from __future__ import annotations

import ast
import codecs
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from aster_ml.errors import FormatError
from aster_ml.formats.fileio import Cursor, show_value

# Memory that the parts of a pickle take, from above: for each opcode, and for a new container.
OPCODE_NBYTES, CONTAINER_NBYTES, ENTRY_NBYTES = 32, 232, 100
# Longer ints as keys could be chosen to fall upon one another in a dict.
MAX_KEY_INT, MAX_KEY_PARTS = 1 << 60, 16
SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)

# One text in quotes, and nothing that is more than that.
LITERAL = re.compile(rb"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
# Looked up here: a codec is a module, and no file has one imported.
UNESCAPE = codecs.getdecoder("raw-unicode-escape")
STOP, MAX_PROTOCOL = ord("."), 5

Maker = Callable[..., Any]


class Placeholder:
    """Stands for an object that is no plain data, or for a name; keeps its parts, does nothing.

    `name` is module and name as in `torch.nn.Linear`; `args` and `kwargs` what it would be made
    from, None for the bare name; `state`, `elements`, `entries` what it would be given then.
    """

    __slots__ = ("args", "elements", "entries", "kwargs", "name", "state")

    def __init__(self, name: str, args: Any = None, kwargs: Any = None) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs
        self.state: Any = None
        self.elements: list[Any] = []
        self.entries: list[tuple[Any, Any]] = []

    def __repr__(self) -> str:
        return f"<Placeholder {self.name}>"


class PickleReader:
    """Reads one pickle after another from a cursor.

    `makers` are called with the arguments of what has their name; `persistent` with the ids of
    what lies outside of the pickle.
    """

    def __init__(
        self, cursor: Cursor, makers: Mapping[str, Maker], persistent: Maker | None = None
    ) -> None:
        self.cursor, self.makers, self.persistent = cursor, makers, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The next pickle's value.

        Raises: FormatError when it is damaged, cut short, or asks for what is no data.
        """
        self.stack, self.marks, self.memo = [], [], {}
        cursor, start = self.cursor, self.cursor.position
        take, charge = cursor.take, cursor.allowance.take
        while True:
            code = take(1, "an opcode")[0]
            handler = HANDLERS.get(code)
            if handler is None:
                raise FormatError(
                    f"opcode {bytes([code])!r} is none, or none that is read here", cursor.place
                )
            charge(OPCODE_NBYTES, cursor.place)
            try:
                if code == STOP:
                    return self.pop()
                handler(self)
            except FormatError:
                raise
            except (ValueError, TypeError, LookupError, SyntaxError, ArithmeticError) as error:
                raise FormatError(
                    f"the opcode {bytes([code])!r} at {cursor.position} of the pickle at {start} "
                    f"cannot be done: {type(error).__name__}: {str(error)[:200]}",
                    cursor.place,
                ) from error

    # the stack

    def pop(self) -> Any:
        """Takes the top value; those below a mark stay."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("no value is there to take")
        return self.stack.pop()

    def top(self) -> Any:
        """The top value."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("no value is there to add to")
        return self.stack[-1]

    def pop_mark(self) -> list[Any]:
        """Takes all values above the last mark, and the mark."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def drop(self) -> None:
        """Drops the top value, or the mark that is there."""
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def drop_mark(self) -> None:
        """Drops all above the last mark, and the mark."""
        self.pop_mark()

    def check_protocol(self) -> None:
        """The protocol by number."""
        protocol = self.count(1)
        if protocol > MAX_PROTOCOL:
            raise ValueError(f"protocol {protocol}, 0 to {MAX_PROTOCOL} are known")

    def charge(self, nbytes: int) -> None:
        """Counts memory for what a value takes besides its opcode."""
        self.cursor.allowance.take(nbytes, self.cursor.place)

    def push_container(self, value: Any) -> None:
        """Puts a new container on the stack."""
        self.charge(CONTAINER_NBYTES)
        self.stack.append(value)

    # numbers and texts

    def count(self, width: int) -> int:
        """A length that comes before what it is the length of."""
        return int.from_bytes(self.cursor.take(width, "a length"), "little")

    def number(self, code: str) -> None:
        """A number of a fixed width."""
        raw = self.cursor.take(struct.calcsize(code), "a number")
        self.stack.append(struct.unpack(code, raw)[0])

    def long(self, width: int) -> None:
        """An int of any width, in two's complement."""
        raw = self.cursor.take(self.count(width), "a number")
        self.charge(len(raw))
        self.stack.append(int.from_bytes(raw, "little", signed=True))

    def line_int(self) -> None:
        """An int in decimal digits; 00 and 01 are the truth values of protocol 0."""
        text = self.cursor.line().decode("ascii").removesuffix("L")
        self.stack.append(text == "01" if text in ("00", "01") else int(text))

    def text(self, width: int) -> None:
        """A text in UTF-8."""
        raw = self.cursor.take(self.count(width), "a text")
        self.charge(4 * len(raw))
        self.stack.append(raw.decode("utf-8", errors="surrogatepass"))

    def line_text(self) -> None:
        """A text in the escapes of Python's literals."""
        raw = self.cursor.line()
        self.charge(4 * len(raw))
        self.stack.append(UNESCAPE(raw)[0])

    def line_bytes(self) -> None:
        """A literal in quotes, as Python 2 wrote its texts."""
        raw = self.cursor.line()
        self.charge(8 * len(raw))
        if LITERAL.fullmatch(raw) is None:
            raise ValueError("a text in quotes is wanted")
        value = ast.literal_eval("b" + raw.decode("ascii"))
        self.stack.append(value.decode("utf-8"))

    def binary(self, width: int, kind: Callable[[bytes], Any]) -> None:
        """Bytes."""
        raw = self.cursor.take(self.count(width), "bytes")
        self.charge(2 * len(raw))
        self.stack.append(kind(raw))

    # containers

    def push_tuple(self, count: int) -> None:
        """The last values as a tuple."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise ValueError("a tuple of more values than there are")
        values = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.push_container(values)

    def add_elements(self, values: list[Any]) -> None:
        """Adds to the list below."""
        target = self.top()
        if isinstance(target, Placeholder):
            self.check_made(target).elements.extend(values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise TypeError(f"elements for {show_value(target)}, which is no list")

    def add_entries(self, values: list[Any]) -> None:
        """Adds keys and their values, one after the other, to the dict below."""
        target = self.top()
        if len(values) % 2:
            raise ValueError("a key without a value")
        pairs = list(zip(values[::2], values[1::2]))
        self.charge(ENTRY_NBYTES * len(pairs))
        if isinstance(target, Placeholder):
            self.check_made(target).entries.extend(pairs)
        elif isinstance(target, dict):
            add_pairs(target, pairs)
        else:
            raise TypeError(f"entries for {show_value(target)}, which is no dict")

    def add_members(self) -> None:
        """Adds to the set below."""
        values = self.pop_mark()
        target = self.top()
        self.charge(ENTRY_NBYTES * len(values))
        if isinstance(target, Placeholder):
            self.check_made(target).elements.extend(values)
        elif isinstance(target, set):
            target.update([check_key(value) for value in values])
        else:
            raise TypeError(f"members for {show_value(target)}, which is no set")

    def frozen(self) -> None:
        """A frozenset of the values above the mark."""
        values = self.pop_mark()
        self.charge(ENTRY_NBYTES * len(values))
        self.push_container(frozenset([check_key(value) for value in values]))

    def new_dict(self) -> None:
        """A dict of the keys and values above the mark."""
        values = self.pop_mark()
        self.push_container({})
        self.add_entries(values)

    # the memo

    def put(self, index: int) -> None:
        """Remembers the top value."""
        self.charge(ENTRY_NBYTES)
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        """Returns a value remembered under an index, the very same."""
        if index not in self.memo:
            raise LookupError(f"nothing was remembered as {index}")
        self.stack.append(self.memo[index])

    # names, and what would be made of them

    def push_name(self, module: Any, name: Any) -> None:
        """A name that the pickle has for a class or function."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("the name of a class or function is no text")
        self.charge(4 * (len(module) + len(name)))
        self.push_container(Placeholder(f"{module}.{name}"))

    def make(self, what: Any, args: Any, kwargs: Any = None) -> None:
        """Calls the maker of this name."""
        if not isinstance(what, Placeholder) or what.args is not None:
            raise TypeError(f"{show_value(what)} is called, and is no name")
        if not isinstance(args, tuple):
            raise TypeError(f"{what.name} is called with {show_value(args)}, which is no tuple")
        # A list that is shared costs the file a byte or two wherever it is made into something.
        self.charge(ENTRY_NBYTES * (len(args) + sum([size_of(value) for value in args])))
        maker = self.makers.get(what.name)
        if maker is None or kwargs:
            self.push_container(Placeholder(what.name, args, kwargs))
        else:
            self.push_container(maker(*args))

    def make_above_mark(self, name: Any = None) -> None:
        """The name, or the first value above the mark, with all that are above as arguments."""
        values = self.pop_mark()
        what = name if name is not None else values.pop(0)
        self.make(what, tuple(values))

    def line_instance(self) -> None:
        """A name in two lines, with the values above the mark as arguments."""
        self.push_name(self.cursor.line().decode(), self.cursor.line().decode())
        self.make_above_mark(self.stack.pop())

    def build(self) -> None:
        """The state of what is below: kept by a placeholder, left out by a dict."""
        state = self.pop()
        target = self.top()
        if isinstance(target, Placeholder):
            self.check_made(target).state = state
        elif not isinstance(target, dict) or not isinstance(state, dict):
            raise TypeError(f"{show_value(state)} as a state for {show_value(target)}")

    def check_made(self, target: Placeholder) -> Placeholder:
        """The placeholder of an object; a bare name takes nothing."""
        if target.args is None:
            raise TypeError(f"{target.name} is changed, which is a name and no object")
        return target

    def outside(self, pid: Any) -> None:
        """Returns the object of a persistent id."""
        if self.persistent is None:
            raise TypeError("something outside of the pickle is named where nothing is known")
        self.stack.append(self.persistent(pid))


def add_pairs(target: dict[Any, Any], pairs: Any) -> None:
    """Adds keys and values to a dict; a key that is there is an error and not an overwrite."""
    for key, value in pairs:
        if check_key(key) in target:
            raise ValueError(f"the key {show_value(key)} comes twice in a dict")
        target[key] = value


def size_of(value: Any) -> int:
    """Number of parts of a value that a maker may copy."""
    return len(value) if isinstance(value, SIZED) else 0


def is_plain_key(key: Any) -> bool:
    """Whether a value is found in a dict in a time that no file can choose."""
    if isinstance(key, int):
        return -MAX_KEY_INT < key < MAX_KEY_INT
    return key is None or isinstance(key, (str, bytes, float, complex, Placeholder))


def check_key(key: Any) -> Any:
    """A key of a dict or member of a set: a number, a text, or a tuple of such."""
    parts = key if isinstance(key, tuple) else (key,)
    # A tuple is gone through whenever it is looked up.
    if len(parts) > MAX_KEY_PARTS or not all([is_plain_key(part) for part in parts]):
        raise TypeError(f"{show_value(key)} is no key; a number, a text or a tuple of such is")
    return key


def make_dict(pairs: Any = ()) -> dict[Any, Any]:
    """An OrderedDict is a dict."""
    result: dict[Any, Any] = {}
    for pair in check_list(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TypeError(f"{show_value(pair)} is no key with a value")
        add_pairs(result, [pair])
    return result


def make_set(values: Any = ()) -> set[Any]:
    """A set of protocols before 4."""
    return {check_key(value) for value in check_list(values)}


def make_bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    """Bytes of protocols before 3, which are written as a text."""
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("bytes that are no text in latin1")
    return text.encode("latin-1")


def make_bytearray(data: Any = b"") -> bytearray:
    """A bytearray of protocols before 5."""
    if not isinstance(data, bytes):
        raise TypeError(f"a bytearray of {show_value(data)}, bytes are wanted")
    return bytearray(data)


def check_list(values: Any) -> Any:
    """A list or tuple, whose length the file has paid for."""
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{show_value(values)} is no list")
    return values


# Names that stand for plain data in every pickle.
PLAIN_MAKERS: dict[str, Maker] = {
    "collections.OrderedDict": make_dict,
    "builtins.set": make_set,
    "__builtin__.set": make_set,
    "_codecs.encode": make_bytes,
    "builtins.bytes": make_bytes,
    "builtins.bytearray": make_bytearray,
    "__builtin__.bytes": make_bytes,
}

HANDLERS: dict[int, Callable[[PickleReader], Any]] = {
    STOP: lambda r: None,
    # the stack, the memo, frames
    ord("("): lambda r: r.marks.append(len(r.stack)),
    ord("0"): lambda r: r.drop(),
    ord("1"): lambda r: r.drop_mark(),
    ord("2"): lambda r: r.stack.append(r.top()),
    ord("g"): lambda r: r.get(int(r.cursor.line())),
    ord("h"): lambda r: r.get(r.count(1)),
    ord("j"): lambda r: r.get(r.count(4)),
    ord("p"): lambda r: r.put(int(r.cursor.line())),
    ord("q"): lambda r: r.put(r.count(1)),
    ord("r"): lambda r: r.put(r.count(4)),
    0x94: lambda r: r.put(len(r.memo)),
    0x80: lambda r: r.check_protocol(),
    0x95: lambda r: r.count(8),
    # numbers and texts
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    ord("I"): lambda r: r.line_int(),
    ord("L"): lambda r: r.line_int(),
    ord("F"): lambda r: r.stack.append(float(r.cursor.line())),
    ord("J"): lambda r: r.number("<i"),
    ord("K"): lambda r: r.number("<B"),
    ord("M"): lambda r: r.number("<H"),
    ord("G"): lambda r: r.number(">d"),
    0x8A: lambda r: r.long(1),
    0x8B: lambda r: r.long(4),
    ord("S"): lambda r: r.line_bytes(),
    ord("T"): lambda r: r.text(4),
    ord("U"): lambda r: r.text(1),
    ord("V"): lambda r: r.line_text(),
    ord("X"): lambda r: r.text(4),
    0x8C: lambda r: r.text(1),
    0x8D: lambda r: r.text(8),
    ord("B"): lambda r: r.binary(4, bytes),
    ord("C"): lambda r: r.binary(1, bytes),
    0x8E: lambda r: r.binary(8, bytes),
    0x96: lambda r: r.binary(8, bytearray),
    # containers
    ord("]"): lambda r: r.push_container([]),
    ord("}"): lambda r: r.push_container({}),
    ord(")"): lambda r: r.push_tuple(0),
    0x8F: lambda r: r.push_container(set()),
    0x85: lambda r: r.push_tuple(1),
    0x86: lambda r: r.push_tuple(2),
    0x87: lambda r: r.push_tuple(3),
    ord("t"): lambda r: r.push_container(tuple(r.pop_mark())),
    ord("l"): lambda r: r.push_container(r.pop_mark()),
    ord("d"): lambda r: r.new_dict(),
    0x91: lambda r: r.frozen(),
    ord("a"): lambda r: r.add_elements([r.pop()]),
    ord("e"): lambda r: r.add_elements(r.pop_mark()),
    ord("s"): lambda r: r.add_entries([r.pop(), r.pop()][::-1]),
    ord("u"): lambda r: r.add_entries(r.pop_mark()),
    0x90: lambda r: r.add_members(),
    # names and objects
    ord("c"): lambda r: r.push_name(r.cursor.line().decode(), r.cursor.line().decode()),
    0x93: lambda r: r.push_name(*[r.pop(), r.pop()][::-1]),
    ord("R"): lambda r: r.make(*[r.pop(), r.pop()][::-1]),
    0x81: lambda r: r.make(*[r.pop(), r.pop()][::-1]),
    0x92: lambda r: r.make(*[r.pop(), r.pop(), r.pop()][::-1]),
    ord("i"): lambda r: r.line_instance(),
    ord("o"): lambda r: r.make_above_mark(),
    ord("b"): lambda r: r.build(),
    ord("P"): lambda r: r.outside(r.cursor.line().decode()),
    ord("Q"): lambda r: r.outside(r.pop()),
}
