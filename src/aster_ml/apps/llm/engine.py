"""Generates several answers at once: slots of one KV cache, and a queue before them.

Receives `Answer`s; each `step` computes a chunk of one prompt and one token of every answer that is
past its prompt. A slot keeps what it last had, so a conversation that goes on is not read again.
Sockets and threads do not belong here: whoever calls `step` owns the model.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.apps.llm.answers import Answer
from aster_ml.apps.llm.model import GROUP, Chunk, Model, Rows
from aster_ml.apps.llm.sampling import RECORDED, Draw, Sampler
from aster_ml.errors import ArgumentError

# Tokens of a prompt that are computed together: long enough for matrix products, short enough that
# others get their turn. While somebody writes, a part takes no longer than so many seconds.
CHUNK = 128
PART_SECONDS = 0.15


@dataclass(eq=False)
class Slot:
    """A part of the memory: the tokens whose keys and values it has, and whose it is now."""

    number: int
    tokens: list[int] = field(default_factory=list)
    answer: Answer | None = None
    used: float = 0.0

    @property
    def is_reading(self) -> bool:
        """Whether its prompt is not computed yet."""
        return self.answer is not None and not self.answer.tokens

    def common(self, prompt: Sequence[int]) -> int:
        """Counts the tokens of a prompt that are cached; the last one is computed in any case."""
        count = 0
        for have, want in zip(self.tokens, prompt[:-1]):
            if have != want:
                break
            count += 1
        return count


@dataclass
class Counts:
    """Counts of the work done so far."""

    answers: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_seconds: float = 0.0
    token_seconds: float = 0.0


class Queue:
    """Who waits, one turn for each client in a circle: many requests of one delay no other."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, deque[Answer]] = OrderedDict()
        self.lock = threading.Lock()

    def __len__(self) -> int:
        with self.lock:
            return sum([len(waiting) for waiting in self.clients.values()])

    def put(self, answer: Answer) -> None:
        """The last of its client."""
        with self.lock:
            self.clients.setdefault(answer.client, deque()).append(answer)

    def take(self) -> Answer | None:
        """The first of the client whose turn it is."""
        with self.lock:
            while self.clients:
                client, waiting = self.clients.popitem(last=False)
                answer = waiting.popleft()
                if waiting:
                    self.clients[client] = waiting
                return answer
        return None

    def drop(self, is_over: Callable[[Answer], bool]) -> list[Answer]:
        """Takes out those of whom this is true."""
        with self.lock:
            gone = [a for waiting in self.clients.values() for a in waiting if is_over(a)]
            for client in list(self.clients):
                left = deque([a for a in self.clients[client] if not is_over(a)])
                if left:
                    self.clients[client] = left
                else:
                    del self.clients[client]
        return gone


