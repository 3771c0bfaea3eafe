"""Caches compiled objects on disk, shared by processes: `get(key)`, `put(key, data)`.

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

import functools
import hashlib
import os
import re
import sys
import threading
import time
import warnings
from pathlib import Path

from aster_ml.config import CACHE, CACHEDIR
from aster_ml.private_files import (
    TEMPORARY,
    UnsafeFolderError,
    check_folder,
    make_folder,
    own_folder,
    read_own,
    remove_file,
    replace_own,
)

# magic, digest of all that follows; then how many keys there are, the digest of each, and the data.
MAGIC = b"aster-object-2\n\0"
DIGEST_BYTES, COUNT_BYTES = 16, 4
HEADER_BYTES = len(MAGIC) + DIGEST_BYTES
DEFAULT_LIMIT_BYTES = 1 << 30
# What entries, and the files that become entries, are called.
OWN_NAME = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}(\.[0-9a-f-]+{re.escape(TEMPORARY)})?")
# A temporary file this old was left by a process that died while writing.
STALE_AFTER_S = 3600


def digest_of(key: str) -> bytes:
    """Digest of a key; a path in it may be of bytes that are no text."""
    return digest(key.encode("utf-8", "surrogatepass"))


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

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / digest_of(key).hex()

    def get(self, key: str) -> bytes | None:
        """The data under `key`, or None when there is none that is whole."""
        key_digest = digest_of(key)
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
        keys = range(COUNT_BYTES, min(start, len(rest)), DIGEST_BYTES)
        if start > len(rest) or not any([rest.startswith(key_digest, at) for at in keys]):
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
        keys = [digest_of(k) for k in (key, *others)]
        rest = len(keys).to_bytes(COUNT_BYTES, "little") + b"".join(keys) + data
        content = MAGIC + digest(rest) + rest
        first, *names = [os.path.join(self.folder, k.hex()) for k in keys]
        try:
            try:
                replace_own(first, content)
            except FileNotFoundError:
                # What is in here is run, so nobody else may write it.
                make_folder(self.folder)
                self.is_own = True
                replace_own(first, content)
            for name in names:
                self.name_too(first, name, content)
        except UnsafeFolderError as error:
            self.distrust(error)
            return
        except OSError as error:
            self.refuse(error)
            return
        with self.lock:
            self.allowance -= len(content)
            if self.allowance < 0:
                self.evict()

    def look_at_folder(self) -> bool | None:
        """Tests whether the folder is this user's alone to write; None where there is none."""
        if self.is_own is None:
            try:
                check_folder(self.folder)
            except UnsafeFolderError as error:
                self.distrust(error)
            except OSError:
                return None
            else:
                self.is_own = True
        return self.is_own

    def name_too(self, path: str, name: str, content: bytes) -> None:
        """Gives a file another name: a file of its own takes ten times as long. Raises: OSError."""
        try:
            os.link(path, name)
        except OSError:
            # The name is there already, or the folder's file system has no such names.
            replace_own(name, content)

    def distrust(self, error: UnsafeFolderError) -> None:
        """Goes on without the folder, and says so once."""
        self.is_own = False
        self.warn(f"{self.folder} is not used, since {error.why}")

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
                    if not OWN_NAME.fullmatch(item.name):
                        continue  # it was not written here
                    try:
                        found = item.stat(follow_symlinks=False)
                    except OSError:
                        continue  # another process removed it between listing and looking
                    if not item.name.endswith(TEMPORARY):
                        # Some systems number no files: a name is a file then.
                        file = (found.st_mtime, found.st_size, list[str]())
                        files.setdefault(found.st_ino or item.path, file)[2].append(item.path)
                    elif now - found.st_mtime > STALE_AFTER_S:
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


@functools.cache
def open_cache(folder: str) -> ObjectCache:
    """The cache in a folder, one object for each folder and process."""
    return ObjectCache(own_folder(Path(folder), "objects"))


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
