"""Guards of a recording: the numbers, objects and lists that the function reads besides arguments.

Receives a function; returns conditions that hold as long as nothing it reads has been exchanged. A
recording of the function is right only while they hold. The function is not run: its code and that
of all it may call is searched for the names it reads, and these are looked up in its globals, its
closure, and the objects and containers found on the way. What a name of a local variable leads to
comes in through the arguments. Knows nothing of tensors but that some classes are not looked into.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from aster_ml.jit.guard_codegen import Place, Writer, attribute_of

PLAIN = (int, float, complex, bool, str, bytes, type(None))
# Packages whose code reads nothing that a program changes.
TEST_TOOLS = frozenset({"pytest", "_pytest", "pluggy", "hypothesis"})
OTHERS = TEST_TOOLS.union(
    {"aster_ml", "numpy", "tqdm", "ml_dtypes", "torch"}, sys.stdlib_module_names
)
# The name by which a package says of its modules whether they read what a program changes.
SAID = "__guarded__"
CALLED_BY_SYNTAX = frozenset({"__call__", "__getitem__", "__iter__", "__len__", "__enter__"})
# Of larger and deeper containers only the identity is watched, of larger arrays samples.
MAX_ELEMENTS, MAX_DEPTH = 1000, 4
MAX_ARRAY_NBYTES = 1 << 20
# So many places are looked at in one function that is written for them.
MOST_TESTS = 200


class Names(NamedTuple):
    """Names that code reads, sets, and only counts up: `x.count += 1` uses no number."""

    read: frozenset[str]
    stored: frozenset[str]
    counted: frozenset[str]


class Uses(NamedTuple):
    """The names in code by where they are looked up."""

    globals: Names
    closure: Names
    attributes: Names


@functools.lru_cache(maxsize=4096)
def uses_of(code: types.CodeType) -> Uses:
    """Names that code and the functions defined in it use, local variables aside."""
    # For each of the three: read, stored, counted.
    found: list[tuple[set[str], set[str], set[str]]] = [(set(), set(), set()) for _ in range(3)]
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP")]
    for at, step in enumerate(steps):
        name, op = step.argval, step.opname
        place = looked_up(op)
        if place is None or not isinstance(name, str):
            continue
        read, stored, counted = found[place]
        if op.startswith("STORE_"):
            stored.add(name)
        else:
            (counted if counts_up(steps[at + 1 : at + 6], name) else read).add(name)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for mine, inner in zip(found, uses_of(constant), strict=True):
                for names, more in zip(mine, inner, strict=True):
                    names |= more
    # A variable of this code that functions defined in it share is a local one too.
    for names in found[1]:
        names.difference_update(code.co_cellvars)
    return Uses(*[Names(frozenset(r), frozenset(s), frozenset(c - r)) for r, s, c in found])


def looked_up(op: str) -> int | None:
    """In which of the three of `Uses` an instruction looks its name up; None for none of them."""
    if not op.startswith(("LOAD_", "STORE_", "IMPORT_")):
        return None
    if op.endswith(("_GLOBAL", "_GLOBALS", "_NAME")):
        return 0
    if op.endswith("DEREF"):
        # In the body of a class such a name may be one of the class.
        return 1
    return 2 if op.endswith(("_ATTR", "_METHOD", "_FROM")) else None


def counts_up(steps: list[dis.Instruction], name: str) -> bool:
    """Whether what was loaded goes back under the same name, changed by a constant."""
    for step in steps:
        if step.opname.startswith("STORE_") and step.argval == name:
            return True
        if step.opname not in ("COPY", "SWAP", "BINARY_OP", "LOAD_SMALL_INT", "LOAD_CONST"):
            return False
    return False


def is_foreign(module: str | None) -> bool:
    """Whether code or a class of this module is not searched.

    The nearest package around it that has `__guarded__` decides: True where its code is searched.
    """
    if module is None:
        return True
    place = module
    while place:
        said = getattr(sys.modules.get(place), "__dict__", {}).get(SAID)
        if said is not None:
            return not said
        place = place.rpartition(".")[0]
    return module.partition(".")[0] in OTHERS


class Signature:
    """A value as it was, by what makes it the same: content of plain ones, identity of others."""

    __slots__ = ("kind", "parts", "value")

    def __init__(self, value: Any, depth: int = 0) -> None:
        self.parts: list[Signature] | None = None
        self.kind: Any
        self.value: Any
        small = (
            depth < MAX_DEPTH
            and hasattr(value, "__len__")
            and isinstance(value, (list, tuple, dict))
            and len(value) <= MAX_ELEMENTS
        )
        if isinstance(value, PLAIN):
            self.kind, self.value = value.__class__, value
        elif small and isinstance(value, dict):
            self.kind, self.value = value.__class__, list(value)
            self.parts = [Signature(v, depth + 1) for v in value.values()]
        elif small:
            self.kind, self.value = value.__class__, len(value)
            self.parts = [Signature(v, depth + 1) for v in value]
        elif isinstance(value, np.ndarray):
            self.kind, self.value = np.ndarray, array_digest(value)
        else:
            try:
                self.kind, self.value = weakref.ref, weakref.ref(value)
            except TypeError:
                self.kind, self.value = object, value

    def fits(self, now: Any) -> bool:
        """Whether `now` is that value still."""
        kind, value = self.kind, self.value
        if kind is weakref.ref:
            # An object that is gone is not the None that stands in its place.
            return now is not None and value() is now
        if now is value:
            return self.parts is None
        if now.__class__ is not kind:
            return False
        if self.parts is not None:
            if isinstance(now, dict):
                return list(now) == value and all(
                    p.fits(v) for p, v in zip(self.parts, now.values())
                )
            return len(now) == value and all(p.fits(v) for p, v in zip(self.parts, now))
        if kind is np.ndarray:
            return bool(array_digest(now) == value)
        return kind is not object and bool(now == value)


def array_digest(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Digest of the content of an array."""
    flat = array.reshape(-1)
    if array.nbytes > MAX_ARRAY_NBYTES:
        flat = flat[:: max(array.size // 1024, 1)]
    if array.dtype.hasobject:
        return array.shape, array.dtype, id(array)
    return array.shape, array.dtype, zlib.crc32(np.ascontiguousarray(flat).tobytes())


class Guard:
    """A place that has to hold what it held; `where` is how an error calls it."""

    __slots__ = ("place", "signature", "where")

    def __init__(self, where: str, place: Place) -> None:
        self.where = where
        self.place = place
        self.signature = Signature(place.read())

    def holds(self) -> bool:
        """Whether it does."""
        return self.signature.fits(self.place.read())


class Collector:
    """Walks from a function to everything that it may read."""

    def __init__(self, is_leaf: Callable[[Any], bool]) -> None:
        self.is_leaf = is_leaf
        # Attributes that any of the code names.
        self.names = Names(frozenset(), frozenset(), frozenset())
        self.seen: dict[int, Any] = {}
        self.functions: list[types.FunctionType] = []
        self.objects: list[tuple[Any, str]] = []
        # What was met and is to be looked at.
        self.waiting: list[tuple[Any, str]] = []
        # Those that are not looked into, by id.
        self.leaves: dict[int, Any] = {}
        self.conditions: dict[tuple[int, str], Guard] = {}
        self.settable: dict[tuple[int, str], Guard] = {}

    def run(self, roots: Iterable[tuple[Any, str]]) -> None:
        """Searches until no name leads to anything new."""
        self.waiting.extend(roots)
        self.explore_waiting()
        # Those of which it is known what they lead to, objects by these names.
        names, functions, objects = self.names, 0, 0
        while functions < len(self.functions) or objects < len(self.objects):
            new_functions, functions = self.functions[functions:], len(self.functions)
            for function in new_functions:
                self.look_into_globals(function)
            new_objects, objects = self.objects[objects:], len(self.objects)
            for value, where in new_objects:
                self.look_into_object(value, where)
            self.explore_waiting()
            if self.names != names:
                # Objects may have attributes of names that are new.
                names, objects = self.names, 0

    def explore(self, value: Any, where: str) -> None:
        """Notes a value, to be looked at."""
        self.waiting.append((value, where))

    def explore_waiting(self) -> None:
        """Looks at all values that are noted, and at those that they lead to."""
        while self.waiting:
            self.look_at(*self.waiting.pop())

    def look_at(self, value: Any, where: str) -> None:
        """One value: notes what may lead further."""
        if isinstance(value, PLAIN) or id(value) in self.seen:
            return
        if self.is_leaf(value):
            self.leaves[id(value)] = value
            return
        self.seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, types.MethodType):
            self.explore(value.__self__, where)
            self.explore(value.__func__, where)
        elif isinstance(value, functools.partial):
            for i, part in enumerate((value.func, *value.args, *value.keywords.values())):
                self.explore(part, f"{where}({i})")
        elif isinstance(value, (list, tuple, set, frozenset)):
            if len(value) <= MAX_ELEMENTS:
                for i, part in enumerate(value):
                    self.explore(part, f"{where}[{i}]")
        elif isinstance(value, dict):
            if len(value) <= MAX_ELEMENTS:
                for key, part in value.items():
                    self.explore(part, f"{where}[{key!r}]")
        elif isinstance(value, types.ModuleType):
            if not is_foreign(value.__name__):
                self.objects.append((value, value.__name__))
        elif isinstance(value, type):
            if not is_foreign(value.__module__):
                self.objects.append((value, value.__name__))
        else:
            wrapped = getattr(value, "__wrapped__", None)
            if wrapped is not None:
                self.explore(wrapped, where)
            if not is_foreign(type(value).__module__):
                self.objects.append((value, where))

    def add_function(self, function: types.FunctionType) -> None:
        """A function's code, closure and defaults."""
        if is_foreign(function.__module__):
            return
        self.functions.append(function)
        uses = uses_of(function.__code__)
        self.names = Names(*map(frozenset.union, self.names, uses.attributes))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self.watch(id(cell), name, name, Place("cell", cell, name), uses.closure)
        for i, default in enumerate(function.__defaults__ or ()):
            self.explore(default, f"{function.__name__}'s default {i}")
        for name, default in (function.__kwdefaults__ or {}).items():
            self.explore(default, f"{function.__name__}'s default of {name}")

    def look_into_globals(self, function: types.FunctionType) -> None:
        """Globals that a function's code names."""
        names, table = uses_of(function.__code__).globals, function.__globals__
        for name in names.read | names.stored:
            if name in table:
                self.watch(id(table), name, name, Place("key", table, name), names)
            elif name in sys.modules and name in names.read:
                self.explore(sys.modules[name], name)

    def look_into_object(self, value: Any, where: str) -> None:
        """Attributes that any of the code names, and the methods it may call."""
        names = self.names
        cls = value if isinstance(value, type) else type(value)
        if not isinstance(value, type):
            table = getattr(value, "__dict__", {})
            slots = [n for c in cls.__mro__ for n in slot_names(c)]
            for name in [n for n in (*table, *slots) if n in names.read or n in names.stored]:
                if (id(value), name) not in self.conditions:
                    place = attribute_of(value, name)
                    self.watch(id(value), name, f"{where}.{name}", place, names)
        if isinstance(value, types.ModuleType):
            return
        for owner in cls.__mro__:
            if is_foreign(owner.__module__):
                continue
            for name, member in list(vars(owner).items()):
                if name not in names.read and name not in CALLED_BY_SYNTAX:
                    continue
                for function in functions_in(member):
                    self.explore(function, f"{owner.__name__}.{name}")
                if isinstance(member, (*PLAIN, list, tuple, dict)) and not name.startswith("__"):
                    place = attribute_of(owner, name)
                    self.watch(id(owner), name, f"{owner.__name__}.{name}", place, names)

    def watch(
        self,
        owner: int,
        name: str,
        where: str,
        place: Place,
        names: Names,
    ) -> None:
        """A place that is read (its value has to stay), which `names` says, or only set."""
        counted = name in names.counted and not isinstance(place.read(), PLAIN)
        is_read = name in names.read or counted
        table = self.conditions if is_read else self.settable
        if (owner, name) not in table:
            table[owner, name] = Guard(where, place)
            if is_read:
                self.explore(place.read(), where)


def functions_in(member: Any) -> Iterator[Any]:
    """The functions behind a member of a class."""
    if isinstance(member, property):
        yield from (f for f in (member.fget, member.fset) if f is not None)
    elif isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, (types.FunctionType, functools.partial)):
        yield member
    elif hasattr(member, "__wrapped__"):
        yield member.__wrapped__
    elif isinstance(member, functools.cached_property):
        yield member.func


