"""Weak tables and sets that one thread reads while others add to them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aster_ml
from aster_ml.thread_state import SharedWeakSet, SharedWeakTable


class Node:
    """Something that is known weakly."""


@pytest.fixture
def often() -> Iterator[None]:
    """Python goes from thread to thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


TABLE: SharedWeakTable[Node, int] = SharedWeakTable()
SET: SharedWeakSet[Node] = SharedWeakSet()
READ: dict[str, Callable[[], list[Any]]] = {
    "a table": lambda: list(TABLE),
    "keys": lambda: list(TABLE.keys()),
    "values": lambda: list(TABLE.values()),
    "items": lambda: [key for key, _ in TABLE.items()],
    "a set": lambda: list(SET),
}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("name", READ)
def test_reading_while_others_add(name: str) -> None:
    kept = [Node() for _ in range(300)]
    for i, node in enumerate(kept):
        TABLE[node] = i
        SET.add(node)
    ended = threading.Event()

    def add() -> None:
        mine: list[Node] = []
        while not ended.is_set():
            node = Node()
            TABLE[node] = 0
            SET.add(node)
            mine = [*mine[-50:], node]

    adders = [threading.Thread(target=add) for _ in range(3)]
    for thread in adders:
        thread.start()
    try:
        for _ in range(60):
            found = READ[name]()
            assert found[: len(kept)] == list(range(300)) or set(kept) <= set(found)
    finally:
        ended.set()
        for thread in adders:
            thread.join()


def test_what_is_gone_is_not_shown() -> None:
    table: SharedWeakTable[Node, int] = SharedWeakTable()
    members: SharedWeakSet[Node] = SharedWeakSet()
    kept, gone = Node(), Node()
    for i, node in enumerate((kept, gone)):
        table[node] = i
        members.add(node)
    del node, gone
    assert list(table.items()) == [(kept, 0)] == list(zip(table, table.values(), strict=True))
    assert list(members) == [kept]


def test_no_module_shares_a_table_of_weakref() -> None:
    """Whoever goes over one of these while another thread adds to it gets a RuntimeError."""
    found = {
        str(path)
        for path in Path(aster_ml.__file__).parent.rglob("*.py")
        if re.search(r"Weak(Set|Key|Value)", re.sub("SharedWeak", "", path.read_text("utf-8")))
    }
    assert {Path(f).name for f in found} == {"thread_state.py"}
