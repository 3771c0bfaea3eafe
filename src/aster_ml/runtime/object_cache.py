"""Caches compiled objects on disk, shared by processes: `get(key)`, `put(key, data)`.

An entry is a file with a header that contains a checksum and the keys; an entry with several keys
is one file under several names. A damaged or truncated entry, or one of another key, counts as
missing and is written again. Writers replace files atomically. An unwritable folder causes one
warning. A key is text that names all that the data depends on.

Cached code is executed, so only files and folders of this user (or root) that no other user may
write to are used; any other folder causes a warning. Anything but a regular file counts as missing,
and is opened without blocking.
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

# Magic, digest of the rest; then the number of keys, the digest of each, and the data.
MAGIC = b"aster-object-2\n\0"
DIGEST_BYTES, COUNT_BYTES = 16, 4
HEADER_BYTES = len(MAGIC) + DIGEST_BYTES
DEFAULT_LIMIT_BYTES = 1 << 30
# Names of entries, and of temporary files of entries.
OWN_NAME = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}(\.[0-9a-f-]+{re.escape(TEMPORARY)})?")
# A temporary file this old was left by a process that died while writing.
STALE_AFTER_S = 3600


def digest_of(key: str) -> bytes:
    """Digest of a key, which may contain paths with undecodable bytes."""
    return digest(key.encode("utf-8", "surrogatepass"))


def digest(data: bytes) -> bytes:
    """A cryptographic checksum."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def cache_folder() -> Path | None:
    """The folder of all caches of Aster: CACHEDIR, else the platform's cache folder.

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
        # The XDG specification ignores relative paths.
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "aster-ml"
    except RuntimeError:
        return None


class ObjectCache:
    """The entries in one folder; beyond `limit_bytes` the least recently used are evicted."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.writable = True
        # Whether the folder is this user's; None while it does not exist.
        self.is_own: bool | None = None
        self.hits = 0
        self.misses = 0
        # Bytes that may be written before the folder is measured again; the first write measures,
        # since other processes write too.
        self.allowance = 0
        self.lock = threading.Lock()

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / digest_of(key).hex()

    def get(self, key: str) -> bytes | None:
        """The data under `key`, or None without an intact entry."""
        key_digest = digest_of(key)
        # `path` as text: creating a Path takes as long as reading a small file.
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
            # The entry is damaged, or of another form.
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
            # Another user's folder, or an evicted entry: the data is right all the same.
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
                # Cached code is executed, so no other user may write to the folder.
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
        """Whether only this user may write to the folder; None if it does not exist."""
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
        """Links a file to another name, ten times as fast as another file. Raises: OSError."""
        try:
            os.link(path, name)
        except OSError:
            # The name exists already, or the file system has no hard links.
            replace_own(name, content)

    def distrust(self, error: UnsafeFolderError) -> None:
        """Disables the cache, with one warning."""
        self.is_own = False
        self.warn(f"{self.folder} is not used, since {error.why}")

    def refuse(self, error: OSError) -> None:
        """Disables writing, with one warning."""
        self.writable = False
        self.warn(f"{self.folder} cannot be written ({error.strerror or error})")

    def warn(self, why: str) -> None:
        """Warns that this cache is disabled, with the reason."""
        warnings.warn(
            f"compiled kernels are not cached: {why}; set CACHEDIR to a folder that only you can "
            "write, or CACHE=0",
            RuntimeWarning,
            stacklevel=5,
        )

    def evict(self) -> None:
        """Removes the least recently used entries until the folder is within its limit."""
        # File -> time of last use, size and names.
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
                        # Without file numbers each name counts as a file.
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
