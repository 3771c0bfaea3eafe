"""What a client asks for, in OpenAI's form, checked.

Receives the JSON of a request; returns `Wanted`, or raises `RequestError`, which is a 400. Nothing
that is asked for is passed over in silence where it would change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aster_ml.apps.llm.answers import MAX_STOPS
from aster_ml.apps.llm.sampling import MAX_TOP, Sampling
from aster_ml.errors import ArgumentError

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_ANSWERS, MAX_MESSAGES, MAX_INPUTS, MAX_TOOLS = 16, 4096, 2048, 128
# What OpenAI's API has and this server has not, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "echo": (None, False),
    "web_search_options": (None,),
}


class RequestError(ArgumentError):
    """A request that cannot be answered: what is wrong, and with which field."""

    def __init__(self, said: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(said)
        self.field, self.status = field, status


class Fields:
    """The fields of a JSON object, by type."""

    def __init__(self, body: Any, what: str = "the body") -> None:
        if not isinstance(body, dict):
            raise RequestError(f"{what} is no JSON object")
        self.body: dict[str, Any] = body

    def get(self, name: str, kinds: type | tuple[type, ...], default: Any, wanted: str) -> Any:
        """A field of one of these types, or the default where it is absent or null."""
        value = self.body.get(name)
        if value is None:
            return default
        many = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, many) or (isinstance(value, bool) and bool not in many):
            raise RequestError(f"{name} is {shown(value)}; {wanted} is wanted", name)
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in a range."""
        value = self.get(name, int, default, "a whole number")
        if value is not default and not low <= value <= high:
            raise RequestError(f"{name} is {shown(value)}; {low} to {high} is wanted", name)
        return int(value)

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.get(name, (int, float), default, "a number")
        try:
            return float(value)
        except OverflowError as error:
            raise RequestError(f"{name} is too large", name) from error

    def flag(self, name: str) -> bool:
        """A truth value; false where it is absent."""
        return bool(self.get(name, bool, False, "true or false"))

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        return str(self.get(name, str, default, "a text"))

    def objects(self, name: str, most: int) -> list[dict[str, Any]]:
        """A list of objects."""
        value = self.get(name, list, [], "a list")
        if len(value) > most or not all([isinstance(x, dict) for x in value]):
            raise RequestError(f"{name}: at most {most} objects are wanted", name)
        return list(value)


def shown(value: Any) -> str:
    """A value as it stands in a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    definition: Mapping[str, Any]

    @property
    def function(self) -> Mapping[str, Any]:
        """Its name, description and parameters."""
        found: Mapping[str, Any] = self.definition["function"]
        return found


@dataclass(frozen=True)
class Wanted:
    """A request for answers, checked. `top` is how many odds are reported, None for none."""

    sampling: Sampling
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[str | list[int]] = field(default_factory=list)
    max_tokens: int = 0
    count: int = 1
    stop: tuple[str, ...] = ()
    top: int | None = None
    stream: bool = False
    usage: bool = False
    tools: tuple[Tool, ...] = ()
    must_call: tuple[Tool, ...] = ()
    schema: Mapping[str, Any] | None = None
    user: str = ""


def read_common(fields: Fields) -> dict[str, Any]:
    """What chats and completions have in common."""
    for name, nothing in UNSUPPORTED.items():
        if name in fields.body and fields.body[name] not in nothing:
            raise RequestError(f"{name} is not supported", name)
    options = Fields(fields.get("stream_options", dict, {}, "an object"), "stream_options")
    stop = fields.get("stop", (str, list), [], "a text or a list of texts")
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOPS or not all([isinstance(s, str) and s for s in stops]):
        raise RequestError(f"stop: at most {MAX_STOPS} texts that are not empty are wanted", "stop")
    return {
        "sampling": read_sampling(fields),
        "count": fields.integer("n", 1, 1, MAX_ANSWERS),
        "stop": tuple(stops),
        "stream": fields.flag("stream"),
        "usage": options.flag("include_usage"),
        "user": fields.text("user"),
    }


def read_sampling(fields: Fields) -> Sampling:
    """How tokens are drawn. Raises: RequestError for values out of range."""
    bias = fields.get("logit_bias", dict, {}, "an object")
    try:
        biases = {int(key): float(value) for key, value in bias.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(
            "logit_bias: numbers of tokens and what is added are wanted", "logit_bias"
        ) from error
    if any([not -100 <= value <= 100 for value in biases.values()]):
        raise RequestError("logit_bias: -100 to 100 is wanted", "logit_bias")
    seed = fields.get("seed", int, None, "a whole number")
    try:
        return Sampling(
            fields.number("temperature", 1.0),
            fields.integer("top_k", 0, 0, 1 << 24),
            fields.number("top_p", 1.0),
            fields.number("min_p", 0.0),
            fields.number("repetition_penalty", 1.0),
            fields.number("presence_penalty", 0.0),
            fields.number("frequency_penalty", 0.0),
            biases,
            None if seed is None else seed & ((1 << 64) - 1),
        )
    except ArgumentError as error:
        raise RequestError(str(error), str(error).split(" ")[0]) from error


def read_chat(body: Any) -> Wanted:
    """A request for `/v1/chat/completions`."""
    fields = Fields(body)
    messages = [read_message(m) for m in fields.objects("messages", MAX_MESSAGES)]
    if not messages:
        raise RequestError("messages: at least one is wanted", "messages")
    top = None
    if fields.flag("logprobs"):
        top = fields.integer("top_logprobs", 0, 0, MAX_TOP)
    elif fields.get("top_logprobs", int, 0, "a whole number"):
        raise RequestError("top_logprobs wants logprobs to be true", "top_logprobs")
    limit = "max_completion_tokens" if "max_completion_tokens" in fields.body else "max_tokens"
    tools = read_tools(fields)
    must = read_choice(fields, tools)
    if fields.body.get("tool_choice") == "none":
        tools = ()
    schema = read_format(fields)
    if schema is not None and must:
        raise RequestError("response_format and a tool that must be called exclude each other")
    return Wanted(
        messages=messages,
        max_tokens=fields.integer(limit, 0, 1, 1 << 24),
        top=top,
        tools=tools if schema is None else (),
        must_call=must,
        schema=schema,
        **read_common(fields),
    )


def read_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its content as one text."""
    fields = Fields(message)
    role = fields.text("role")
    if role not in ROLES:
        raise RequestError(f"role is {shown(role)}; {', '.join(ROLES)} are known", "messages")
    content = fields.get("content", (str, list), "", "a text or a list of parts")
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
                raise RequestError("content: only parts of the type text are supported", "messages")
            parts.append(Fields(part).text(part["type"]))
        content = "".join(parts)
    result: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    for name in ("name", "tool_call_id"):
        if fields.text(name):
            result[name] = fields.text(name)
    calls = [read_call(call) for call in fields.objects("tool_calls", MAX_TOOLS)]
    return {**result, "tool_calls": calls} if calls else result


