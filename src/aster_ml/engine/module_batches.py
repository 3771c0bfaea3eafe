"""Kernels from source to loaded code: compiled in batches, a module each, in threads.

Receives sources, with what is known of their kernels, one after the other; gives the loaded
functions once all are there. How a source comes to be, and what a kernel is beside its function,
are the business of `engine/compile`; what stands on the disk is that of `engine/disk_cache`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aster_ml.backend import Backend, Program
from aster_ml.engine import disk_cache
from aster_ml.engine.worker_pool import Job, WorkerPool
from aster_ml.watch import WATCHERS

# So many characters of source go into a batch at most, and at least where there are as many: a
# module costs LLVM as much as 2,000 of them, and for the fewest a thread may wait at the end.
MOST_CHARACTERS, FEWEST_CHARACTERS = 60_000, 8_000
# Sources that are looked at for one batch: thousands may have one name, and none goes with another.
MOST_SEEN = 256


@dataclass(eq=False)
class Draft:
    """A kernel whose machine code is to come.

    `join` makes one source of several where the language has that; `disk_key` is None where
    the kernel may not go to the disk. `fields` are those of `engine.compile.Compiled` but for
    the program.
    """

    backend: Backend
    fields: dict[str, Any]
    disk_key: str | None
    join: Callable[[Sequence[str]], str] | None

    @property
    def name(self) -> str:
        """That of its function."""
        return str(self.fields["name"])

    @property
    def source(self) -> str:
        """In the language of its target."""
        return str(self.fields["source"])


class Batch:
    """Kernels that are compiled as one source."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.backend = drafts[0].backend
        self.binary = Job(self.compile)
        self.kept = Job(self.keep)

    @property
    def names(self) -> tuple[str, ...]:
        """The functions in it."""
        return tuple([d.name for d in self.drafts])

    def compile(self) -> bytes:
        """The binary of all of them. Raises: CompileError."""
        join, sources = self.drafts[0].join, [d.source for d in self.drafts]
        start = time.perf_counter()
        binary = self.backend.compile(join(sources) if join and len(sources) > 1 else sources[0])
        for w in WATCHERS:
            w.compiled(self.names, start)
        return binary

    def keep(self) -> None:
        """Writes to the disk cache what may go there."""
        entries = [(d.disk_key, d.fields) for d in self.drafts if d.disk_key is not None]
        disk_cache.put(entries, self.binary.result())


class Batches:
    """Sources that wait, batches of them, and what became of those."""

    def __init__(self, beside: WorkerPool) -> None:
        self.beside = beside
        self.waiting: deque[Draft] = deque()
        self.made: list[Batch] = []
        # Those of them that have not been written to the disk.
        self.unkept: list[Batch] = []
        # Of all sources that wait.
        self.characters = 0
        self.programs: dict[Draft, Program] = {}
        # Whether all sources have come.
        self.complete = False
        self.lock = threading.Lock()
        # Linkers take one thread at a time in any case.
        self.linking = threading.Lock()

    def add(self, draft: Draft) -> None:
        """One more source, which a thread that is free goes on to compile."""
        with self.lock:
            self.waiting.append(draft)
            self.characters += len(draft.source)
        self.beside.begin(self.compile_next)

    def drop(self, draft: Draft) -> bool:
        """Forgets a source that still waits; false where it does not."""
        with self.lock:
            waits = draft in self.waiting
            if waits:
                self.waiting.remove(draft)
                self.characters -= len(draft.source)
            return waits

    def take(self) -> Batch | None:
        """The next of the sources that wait, with others as far as that pays."""
        with self.lock:
            if not self.waiting:
                return None
            first = self.waiting.popleft()
            most = MOST_CHARACTERS
            if self.complete:
                # Whoever takes much last lets the others wait.
                share = self.characters // (2 * (self.beside.threads + 1))
                most = min(most, max(FEWEST_CHARACTERS, share))
            taken, left, room = {first.name: first}, [], most - len(first.source)
            for _ in range(min(len(self.waiting), MOST_SEEN)):
                d = self.waiting.popleft()
                together = first.join is not None and d.backend is first.backend
                if together and d.name not in taken and len(d.source) <= room:
                    taken[d.name] = d
                    room -= len(d.source)
                else:
                    left.append(d)
            self.waiting.extendleft(reversed(left))
            self.characters -= sum([len(d.source) for d in taken.values()])
            batch = Batch([*taken.values()])
            self.made.append(batch)
            self.unkept.append(batch)
            return batch

    def compile_next(self) -> bool:
        """Compiles what is next, in the calling thread; whether there was anything."""
        batch = self.take()
        if batch is None:
            return False
        batch.binary.run_now()
        if self.complete:
            # While others are inside of the compiler nobody waits for Python's lock.
            self.keep_compiled()
        return True

    def keep_compiled(self) -> None:
        """Writes what has been compiled by now to the disk."""
        with self.lock:
            ready = [b for b in self.unkept if b.binary.has_run]
            done = set(ready)
            self.unkept = [b for b in self.unkept if b not in done]
        for batch in ready:
            batch.kept.run_now()

    def finish(self) -> None:
        """Compiles and loads all of them, with the threads, and writes them to the disk.

        They are loaded and written to the disk once all sources are written: a thread that asks
        for Python's lock before that waits each time. Whoever has nothing left to compile begins,
        with what is there. Raises: CompileError.
        """
        with self.lock:
            self.waiting = deque(sorted(self.waiting, key=lambda d: len(d.source), reverse=True))
            self.complete = True
        loading = self.beside.begin(self.load_compiled)
        while self.compile_next():
            pass
        self.load_compiled()
        for batch in self.made:
            batch.binary.result()
        self.load_compiled()
        loading.result()
        for batch in self.made:
            batch.kept.result()

    def load_compiled(self) -> None:
        """Loads what has been compiled by now. Raises: CompileError."""
        with self.linking:
            loaded = self.programs.keys()
            ready = [b for b in self.made if b.binary.has_run and b.drafts[0] not in loaded]
            for backend in dict.fromkeys([b.backend for b in ready]):
                mine = [b for b in ready if b.backend is backend]
                programs = backend.load_all([(b.names, b.binary.result()) for b in mine])
                self.programs |= zip([d for b in mine for d in b.drafts], programs, strict=True)
