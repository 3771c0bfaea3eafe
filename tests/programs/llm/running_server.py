"""A server of language models in a thread, for tests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from aster_ml.apps.llm.listening import Server
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.server import Rules, make_app


class Running:
    """A server in a thread, on a port of its own."""

    def __init__(self, language: Language, rules: Rules) -> None:
        app = make_app(language, rules, self.vectors)
        self.service = app.state.service
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = Server(app, self.service.worker.finish)
        # Handlers of signals belong to the main thread.
        run = lambda: asyncio.run(self.server.serve([self.socket]))  # noqa: E731
        self.thread = threading.Thread(target=run, daemon=True)

    def vectors(self, texts: list[str]) -> tuple[Any, int]:
        """Stands for a model of sentences."""
        return np.array([[len(t), 1.0] for t in texts], np.float32), len(texts)

    def start(self) -> None:
        self.thread.start()
        for _ in range(600):
            if self.server.started:
                return
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a request; a body that is bytes goes as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                raw = answer.read()
                return answer.status, json.loads(raw) if raw[:1] in b"{[" else raw.decode()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")