def read_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call that was made earlier, its arguments as an object."""
    function = Fields(Fields(call).get("function", dict, {}, "an object"), "function")
    given = function.get("arguments", (str, dict), {}, "JSON")
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError("arguments of a tool call are no JSON", "messages") from error
    body = {"name": function.text("name"), "arguments": given}
    return {"id": Fields(call).text("id"), "type": "function", "function": body}


def read_tools(fields: Fields) -> tuple[Tool, ...]:
    """The functions that may be called."""
    result = []
    for definition in fields.objects("tools", MAX_TOOLS):
        inner = Fields(definition)
        if inner.text("type", "function") != "function":
            raise RequestError("tools: only those of the type function are supported", "tools")
        function = Fields(inner.get("function", dict, {}, "an object"), "function")
        name = function.text("name")
        if not name:
            raise RequestError("tools: a function has no name", "tools")
        function.get("parameters", dict, {}, "an object")
        result.append(Tool(name, definition))
    return tuple(result)


def read_choice(fields: Fields, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The functions of which one has to be called; none where none has to be."""
    choice = fields.get("tool_choice", (str, dict), "auto", "a text or an object")
    if choice in ("auto", "none"):
        return ()
    if choice == "required":
        found = tuple(tools)
    elif isinstance(choice, dict):
        name = Fields(Fields(choice).get("function", dict, {}, "an object")).text("name")
        found = tuple([tool for tool in tools if tool.name == name])
    else:
        raise RequestError(
            "tool_choice: none, auto, required or a function is wanted", "tool_choice"
        )
    if not found:
        raise RequestError("tool_choice names no function of tools", "tool_choice")
    return found


def read_format(fields: Fields) -> Mapping[str, Any] | None:
    """The schema that the answer has to be of; None for any text."""
    wanted = Fields(fields.get("response_format", dict, {}, "an object"), "response_format")
    kind = wanted.text("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError(
            f"response_format: the type {shown(kind)} is not known", "response_format"
        )
    inner = Fields(wanted.get("json_schema", dict, {}, "an object"), "json_schema")
    schema: Mapping[str, Any] | None = inner.get("schema", dict, None, "an object")
    if schema is None:
        raise RequestError("response_format: json_schema has no schema", "response_format")
    return schema


def read_completion(body: Any) -> Wanted:
    """A request for `/v1/completions`."""
    fields = Fields(body)
    top = fields.integer("logprobs", -1, 0, MAX_TOP)
    return Wanted(
        prompts=read_prompts(fields.body.get("prompt"), "prompt"),
        max_tokens=fields.integer("max_tokens", 16, 1, 1 << 24),
        top=None if top < 0 else top,
        schema=read_format(fields),
        **read_common(fields),
    )


def read_prompts(value: Any, name: str) -> list[str | list[int]]:
    """Texts, or lists of tokens: one, or several."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and 0 < len(value) <= MAX_INPUTS:
        if all([isinstance(x, str) for x in value]):
            return list(value)
        if all([x.__class__ is int for x in value]):
            return [list(value)]
        if all([isinstance(x, list) and all([y.__class__ is int for y in x]) for x in value]):
            return [list(x) for x in value]
    raise RequestError(
        f"{name}: a text, a list of tokens, or up to {MAX_INPUTS} of one kind are wanted", name
    )
