"""Serves the page on this machine, so that a run can be looked at while it goes on.

Receives data, or a script that is run here; serves the page at / and its data at /data. Others than
this machine cannot reach it, and a page of another site that makes its own name lead here is
refused. A connection that asks for nothing is closed, and there are so many of them at most.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aster_ml.hosts import why_refused
from aster_ml.thread_state import ENGINE
from aster_ml.viz.model import make_data
from aster_ml.viz.page import page_of
from aster_ml.viz.session import begin, end

HOST = "127.0.0.1"
# How long a connection may be silent, and how many there are at once.
SILENT_SECONDS, MOST_CONNECTIONS = 10.0, 32


class Server(ThreadingHTTPServer):
    """A server with a thread for each of so many connections."""

    def __init__(self, *options: Any) -> None:
        self.free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection, or closes it where there are too many."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves it in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()


def make_server(port: int, current: Callable[[], dict[str, Any]]) -> ThreadingHTTPServer:
    """A server that asks for the data of now with each request. Port 0 takes one that is free."""

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_SECONDS

        def do_GET(self) -> None:
            said = why_refused(self.headers.get("Host"), self.headers.get("Origin"), ())
            if said is not None:
                self.send_error(403, explain=said)
            elif self.path == "/":
                self.answer("text/html; charset=utf-8", page_of(current(), live=True))
            elif self.path == "/data":
                self.answer("application/json", json.dumps(current()))
            else:
                self.send_error(404)

        def answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: the terminal is the script's."""

    return Server((HOST, port), Handler)


def serve(server: ThreadingHTTPServer) -> None:
    """Serves until Ctrl-C."""
    sys.stderr.write(f"VIZ: http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends)\n")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    finally:
        server.server_close()


def serve_file(data: dict[str, Any], port: int) -> int:
    """Serves what was recorded before."""
    serve(make_server(port, lambda: data))
    return 0


def serve_script(words: Sequence[str], port: int) -> int:
    """Runs a script here, and serves what is recorded of it, also after its end.

    Gives 1 where the script raised.
    """
    recorder = begin()
    code = 0

    def current() -> dict[str, Any]:
        with ENGINE:
            return make_data(recorder)

    server = make_server(port, current)
    sys.stderr.write(f"VIZ: http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends)\n")
    thread = threading.Thread(target=server.serve_forever, name="aster-viz", daemon=True)
    thread.start()
    before, sys.argv = sys.argv, [*words]
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        recorder.error = f"{type(error).__name__}: {error}"
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    finally:
        sys.argv = before
        end(recorder)
    try:
        while thread.is_alive():
            time.sleep(0.2)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    server.shutdown()
    server.server_close()
    return code
