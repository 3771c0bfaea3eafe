"""Reads what a client asks for, in OpenAI's form, and checks it.

Receives the JSON of a request; returns `Wanted`, or raises `RequestError`, which is a 400. Nothing
that is asked for is passed over in silence where it would change the answer: each object has a
table of its fields, and a field that is in no row is refused. null is the same as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aster_ml.apps.llm.sampling import MAX_TOP, RANGES, Sampling
from aster_ml.errors import ArgumentError

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_ANSWERS, MAX_MESSAGES, MAX_INPUTS, MAX_TOOLS, MAX_STOPS = 16, 4096, 2048, 128, 16
MOST = 1 << 24


class RequestError(ArgumentError):
    """A request that cannot be answered: what is wrong, and with which field."""

    def __init__(
        self, said: str, field: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(said)
        self.field, self.status, self.code = field, status, code


class Row(NamedTuple):
    """A field: its name, its kind, what it is where it is absent, its range or its only values.

    `older` is another name of the same. `only` are values that ask for what is done anyway; all
    others ask for what this server has not.
    """

    name: str
    kind: str
    default: Any = None
    low: float = -float("inf")
    high: float = float("inf")
    older: str = ""
    only: tuple[Any, ...] | None = None


# The types of JSON that a kind takes, and how it is called. A truth value is no number.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a text"),
    "flag": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "object": ((dict,), "an object"),
    "list": ((list,), "a list"),
    "texts": ((str, list), "a text or a list"),
    "choice": ((str, dict), "a text or an object"),
    "any": ((object,), "a value"),
}
LIMITS = {name: (low, high) for name, low, high in RANGES}
COMMON = (
    Row("model", "text", ""),
    *[
        Row(name, "integer" if name == "top_k" else "number", default, *LIMITS[name])
        for name, default in (
            ("temperature", 1.0),
            ("top_k", 0),
            ("top_p", 1.0),
            ("min_p", 0.0),
            ("repetition_penalty", 1.0),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
        )
    ],
    Row("logit_bias", "object", {}),
    Row("seed", "integer", None, -(1 << 63), (1 << 64) - 1),
    Row("n", "integer", 1, 1, MAX_ANSWERS),
    Row("stop", "texts", []),
    Row("stream", "flag", False),
    Row("stream_options", "object", {}),
    Row("response_format", "object", {}),
    Row("user", "text", ""),
    # These change nothing of an answer.
    Row("metadata", "object", {}),
    Row("safety_identifier", "text", ""),
    Row("prompt_cache_key", "text", ""),
    Row("prompt_cache_retention", "text", ""),
    # What OpenAI's API has and this server has not.
    Row("store", "flag", only=(False,)),
    Row("service_tier", "text", only=("auto", "default")),
)
CHAT = (
    *COMMON,
    Row("messages", "list", []),
    Row("max_completion_tokens", "integer", 0, 1, MOST, older="max_tokens"),
    Row("logprobs", "flag", False),
    Row("top_logprobs", "integer", 0, 0, MAX_TOP),
    Row("tools", "list", []),
    Row("tool_choice", "choice", "auto"),
    Row("parallel_tool_calls", "flag", True),
    Row("functions", "any", only=([],)),
    Row("function_call", "any", only=()),
    Row("audio", "any", only=()),
    Row("modalities", "list", only=(["text"],)),
    Row("prediction", "any", only=()),
    Row("web_search_options", "any", only=()),
    Row("reasoning_effort", "any", only=()),
    Row("verbosity", "text", only=("medium",)),
)
COMPLETION = (
    *COMMON,
    Row("prompt", "any"),
    Row("max_tokens", "integer", 16, 1, MOST),
    Row("logprobs", "integer", None, 0, MAX_TOP),
    Row("suffix", "text", only=("",)),
    Row("best_of", "integer", only=(1,)),
    Row("echo", "flag", only=(False,)),
)
EMBEDDING = (
    Row("model", "text", ""),
    Row("input", "any"),
    Row("encoding_format", "text", "float", only=("float", "base64")),
    Row("dimensions", "any", only=()),
    Row("user", "text", ""),
)
STREAM_OPTIONS = (Row("include_usage", "flag", False), Row("include_obfuscation", "flag", False))
FORMAT = (Row("type", "text", "text"), Row("json_schema", "object", {}))
# Its schema is kept whether it is strict or not.
SCHEMA = (
    Row("name", "text", ""),
    Row("description", "text", ""),
    Row("strict", "flag", True),
    Row("schema", "object"),
)
MESSAGE = (
    Row("role", "text", ""),
    Row("content", "texts"),
    Row("name", "text", ""),
    Row("refusal", "text", ""),
    Row("reasoning_content", "text", ""),
    Row("tool_call_id", "text", ""),
    Row("tool_calls", "list", []),
    Row("annotations", "any", only=([],)),
    Row("audio", "any", only=()),
    Row("function_call", "any", only=()),
)
CALL = (
    Row("id", "text", ""),
    Row("index", "integer"),
    Row("type", "text", only=("function",)),
    Row("function", "object", {}),
)
CALLED = (Row("name", "text", ""), Row("arguments", "choice", {}))
TOOL = (Row("type", "text", "function", only=("function",)), Row("function", "object", {}))
FUNCTION = (
    Row("name", "text", ""),
    Row("description", "text", ""),
    Row("parameters", "object", {}),
    Row("strict", "flag", False),
)
CHOICE = (Row("type", "text", "function", only=("function",)), Row("function", "object", {}))
CHOSEN = (Row("name", "text", ""),)


def read(body: Any, rows: Sequence[Row], what: str = "the body") -> dict[str, Any]:
    """The value of each field of a table, by name: what is given, or the default.

    Raises: RequestError for a field that is in no row, a value of another kind or out of range, and
    two names of one field with different values.
    """
    if not isinstance(body, dict):
        raise RequestError(f"{what} is no JSON object")
    known = {name for row in rows for name in (row.name, row.older) if name}
    # What is null is not asked for, whatever it is.
    unknown = [name for name, value in body.items() if value is not None and name not in known]
    if unknown:
        raise RequestError(
            f"{shown(unknown[0])} is no field of {what} here; known are {', '.join(sorted(known))}",
            unknown[0],
        )
    return {row.name: read_field(body, row) for row in rows}


def read_field(body: Mapping[str, Any], row: Row) -> Any:
    """The value of one field. Raises: RequestError, as `read` does."""
    given = [name for name in (row.name, row.older) if name and body.get(name) is not None]
    for name in given:
        check_value(name, body[name], row)
    if not given:
        return row.default
    if len(given) == 2 and not same(body[given[0]], body[given[1]]):
        raise RequestError(
            f"{given[1]} is {shown(body[given[1]])} and {given[0]}, which is another name of it, "
            f"{shown(body[given[0]])}; one of them is wanted",
            given[1],
        )
    value = body[given[0]]
    return float(value) if row.kind == "number" else value


def check_value(name: str, value: Any, row: Row) -> None:
    """Raises: RequestError for a value that a field cannot have."""
    types, wanted = KINDS[row.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and row.kind in NUMBERS):
        raise RequestError(f"{name} is {shown(value)}; {wanted} is wanted", name)
    if row.only is not None and not any([same(value, known) for known in row.only]):
        known = f", but for {', '.join([shown(x) for x in row.only])}" if row.only else ""
        raise RequestError(f"{name} is not supported{known}; it is {shown(value)}", name)
    if isinstance(value, (int, float)) and not row.low <= value <= row.high:
        raise RequestError(
            f"{name} is {shown(value)}; {row.low:.20g} to {row.high:.20g} is wanted", name
        )


NUMBERS = ("integer", "number")


def same(a: Any, b: Any) -> bool:
    """Whether two values are one in JSON, where 1 and true are two."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def objects_of(value: list[Any], name: str, most: int) -> list[dict[str, Any]]:
    """A list of objects. Raises: RequestError where it is longer, or of others."""
    if len(value) > most or not all([isinstance(x, dict) for x in value]):
        raise RequestError(f"{name}: at most {most} objects are wanted", name)
    return value


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
    """A request for answers, checked. `top` is how many odds are reported, None for none.

    A schema beside tools is for an answer that calls none of them. With `one_call` an answer has
    one call at most.
    """

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
    one_call: bool = False
    user: str = ""
    model: str = ""


