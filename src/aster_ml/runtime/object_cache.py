"""A cache of compiled objects on disk, shared by processes: `get(key)`, `put(key, data)`.

One file an entry, with a header that says what it has to hold; an entry of several keys is one file
under several names. An entry that is damaged, cut short
or of another key counts as missing and is written again. Writers replace a file whole, so a reader
never sees half of one. A folder that cannot be written costs one warning and nothing else. Keys are
text that names everything the data depends on; what that is, callers know.

What is in here is run, so only files and folders count that belong to this user (or root) and that
nobody else may write; a folder of another kind is neither read nor written, which costs a warning.
Anything but a plain file counts as missing, and is not opened in a way that could wait.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import secrets
import stat
import sys
import threading
import time
import warnings
from pathlib import Path

from aster_ml.config import CACHE, CACHEDIR

# magic, digest of all that follows; then how many keys there are, the digest of each, and the data.
MAGIC = b"aster-object-2\n\0"
DIGEST_BYTES, COUNT_BYTES = 16, 4
HEADER_BYTES = len(MAGIC) + DIGEST_BYTES
DEFAULT_LIMIT_BYTES = 1 << 30
# A temporary file this old was left by a process that died while writing.
STALE_AFTER_S = 3600


# Where files have owners. A link is not followed, and a pipe is not waited for.
HAS_OWNERS = hasattr(os, "geteuid")
READ_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    READ_FLAGS |= getattr(os, _name, 0)


def others_may_write(found: os.stat_result) -> str | None:
    """Why a file or folder is not this user's alone to write, or root's; None where it is."""
    if not HAS_OWNERS:
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


def read_own(path: str, most: int) -> bytes | None:
    """What a plain file of this user (or root) holds; None for anything else, and past `most`.

    Raises: OSError where there is no such file.
    """
    number = os.open(path, READ_FLAGS)
    with open(number, "rb", buffering=0) as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or others_may_write(found) or found.st_size > most:
            return None
        # A raw file gives what there is, so one that is cut meanwhile comes back short.
        return file.read(found.st_size)


def digest(data: bytes) -> bytes:
    """A checksum that no damage and no accident leaves equal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def cache_folder() -> Path | None:
    """The folder of all of Aster's caches: CACHEDIR, else the platform's place for such things.

    None where the user has no home folder.
    """
    if CACHEDIR.value:
        return Path(CACHEDIR.value)
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "aster-ml"
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / "aster-ml"
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification has relative paths ignored.
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "aster-ml"
    except RuntimeError:
        return None


