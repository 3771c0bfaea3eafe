"""Connections that are slow, silent or too many, and signals while a stream is read."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("llguidance")
pytest.importorskip("uvicorn")

from aster_ml.apps.llm import __main__ as command
from aster_ml.apps.llm import listening
from aster_ml.apps.llm import server as server_module
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.server import Rules
from aster_ml.errors import ArgumentError
from tests.programs.llm.random_models import write_model
from tests.programs.llm.running_server import Running

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = HEAD + b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small random model."""
    path = tmp_path_factory.mktemp("llm") / "x.gguf"
    write_model(path, "llama", more={"context_length": 2048})
    return path


@pytest.fixture(scope="module")
def language(model_path: pathlib.Path) -> Language:
    """It, loaded once."""
    return load_language(model_path, "f32", slots=2)


@pytest.fixture
def running(language: Language, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server that waits for nobody long."""
    monkeypatch.setattr(listening, "ASK_SECONDS", 1.0)
    monkeypatch.setattr(listening, "READ_SECONDS", 1.5)
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 20)
    rules = Rules(body_bytes=200_000, waiting_bytes=500_000, body_seconds=1.0)
    server = Running(language, rules)
    server.start()
    yield server
    server.stop()


def connect(server: Running, said: bytes = b"") -> socket.socket:
    """A connection that has said so much."""
    found = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)
    found.sendall(said)
    return found


def rest(found: socket.socket) -> bytes:
    """What comes until the other side closes the connection."""
    parts = [b""]
    while True:
        try:
            part = found.recv(1 << 16)
        except ConnectionError:
            part = b""
        if not part:
            found.close()
            return b"".join(parts)
        parts.append(part)


def test_connections_that_do_not_ask_are_closed(running: Running) -> None:
    """Silent ones, and those that send their header letter by letter."""
    sockets = [connect(running, said) for said in (b"", b"GET /he", HEAD + b"X-Long: ")]
    dripping = connect(running, HEAD)

    def drip() -> None:
        for _ in range(100):
            try:
                dripping.sendall(b"X")
            except OSError:
                return
            time.sleep(0.1)

    thread = threading.Thread(target=drip)
    thread.start()
    assert running.ask("/v1/chat/completions", CHAT)[0] == 200
    assert [rest(s) for s in sockets] == [b""] * 3
    assert rest(dripping) == b""
    thread.join()


def test_a_body_that_does_not_come_is_told_so(running: Running) -> None:
    said = rest(connect(running, BODY + b"{"))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"took more than 1 s" in said
    assert running.service.held_bytes == 0


def test_a_header_that_is_too_long_is_refused(running: Running) -> None:
    said = rest(connect(running, HEAD + b"X: " + b"a" * 40_000))
    assert said.startswith(b"HTTP/1.1 400 ")


def test_there_are_so_many_connections_at_most(running: Running) -> None:
    """The one that was quiet longest goes, and who asks is answered."""
    sockets = [connect(running) for _ in range(30)]
    assert running.ask("/v1/chat/completions", CHAT)[0] == 200
    assert len(running.server.server_state.connections) <= 20
    assert rest(sockets[0]) == b""
    for s in sockets[1:]:
        s.close()


def test_bodies_together_have_a_limit(running: Running) -> None:
    sockets = [connect(running, BODY + b" " * 90_000) for _ in range(8)]
    answers = [rest(s) for s in sockets]
    assert all(a.startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 408 ")) for a in answers), answers
    assert any(b"503" in a[:15] and b"etry-after: 1" in a.lower() for a in answers)
    assert running.service.held_bytes == 0
    assert running.ask("/v1/chat/completions", CHAT)[0] == 200


def test_who_does_not_read_is_left(running: Running, language: Language) -> None:
    """A stream that nobody reads ends its answer."""
    end = language.tokenizer.eos
    body = {**CHAT, "max_tokens": 1900, "stream": True, "logit_bias": {str(end): -100}}
    body.update(logprobs=True, top_logprobs=20)
    data = json.dumps(body).encode()
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
    head = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    found.sendall(HEAD + head.encode() + data)
    for _ in range(400):
        if not running.server.server_state.connections:
            break
        time.sleep(0.1)
    assert not running.server.server_state.connections
    found.close()


def test_more_than_may_wait_is_refused_before_it_is_read(running: Running) -> None:
    body = {"prompt": ["a"] * 2048, "n": 16}
    status, reply = running.ask("/v1/completions", body)
    assert (status, "32768 answers" in reply["error"]["message"]) == (400, True)


def test_too_many_to_prepare(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_PREPARED", 0)
    assert running.ask("/v1/chat/completions", CHAT)[0] == 503


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80", "Origin": "http://evil.example:80"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:99"}, 200),
    ],
)
def test_pages_of_others_are_refused(
    headers: dict[str, str], status: int, running: Running
) -> None:
    assert running.ask("/v1/chat/completions", CHAT, **headers)[0] == status
    assert running.ask("/v1/models", None, **headers)[0] == status
    assert running.ask("/", None, **headers)[0] == status


def test_models_by_name(running: Running) -> None:
    status, reply = running.ask("/v1/chat/completions", {**CHAT, "model": "gpt-4"})
    assert (status, reply["error"]["code"]) == (404, "model_not_found")
    assert (reply["error"]["param"], reply["error"]["type"]) == ("model", "invalid_request_error")
    for name in ("x", "x.gguf", "", None):
        assert running.ask("/v1/chat/completions", {**CHAT, "model": name})[0] == 200
    assert running.ask("/v1/embeddings", {"input": "a", "model": "gpt-4"})[0] == 404


def test_keys_of_all_kinds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(*words: str) -> tuple[str, ...]:
        return command.keys_of(command.make_parser().parse_args(["m", "--serve", *words]))

    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    monkeypatch.delenv("ASTER_API_KEY", raising=False)
    assert keys() == ()
    assert keys("--api-key", "a", "--api-key-file", str(path)) == ("a", "one", "two")
    path.write_text("\n")
    for words in (["--api-key", ""], ["--api-key", " "], ["--api-key-file", str(path)]):
        with pytest.raises(ArgumentError, match="key is empty"):
            keys(*words)
    with pytest.raises(ArgumentError, match="no header"):
        keys("--api-key", "schlüssel")
    monkeypatch.setenv("ASTER_API_KEY", "b")
    assert keys("--api-key", "a") == ("a", "b")
    monkeypatch.setenv("ASTER_API_KEY", "")
    with pytest.raises(ArgumentError, match="ASTER_API_KEY: a key is empty"):
        keys()


def test_addresses_as_browsers_want_them() -> None:
    assert listening.address_of("::1", 8000) == "http://[::1]:8000/"
    assert listening.address_of("127.0.0.1", 80) == "http://127.0.0.1:80/"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def stream_until_end(port: int, begun: threading.Event, lines: list[str]) -> None:
    """Reads a stream to its end."""
    body: dict[str, Any] = {**CHAT, "stream": True, "max_tokens": 1900, "logit_bias": {"257": -100}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            lines.append(line.decode().strip())
            begun.set()
    connection.close()


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_server_and_its_streams(name: str, model_path: pathlib.Path) -> None:
    port = free_port()
    call = [sys.executable, "-m", "aster_ml.cli", "llm", str(model_path), "--serve"]
    call += ["--port", str(port), "--dtype", "f32", "--slots", "1"]
    begun, lines = threading.Event(), list[str]()
    reader = threading.Thread(target=stream_until_end, args=(port, begun, lines))
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
            reader.start()
            assert begun.wait(60)
            begin = time.monotonic()
            process.send_signal(getattr(signal, name))
            assert process.wait(30) == 0
            assert time.monotonic() - begin < listening.END_SECONDS + 1
            reader.join()
        finally:
            process.kill()
    assert lines[-1] == "data: [DONE]"
    assert "going down" in lines[-2]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
