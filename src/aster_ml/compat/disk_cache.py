"""Results that outlive a program: tables of pickled values in one SQLite file of the cache folder.

Receives keys (text, a number, or a dict of such) and values that pickle; returns the values. A
file that belongs to somebody else, or that others may write, is refused: pickles run code. A
damaged file or value counts as missing, and a folder that cannot be written costs one warning.
Compiled kernels are not here (`runtime/object_cache`). CACHE=0 neither reads nor writes.
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
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from aster_ml.config import CACHE
from aster_ml.errors import ArgumentError
from aster_ml.extend import cache_folder, digest
from aster_ml.private_files import (
    UnsafeFolderError,
    make_folder,
    others_may_write,
    own_folder,
    remove_file,
)

T = TypeVar("T")
Key = dict[str, Any] | str | int
VERSION = 2
TIMEOUT_S = 60
# Connections belong to a thread, and to a process: SQLite's do not live through a fork.
OPEN = threading.local()
# Connections of a process that this one was forked from: closing them here would drop its locks.
OF_PARENTS: list[sqlite3.Connection] = []
# What a pickle raises whose classes are others now.
DAMAGES = (
    pickle.PickleError, ValueError, LookupError, TypeError, AttributeError, ImportError, EOFError,
)  # fmt: skip
# Codes of SQLite (in the low byte) of a file that the system does not let be read or written.
PRIMARY = 0xFF
UNUSABLE = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
TOLD: set[pathlib.Path | None] = set()


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
    return None if folder is None else own_folder(folder, "tables") / "cache.db"


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

    Raises: ArgumentError where there is no cache folder, or folder or file are not this user's
    alone; OSError, sqlite3.OperationalError where it cannot be made.
    """
    path = database()
    if path is None:
        raise ArgumentError("there is no home folder to keep a cache in; set CACHEDIR")
    opened: Opened | None = getattr(OPEN, "opened", None)
    if opened is None or opened.place != (path, os.getpid()):
        try:
            make_folder(path.parent)
        except UnsafeFolderError as error:
            raise ArgumentError(f"{path} is not used, since {error.why}; set CACHEDIR") from None
        check_owner(path)
        opened = OPEN.opened = Opened(path)
        path.chmod(0o600)
    return opened.connection


def ask(question: Callable[[sqlite3.Connection], T]) -> T | None:
    """Asks the file; None where it cannot be read or written, which is said once.

    A damaged file is dropped: what was in it is computed again.
    """
    try:
        try:
            return question(db_connection())
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            drop_file()
            return question(db_connection())
    except OSError as error:
        tell_unusable(error.strerror or str(error))
    except sqlite3.OperationalError as error:
        if (error.sqlite_errorcode & PRIMARY) not in UNUSABLE:
            raise
        tell_unusable(str(error))
    return None


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is no database, or a damaged one.

    What SQLite says of a damaged file may quote it, in no encoding.
    """
    if isinstance(error, sqlite3.OperationalError):
        return any([words in str(error) for words in ("malformed", "unsupported file format")])
    # Errors of other kinds have classes of their own.
    return type(error) in (sqlite3.DatabaseError, sqlite3.InternalError, UnicodeDecodeError)


def drop_file() -> None:
    """Removes the file, and what SQLite keeps beside it."""
    path = database()
    OPEN.opened = None
    for end in ("", "-journal", "-wal", "-shm"):
        remove_file(f"{path}{end}")


def tell_unusable(why: str) -> None:
    """Says once a folder that nothing is kept there."""
    path = database()
    if path not in TOLD:
        TOLD.add(path)
        warnings.warn(
            f"results are not kept: {path} cannot be used ({why}); set CACHEDIR to a folder that "
            "you can write, or CACHE=0",
            RuntimeWarning,
            stacklevel=4,
        )


def columns(key: Key) -> dict[str, Any]:
    """The columns of a key and their values."""
    return key if isinstance(key, dict) else {"key": key}


def name_of(table: str, key: dict[str, Any]) -> str:
    """The name in the file of a table whose keys have these columns."""
    return '"' + " ".join([f"{table}_{VERSION}", *key]).replace('"', '""') + '"'


def where(key: dict[str, Any]) -> str:
    """The condition that the columns are those of the key."""
    return " AND ".join(['"' + column.replace('"', '""') + '" = ?' for column in key])


def diskcache_get(table: str, key: Key) -> Any:
    """The value of a key, None where there is none."""
    if not CACHE:
        return None
    wanted = columns(key)

    def question(connection: sqlite3.Connection) -> Any:
        try:
            query = f"SELECT val FROM {name_of(table, wanted)} WHERE {where(wanted)}"
            return connection.execute(query, tuple(wanted.values())).fetchone()
        except sqlite3.OperationalError as error:
            # There is no such table, or it is not as its name says.
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR and not is_damage(error):
                return None
            raise

    found = ask(question)
    data = None if found is None else opened_seal(found[0])
    try:
        return None if data is None else pickle.loads(data)
    except DAMAGES:
        return None  # of a class that is no more, or is another one


def diskcache_put(table: str, key: Key, val: T, prepickled: bool = False) -> T:
    """Keeps a value, in place of one that the key has; returns it. `prepickled`: it is a pickle."""
    if not CACHE:
        return val
    wanted = columns(key)
    names = ['"' + column.replace('"', '""') + '"' for column in wanted]
    pickled: Any = val if prepickled else pickle.dumps(val)
    data = digest(pickled) + pickled

    name = name_of(table, wanted)
    make = (
        f"CREATE TABLE IF NOT EXISTS {name} "
        f"({', '.join(names)}, val BLOB, PRIMARY KEY ({', '.join(names)}))"
    )
    keep = (
        f"REPLACE INTO {name} ({', '.join(names)}, val) "
        f"VALUES ({', '.join('?' * (len(names) + 1))})"
    )

    def question(connection: sqlite3.Connection) -> None:
        values = (*wanted.values(), data)
        connection.execute(make)
        try:
            connection.execute(keep, values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or is_damage(error):
                raise
            # The table is not as its name says: what says how it is made is damaged.
            connection.execute(f"DROP TABLE {name}")
            connection.execute(make)
            connection.execute(keep, values)

    ask(question)
    return val


def opened_seal(sealed: Any) -> bytes | None:
    """The bytes behind their digest; None for what is damaged, or of another form."""
    if not isinstance(sealed, bytes):
        return None
    seal = len(digest(b""))
    data = sealed[seal:]
    return data if sealed[:seal] == digest(data) else None


def diskcache_clear() -> None:
    """Drops all tables."""

    def question(connection: sqlite3.Connection) -> None:
        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
        for (name,) in connection.execute(names).fetchall():
            connection.execute('DROP TABLE IF EXISTS "' + name.replace('"', '""') + '"')

    ask(question)


def diskcache(func: Callable[..., T]) -> Callable[..., T]:
    """A function whose results are kept on disk, by the pickled arguments."""

    @functools.wraps(func)
    def kept(*args: Any, **kwargs: Any) -> T:
        table = f"cache_{func.__name__}"
        key = hashlib.sha256(pickle.dumps((args, kwargs))).hexdigest()
        packed: tuple[T] | None = diskcache_get(table, key)
        return diskcache_put(table, key, (func(*args, **kwargs),) if packed is None else packed)[0]

    return kept
