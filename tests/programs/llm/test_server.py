"""The server, asked by OpenAI's own client and by requests that are odd."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("llguidance")
pytest.importorskip("uvicorn")

from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.server import Rules, make_app
from aster_ml.apps.llm.tools import ToolReader
from tests.programs.llm.random_models import write_model
from tests.programs.llm.running_server import Running

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """A small random model."""
    path = tmp_path_factory.mktemp("llm") / "x.gguf"
    write_model(path, "llama", more={"context_length": 2048})
    return load_language(path, "f32", slots=3)


@pytest.fixture(scope="module")
def running(language: Language) -> Iterator[Running]:
    """A server of it that anybody may ask."""
    server = Running(language, Rules(body_bytes=20_000))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(running: Running) -> Any:
    """OpenAI's client."""
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=60)


def test_a_chat_at_once_and_streamed(client: Any, language: Language) -> None:
    whole = client.chat.completions.create(model="x", **CHAT)
    assert whole.model == language.name
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 5
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 5
    chunks = list(
        client.chat.completions.create(
            model="x", stream=True, stream_options={"include_usage": True}, **CHAT
        )
    )
    text = "".join([c.choices[0].delta.content or "" for c in chunks if c.choices])
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_completions_seeds_and_choices(client: Any) -> None:
    options: dict[str, Any] = {"model": "x", "prompt": ["the", "an"], "max_tokens": 6, "n": 2}
    first = client.completions.create(seed=3, **options)
    again = client.completions.create(seed=3, **options)
    other = client.completions.create(seed=4, **options)
    texts = [[c.text for c in reply.choices] for reply in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 4
    assert texts[0][0] != texts[0][1]
    assert [c.index for c in first.choices] == [0, 1, 2, 3]


def test_odds(client: Any) -> None:
    reply = client.chat.completions.create(model="x", logprobs=True, top_logprobs=3, **CHAT)
    content = reply.choices[0].logprobs.content
    assert len(content) == 5
    for token in content:
        assert len(token.top_logprobs) == 3
        # The most likely token was taken.
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token
    old = client.completions.create(model="x", prompt="the", logprobs=2, max_tokens=4, seed=2)
    assert len(old.choices[0].logprobs.tokens) == 4
    assert old.choices[0].logprobs.text_offset[0] == 0


def test_stop_strings_and_biases(client: Any, language: Language) -> None:
    plain = client.chat.completions.create(model="x", **{**CHAT, "max_tokens": 12})
    said = plain.choices[0].message.content
    stop = said[3:5]
    cut = client.chat.completions.create(model="x", stop=stop, **{**CHAT, "max_tokens": 12})
    assert cut.choices[0].message.content == said[: said.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    letter = language.tokenizer.number["m"]
    biased = client.chat.completions.create(model="x", logit_bias={str(letter): 100}, **CHAT)
    assert biased.choices[0].message.content == "mmmmm"


@pytest.mark.parametrize("stream", [False, True])
def test_json_is_always_of_its_schema(client: Any, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 99, "minimum": 0},
            "b": {"enum": ["x", "y"]},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    for seed in range(3):
        reply = client.chat.completions.create(
            model="x", messages=CHAT["messages"], response_format=form, seed=seed,
            temperature=2.0, max_tokens=120, stream=stream,
        )  # fmt: skip
        if stream:
            parts = [c for c in reply if c.choices]
            text = "".join([c.choices[0].delta.content or "" for c in parts])
            reason = parts[-1].choices[0].finish_reason
        else:
            text, reason = reply.choices[0].message.content, reply.choices[0].finish_reason
        assert reason == "stop", text
        value = json.loads(text)
        assert set(value) == {"a", "b"}
        assert 0 <= value["a"] <= 99
        assert value["b"] in ("x", "y")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called(client: Any, stream: bool) -> None:
    reply = client.chat.completions.create(
        model="x", messages=CHAT["messages"], tools=[TOOL], tool_choice="required",
        max_tokens=150, temperature=2.0, seed=1, stream=stream,
    )  # fmt: skip
    if stream:
        parts = [c.choices[0] for c in reply if c.choices]
        pieces = [p.delta.tool_calls[0] for p in parts if p.delta.tool_calls]
        assert {p.index for p in pieces} == {0}
        name = pieces[0].function.name
        arguments = "".join([p.function.arguments or "" for p in pieces])
        reason = parts[-1].finish_reason
        assert pieces[0].id.startswith("call_")
    else:
        call = reply.choices[0].message.tool_calls[0]
        name, arguments = call.function.name, call.function.arguments
        reason = reply.choices[0].finish_reason
    assert (name, reason) == ("weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Bonn", "Rome")


def test_calls_are_found_in_any_pieces() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    for text, said, count in [
        (f"Let me see. {call}", "Let me see. ", 1),
        (call + "\n" + call, "", 2),
        ('{"name": "f", "parameters": {"x": 1}}', "", 1),
        ('[{"name": "f", "arguments": "{}"}]', "", 1),
        ('{"name": "g", "arguments": {}}', '{"name": "g", "arguments": {}}', 0),
        ("a < b <tool", "a < b <tool", 0),
        ("<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", 0),
        ('<tool_call>{"name": "f", "arguments": {}}', "", 1),
    ]:
        for size in (1, 3, 1000):
            reader = ToolReader(["f"])
            plain, calls = "", []
            for at in range(0, len(text), size):
                more, found = reader.push(text[at : at + size])
                plain, calls = plain + more, calls + found
            more, found = reader.end()
            plain, calls = plain + more, calls + found
            assert plain.strip() == said.strip(), (text, size)
            assert [c.number for c in calls] == list(range(count))


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("chat/completions", b"{", 400, "no JSON"),
        ("chat/completions", b"[" * 15_000, 400, "no JSON"),
        ("chat/completions", b'{"messages": NaN}', 400, "no JSON"),
        ("chat/completions", b"[]", 400, "no JSON object"),
        ("chat/completions", b" " * 20_001, 413, "20000 bytes"),
        ("chat/completions", {}, 400, "at least one"),
        ("chat/completions", {"messages": [{"role": "pirate", "content": "x"}]}, 400, "pirate"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "content is 5"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "only parts of the type text",
        ),
        ("chat/completions", {**CHAT, "temperature": -1}, 400, "temperature is -1"),
        ("chat/completions", {**CHAT, "temperature": "hot"}, 400, "'hot'; a number"),
        ("chat/completions", {**CHAT, "top_p": 10**400}, 400, "0 to 1 is wanted"),
        ("chat/completions", {**CHAT, "n": 99}, 400, "n is 99; 1 to 16"),
        ("chat/completions", {**CHAT, "n": True}, 400, "n is True"),
        ("chat/completions", {**CHAT, "stop": [""]}, 400, "stop"),
        ("chat/completions", {**CHAT, "logit_bias": {"a": 1}}, 400, "logit_bias"),
        ("chat/completions", {**CHAT, "logit_bias": {"999": 1}}, 400, "token 999"),
        ("chat/completions", {**CHAT, "top_logprobs": 3}, 400, "wants logprobs"),
        ("chat/completions", {**CHAT, "functions": [{}]}, 400, "functions is not supported"),
        ("chat/completions", {**CHAT, "tool_choice": "required"}, 400, "no function"),
        ("chat/completions", {**CHAT, "response_format": {"type": "yaml"}}, 400, "yaml"),
        (
            "chat/completions",
            {
                **CHAT,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "object", "patternProperties": 3}},
                },
            },
            400,
            "not supported",
        ),
        (
            "chat/completions",
            {
                **CHAT,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "array", "uniqueItems": True}},
                },
            },
            400,
            "not supported",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x" * 3000}]},
            400,
            "nothing is cut in silence",
        ),
        ("completions", {"prompt": []}, 400, "prompt"),
        ("completions", {"prompt": [5, -1]}, 400, "token -1"),
        ("completions", {"prompt": "a", "suffix": "b"}, 400, "suffix is not supported"),
        ("embeddings", {"input": [1, 2]}, 400, "no tokens"),
        ("embeddings", {"input": "a", "dimensions": 5}, 400, "dimensions"),
    ],
)
def test_what_is_refused(
    path: str, body: Any, status: int, said: str, running: Running, language: Language
) -> None:
    before = language.engine.counts.answers
    got, reply = running.ask(f"/v1/{path}", body)
    assert (got, said in reply["error"]["message"]) == (status, True), reply
    assert language.engine.counts.answers == before, "something was generated"


