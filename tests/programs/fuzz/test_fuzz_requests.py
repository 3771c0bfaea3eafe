"""Fields of requests and values of all kinds, against a small oracle written from the reference.

A case is a valid request with up to three fields set to some value: null, 0, the default, the edges
of its range, another type, another name of the same field. The oracle says whether that is accepted
and what is read of it then; nothing else is ever read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jinja2")

from aster_ml.apps.llm.requests import RequestError, Wanted, read_chat, read_completion
from tests.fuzz.budget import check_all, draws

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 16, 17, 20, 21, 100, 101, -100, -101, 2**24, 2**24 + 1, 2**63,
    2**64, -(2**63) - 1, 10**300, 0.0, 0.01, 0.009, 0.5, 1.0, 1.5, -0.5, 1e308, float("inf"), "",
    "x", "1", "auto", "none", "required", "default", "flex", "medium", "low", "text", "float", [],
    ["text"], [""], ["x", "y"], ["x"] * 16, ["x"] * 17, [1], [None], {}, {"1": 5}, {"1": 101},
    {"1": None}, {"a": 1}, {"1": True}, {"-1": 1}, {"type": "text"}, {"type": "json_object"},
    {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {}}},
    {"type": "json_schema", "json_schema": {"schema": None}}, {"type": None}, {"type": "yaml"},
    {"include_usage": True}, {"include_usage": 1}, {"include_usage": None}, {"other": 1},
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g"}},
    [{"type": "function", "function": {"name": "f"}}],
    [{"type": "function", "function": {"name": ""}}], [{"type": "other"}],
]  # fmt: skip
ONE_TOOL = [{"type": "function", "function": {"name": "f"}}]


def whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v <= high


def real(low: float, high: float) -> Callable[[Any], bool]:
    return lambda v: type(v) in (int, float) and low <= v <= high


def of(*types: type) -> Callable[[Any], bool]:
    return lambda v: type(v) in types


def one_of(*values: Any) -> Callable[[Any], bool]:
    texts = [json.dumps(v) for v in values]
    return lambda v: v != float("inf") and json.dumps(v) in texts


def is_stop(v: Any) -> bool:
    if type(v) is str:
        return v != ""
    return type(v) is list and len(v) <= 16 and all(type(x) is str and x for x in v)


def is_bias(v: Any) -> bool:
    return type(v) is dict and all(k.isdigit() and real(-100, 100)(x) for k, x in v.items())


def given_in(v: Any) -> Any:
    """An object without what is null."""
    return {k: x for k, x in v.items() if x is not None} if type(v) is dict else v


def is_form(v: Any) -> bool:
    found = given_in(v)
    return found in ({}, {"type": "text"}, {"type": "json_object"}) or (
        type(v) is dict
        and v.get("type") == "json_schema"
        and (v.get("json_schema") or {}).get("schema") == {}
    )


BOTH: dict[str, Callable[[Any], bool]] = {
    "model": of(str), "user": of(str), "stream": of(bool), "n": whole(1, 16), "stop": is_stop,
    "seed": whole(-(2**63), 2**64 - 1), "temperature": real(0, 100), "top_k": whole(0, 2**24),
    "top_p": real(0, 1), "min_p": real(0, 1), "repetition_penalty": real(0.01, 100),
    "presence_penalty": real(-100, 100), "frequency_penalty": real(-100, 100),
    "logit_bias": is_bias, "response_format": is_form, "metadata": of(dict),
    "stream_options": lambda v: given_in(v) == {}
    or (given_in(v) == {"include_usage": True} and v["include_usage"] is True),
    "store": one_of(False), "service_tier": one_of("auto", "default"),
    "safety_identifier": of(str), "no_such_field": lambda v: False,
}  # fmt: skip
CHAT: dict[str, Callable[[Any], bool]] = {
    **BOTH,
    "max_tokens": whole(1, 2**24), "max_completion_tokens": whole(1, 2**24),
    "logprobs": of(bool), "top_logprobs": whole(0, 20),
    "tools": lambda v: v in ([], ONE_TOOL), "parallel_tool_calls": of(bool),
    "tool_choice": one_of("auto", "none", "required", ONE_TOOL[0]),
    "functions": one_of([]), "function_call": lambda v: False, "audio": lambda v: False,
    "modalities": one_of(["text"]), "verbosity": one_of("medium"),
    "reasoning_effort": lambda v: False, "prompt": lambda v: False,
}  # fmt: skip
TEXT: dict[str, Callable[[Any], bool]] = {
    **BOTH,
    "max_tokens": whole(1, 2**24), "logprobs": whole(0, 20), "suffix": one_of(""),
    "best_of": one_of(1), "echo": one_of(False), "max_completion_tokens": lambda v: False,
    "tools": lambda v: False, "messages": lambda v: False,
}  # fmt: skip


def is_accepted(body: dict[str, Any], table: dict[str, Callable[[Any], bool]]) -> bool:
    """Whether each field is right by itself, and beside the others."""
    given = {k: v for k, v in body.items() if v is not None and k in table}
    if not all([table[k](v) for k, v in given.items()]):
        return False
    if table is TEXT:
        return True
    limits = [given[k] for k in ("max_tokens", "max_completion_tokens") if k in given]
    if len(set(limits)) == 2 or (given.get("top_logprobs") and not given.get("logprobs")):
        return False
    choice = given.get("tool_choice", "auto")
    must = choice not in ("auto", "none")
    if must and not given.get("tools"):
        return False
    return not must or given.get("response_format", {}).get("type") in (None, "text")


def differences(body: dict[str, Any], wanted: Wanted, is_chat: bool) -> list[str]:
    """What was read in another way than it was given."""
    given = {k: v for k, v in body.items() if v is not None}
    limit = given.get("max_tokens", given.get("max_completion_tokens", 0 if is_chat else 16))
    top = given.get("logprobs")
    if is_chat:
        top = given.get("top_logprobs", 0) if top else None
    stop = given.get("stop", [])
    pairs = {
        "limit": (limit, wanted.max_tokens),
        "top": (top, wanted.top),
        "n": (given.get("n", 1), wanted.count),
        "stop": ((stop,) if isinstance(stop, str) else tuple(stop), wanted.stop),
        "stream": (given.get("stream", False), wanted.stream),
        "usage": (bool(given.get("stream_options", {}).get("include_usage")), wanted.usage),
        "temperature": (given.get("temperature", 1.0), wanted.sampling.temperature),
        "seed": (given["seed"] % 2**64 if "seed" in given else None, wanted.sampling.seed),
        "biases": (
            {int(k): v for k, v in given.get("logit_bias", {}).items()},
            wanted.sampling.logit_bias,
        ),
        "one call": (given.get("parallel_tool_calls") is False, wanted.one_call),
        "tools": (
            0 if given.get("tool_choice") == "none" else len(given.get("tools", [])),
            len(wanted.tools),
        ),
    }
    return [f"{k}: {want} was read as {got}" for k, (want, got) in pairs.items() if want != got]


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_fields_and_values(kind: str, record_property: Any) -> None:
    is_chat = kind == "chat"
    table, read = (CHAT, read_chat) if is_chat else (TEXT, read_completion)
    least = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        fields = dict[str, Any](least)
        for name in rng.sample(list(table), rng.randint(1, 3)):
            fitting = [v for v in VALUES if v is not None and table[name](v)]
            fields[name] = rng.choice(fitting if fitting and rng.random() < 0.6 else VALUES)
        expected = is_accepted(fields, table)
        try:
            wanted = read(fields)
        except RequestError as error:
            said = f"{fields!r:.300} was refused: {error}"
            return said if expected or error.status != 400 else None
        if not expected:
            return f"{fields!r:.300} was accepted"
        wrong = differences(fields, wanted, is_chat)
        return f"{fields!r:.300}: {wrong}" if wrong else None

    check_all(f"fields of a {kind}", draws(1500, 100_000), check, record_property)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_each_field_with_each_value(kind: str) -> None:
    is_chat = kind == "chat"
    table, read = (CHAT, read_chat) if is_chat else (TEXT, read_completion)
    least = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}
    wrong = []
    for name in table:
        for value in VALUES:
            fields: dict[str, Any] = {**least, name: value}
            try:
                read(fields)
                accepted = True
            except RequestError:
                accepted = False
            if accepted != is_accepted(fields, table):
                wrong.append((name, value, accepted))
    assert not wrong
