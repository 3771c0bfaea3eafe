"""Attacks a server of a language model on this machine, and prints what it cost others.

`python -m tools.attack_llm MODEL.gguf` starts `aster llm --serve` and sends it, while an honest
client reads a stream: the longest prompts, schemas that are slow to compile, odd fields, bodies of
many clients, connections that say nothing, half a header or half a body, chat templates that ask
for too much (these go to the sandbox, without a server), and a signal. Each row of the table has a
figure and the most that it may be; the exit code is 1 where one is more. `--quick` sends less of
each.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from aster_ml.apps.llm import listening
from aster_ml.apps.llm.template import ChatTemplate
from aster_ml.errors import AsterError
from tests.programs.llm.template_attacks import attacks
from tools.soak_llm import free_port, wait_for

CONTEXT, SLOTS = 512, 4
# The most that figures may be: silence of a stream in seconds, memory in bytes, seconds to end.
SILENCE, GROWTH, ENDING = 0.5, 200e6, 5.0
# How long a client waits that could not connect.
PAUSE = 0.1
LETTERS = {
    "blanks": " ",
    "letters": "a",
    "control words": "<|im_end|>",
    "newlines": "\n",
    "digits": "7",
    "opening marks": "<",
    "emoji": "\U0001f600",
    "words": "a word ",
}
SCHEMAS: dict[str, Any] = {
    "nested counts": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "many items": {"type": "array", "minItems": 10**9},
    "itself": {"$ref": "#"},
    "multiples": {"type": "integer", "multipleOf": 999983},
    "many properties": {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(3000)},
    },
    "alternatives": {
        "type": "array",
        "items": {
            "anyOf": [{"type": "string", "pattern": f"^(a|b)*c{{{i}}}$"} for i in range(200)]
        },
    },
}
FIELDS: list[dict[str, Any]] = [
    {"max_tokens": 0}, {"max_tokens": None, "n": 17}, {"max_tokens": 5, "max_completion_tokens": 6},
    {"temperature": "hot"}, {"seed": 10**30}, {"logprobs": 3}, {"top_logprobs": 5}, {"stop": [""]},
    {"model": "no-such-model"}, {"unknown": 1}, {"tool_choice": "required"}, {"messages": None},
    {"response_format": {"type": "json_schema"}}, {"stream_options": 5}, {"logit_bias": {"x": 1}},
]  # fmt: skip


class Row(NamedTuple):
    """A figure of the table, and the most that it may be."""

    name: str
    figure: float
    most: float
    note: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether it is no more than it may be."""
        return self.figure <= self.most


@dataclass
class Reader:
    """An honest client: it reads stream after stream, and notes the longest silence in one."""

    port: int
    is_over: bool = False
    longest: float = 0.0
    events: int = 0
    last: str = ""
    errors: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Reads until it is told to stop."""
        while not self.is_over:
            try:
                self.read()
            except (OSError, http.client.HTTPException) as error:
                if not self.is_over:
                    self.errors.append(str(error))
                    time.sleep(PAUSE)

    def read(self) -> None:
        """Reads one stream."""
        body = {**chat("Tell me a story."), "stream": True, "user": "honest", "max_tokens": 400}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
            with contextlib.closing(connection.getresponse()) as answer:
                self.note(answer)

    def note(self, answer: http.client.HTTPResponse) -> None:
        """Notes when the events of a stream come."""
        before = 0.0
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            now = time.perf_counter()
            if before:
                self.longest = max(self.longest, now - before)
            before, self.last = now, line.decode()
            self.events += 1
            if self.is_over:
                return


JSON = {"Content-Type": "application/json"}


def chat(text: str, **more: Any) -> dict[str, Any]:
    """A request for a chat of one message."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}


