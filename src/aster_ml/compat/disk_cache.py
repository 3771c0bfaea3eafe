"""Results that outlive a program: tables of pickled values in one SQLite file of the cache folder.

Receives keys (text, a number, or a dict of such) and values that pickle; returns the values. A
file that belongs to somebody else, or that others may write, is refused: pickles run code. Compiled
kernels are not here (`runtime/object_cache`). CACHE=0 neither reads nor writes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import pickle
import sqlite3
import stat
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from aster_ml.config import CACHE
from aster_ml.errors import ArgumentError
from aster_ml.runtime.object_cache import cache_folder, others_may_write

T = TypeVar("T")
Key = dict[str, Any] | str | int
VERSION = 1
TIMEOUT_S = 60
# Connections belong to a thread, and to a process: SQLite's do not live through a fork.
OPEN = threading.local()
# Connections of a process that this one was forked from: closing them here would drop its locks.
OF_PARENTS: list[sqlite3.Connection] = []


class Opened:
    """A connection to one file in one process, closed with the last name for it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.place = path, os.getpid()
        self.connection = sqlite3.connect(
            path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    # Names of the module are gone when the interpreter ends.
    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        connection = getattr(self, "connection", None)
        if connection is not None and self.place[1] == getpid():
            connection.close()
        elif connection is not None:
            OF_PARENTS.append(connection)


def database() -> pathlib.Path | None:
    """The file; None where there is no folder to keep it in."""
    folder = cache_folder()
    return None if folder is None else folder / "cache.db"


def check_owner(path: pathlib.Path) -> None:
    """Raises ArgumentError for a file that is not this user's alone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise ArgumentError(f"{path} is no regular file; remove it, or set CACHEDIR")
    why = others_may_write(found)
    if why is not None:
        raise ArgumentError(
            f"{path} is not read, since {why} and reading it runs code; remove it, or set CACHEDIR"
        )


def db_connection() -> sqlite3.Connection:
    """This thread's connection to the file, which is made where there is none.

    Raises: ArgumentError where there is no cache folder, or the file is not this user's alone.
    """
    path = database()
    if path is None:
        raise ArgumentError("there is no home folder to keep a cache in; set CACHEDIR")
    opened: Opened | None = getattr(OPEN, "opened", None)
    if opened is None or opened.place != (path, os.getpid()):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_owner(path)
        opened = OPEN.opened = Opened(path)
        path.chmod(0o600)
    return opened.connection


def columns(key: Key) -> dict[str, Any]:
    """The columns of a key and their values."""
    return key if isinstance(key, dict) else {"key": key}


def name_of(table: str) -> str:
    """A table's name in the file."""
    return '"' + f"{table}_{VERSION}".replace('"', '""') + '"'


def where(key: dict[str, Any]) -> str:
    """The condition that the columns are those of the key."""
    return " AND ".join(['"' + column.replace('"', '""') + '" = ?' for column in key])


def diskcache_get(table: str, key: Key) -> Any:
    """The value of a key, None where there is none."""
    if not CACHE:
        return None
    wanted = columns(key)
    try:
        row = db_connection().execute(
            f"SELECT val FROM {name_of(table)} WHERE {where(wanted)}", tuple(wanted.values())
        )
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "no such column" in str(error):
            return None
        raise
    found = row.fetchone()
    return None if found is None else pickle.loads(found[0])


def diskcache_put(table: str, key: Key, val: T, prepickled: bool = False) -> T:
    """Keeps a value, in place of one that the key has; returns it. `prepickled`: it is a pickle."""
    if not CACHE:
        return val
    wanted = columns(key)
    names = ['"' + column.replace('"', '""') + '"' for column in wanted]
    connection = db_connection()
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {name_of(table)} "
        f"({', '.join(names)}, val BLOB, PRIMARY KEY ({', '.join(names)}))"
    )
    data = val if prepickled else pickle.dumps(val)
    connection.execute(
        f"REPLACE INTO {name_of(table)} ({', '.join(names)}, val) "
        f"VALUES ({', '.join('?' * (len(names) + 1))})",
        (*wanted.values(), data),
    )
    return val


def diskcache_clear() -> None:
    """Drops all tables."""
    connection = db_connection()
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in tables:
        connection.execute('DROP TABLE IF EXISTS "' + name.replace('"', '""') + '"')


def diskcache(func: Callable[..., T]) -> Callable[..., T]:
    """A function whose results are kept on disk, by the pickled arguments."""

    @functools.wraps(func)
    def kept(*args: Any, **kwargs: Any) -> T:
        table = f"cache_{func.__name__}"
        key = hashlib.sha256(pickle.dumps((args, kwargs))).hexdigest()
        packed: tuple[T] | None = diskcache_get(table, key)
        return diskcache_put(table, key, (func(*args, **kwargs),) if packed is None else packed)[0]

    return kept