def read_common(found: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields that chats and completions share."""
    options = read(found["stream_options"], STREAM_OPTIONS, "stream_options")
    stop = found["stop"]
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOPS or not all([isinstance(s, str) and s for s in stops]):
        raise RequestError(f"stop: at most {MAX_STOPS} texts that are not empty are wanted", "stop")
    return {
        "sampling": read_sampling(found),
        "schema": read_format(found["response_format"]),
        "count": found["n"],
        "stop": tuple(stops),
        "stream": found["stream"],
        "usage": options["include_usage"],
        "user": found["user"],
        "model": found["model"],
    }


def read_sampling(found: Mapping[str, Any]) -> Sampling:
    """Reads settings of sampling. Raises: RequestError for biases that are none."""
    biases: dict[int, float] = {}
    for key, value in found["logit_bias"].items():
        check_value("logit_bias", value, Row("logit_bias", "number", 0, -100, 100))
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise RequestError(
                f"logit_bias names {shown(key)}; the number of a token is wanted", "logit_bias"
            )
        biases[int(key)] = float(value)
    seed = found["seed"]
    numbers = {name: found[name] for name in LIMITS}
    return Sampling(
        **numbers, logit_bias=biases, seed=None if seed is None else seed & ((1 << 64) - 1)
    )


def read_chat(body: Any) -> Wanted:
    """A request for `/v1/chat/completions`."""
    found = read(body, CHAT)
    messages = [read_message(m) for m in objects_of(found["messages"], "messages", MAX_MESSAGES)]
    if not messages:
        raise RequestError("messages: at least one is wanted", "messages")
    if found["top_logprobs"] and not found["logprobs"]:
        raise RequestError("top_logprobs wants logprobs to be true", "top_logprobs")
    tools = read_tools(found["tools"])
    must = read_choice(found["tool_choice"], tools)
    common = read_common(found)
    if common["schema"] is not None and must:
        raise RequestError("response_format and a tool that must be called exclude each other")
    return Wanted(
        messages=messages,
        max_tokens=found["max_completion_tokens"],
        top=found["top_logprobs"] if found["logprobs"] else None,
        tools=() if found["tool_choice"] == "none" else tools,
        must_call=must,
        one_call=not found["parallel_tool_calls"],
        **common,
    )


def read_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its content as one text."""
    found = read(message, MESSAGE, "a message")
    role = found["role"]
    if role not in ROLES:
        raise RequestError(f"role is {shown(role)}; {', '.join(ROLES)} are known", "messages")
    content = found["content"]
    if content is None and role != "assistant":
        raise RequestError(f"a message of the role {role} has no content", "messages")
    if isinstance(content, list):
        content = "".join([read_part(part) for part in content])
    result: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": content or found["refusal"],
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        if found[name]:
            result[name] = found[name]
    calls = [read_call(call) for call in objects_of(found["tool_calls"], "tool_calls", MAX_TOOLS)]
    return {**result, "tool_calls": calls} if calls else result


def read_part(part: Any) -> str:
    """The text of a part of a message."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        raise RequestError("content: only parts of the type text are supported", "messages")
    rows = (Row("type", "text"), Row(kind, "text", ""))
    return str(read(part, rows, "a part of a message")[kind])


def read_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call that was made earlier, its arguments as an object."""
    found = read(call, CALL, "a call")
    function = read(found["function"], CALLED, "function")
    given = function["arguments"]
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}", parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError("arguments of a tool call are no JSON", "messages") from error
    body = {"name": function["name"], "arguments": given}
    return {"id": found["id"], "type": "function", "function": body}


