"""Steps a model in a thread that owns it, and gives answers as streams of asyncio.

Receives `Answer`s from coroutines; steps the engine as long as there is work. A coroutine that goes
away cancels its answer, which ends before the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from aster_ml.apps.llm.answers import Answer, Piece
from aster_ml.apps.llm.engine import Engine
from aster_ml.errors import ArgumentError

LOG = logging.getLogger("aster_ml.llm")
# How long the end waits for a step.
STEP_SECONDS = 1.0


class Worker:
    """Steps an engine in a thread of its own. `limit` is how many may wait.

    `when_idle` is called in that thread where there was nothing to do for a second.
    """

    def __init__(
        self, engine: Engine, limit: int = 256, when_idle: Callable[[], object] | None = None
    ) -> None:
        self.engine, self.limit, self.when_idle = engine, limit, when_idle
        self.work = threading.Event()
        self.is_over = False
        # Who waits for pieces.
        self.listeners = set[Pieces]()
        self.thread = threading.Thread(target=self.run, name="aster-llm", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self.thread.start()

    def finish(self) -> None:
        """Ends after the step that runs; who waits for an answer is told at once."""
        self.is_over = True
        self.work.set()
        for pieces in list(self.listeners):
            pieces.end("the server is going down")

    def stop(self) -> None:
        """Ends, and waits for the step that runs, a moment."""
        self.finish()
        self.thread.join(timeout=STEP_SECONDS)

    def check_room(self, count: int) -> None:
        """Raises BusyError where so many more cannot wait."""
        if self.is_over:
            raise BusyError("the server is going down")
        if len(self.engine.queue) + count > self.limit:
            raise BusyError(f"{self.limit} requests may wait, and no more; try again later")

    def run(self) -> None:
        """Steps while there is work, and waits where there is none."""
        while not self.is_over:
            self.work.clear()
            try:
                while not self.is_over and self.engine.step():
                    continue
            except Exception:
                # Those whose answer it was were told; the next ones get their turn.
                LOG.exception("a step failed")
                continue
            if not self.work.wait(timeout=1.0) and self.when_idle is not None:
                self.when_idle()

    def submit(self, answers: Sequence[Answer]) -> None:
        """Puts answers in the queue. Raises: BusyError where too many wait, before any is put."""
        self.check_room(len(answers))
        for answer in answers:
            self.engine.submit(answer)
        self.work.set()


class BusyError(ArgumentError):
    """Too many wait."""


class Pieces:
    """The pieces of several answers as they come, each with the number of its answer."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self.answers: list[Answer] = []

    def deliver_to(self, number: int) -> Callable[[Piece], None]:
        """Makes the receiver of the pieces of one answer, called in the worker's thread."""

        def deliver(piece: Piece) -> None:
            # The loop is closed where the server is going down.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.queue.put_nowait, (number, piece))

        return deliver

    def submit(self, answers: list[Answer]) -> None:
        """Puts all of them in the queue, or none. Raises: BusyError as `Worker.submit` does."""
        self.worker.submit(answers)
        self.answers += answers
        self.worker.listeners.add(self)

    def end(self, said: str) -> None:
        """The last piece for whoever waits; from any thread."""
        deliver = self.deliver_to(0)
        deliver(Piece("", [], "error", said))
        self.cancel()

    def cancel(self) -> None:
        """Ends what is not over; nobody waits for it any more."""
        self.worker.listeners.discard(self)
        for answer in self.answers:
            answer.cancel()
        self.worker.work.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        left = len(self.answers)
        try:
            while left:
                number, piece = await self.queue.get()
                left -= piece.reason is not None
                yield number, piece
        finally:
            self.cancel()
