"""Chat templates: messages as one text, in the words of the model.

Receives a Jinja2 template from a model's file, which nobody has looked at, and messages; returns
the text. The template runs in a sandbox, for so many steps and so much text as a chat may need;
beyond that it is refused. Messages are checked by who receives them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aster_ml.errors import ArgumentError, FormatError

# Templates of published models are below 20,000 characters and make a few steps for each message.
MAX_TEMPLATE, MAX_STEPS, MAX_TEXT = 200_000, 200_000, 4 << 20
# What asks for memory by a number.
SIZED_FILTERS = ("center", "indent", "wordwrap", "batch", "slice", "join", "replace")
MAX_NUMBER = 10_000
# For files without a template: the form that most models know.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Meter:
    """Counts what a template does, and ends it where that is too much."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        """One more step."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")

    def size(self, value: Any) -> Any:
        """A value that is not too large."""
        self.step()
        if isinstance(value, (str, bytes, list, tuple, dict)) and len(value) > MAX_TEXT:
            raise SecurityError(f"it makes a value of more than {MAX_TEXT:,} parts")
        if isinstance(value, int) and value.bit_length() > 256:
            raise SecurityError("it makes a number of more than 256 bits")
        return value

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop, counted."""
        for item in items:
            self.step()
            yield item


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2 with nothing to reach for: Python, long loops and large values end it."""

    intercepted_binops = frozenset(["+", "-", "*", "**", "%", "/", "//"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            autoescape=False,
        )
        self.meter = Meter()
        for name in SIZED_FILTERS:
            self.filters[name] = self.bounded(self.filters[name])
        self.filters["tojson"] = to_json
        self.globals.update(
            raise_exception=refuse, strftime_now=strftime_now, counted=self.meter_over
        )
        for name in ("format", "xmlattr", "pprint"):
            self.filters.pop(name)
        self.globals.pop("lipsum")

    def meter_over(self, items: Any) -> Any:
        """Counts a loop; what knows its own length keeps it."""
        if isinstance(items, (list, tuple, str, dict, range)):
            for _ in range(min(len(items), MAX_STEPS + 1)):
                self.meter.step()
            return items
        return self.meter.over(items)

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose numbers are those of a text, not of a memory."""

        def call(*args: Any, **kwargs: Any) -> Any:
            check_sizes([*args, *kwargs.values()])
            return self.meter.size(function(*args, **kwargs))

        for mark in ("jinja_pass_arg",):
            if hasattr(function, mark):
                setattr(call, mark, getattr(function, mark))
        return call

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation on two values, whose result is not too large."""
        if operator in ("*", "**"):
            numbers = [x for x in (left, right) if isinstance(x, int)]
            others = [x for x in (left, right) if not isinstance(x, (int, float))]
            if others and any([abs(n) > MAX_NUMBER for n in numbers]):
                raise SecurityError(f"it repeats a value more than {MAX_NUMBER:,} times")
            if others and numbers and len(others[0]) * max(1, abs(numbers[0])) > MAX_TEXT:
                raise SecurityError(f"it makes a value of more than {MAX_TEXT:,} parts")
            if operator == "**" and any([abs(n) > 1000 for n in numbers]):
                raise SecurityError("it takes a power of a large number")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats by %; the filter `format` is not needed in a chat")
        return self.meter.size(super().call_binop(context, operator, left, right))

    def call(self, context: Any, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call, counted."""
        self.meter.step()
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, (str, bytes)):
            check_sizes([owner, *args, *kwargs.values()])
        return self.meter.size(super().call(context, callee, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Nothing of Python's own, and no formatting, whose widths are memory."""
        if isinstance(obj, (str, bytes)) and attr in ("format", "format_map", "translate"):
            return False
        return super().is_safe_attribute(obj, attr, value)


def check_sizes(values: Sequence[Any]) -> None:
    """Refuses numbers that are memory, and texts that multiply one another."""
    if any([isinstance(x, int) and abs(x) > MAX_NUMBER for x in values]):
        raise SecurityError(f"it asks for more than {MAX_NUMBER:,} of something")
    sizes = sorted([len(x) for x in values if isinstance(x, (str, bytes, list, tuple))])[-2:]
    if len(sizes) == 2 and sizes[0] * sizes[1] > 64 * MAX_TEXT:
        raise SecurityError("it replaces or joins texts that are too large")


def to_json(value: Any, indent: int | None = None, **others: Any) -> str:
    """JSON as chat templates expect it: no escapes for HTML."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("tojson: indent is 0 to 16")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def refuse(message: str) -> None:
    """What a template calls to say that messages are not of its form."""
    raise ArgumentError(f"the chat template says: {str(message)[:500]}")


def strftime_now(form: str) -> str:
    """The day, in the form that a template asks for."""
    return datetime.datetime.now().strftime(form)


def meter_loops(tree: nodes.Template, sandbox: Sandbox) -> None:
    """Puts a count around what each loop walks, and around what is joined to a text."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Call(nodes.Name("counted", "load"), [loop.iter], [], None, None)
    for joined in list(tree.find_all(nodes.Concat)):
        # `a ~ b` as a sum of texts, so that it is metered like one.
        parts = [nodes.Filter(part, "string", [], [], None, None) for part in joined.nodes]
        joined.nodes = [sum_of(parts)]
    tree.set_environment(sandbox)


def sum_of(parts: Sequence[nodes.Expr]) -> nodes.Expr:
    """Parts added, from the left."""
    result = parts[0]
    for part in parts[1:]:
        result = nodes.Add(result, part)
    return result


class ChatTemplate:
    """A chat template, compiled in its sandbox.

    Raises: FormatError where it is no template.
    """

    def __init__(self, source: str = CHATML, names: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE:
            raise FormatError(
                f"the chat template has {len(source):,} characters; {MAX_TEMPLATE:,} at most",
                "gguf",
            )
        self.source, self.names = source, dict(names or {})
        self.sandbox = Sandbox()
        try:
            tree = self.sandbox.parse(source)
            meter_loops(tree, self.sandbox)
            code = self.sandbox.compile(tree)
            self.template = self.sandbox.template_class.from_code(
                self.sandbox, code, self.sandbox.make_globals(None)
            )
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise FormatError(f"the chat template is damaged: {error}", "gguf") from error

    @property
    def knows_tools(self) -> bool:
        """Whether it says anything of tools."""
        return "tools" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = True,
        **others: Any,
    ) -> str:
        """The text of these messages; with `prompt`, up to where the answer begins.

        Raises: ArgumentError where the template refuses them, fails, or does too much.
        """
        self.sandbox.meter.steps = 0
        values = {
            "messages": [dict(m) for m in messages],
            "tools": [dict(t) for t in tools] if tools else None,
            "add_generation_prompt": prompt,
            **self.names,
            **others,
        }
        parts: list[str] = []
        size = 0
        try:
            for part in self.template.generate(values):
                self.sandbox.meter.step()
                size += len(part)
                if size > MAX_TEXT:
                    raise SecurityError(f"it writes more than {MAX_TEXT:,} characters")
                parts.append(part)
        except ArgumentError:
            raise
        except (Exception, RecursionError) as error:
            raise ArgumentError(
                f"the model's chat template fails for these messages: {type(error).__name__}: "
                f"{str(error)[:500]}"
            ) from error
        return "".join(parts)