class ObjectCache:
    """The entries in one folder; past `limit_bytes` those that were not used for longest go."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.writable = True
        # Whether the folder is this user's: None as long as it is not there.
        self.is_own: bool | None = None
        self.hits = 0
        self.misses = 0
        # Bytes that may still be written before the folder is measured again; other processes
        # write too, so the first write measures.
        self.allowance = 0
        self.lock = threading.Lock()
        # What tells our temporary files from those of other machines, and from one another.
        self.token = secrets.token_hex(4)
        self.numbers = itertools.count()

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / digest(key.encode()).hex()

    def get(self, key: str) -> bytes | None:
        """The data under `key`, or None when there is none that is whole."""
        key_digest = digest(key.encode())
        # As `path` has it, but of text: making a Path takes as long as reading a small file.
        path = os.path.join(self.folder, key_digest.hex())
        try:
            raw = read_own(path, self.limit_bytes) if self.look_at_folder() else None
        except OSError:
            raw = None
        if raw is None:
            self.misses += 1
            return None
        rest = raw[HEADER_BYTES:]
        if raw[:HEADER_BYTES] != MAGIC + digest(rest):
            # Nothing that stands in it counts: it may be damaged, or of another form.
            self.misses += 1
            return None
        start = COUNT_BYTES + DIGEST_BYTES * int.from_bytes(rest[:COUNT_BYTES], "little")
        keys = [rest[i : i + DIGEST_BYTES] for i in range(COUNT_BYTES, start, DIGEST_BYTES)]
        if key_digest not in keys:
            self.misses += 1
            return None
        data = rest[start:]
        try:
            os.utime(path)
        except OSError:
            # Another user's folder, or evicted this moment: the data in hand is right all the same.
            self.hits += 1
            return data
        self.hits += 1
        return data

    def put(self, key: str, data: bytes, *others: str) -> None:
        """Stores `data` under `key`, and under other keys, for this and other processes."""
        if not self.writable or self.look_at_folder() is False:
            return
        keys = [digest(k.encode()) for k in (key, *others)]
        rest = len(keys).to_bytes(COUNT_BYTES, "little") + b"".join(keys) + data
        content = MAGIC + digest(rest) + rest
        first, *names = [os.path.join(self.folder, k.hex()) for k in keys]
        try:
            try:
                self.replace(first, content)
            except FileNotFoundError:
                # What is in here is run, so nobody else may write it.
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.is_own = None
                if not self.look_at_folder():
                    return
                self.replace(first, content)
            for name in names:
                self.name_too(first, name, content)
        except OSError as error:
            self.refuse(error)
            return
        with self.lock:
            self.allowance -= len(content)
            if self.allowance < 0:
                self.evict()

    def look_at_folder(self) -> bool | None:
        """Whether the folder is this user's alone to write; None where there is none."""
        if self.is_own is None:
            try:
                found = os.stat(self.folder)
            except OSError:
                return None
            why = others_may_write(found)
            self.is_own = why is None
            if why is not None:
                self.warn(f"{self.folder} is not used, since {why}")
        return self.is_own

    def temporary(self, path: str) -> str:
        """A name beside a file that nobody else has."""
        return f"{path}.{os.getpid()}-{self.token}-{next(self.numbers)}.tmp"

    def replace(self, path: str, content: bytes) -> None:
        """Puts a file in its place, whole. Raises: OSError."""
        temporary = self.temporary(path)
        try:
            write_file(temporary, content)
            os.replace(temporary, path)
        except PermissionError:
            remove_file(temporary)
            if not os.path.exists(path):
                raise
            # Windows: another process reads the entry now. It holds the same data.
        except OSError:
            remove_file(temporary)
            raise

    def name_too(self, path: str, name: str, content: bytes) -> None:
        """Gives a file another name: a file of its own takes ten times as long. Raises: OSError."""
        try:
            os.link(path, name)
        except OSError:
            # The name is there already, or the folder's file system has no such names.
            self.replace(name, content)

    def refuse(self, error: OSError) -> None:
        """Goes on without writing, and says so once."""
        self.writable = False
        self.warn(f"{self.folder} cannot be written ({error.strerror or error})")

    def warn(self, why: str) -> None:
        """Says why this cache does nothing."""
        warnings.warn(
            f"compiled kernels are not cached: {why}; set CACHEDIR to a folder that only you can "
            "write, or CACHE=0",
            RuntimeWarning,
            stacklevel=5,
        )

    def evict(self) -> None:
        """Removes the entries longest unused until the folder is within its limit."""
        # Of each file when it was last used, its size and its names.
        files: dict[object, tuple[float, int, list[str]]] = {}
        now = time.time()
        try:
            with os.scandir(self.folder) as listing:
                for item in listing:
                    try:
                        stat = item.stat()
                    except OSError:
                        continue  # another process removed it between listing and looking
                    if not item.name.endswith(".tmp"):
                        # Some systems number no files: a name is a file then.
                        file = (stat.st_mtime, stat.st_size, list[str]())
                        files.setdefault(stat.st_ino or item.path, file)[2].append(item.path)
                    elif now - stat.st_mtime > STALE_AFTER_S:
                        remove_file(item.path)
        except OSError:
            return  # the whole folder was removed; the next write makes it again
        total = sum(size for _, size, _ in files.values())
        for _, size, names in sorted(files.values()):
            if total <= self.limit_bytes:
                break
            for name in names:
                remove_file(name)
            total -= size
        self.allowance = max((self.limit_bytes - total) // 2, self.limit_bytes // 32)


def write_file(path: str, content: bytes) -> None:
    """Writes a new file that nobody else may write. Raises: OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o644), "wb", buffering=0) as file:
        # Without a buffer a disk that fills up takes the first part and says nothing.
        if file.write(content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_file(path: str) -> None:
    """Removes a file; one that is gone, or held open on Windows, is left to the next eviction."""
    try:
        os.unlink(path)
    except OSError:
        return


@functools.cache
def open_cache(folder: str) -> ObjectCache:
    """The cache in a folder, one object for each folder and process."""
    return ObjectCache(Path(folder) / "objects")


def current_cache() -> ObjectCache | None:
    """The cache that the settings CACHE and CACHEDIR name; None for none."""
    folder = cache_folder() if CACHE.value else None
    return None if folder is None else open_cache(str(folder))


def get(key: str) -> bytes | None:
    """The data under `key` in the current cache, or None."""
    cache = current_cache()
    return None if cache is None else cache.get(key)


def put(key: str, data: bytes, *others: str) -> None:
    """Stores `data` under `key`, and under others, in the current cache, if there is one."""
    cache = current_cache()
    if cache is not None:
        cache.put(key, data, *others)
