"""Asks a server of a language model many times, by several clients, and watches its memory.

`python -m tools.soak_llm MODEL.gguf --requests 1000 --clients 8` starts `aster llm --serve` and
streams chats of different lengths from it, some of which leave early. It prints how many streams
were complete and how the memory grew after the first hundred. The exit code is 1 where one was not
complete, or memory grew by more than a tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

WARM, GROWTH = 100, 1.1
WORDS = "sun moon river stone bread music garden winter letter window".split()


@dataclass
class Soak:
    """What is asked of the server, and what came."""

    port: int
    pid: int
    requests: int
    begun: int = 0
    complete: int = 0
    left_early: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    warm_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def resident(self) -> int:
        """The bytes of memory that the server has."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

    def next_number(self) -> int | None:
        """The number of the next request; None where there were enough."""
        with self.lock:
            if self.begun == self.requests:
                return None
            self.begun += 1
            if self.begun == min(WARM, self.requests) + 1:
                self.warm_bytes = self.resident()
            return self.begun

    def client(self) -> None:
        """Asks until there were enough requests."""
        while (number := self.next_number()) is not None:
            try:
                self.ask(number)
            except (OSError, ValueError, http.client.HTTPException) as error:
                with self.lock:
                    self.errors.append(f"request {number}: {error}")

    def ask(self, number: int) -> None:
        """One chat. Raises: ValueError where its stream is not complete."""
        rng = random.Random(number)
        text = "Tell me about " + " and ".join(rng.choices(WORDS, k=rng.randint(1, 20)))
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": rng.randint(1, 24),
            "seed": number,
            "stream": True,
            "user": f"client {number % 5}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read()[:200]!r}")
        leaves = number % 10 == 0
        events: list[str] = []
        for line in answer:
            if line.startswith(b"data: "):
                events.append(line[6:].decode().strip())
            if leaves and len(events) == 2:
                connection.close()
                with self.lock:
                    self.left_early += 1
                return
        connection.close()
        ends = [json.loads(e)["choices"][0]["finish_reason"] for e in events[:-1]]
        if events[-1] != "[DONE]" or ends[-1] not in ("stop", "length"):
            raise ValueError(f"the stream ended with {events[-2:]}")
        with self.lock:
            self.complete += 1
            self.tokens += len(ends)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Returns when the server answers. Raises: RuntimeError where it ends before."""
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


def main() -> int:
    """Runs the soak; 1 where something was not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    port = free_port()
    call = [
        sys.executable,
        "-m",
        "aster_ml.apps.llm",
        options.model,
        "--serve",
        "--port",
        str(port),
    ]
    with subprocess.Popen([*call, "--slots", str(options.clients), "--context", "512"]) as process:
        try:
            wait_for(port, process)
            soak = Soak(port, process.pid, options.requests)
            begin = time.perf_counter()
            threads = [threading.Thread(target=soak.client) for _ in range(options.clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds, end_bytes = time.perf_counter() - begin, soak.resident()
        finally:
            process.terminate()
    warm = soak.warm_bytes or end_bytes
    print(
        f"{soak.begun} requests by {options.clients} clients in {seconds:.0f} s: {soak.complete} "
        f"complete, {soak.left_early} left early, {len(soak.errors)} errors; "
        f"{soak.tokens / seconds:.1f} events/s; memory {warm / 1e6:.0f} MB after {WARM} requests, "
        f"{end_bytes / 1e6:.0f} MB at the end"
    )
    for line in soak.errors[:10]:
        print(line)
    return 1 if soak.errors or end_bytes > warm * GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