@dataclass
class Siege:
    """A server that is attacked."""

    process: subprocess.Popen[bytes]
    port: int
    is_quick: bool
    rows: list[Row] = field(default_factory=list)

    def resident(self) -> int:
        """The bytes of memory that the server has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def ask(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> int:
        """The status of a request; 0 where the connection was closed."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            with contextlib.closing(connection):
                connection.request("POST", path, data, {**JSON, **headers})
                answer = connection.getresponse()
                answer.read()
                return answer.status
        except (OSError, http.client.HTTPException):
            return 0

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[Reader]:
        """While the block lasts somebody reads streams; a row says how long they were silent."""
        reader = Reader(self.port)
        thread = threading.Thread(target=reader.run)
        thread.start()
        for _ in range(600):
            if reader.events > 2:
                break
            time.sleep(0.05)
        reader.longest = 0.0
        begin = reader.events
        try:
            yield reader
        finally:
            reader.is_over = True
            thread.join()
        note = f"{reader.events - begin} events, {len(reader.errors)} errors"
        self.rows.append(Row(f"silence: {name}", reader.longest, SILENCE, note))

    # attacks

    def prompts(self) -> None:
        """Texts of one kind of letter: as long as a body may be, and as a prompt may be."""
        for name, letter in LETTERS.items():
            with self.watched(f"prompts of {name}"):
                for letters in (CONTEXT * 30, 1 << 20):
                    self.ask(chat(letter * (letters // len(letter))))
                    text = letter * (letters // len(letter))
                    self.ask({"prompt": [text] * 2, "max_tokens": 1}, "/v1/completions")
        with self.watched("2,048 prompts of 16 answers"):
            status = self.ask({"prompt": ["a"] * 2048, "n": 16}, "/v1/completions")
        self.rows.append(Row("32,768 answers: status less 400", status - 400, 99))

    def schemas(self) -> None:
        """Schemas that are slow, large, or have no value."""
        for name, schema in SCHEMAS.items():
            form = {"type": "json_schema", "json_schema": {"schema": schema}}
            with self.watched(f"a schema: {name}"):
                status = self.ask(chat("Hi", response_format=form))
            self.rows.append(Row(f"a schema: {name}: status", status, 499))

    def fields(self) -> None:
        """Fields that are wrong: each is refused."""
        statuses = [self.ask({**chat("Hi"), **wrong}) for wrong in FIELDS]
        accepted = [s for s in statuses if not 400 <= s < 500]
        self.rows.append(Row("wrong fields that were not refused", len(accepted), 0))
        foreign = [
            self.ask(chat("Hi"), Host="evil.example"),
            self.ask(chat("Hi"), Origin="http://evil.example"),
            self.ask(chat("Hi"), Origin="null"),
        ]
        self.rows.append(Row("pages of others that were let in", foreign.count(200), 0))

    def bodies(self) -> None:
        """Large bodies of many clients, all but their last bytes; what stays when they are gone."""
        count = 20 if self.is_quick else 100
        before = self.resident()
        size = 1_000_000
        head = self.head(size)
        sockets = [self.connect(head) for _ in range(count)]
        with self.watched(f"{count} large bodies"):
            for s in sockets:
                with contextlib.suppress(OSError):
                    s.settimeout(1)
                    s.sendall(b" " * (size - 1))
            held = self.resident() - before
            for s in sockets:
                s.close()
            time.sleep(0.5)
        self.rows.append(Row(f"{count} bodies of 1 MB: bytes held", held, GROWTH))
        self.rows.append(Row("bytes held afterwards", self.resident() - before, GROWTH / 2))

    def silent(self) -> None:
        """Connections that say nothing, half a header, half a body; all are closed in time."""
        count = 30 if self.is_quick else 300
        begun = [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-"]
        sockets = [self.connect(begun[i % 2]) for i in range(count)]
        status = self.ask(chat("Hi"))
        time.sleep(listening.ASK_SECONDS + 2)
        left = [s for s in sockets if not is_closed(s)]
        for s in sockets:
            s.close()
        self.rows.append(Row(f"of {count} silent connections are left", len(left), 0))
        self.rows.append(Row("beside them: status", status, 200))

    def crowd(self) -> None:
        """Many clients at once: each is answered, or told to come again."""
        count = 40 if self.is_quick else 300
        with self.watched(f"{count} clients"), ThreadPoolExecutor(40) as pool:
            statuses = list(
                pool.map(self.ask, [chat(f"Hi {i}", user=f"u{i}") for i in range(count)])
            )
        wrong = [s for s in statuses if s not in (200, 503)]
        note = f"{statuses.count(200)} answered"
        self.rows.append(Row(f"of {count} clients got something else", len(wrong), 0, note))

    def templates(self) -> None:
        """Chat templates that ask for too much; none is given it."""
        every = list(attacks())
        random.Random(1).shuffle(every)
        chosen = every[: 30 if self.is_quick else 165]
        longest, passed = 0.0, 0
        for _, source in chosen:
            begin = time.perf_counter()
            try:
                passed += len(ChatTemplate(source).render(chat("Hi")["messages"])) > 4 << 20
            except AsterError:
                longest = max(longest, time.perf_counter() - begin)
        note = f"{longest:.1f} s the longest"
        self.rows.append(Row(f"of {len(chosen)} templates passed a limit", passed, 0, note))

    def ending(self) -> None:
        """A signal while a stream is read: it gets its end, and the process ends."""
        with self.watched("before a signal") as reader:
            time.sleep(0.5)
            begin = time.perf_counter()
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)
            seconds = time.perf_counter() - begin
            reader.is_over = True
            time.sleep(0.1)
        self.rows.append(Row("seconds from SIGTERM to the end", seconds, ENDING))
        has_end = "[DONE]" in reader.last or "error" in reader.last
        self.rows.append(
            Row("streams without an end", float(not has_end), 0, reader.last[:60].strip())
        )

    # parts of requests

    def head(self, size: int) -> bytes:
        """The head of a request with a body of so many bytes."""
        return (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        ).encode()

    def connect(self, said: bytes) -> socket.socket:
        """A connection that has said so much."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        with contextlib.suppress(OSError):
            found.sendall(said)
        return found


def is_closed(found: socket.socket) -> bool:
    """Whether the other side has closed a connection."""
    found.settimeout(0.01)
    try:
        while data := found.recv(4096):
            continue
    except TimeoutError:
        return False
    except OSError:
        return True
    return not data


def table(rows: list[Row]) -> Iterator[str]:
    """The figures as lines."""
    for row in rows:
        mark = "  " if row.is_fine else "! "
        figure = f"{row.figure:,.0f}" if row.figure == int(row.figure) else f"{row.figure:,.3f}"
        yield f"{mark}{row.name:52} {figure:>14} of {row.most:<13,g} {row.note}".rstrip()


def attack(model: str, is_quick: bool) -> list[Row]:
    """All attacks, one after the other."""
    port = free_port()
    call = [sys.executable, "-m", "aster_ml.cli", "llm", model, "--serve", "--port", str(port)]
    call += ["--slots", str(SLOTS), "--context", str(CONTEXT)]
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, env={**os.environ}) as process:
        try:
            wait_for(port, process)
            siege = Siege(process, port, is_quick)
            with siege.watched("nothing, to begin with"):
                time.sleep(1 if is_quick else 5)
            siege.rows.clear()
            for part in (
                siege.fields,
                siege.prompts,
                siege.schemas,
                siege.crowd,
                siege.bodies,
                siege.silent,
                siege.templates,
                siege.ending,
            ):
                part()
        finally:
            process.kill()
    return siege.rows


def main() -> int:
    """Attacks a server; 1 where a figure is more than it may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = attack(options.model, options.quick)
    for line in table(rows):
        print(line)
    return 0 if all([row.is_fine for row in rows]) else 1


if __name__ == "__main__":
    sys.exit(main())
