"""Language models and odd input: requests of the server, metadata of files, chat templates.

Each case is a valid one with a few places changed at random. A request is read or refused with
`ArgumentError`; a file is loaded or refused with an error of Aster's; nothing else may happen.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from aster_ml.apps.llm.architectures import read_config
from aster_ml.apps.llm.loading import make_template
from aster_ml.apps.llm.requests import read_chat, read_completion
from aster_ml.apps.llm.template import ChatTemplate
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.apps.llm.tools import ToolReader
from aster_ml.errors import ArgumentError, AsterError, FormatError
from aster_ml.formats.gguf.values import Metadata
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.random_models import vocabulary
from tests.programs.llm.vocabularies import plain, sentencepiece

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "y"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "z"},
    ],
    "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["a"], "seed": 3, "max_tokens": 5,
    "logit_bias": {"5": 1.5}, "logprobs": True, "top_logprobs": 2, "stream": True,
    "stream_options": {"include_usage": True}, "presence_penalty": 0.1,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
}  # fmt: skip
COMPLETION = {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "n": 1, "stop": "x"}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308,
    float("inf"), "", "x", "auto", "\ud800", "a" * 1000, [], {}, [[]], [None], {"": None},
    ["a", 1], {"type": "text"}, [[1, 2], [3]],
]  # fmt: skip
ARCHITECTURE = {
    "general.architecture": "llama", "general.name": "x", "llama.block_count": 2,
    "llama.context_length": 64, "llama.embedding_length": 64, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.attention.key_length": 16, "llama.expert_count": 0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
    "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
    "llama.attention.sliding_window": 8, "tokenizer.chat_template": "{{ messages[0].content }}",
}  # fmt: skip


def change(rng: random.Random, value: Any) -> Any:
    """A copy with one place changed: another value, one more, one less."""
    if rng.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(ODD)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        result = dict(value)
        if rng.random() < 0.15:
            del result[key]
        else:
            result[key] = change(rng, value[key])
        return result
    i = rng.randrange(len(value))
    kept = [*value[:i], change(rng, value[i]), *value[i + 1 :]]
    return kept * 2 if rng.random() < 0.1 else kept


def test_requests(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        body, read = rng.choice([(CHAT, read_chat), (COMPLETION, read_completion)])
        changed: Any = body
        for _ in range(rng.randint(1, 4)):
            changed = change(rng, changed)
        try:
            wanted = read(changed)
        except ArgumentError:
            return None
        # What was accepted is of the right kinds.
        fine = all([isinstance(m["content"], str) for m in wanted.messages])
        return None if fine and 1 <= wanted.count <= 16 else f"{changed!r:.200}"

    check_all("requests of the server", draws(1500, 100_000), check, record_property)


SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["a"], "additionalProperties": False,
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", 1]},
        "c": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"const": "y"}]}},
        "d": {"$ref": "#/$defs/e"}, "f": {"type": "string", "pattern": "^[a-c]+$", "maxLength": 4},
    },
    "$defs": {"e": {"type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}}},
}  # fmt: skip


class Sent:
    """A request as Starlette hands it on: a body in two parts, and what it says of itself."""

    def __init__(self, body: bytes) -> None:
        self.headers = {"content-type": "application/json; charset=utf-8"}
        self.parts = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def stream(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


async def body_of(service: Any, body: bytes) -> Any:
    """The JSON of a body, as the server reads it."""
    async with service.body(Sent(body)) as found:
        assert service.held_bytes == len(body)
    assert service.held_bytes == 0
    return found


def test_bodies_up_to_the_first_token(tmp_path: pathlib.Path, record_property: Any) -> None:
    """Bytes become answers that wait for their turn, or a 4xx, whatever was sent."""
    pytest.importorskip("llguidance")
    server = pytest.importorskip("aster_ml.apps.llm.server")
    from aster_ml.apps.llm.loading import load_language
    from tests.programs.llm.random_models import write_model

    write_model(tmp_path / "x.gguf", "llama")
    language = load_language(tmp_path / "x.gguf", "f32", context=128)
    service = server.make_app(language, server.Rules(body_bytes=20_000)).state.service
    chat = {**CHAT, "n": 1}
    chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    ways = [
        (chat, read_chat),
        ({**CHAT, "tool_choice": "required", "response_format": None}, read_chat),
        (COMPLETION, read_completion),
    ]

    class Nobody:
        """Takes no pieces."""

        def deliver_to(self, number: int) -> Any:
            return lambda piece: None

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        changed: Any
        changed, read = rng.choice(ways)
        for _ in range(rng.randint(0, 3)):
            changed = change(rng, changed)
        body = bytearray(json.dumps(changed).encode())
        for _ in range(rng.choice([0, 0, 0, 1, 2, 5])):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randint(0, 3)] = rng.choice(
                [b"", b"[", b'"', b"\\", b"\xff", b"\x00", b"e9", b"{}", b",", b"NaN"]
            )
        try:
            wanted = read(asyncio.run(body_of(service, bytes(body))))
            answers = service.answers(wanted, Nobody(), "")
        except ArgumentError as error:
            status = getattr(error, "status", 400)
            return None if 400 <= status < 500 else f"{status}: {error}"
        for answer in answers:
            answer.prepare()
        return None if answers else f"{bytes(body)!r:.200}: no answer"

    check_all("bodies of requests", draws(150, 100_000), check, record_property)


def test_metadata(record_property: Any) -> None:
    words = [plain(vocabulary()), plain(sentencepiece())]

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        values: Any = {**ARCHITECTURE, **rng.choice(words)}
        for _ in range(rng.randint(1, 4)):
            key = rng.choice(list(values))
            values = {**values, key: change(rng, values[key])}
        metadata = Metadata()
        metadata.update(values)
        try:
            read_config(metadata)
            tokenizer = Tokenizer(metadata)
            template = make_template(metadata, tokenizer)
        except FormatError:
            return None
        text = "the <|end|> é€ 12"
        tokenizer.decode(tokenizer.encode(text, special=True))
        try:
            template.render([{"role": "user", "content": text}])
        except ArgumentError:
            return None
        return None

    check_all("metadata of language models", draws(120, 20_000), check, record_property)


PARTS = [
    "{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{% if m.role == 'user' %}",
    "{% endif %}", "{{ m['content'] * 3 }}", "{% set ns = namespace(x=1) %}", "{{ ns.x ~ 'a' }}",
    "{{ messages | length }}", "{{ range(9) | list }}", "{% set ns.x = ns.x * 99 %}", "{{", "}}",
    "{{ loop.index }}", "{% macro f(x) %}", "{% endmacro %}", "{{ f(1) }}", "{{ m.__class__ }}",
    "{{ messages | tojson }}", "{{ m | attr('x') }}", "{{ 'a'.join(m) }}", "{% else %}", "text",
]  # fmt: skip


def test_templates(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        source = "".join(rng.choices(PARTS, k=rng.randint(1, 12)))
        try:
            ChatTemplate(source).render([{"role": "user", "content": "Hi"}] * 3)
        except AsterError:
            return None
        return None

    check_all("chat templates", draws(100, 20_000), check, record_property)


def test_calls_of_tools(record_property: Any) -> None:
    parts = [
        "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"x": 1}}', "text ", "\n", "{",
        "[", '{"name": "g"}', "<tool", "]", '"name"', '{"name": "f", "arguments": "{}"}', "<", "é",
    ]  # fmt: skip

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        text = "".join(rng.choices(parts, k=rng.randint(0, 8)))
        found = []
        for size in (1, 1000):
            reader = ToolReader(["f"])
            plain_text, calls = "", []
            for at in range(0, len(text), size):
                more, new = reader.push(text[at : at + size])
                plain_text, calls = plain_text + more, calls + new
            more, new = reader.end()
            found.append((plain_text + more, [c.arguments for c in [*calls, *new]]))
        for arguments in found[0][1]:
            json.loads(arguments)
        same = found[0][1] == found[1][1] and found[0][0].split() == found[1][0].split()
        return None if same else f"{text!r} in pieces is {found[0]}, at once {found[1]}"

    check_all("calls of tools", draws(500, 50_000), check, record_property)


def test_files_that_are_cut_or_changed(tmp_path: pathlib.Path, record_property: Any) -> None:
    from aster_ml.apps.llm.loading import load_language
    from tests.programs.llm.random_models import write_model

    whole = tmp_path / "whole.gguf"
    write_model(whole, "llama")
    data = whole.read_bytes()
    path = tmp_path / "x.gguf"

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            # The header is in the first part of the file.
            at = rng.randrange(min(len(changed), 9000))
            changed[at] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        path.write_bytes(changed)
        try:
            load_language(path, "f32", context=16)
        except (AsterError, MemoryError) as error:
            return None if isinstance(error, AsterError) else f"MemoryError: {error}"
        return None

    check_all("damaged files", draws(12, 3000), check, record_property)