class Engine:
    """A model with its slots; `submit` from any thread, `step` from one."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.slots = [Slot(i) for i in range(model.slots)]
        self.queue = Queue()
        self.counts = Counts()
        self.sampler = Sampler(model.vocabulary)
        last = model.context - 1
        self.slot = Variable("slot", 0, model.slots - 1) if model.slots > 1 else None
        self.start, self.groups = Variable("start", 0, last), Variable("groups", 1, CHUNK // GROUP)
        self.last = Variable("last", 0, CHUNK - 1)
        self.end = Variable("end", 1, model.context)
        self.row_starts = [Variable(f"row{i}", 0, last) for i in range(model.slots)]
        self.read_chunk = TinyJit(self.chunk_logits)
        self.next_one = TinyJit(self.one_logits)
        self.next_rows = TinyJit(self.row_logits)
        # How long a group of tokens of a prompt took of late.
        self.group_seconds = 0.0
        # What was drawn last, and how.
        self.drawn: tuple[Tensor, list[Draw | None], int] | None = None

    # the three functions that are recorded

    def chunk_logits(self, tokens: Tensor, slot: Any, start: Any, groups: Any, last: Any) -> Tensor:
        """The logits after one of some groups of tokens. Shapes: tokens int [1, c] -> [1, v].

        Tokens behind it are computed too: their places are written again before they are seen.
        """
        count = groups * GROUP
        place = Chunk(self.model.positions, slot, start, count, last)
        return self.model.forward(tokens[:, :count], place).realize()

    def one_logits(self, tokens: Tensor, slot: Any, start: Any) -> Tensor:
        """The logits after one token of one slot. Shapes: tokens int [1, 1] -> [1, v]."""
        return self.model.forward(tokens, Chunk(self.model.positions, slot, start, 1)).realize()

    def row_logits(self, tokens: Tensor, at: Tensor, end: Any, *starts: Any) -> Tensor:
        """The logits after one token of each slot.

        Shapes: tokens int [b, 1], at int [b] -> [b, v].
        """
        place = Rows(self.model.positions, starts, at, end)
        return self.model.forward(tokens, place).realize()

    def record(self) -> None:
        """Computes a chunk and a draw once more where one question did not suffice to record them.

        The chunk is written behind what a free slot has, which nobody reads.
        """
        draws = (self.sampler.greedy, self.sampler.general)
        if self.drawn is not None and any([jit.calls and jit.latest is None for jit in draws]):
            self.sampler(*self.drawn)
        slot = next((slot for slot in self.slots if slot.answer is None), None)
        if slot is None or self.read_chunk.latest is not None or not self.read_chunk.calls:
            return
        slot.tokens = slot.tokens[: self.model.context - 1]
        place = self.number(slot), self.start.bind(len(slot.tokens))
        zeros = Tensor(np.zeros((1, CHUNK), np.int32)).realize()
        self.read_chunk(zeros, *place, self.groups.bind(1), self.last.bind(0))

    def warm(self) -> None:
        """Records all kinds of steps: later they would stop everybody for as long as it takes.

        No answer may be there yet.
        """
        zeros = Tensor(np.zeros((1, CHUNK), np.int32)).realize()
        first, one = self.number(self.slots[0]), Tensor(np.zeros((1, 1), np.int32)).realize()
        for _ in range(RECORDED):
            place = first, self.start.bind(0)
            self.read_chunk(zeros, *place, self.groups.bind(1), self.last.bind(0))
            logits = self.next_one(one, *place)
        self.sampler.warm(logits)
        rows = 1
        while rows < self.model.slots:
            rows = min(2 * rows, self.model.slots)
            for _ in range(RECORDED):
                logits = self.logits_of(np.zeros((rows, 1), np.int32), np.zeros(rows, np.int32), 1)
            self.sampler.warm(logits)

    # what callers do

    def check(self, prompt: Sequence[int]) -> None:
        """Raises ArgumentError for a prompt that leaves no room for an answer."""
        if len(prompt) >= self.model.context:
            raise ArgumentError(
                f"the prompt has {len(prompt)} tokens, the context {self.model.context}; it has to "
                "be shorter (nothing is cut in silence), or the context longer (--context)"
            )
        bad = [t for t in prompt if not 0 <= t < self.model.vocabulary]
        if bad:
            raise ArgumentError(f"token {bad[0]} is none of {self.model.vocabulary}")

    def submit(self, answer: Answer) -> None:
        """Puts an answer in the queue. Raises: ArgumentError for a prompt that is too long."""
        self.check(answer.prompt)
        self.queue.put(answer)

    @property
    def busy(self) -> list[Slot]:
        """Slots with an answer."""
        return [slot for slot in self.slots if slot.answer is not None]

    def step(self) -> bool:
        """A chunk of one prompt, a token of each answer past its own; False if there is none."""
        self.drop_cancelled()
        self.admit()
        busy = self.busy
        if not busy:
            return False
        reading = [slot for slot in busy if slot.is_reading]
        try:
            if reading:
                self.read(min(reading, key=lambda slot: slot.used))
            writing = [slot for slot in busy if slot.answer is not None and not slot.is_reading]
            if writing:
                self.write(writing)
        except BaseException as error:
            # Nobody waits for an answer that will not come.
            for slot in self.busy:
                self.end_slot(slot, "error", f"{type(error).__name__}: {error}")
                slot.tokens = []
            self.counts.failed += len(busy)
            raise
        return True

    def run(self, answer: Answer) -> Answer:
        """An answer from beginning to end, with whatever else waits."""
        self.submit(answer)
        while answer.reason is None:
            self.step()
        return answer

    # one step

    def drop_cancelled(self) -> None:
        """Ends answers that nobody wants any more."""
        for answer in self.queue.drop(lambda a: a.is_cancelled):
            answer.finish("cancelled")
            self.counts.cancelled += 1
        for slot in self.busy:
            if slot.answer is not None and slot.answer.is_cancelled:
                self.end_slot(slot, "cancelled")
                self.counts.cancelled += 1

    def end_slot(self, slot: Slot, reason: str, said: str = "") -> None:
        """The slot is free; what it has stays for who comes next."""
        answer, slot.answer = slot.answer, None
        if answer is not None:
            answer.finish(reason, said)

    def admit(self) -> None:
        """Gives free slots to those that wait, each the one that has most of its prompt."""
        while True:
            free = [slot for slot in self.slots if slot.answer is None]
            answer = self.queue.take() if free else None
            if answer is None:
                return
            slot = max(free, key=lambda s: (s.common(answer.prompt), -s.used, -s.number))
            kept = slot.common(answer.prompt)
            slot.tokens = slot.tokens[:kept]
            slot.answer, slot.used, answer.reused = answer, time.monotonic(), kept
            self.counts.answers += 1
            self.counts.reused_tokens += kept

    def read(self, slot: Slot) -> None:
        """The next chunk of a slot's prompt; after the last, the first token."""
        answer = slot.answer
        assert answer is not None
        begin = time.perf_counter()
        at = len(slot.tokens)
        part = answer.prompt[at : at + GROUP * self.groups_of_part()]
        padded = np.zeros((1, CHUNK), np.int32)
        padded[0, : len(part)] = part
        logits = self.read_chunk(
            Tensor(padded).realize(),
            self.number(slot),
            self.start.bind(at),
            self.groups.bind(-(-len(part) // GROUP)),
            self.last.bind(len(part) - 1),
        )
        slot.tokens += part
        slot.used = time.monotonic()
        self.counts.prompt_tokens += len(part)
        if len(slot.tokens) == len(answer.prompt):
            self.pick(logits, [slot], 1)
        seconds = time.perf_counter() - begin
        self.group_seconds = seconds / -(-len(part) // GROUP)
        self.counts.prompt_seconds += seconds

    def groups_of_part(self) -> int:
        """Number of groups of a prompt to compute together: fewer where others wait for tokens."""
        most = CHUNK // GROUP
        waits = any([not slot.is_reading for slot in self.busy])
        if not waits or not self.group_seconds:
            return most
        # One more than fits: of few groups each seems to take longer than it does.
        return min(most, 1 + int(PART_SECONDS / self.group_seconds))

    def number(self, slot: Slot) -> Any:
        """A slot's number, as a variable where there are several."""
        return 0 if self.slot is None else self.slot.bind(slot.number)

    def write(self, writing: list[Slot]) -> None:
        """The next token of each of these slots."""
        begin = time.perf_counter()
        if len(writing) == 1:
            slot = writing[0]
            token = self.last_token(slot)
            logits = self.next_one(
                Tensor(np.array([[token]], np.int32)).realize(),
                self.number(slot),
                self.start.bind(len(slot.tokens)),
            )
            rows = 1
        else:
            rows = min(1 << (writing[-1].number).bit_length(), self.model.slots)
            logits = self.rows_of(writing, rows)
        for slot in writing:
            slot.tokens.append(self.last_token(slot))
        self.pick(logits, writing, rows)
        self.counts.tokens += len(writing)
        self.counts.token_seconds += time.perf_counter() - begin

    def last_token(self, slot: Slot) -> int:
        """The token that was drawn last."""
        assert slot.answer is not None
        return slot.answer.tokens[-1]

    def rows_of(self, writing: list[Slot], rows: int) -> Tensor:
        """The logits of the first slots; those of others than `writing` mean nothing."""
        tokens, at = np.zeros((rows, 1), np.int32), np.zeros(rows, np.int32)
        for slot in self.slots[:rows]:
            if slot in writing:
                tokens[slot.number] = self.last_token(slot)
            elif len(slot.tokens) == self.model.context:
                # A row writes behind what its slot has, and that place has to be there.
                slot.tokens.pop()
            at[slot.number] = len(slot.tokens)
        return self.logits_of(tokens, at, int(max(at[slot.number] for slot in writing)) + 1)

    def logits_of(self, tokens: Any, at: Any, end: int) -> Tensor:
        """The logits after one token of each of the first slots, whose tokens end before `end`."""
        starts = [v.bind(int(n)) for v, n in zip(self.row_starts, at)]
        return self.next_rows(
            Tensor(tokens).realize(), Tensor(at).realize(), self.end.bind(end), *starts
        )

    def pick(self, logits: Tensor, slots: list[Slot], rows: int) -> None:
        """Draws a token for each of these slots; row 0 is the only one where there is one."""
        answers: list[Answer | None] = [None] * rows
        for slot in slots:
            answers[0 if rows == 1 else slot.number] = slot.answer
        tops = [a.top for a in answers if a is not None and a.top is not None]
        for answer in answers:
            if answer is not None:
                answer.prepare()
        draws = [None if a is None else a.draw for a in answers]
        self.drawn = logits, draws, max(tops, default=0)
        found = self.sampler(*self.drawn)
        for slot in slots:
            answer = slot.answer
            assert answer is not None
            picked = found[0 if rows == 1 else slot.number]
            answer.take(picked, self.model.context - len(slot.tokens) - 1)
            if answer.reason is not None:
                slot.answer = None