def slot_names(cls: type) -> tuple[str, ...]:
    """The `__slots__` of a class."""
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def quick_checks(conditions: Iterable[Guard]) -> list[Callable[[], bool]]:
    """Functions that all say True while each condition holds the very object that it held.

    What is not the same object may be as good, which `Signature` knows: then one says False. Where
    a place holds nothing any more it raises AttributeError, KeyError or NameError.
    """
    checks: list[Callable[[], bool]] = []
    others: list[Callable[[], bool]] = []
    writer = Writer()
    for c in conditions:
        kind, parts = c.signature.kind, c.signature.parts
        if kind is weakref.ref:
            writer.same_object(c.place, c.signature.value)
        elif parts is None and kind is not np.ndarray:
            writer.same_value(c.place, c.signature.value)
        elif kind in (list, tuple) and are_plain(parts or ()):
            writer.same_elements(c.place, kind, tuple([p.value for p in parts or ()]))
        else:
            others.append(c.holds)
        if len(writer.tests) == MOST_TESTS:
            checks.append(writer.function())
            writer = Writer()
    if writer.tests:
        checks.append(writer.function())
    return checks + others


def are_plain(parts: Iterable[Signature]) -> bool:
    """Whether these are numbers and strings."""
    return all([issubclass(p.kind, PLAIN) and p.parts is None for p in parts])