@pytest.mark.parametrize("depth", [5, 100, 300, 600, 900, 970, 985, 2000])
def test_what_is_nested_deep_is_answered_or_refused(depth: int, running: Running) -> None:
    function = {"name": "f", "parameters": "DEEP"}
    tools = [{"type": "function", "function": function}]
    form = {"type": "json_schema", "json_schema": {"schema": "DEEP"}}
    call = {"function": {"name": "f", "arguments": "DEEP"}}
    # Longer than what the test itself can write of mappings.
    deep = '{"a":' * depth + "{}" + "}" * depth
    for more in (
        {"tools": tools},
        {"tools": tools, "tool_choice": "required"},
        {"response_format": form},
        {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]},
    ):
        body = json.dumps({**CHAT, **more}).replace('"DEEP"', deep).encode()
        assert running.ask("/v1/chat/completions", body)[0] in (200, 400), more


def test_an_answer_of_one_call(client: Any) -> None:
    """Also where the model would go on to another."""
    reply = client.chat.completions.create(
        model="x", messages=CHAT["messages"], tools=[TOOL], tool_choice="required",
        parallel_tool_calls=False, max_tokens=150, temperature=2.0, seed=1,
    )  # fmt: skip
    assert len(reply.choices[0].message.tool_calls) == 1
    reader = ToolReader(["f"], 1)
    calls = reader.push('<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2)[1]
    assert len(calls) == 1
    assert reader.end()[1] == []


def test_an_answer_of_a_schema_beside_tools(client: Any, language: Language) -> None:
    schema = {"enum": ["yes", "no"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    kinds = set()
    quote = {str(language.tokenizer.number['"']): 50}
    for seed in range(6):
        reply = client.chat.completions.create(
            model="x", messages=CHAT["messages"], tools=[TOOL], response_format=form, seed=seed,
            max_tokens=150, logit_bias=quote if seed % 2 else {},
        )  # fmt: skip
        message = reply.choices[0].message
        if message.tool_calls:
            assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Bonn", "Rome")
        else:
            assert json.loads(message.content) in ("yes", "no")
        kinds.add(bool(message.tool_calls))
    assert kinds == {False, True}


def test_another_type_of_content_is_refused(running: Running) -> None:
    body = json.dumps(CHAT).encode()
    status, reply = running.ask("/v1/chat/completions", body, **{"Content-Type": "text/plain"})
    assert (status, reply["error"]["type"]) == (415, "invalid_request_error")


def test_embeddings_models_health_metrics_and_the_page(client: Any, running: Running) -> None:
    vectors = client.embeddings.create(model="x", input=["abc", "a"])
    assert [v.embedding for v in vectors.data] == [[3.0, 1.0], [1.0, 1.0]]
    assert client.models.list().data[0].owned_by == "aster-ml"
    assert running.ask("/health") == (200, {"status": "ok"})
    status, text = running.ask("/metrics")
    assert status == 200
    assert "# TYPE aster_llm_tokens_total counter" in text
    assert "aster_llm_slots 3\n" in text
    status, page = running.ask("/")
    assert status == 200
    assert "/v1/chat/completions" in page
    assert running.ask("/nothing")[0] == 404


def test_a_client_that_leaves_ends_its_answer(running: Running, language: Language) -> None:
    """Before the first token, while streaming, and where it waits for the whole."""
    engine = language.engine
    end = language.tokenizer.eos
    long = {**CHAT, "max_tokens": 150, "logit_bias": {str(end): -100}}
    for body in ({**long, "stream": True}, long):
        before = engine.counts.cancelled
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))) as s:
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Length: {len(data)}\r\n"
            s.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
            # A moment of stepping is slowed down, so that the client is gone before the end.
            plain = engine.write

            def slowly(*args: Any, plain: Any = plain) -> None:
                time.sleep(0.02)
                plain(*args)

            engine.write = slowly  # type: ignore[method-assign]
            time.sleep(0.3)
        for _ in range(200):
            if engine.counts.cancelled > before:
                break
            time.sleep(0.05)
        engine.write = plain  # type: ignore[method-assign]
        assert engine.counts.cancelled == before + 1, body["max_tokens"]
        assert not engine.busy


