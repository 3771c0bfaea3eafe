"""Renders chat templates in a sandbox, for so many steps and so much text as a chat may need.

Receives a Jinja2 template and values; gives the text, or why there is none. Runs in a process of
its own (`confined`), whose limits hold where counting here does not see something.

Every value that a template makes is weighed: a text has as many parts as characters, a list as many
as what it would be written out to. So what reads a value (comparing, sorting, writing it as text or
JSON) costs no more than its weight, however often parts of it are shared.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# A chat makes a few steps for each message.
MAX_STEPS, MAX_TEXT = 200_000, 4 << 20
# What all values together have, those that were made on the way and are gone too.
MAX_TOTAL = 64 * MAX_TEXT
# A number that is a width or a count of copies, and bits of a whole number.
MAX_NUMBER, MAX_BITS, MAX_POWER, MAX_INDENT = 10_000, 256, 1000, 16
# Two texts of which one is put into the other, multiplied.
MAX_PRODUCT = 16 * MAX_TEXT
# What asks for memory by a number.
SIZED_FILTERS = ("center", "indent", "wordwrap", "batch", "slice", "truncate", "round", "replace")
# What goes through a list item by item, or takes a text to pieces.
PIECES = frozenset(
    "batch first groupby indent join last list map max min random reject rejectattr reverse select "
    "selectattr slice sort striptags sum title unique urlize wordcount wordwrap".split()
)
# Formats have widths, which are memory, and reach for attributes.
ABSENT = ("format", "xmlattr", "pprint")
VIEWS: tuple[Any, ...] = (KeysView, ValuesView, ItemsView)
CONTAINERS: tuple[type[Collection[Any]], ...] = (list, tuple, dict, set, frozenset, *VIEWS)
COUNTED: tuple[type[Collection[Any]], ...] = (*CONTAINERS, str, range)
# What an item of a list weighs beside itself: it is a place in memory.
PLACE = 16
# Names that no template can write.
MADE, KEPT, READ, OVER = " made", " kept", " read", " over"
TEMPLATES = 8


class Meter:
    """Counts what a template does and makes, and ends it where that is too much."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nothing was done yet."""
        self.steps = self.total = 0
        # Lists stay as they are: one that was weighed is not weighed again as long as it lives.
        self.known: dict[int, tuple[Any, int]] = {}

    def step(self) -> None:
        """One more step."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")

    def weight(self, value: Any) -> int:
        """Counts the parts of a value when it is written out."""
        if isinstance(value, (str, bytes)):
            return len(value) + 1
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise SecurityError(f"it makes a number of more than {MAX_BITS} bits")
        if isinstance(value, Namespace):
            raise SecurityError("it keeps a namespace inside of another value")
        if isinstance(value, range):
            return PLACE * len(value)
        if not isinstance(value, CONTAINERS):
            return 1
        found = self.known.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        items = [x for pair in value.items() for x in pair] if isinstance(value, dict) else value
        weight = 1
        for item in items:
            weight += PLACE + self.weight(item)
            if weight > MAX_TEXT:
                raise SecurityError(f"it makes a value of more than {MAX_TEXT:,} parts")
        self.charge(PLACE * len(value))
        self.known[id(value)] = value, weight
        return weight

    def joined(self, value: Any, weight: int) -> Any:
        """A list made of others, whose weight is known without a look at its items."""
        self.charge(PLACE * len(value))
        self.known[id(value)] = value, weight
        return value

    def charge(self, parts: int) -> None:
        """So many parts more were made or read."""
        self.total += parts
        if self.total > MAX_TOTAL:
            raise SecurityError(f"it handles more than {MAX_TOTAL:,} parts of values")

    def read(self, value: Any) -> Any:
        """A value that is compared or written: all of it counts."""
        self.step()
        if not isinstance(value, Namespace):
            self.charge(self.weight(value))
        return value

    def made(self, value: Any) -> Any:
        """A value that was made, and is not too large; what comes one by one is counted so."""
        self.step()
        if isinstance(value, Iterator):
            return self.over(value)
        if isinstance(value, Namespace):
            return value
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
            if len(value) > MAX_TEXT:
                raise SecurityError(f"it makes a value of more than {MAX_TEXT:,} parts")
            return value
        self.weight(value)
        return value

    def kept(self, value: Any) -> Any:
        """A value that a namespace keeps, which is none itself."""
        self.weight(value)
        return value

    def over(self, items: Iterable[Any]) -> Any:
        """The items of a loop, counted; what knows its own length keeps it."""
        if isinstance(items, COUNTED):
            self.steps += len(items)
            self.step()
            return items
        return self.one_by_one(items)

    def one_by_one(self, items: Iterable[Any]) -> Iterator[Any]:
        """Items that are made as they are asked for."""
        for item in items:
            yield self.made(item)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2 with nothing to reach for: Python, long loops and large values end it."""

    intercepted_binops = frozenset(["+", "-", "*", "**", "%", "/", "//"])

    def __init__(self) -> None:
        self.meter = Meter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            autoescape=False,
            finalize=self.meter.read,
        )
        for name in ABSENT:
            self.filters.pop(name)
        self.globals.pop("lipsum")
        self.filters["tojson"] = to_json
        self.filters = {name: self.metered(name, f) for name, f in self.filters.items()}
        self.tests = {name: self.metered(name, f) for name, f in self.tests.items()}
        own = {MADE: self.meter.made, KEPT: self.meter.kept, READ: self.meter.read}
        self.filters.update({**own, OVER: self.meter.over})
        self.globals.update(raise_exception=refuse, strftime_now=strftime_now)

    def metered(self, name: str, function: Any) -> Callable[..., Any]:
        """A filter or a test: what it reads counts, and what it makes."""
        # The marks by which Jinja2 passes a context or an environment first.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args[first:], *kwargs.values()]
            for value in given:
                self.meter.read(value)
            if name in SIZED_FILTERS:
                check_sizes(given[1:])
            if name in ("replace", "join"):
                self.check_products(given)
            if name in PIECES and given:
                self.check_pieces(given[0])
            return self.meter.made(function(*args, **kwargs))

        return call

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation on two values, whose result is not too large."""
        weights = self.meter.weight(left), self.meter.weight(right)
        numbers = [x for x in (left, right) if isinstance(x, int)]
        others = [x for x in (left, right) if not isinstance(x, (int, float))]
        if operator == "+" and others:
            self.check_weight(sum(weights))
        if operator == "*" and others and numbers:
            self.check_weight(max(weights) * max(1, abs(numbers[0])))
        if operator == "**" and any([abs(n) > MAX_POWER for n in numbers]):
            raise SecurityError("it takes a power of a large number")
        if operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("it formats by %; a chat needs none of that")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (list, tuple)) and operator == "+":
            return self.meter.joined(result, sum(weights))
        return self.meter.made(result)

    def check_products(self, values: Sequence[Any]) -> None:
        """Refuses texts and lists that multiply one another."""
        sizes = sorted([self.meter.weight(x) for x in values])[-2:]
        if len(sizes) == 2 and sizes[0] * sizes[1] > MAX_PRODUCT:
            raise SecurityError("it replaces or joins texts that are too large")

    def check_pieces(self, value: Any) -> None:
        """Counts the items of a list; refuses a text of which a list of letters is too large."""
        if isinstance(value, (str, bytes)):
            if PLACE * len(value) > MAX_TEXT:
                raise SecurityError(
                    f"it takes a text of more than {MAX_TEXT // PLACE:,} characters to pieces"
                )
        elif isinstance(value, COUNTED):
            self.meter.over(value)

    def check_weight(self, weight: int) -> None:
        """Refuses a value before it is made."""
        if weight > MAX_TEXT:
            raise SecurityError(f"it makes a value of more than {MAX_TEXT:,} parts")

    def call(self, context: Any, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call, counted."""
        self.meter.step()
        given = [*args, *kwargs.values()]
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, (str, bytes)):
            for value in given:
                self.meter.read(value)
            check_sizes(given)
            self.check_products([owner, *given])
        elif callee in (Namespace, strftime_now):
            for value in given:
                self.meter.kept(value)
        return self.meter.made(super().call(context, callee, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Nothing of Python's own, and no formatting."""
        if isinstance(obj, (str, bytes)) and attr in ("format", "format_map", "translate"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No formats at all: `is_safe_attribute` refuses them."""


def check_sizes(values: Sequence[Any]) -> None:
    """Refuses numbers that are memory."""
    if any([isinstance(x, int) and abs(x) > MAX_NUMBER for x in values]):
        raise SecurityError(f"it asks for more than {MAX_NUMBER:,} of something")


def to_json(value: Any, indent: int | None = None, **others: Any) -> str:
    """JSON as chat templates expect it: no escapes for HTML."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise SecurityError(f"tojson: indent is 0 to {MAX_INDENT}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


class Refused(Exception):
    """Error that a template raises on messages."""


def refuse(message: str) -> None:
    """Raises an error for a template that does not take messages of this form."""
    raise Refused(str(message)[:500])


def strftime_now(form: str) -> str:
    """The day, in the form that a template asks for."""
    if len(form) > MAX_NUMBER or any([c.isdigit() for c in form]):
        raise SecurityError("strftime_now: a form of at most 10,000 characters, without widths")
    return datetime.datetime.now().strftime(form)


def meter_all(tree: nodes.Template, sandbox: Sandbox) -> None:
    """Puts a count around what loops walk, what is compared, and what expressions make."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = filtered(loop.iter, OVER)
    for joined in list(tree.find_all(nodes.Concat)):
        # `a ~ b` as a sum of texts, so that it is metered like one.
        joined.nodes = [sum_of([filtered(part, "string") for part in joined.nodes])]
    for compared in list(tree.find_all(nodes.Compare)):
        compared.expr = filtered(compared.expr, READ)
        for operand in compared.ops:
            operand.expr = filtered(operand.expr, READ)
    for block in list(tree.find_all(nodes.AssignBlock)):
        block.filter = nodes.Filter(block.filter, MADE, [], [], None, None)
    for assigned in list(tree.find_all(nodes.Assign)):
        if isinstance(assigned.target, nodes.NSRef):
            assigned.node = filtered(assigned.node, KEPT)
    wrap_made(tree)
    tree.set_environment(sandbox)


def wrap_made(node: nodes.Node) -> None:
    """Puts a count around lists, tuples, mappings and slices, wherever they stand."""
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            wrap_made(value)
            setattr(node, name, wrapped(value))
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, nodes.Node):
                    wrap_made(part)
            setattr(node, name, [wrapped(part) for part in value])


def wrapped(value: Any) -> Any:
    """A count around an expression that makes a value of others."""
    makes = isinstance(value, (nodes.List, nodes.Dict)) or (
        isinstance(value, nodes.Tuple) and value.ctx == "load"
    )
    slices = isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice)
    return filtered(value, MADE) if makes or slices else value


def filtered(node: Any, name: str) -> nodes.Filter:
    """An expression that goes through a filter without arguments."""
    return nodes.Filter(node, name, [], [], None, None)


def sum_of(parts: Sequence[nodes.Expr]) -> nodes.Expr:
    """Parts added, from the left."""
    result = parts[0]
    for part in parts[1:]:
        result = nodes.Add(result, part)
    return result


class Compiled:
    """A template, compiled in its sandbox. Raises: TemplateError and others where it is none."""

    def __init__(self, source: str) -> None:
        self.sandbox = Sandbox()
        tree = self.sandbox.parse(source)
        meter_all(tree, self.sandbox)
        code = self.sandbox.compile(tree)
        self.template = self.sandbox.template_class.from_code(
            self.sandbox, code, self.sandbox.make_globals(None)
        )

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for some values. Raises: SecurityError where it does too much."""
        meter = self.sandbox.meter
        parts: list[str] = []
        size = 0
        try:
            for part in self.template.generate(values):
                meter.step()
                size += len(part)
                if size > MAX_TEXT:
                    raise SecurityError(f"it writes more than {MAX_TEXT:,} characters")
                parts.append(part)
        finally:
            # Nothing of this chat is kept for the next.
            meter.begin()
        return "".join(parts)


@functools.lru_cache(TEMPLATES)
def compiled(source: str) -> Compiled:
    """A template that is compiled once for many chats."""
    return Compiled(source)


def answer(question: Mapping[str, Any]) -> dict[str, str]:
    """The text of a template for some values; without values, whether it is a template."""
    try:
        template = compiled(question["source"])
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        return {"damaged": str(error)[:500]}
    values = question.get("values")
    if values is None:
        return {}
    try:
        return {"text": template.render(values)}
    except Refused as error:
        return {"said": str(error)}
    except MemoryError:
        raise
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
