"""Generates the Python function that checks guards: closure variables, keys, attributes.

A Place reads what it holds; `Writer` writes one Python function that looks at many places at
once, since a jitted function asks with every call whether they hold what they held. What the values
mean, and what is as good as another, `guards` knows.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

ABSENT: Any = object()
# Of longer containers the elements are compared in a loop.
MOST_WRITTEN_OUT = 4


class Place(NamedTuple):
    """Where something stands: a cell, the key of a dict (`globals()`), or an object's attribute.

    `owner` is the cell or the dict; of an object a weak reference, since what looks at a program
    must not keep its objects alive, or the object itself where there are no references to it.
    """

    kind: str
    owner: Any
    name: str

    def read(self) -> Any:
        """Reads the present value, or ABSENT."""
        owner, name = self.owner, self.name
        if self.kind == "cell":
            try:
                return owner.cell_contents
            except ValueError:
                return ABSENT
        if self.kind == "key":
            return owner.get(name, ABSENT)
        living = owner() if isinstance(owner, weakref.ref) else owner
        if self.kind == "own attribute":
            return ABSENT if living is None else living.__dict__.get(name, ABSENT)
        return getattr(living, name, ABSENT)


def attribute_of(owner: Any, name: str) -> Place:
    """The place of an attribute, which does not keep its object alive."""
    try:
        ref = weakref.ref(owner)
    except TypeError:
        return Place("attribute", owner, name)
    own = name in getattr(owner, "__dict__", ())
    return Place("own attribute" if own else "attribute", ref, name)


def keeps_nothing_alive(value: Any) -> bool:
    """Whether holding this holds none of a program's data: classes, modules, plain functions."""
    if isinstance(value, types.FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    return isinstance(value, (type, types.ModuleType))


class Writer:
    """Collects the tests of a check as text, and what the names in it stand for."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = {"all": all, "map": map, "len": len, **names}
        self.cells: dict[str, types.CellType] = {}
        self.tests: list[str] = []

    def name(self, value: Any) -> str:
        """A name that stands for this object."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def place(self, place: Place) -> str:
        """An expression for what a place holds; it raises where that is nothing."""
        if place.kind == "cell":
            name = f"c{len(self.cells)}"
            self.cells[name] = place.owner
            return name
        if place.kind == "key":
            return f"{self.name(place.owner)}[{place.name!r}]"
        owner = place.owner
        if isinstance(owner, weakref.ref):
            held = owner()
            # Classes may be held, and what they say themselves goes before what their bases say.
            if isinstance(held, type):
                return f"{self.name(held)}.{place.name}"
            owner_text = f"{self.name(owner)}()"
        else:
            owner_text = self.name(owner)
        if place.kind == "own attribute":
            return f"{owner_text}.__dict__[{place.name!r}]"
        return f"{owner_text}.{place.name}"

    def same_object(self, place: Place, ref: weakref.ref[Any]) -> None:
        """The place holds what `ref` knows, which is not kept alive."""
        value = ref()
        if keeps_nothing_alive(value):
            self.same(self.place(place), value)
        else:
            # An object that is gone is not the None that stands in its place.
            self.tests.append(f"{self.place(place)} is {self.name(ref)}() is not None")

    def same(self, text: str, value: Any) -> None:
        """An expression gives this very object, which the check keeps."""
        self.tests.append(f"{text} is {self.name(value)}")

    def same_value(self, place: Place, value: Any) -> None:
        """The place holds this plain value."""
        self.same(self.place(place), value)

    def same_elements(self, place: Place, kind: type, parts: tuple[Any, ...]) -> None:
        """The place holds a list or tuple of these plain values."""
        test = f"(v := {self.place(place)}).__class__ is {self.name(kind)}"
        test += f" and len(v) == {len(parts)}"
        if len(parts) <= MOST_WRITTEN_OUT:
            test += "".join(f" and v[{i}] is {self.name(part)}" for i, part in enumerate(parts))
        else:
            test += f" and all(map({self.name(operator.is_)}, v, {self.name(parts)}))"
        self.tests.append(test)

    def function(self, *arguments: str) -> Callable[..., bool]:
        """Compiles all tests to one predicate of these arguments that reads the very cells."""
        cells = "".join(f" {name} = None\n" for name in self.cells)
        head, tests = f"def holds({', '.join(arguments)})", " and ".join(self.tests)
        source = f"def make():\n{cells} {head}:\n  return {tests}\n return holds"
        made: dict[str, Any] = {}
        exec(compile(source, "<check>", "exec"), self.names, made)
        code = made["make"]().__code__
        closure = tuple([self.cells[name] for name in code.co_freevars])
        return types.FunctionType(code, self.names, "holds", None, closure)