def test_many_clients_at_once(running: Running) -> None:
    """Each gets what it gets alone."""
    bodies = [
        {**CHAT, "messages": [{"role": "user", "content": f"number {i}"}], "max_tokens": 4 + i}
        for i in range(6)
    ]
    want = [running.ask("/v1/chat/completions", body)[1]["choices"] for body in bodies]
    got: dict[int, Any] = {}

    def ask(i: int) -> None:
        got[i] = running.ask("/v1/chat/completions", bodies[i])[1]["choices"]

    threads = [threading.Thread(target=ask, args=[i]) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(len(bodies))] == want


def test_keys_and_origins(language: Language) -> None:
    server = Running(language, Rules(("secret", "other"), ("https://my.page",)))
    server.start()
    try:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert server.ask("/v1/chat/completions", CHAT, **headers)[0] == 401
            assert server.ask("/v1/models", **headers)[0] == 401
        good = {"Authorization": "Bearer other", "Origin": "https://my.page"}
        assert server.ask("/v1/chat/completions", CHAT, **good)[0] == 200
        assert server.ask("/health")[0] == 200
        request = urllib.request.Request(server.url + "/health", headers=good)
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["access-control-allow-origin"] == "https://my.page"
    finally:
        server.stop()


def test_the_page_is_one_file(running: Running) -> None:
    text = pathlib.Path(make_app.__code__.co_filename).with_name("page.html").read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert running.ask("/")[1] == text
