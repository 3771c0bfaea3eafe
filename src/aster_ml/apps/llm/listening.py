"""Listens at an address for the server of language models, by uvicorn, and holds its limits.

Receives an ASGI app and an address; returns when a signal ends it. A connection has to ask within
some seconds, and to read what it asked for; there are so many of them at most. A signal tells those
who listen, and ends the process within `END_SECONDS` whatever is still going on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aster_ml.errors import ArgumentError

# How long a connection may have asked for nothing, and may leave unread what it asked for.
ASK_SECONDS, READ_SECONDS = 10.0, 30.0
MOST_CONNECTIONS = 256
HEADER_BYTES = 16 << 10
# Streams get their end first, and then all is over.
STREAM_SECONDS, END_SECONDS = 2, 4.0
# Ticks of uvicorn's, ten of them a second, between two looks at all connections.
TICKS = 5
SIGNALS = tuple(
    [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, n)]
)


class Connection(H11Protocol):
    """A connection, with the time since when it has asked for nothing, or has not read."""

    quiet_since = unread_since = 0.0

    def connection_made(self, transport: Any) -> None:
        """One more; where there are too many, the one that was quiet longest goes."""
        super().connection_made(transport)
        self.quiet_since = self.unread_since = self.loop.time()
        # One that was ended is gone when the loop comes to it.
        here = [c for c in self.connections if isinstance(c, Connection) and not c.is_gone]
        if len(here) > MOST_CONNECTIONS:
            quiet = [c for c in here if not c.is_asking]
            worst = min(quiet, key=lambda c: c.quiet_since, default=self)
            worst.transport.abort()

    @property
    def is_gone(self) -> bool:
        """Whether it has been ended."""
        return self.transport.is_closing()

    @property
    def is_asking(self) -> bool:
        """Whether it waits for an answer, or sends the body of a question."""
        return self.cycle is not None and not self.cycle.response_complete

    def look(self, now: float) -> None:
        """Ends it where it has been quiet for too long, or does not read."""
        if self.is_asking:
            self.quiet_since = now
        if not self.flow.write_paused:
            self.unread_since = now
        if now - self.quiet_since > ASK_SECONDS or now - self.unread_since > READ_SECONDS:
            self.transport.abort()


class Server(uvicorn.Server):
    """Serves until a signal; `tell` is called then, once. `said` is printed when it listens."""

    def __init__(self, app: Any, tell: Callable[[], None], said: str = "") -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="on",
                log_level="warning",
                # Else what a client says of itself would be believed.
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=HEADER_BYTES,
                timeout_graceful_shutdown=STREAM_SECONDS,
            )
        )
        self.tell, self.said = tell, said
        self.watchdog: threading.Timer | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen, and says so."""
        await super().startup(sockets)
        if self.said:
            print(self.said, flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Looks at the connections now and then."""
        if counter % TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While it serves, signals end it in order; afterwards they are as before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Tells who listens, and sees to it that the process ends, whatever it waits for then."""
        if self.watchdog is None:
            self.watchdog = threading.Timer(END_SECONDS, os._exit, [128 + sig])
            self.watchdog.daemon = True
            self.watchdog.start()
            self.tell()
        super().handle_exit(sig, frame)


def bound(host: str, port: int) -> socket.socket:
    """A socket with this address. Raises: ArgumentError where it is not to be had."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if os.name == "posix":
        # Else an address is taken for a minute after a server has ended.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ArgumentError(
            f"cannot listen at {host}, port {port}: {error.strerror}; --host and --port pick "
            "another address"
        ) from error
    return found


def address_of(host: str, port: int) -> str:
    """The address as a browser wants it."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