class Watch:
    """The conditions under which a function reads what it read."""

    def __init__(self, roots: Iterable[tuple[Any, str]], is_leaf: Callable[[Any], bool]) -> None:
        collector = Collector(is_leaf)
        collector.run(roots)
        self.conditions = list(collector.conditions.values())
        self.settable = [
            c for key, c in collector.settable.items() if key not in collector.conditions
        ]
        self.quick: list[Callable[[], bool]] | None = None
        # The leaves that the function gets at by itself, weakly.
        self.leaves = [weakref.ref(x) for x in collector.leaves.values()]

    def quick_checks(self) -> list[Callable[[], bool]]:
        """Those of the conditions, made once."""
        if self.quick is None:
            self.quick = quick_checks(self.conditions)
        return self.quick

    def holds(self) -> bool:
        """Whether all conditions do. Asked with every call of a jitted function."""
        try:
            same = all([check() for check in self.quick_checks()])
        except (AttributeError, KeyError, NameError):
            same = False
        return same or self.broken() is None

    def broken(self) -> Guard | None:
        """The first condition that does not hold."""
        return next((c for c in self.conditions if not c.holds()), None)

    def reached(self) -> list[Any]:
        """The leaves that the function gets at by itself and that are alive."""
        return [x for ref in self.leaves if (x := ref()) is not None]

    def changed_while_running(self) -> tuple[list[Guard], list[Guard]]:
        """After a run: places read, and places only set, that hold something else than before.

        Containers that the run has changed are not watched from then on: what they hold now differs
        with every call, whatever is done with it.
        """
        changed = [c for c in self.conditions if not c.holds()]
        grown = [c for c in changed if c.signature.parts is not None]
        self.conditions = [c for c in self.conditions if c not in grown]
        self.quick = None
        return ([c for c in changed if c not in grown], [c for c in self.settable if not c.holds()])