def read_tools(definitions: list[Any]) -> tuple[Tool, ...]:
    """The functions that may be called."""
    result = []
    for definition in objects_of(definitions, "tools", MAX_TOOLS):
        function = read(read(definition, TOOL, "a tool")["function"], FUNCTION, "a function")
        if not function["name"]:
            raise RequestError("tools: a function has no name", "tools")
        result.append(Tool(function["name"], definition))
    return tuple(result)


def read_choice(choice: Any, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The functions of which one has to be called; none where none has to be."""
    if choice in ("auto", "none"):
        return ()
    if choice == "required":
        found = tuple(tools)
    elif isinstance(choice, dict):
        function = read(choice, CHOICE, "tool_choice")["function"]
        name = read(function, CHOSEN, "tool_choice")["name"]
        found = tuple([tool for tool in tools if tool.name == name])
    else:
        raise RequestError(
            f"tool_choice is {shown(choice)}; none, auto, required or a function is wanted",
            "tool_choice",
        )
    if not found:
        raise RequestError("tool_choice names no function of tools", "tool_choice")
    return found


def read_format(given: Any) -> Mapping[str, Any] | None:
    """The schema that the answer has to be of; None for any text."""
    wanted = read(given, FORMAT, "response_format")
    kind = wanted["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError(
            f"response_format: the type {shown(kind)} is not known", "response_format"
        )
    schema: Mapping[str, Any] | None = read(wanted["json_schema"], SCHEMA, "json_schema")["schema"]
    if schema is None:
        raise RequestError("response_format: json_schema has no schema", "response_format")
    return schema


def read_completion(body: Any) -> Wanted:
    """A request for `/v1/completions`."""
    found = read(body, COMPLETION)
    return Wanted(
        prompts=read_prompts(found["prompt"], "prompt"),
        max_tokens=found["max_tokens"],
        top=found["logprobs"],
        **read_common(found),
    )


def read_embedding(body: Any) -> tuple[list[str], str, str]:
    """A request for `/v1/embeddings`: texts, the form of vectors, the name of a model."""
    found = read(body, EMBEDDING)
    given = read_prompts(found["input"], "input")
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise RequestError("input: texts are wanted, and no tokens", "input")
    return texts, found["encoding_format"], found["model"]


def refuse_constant(name: str) -> None:
    """NaN and infinity are no JSON."""
    raise ValueError(f"{name} is no JSON")


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
