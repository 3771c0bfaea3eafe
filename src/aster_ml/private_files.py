"""Reads and writes files that only the current user may write, in shared folders.

Receives paths; returns bytes, or writes them atomically. Anything that another user could have
planted is refused and never followed: a link, a folder or a file of another user, or one that
others may write to. Callers know the folders and the content of the files.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path

# POSIX has owners of files. Links are not followed, and pipes do not block.
HAS_OWNERS = hasattr(os, "geteuid")
READ_FLAGS = os.O_RDONLY
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    READ_FLAGS |= getattr(os, _name, 0)
    WRITE_FLAGS |= getattr(os, _name, 0)
READ_FLAGS |= getattr(os, "O_NONBLOCK", 0)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# The limit of Linux for links in one path.
MAX_LINKS = 40
# Makes names of temporary files unique among machines, and within the process.
TOKEN = os.urandom(4).hex()
NUMBERS = itertools.count()
TEMPORARY = ".tmp"


class UnsafeFolderError(PermissionError):
    """A folder that other users may write to or replace."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)
        self.why = why


def others_may_write(found: os.stat_result) -> str | None:
    """Why users other than this one and root may write to a file or folder; None if none may."""
    if not HAS_OWNERS:
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & OTHERS_WRITE:
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


def own_folder(parent: Path, name: str) -> Path:
    """The folder of this user in a shared folder: `name`, or `name-UID`.

    `name` where it is this user's, does not exist, or is root's in a folder that cannot be written
    to; `name-UID` where another user has taken `name`.
    """
    path = parent / name
    try:
        owner = os.lstat(path).st_uid
    except OSError:
        return path
    if not HAS_OWNERS or owner == os.geteuid() or (owner == 0 and not os.access(parent, os.W_OK)):
        return path
    return parent / f"{name}-{os.geteuid()}"


def check_folder(path: Path) -> None:
    """Returns if only this user (or root) may write to a folder.

    The folder is no link; it and its parent belong to this user or to root. No component of the
    path is a link or folder that another user could have planted in a world-writable folder.

    Raises: FileNotFoundError where there is none; UnsafeFolderError; OSError.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolderError(str(path), "it is a link, or no folder")
    why = others_may_write(found)
    if why is not None:
        raise UnsafeFolderError(str(path), why)
    check_parent(path.parent)


def check_parent(path: Path) -> None:
    """Returns if a folder does not belong to another user. Raises: as `walk_to`."""
    if not HAS_OWNERS:
        return
    found = walk_to(path)
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFolderError(str(path), f"{path} belongs to user {found.st_uid}")


def walk_to(path: Path) -> os.stat_result:
    """Checks each folder and link of a path; returns the status of its end.

    Raises: FileNotFoundError; UnsafeFolderError where another user could have planted one of them;
    OSError.
    """
    trusted = (os.geteuid(), 0)
    here, links = os.sep, 0
    place = os.lstat(here)
    parts = str(path.absolute()).split(os.sep)[::-1]
    while parts:
        part = parts.pop()
        if part in ("", os.curdir):
            continue
        below = os.path.dirname(here) if part == os.pardir else os.path.join(here, part)
        found = os.lstat(below)
        is_link = stat.S_ISLNK(found.st_mode)
        laid_by_others = is_link and found.st_uid != place.st_uid
        if found.st_uid not in trusted and (place.st_mode & stat.S_IWOTH or laid_by_others):
            raise UnsafeFolderError(below, f"{below} belongs to user {found.st_uid}")
        if not is_link:
            here, place = below, found
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = os.readlink(below)
        if os.path.isabs(target):
            here, place = os.sep, os.lstat(os.sep)
        parts += target.split(os.sep)[::-1]
    return place


def check_way(path: Path) -> bool:
    """Checks the existing part of a path; returns whether the whole path exists.

    Raises: UnsafeFolderError where another user could have planted a part of it; OSError.
    """
    first = path
    while not os.path.lexists(first) and first != first.parent:
        first = first.parent
    if HAS_OWNERS:
        walk_to(first)
    return first == path


def make_folder(path: Path) -> None:
    """Makes a folder that only this user may read, and its parents; checks existing ones.

    Raises: UnsafeFolderError; OSError.
    """
    if check_way(path.parent):
        check_parent(path.parent)
    for folder in reversed([path, *path.parents]):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        except OSError:
            if not folder.is_dir():
                raise
    check_folder(path)


def read_own(path: str, most: int) -> bytes | None:
    """Reads a plain file of this user (or root); None for anything else, and past `most`.

    Raises: OSError where there is no such file.
    """
    number = os.open(path, READ_FLAGS)
    with open(number, "rb", buffering=0) as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or others_may_write(found) or found.st_size > most:
            return None
        # A raw read returns the bytes there are, so a file truncated meanwhile comes back short.
        return file.read(found.st_size)


def replace_own(path: str, content: bytes) -> None:
    """Writes a file atomically. Raises: OSError."""
    temporary = f"{path}.{os.getpid()}-{TOKEN}-{next(NUMBERS)}{TEMPORARY}"
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    except PermissionError:
        remove_file(temporary)
        if not os.path.exists(path):
            raise
        # Windows: another process reads the entry now. It holds the same data.
    except OSError:
        remove_file(temporary)
        raise


def write_new(path: str, content: bytes) -> None:
    """Writes a new file that nobody else may write. Raises: OSError."""
    with open(os.open(path, WRITE_FLAGS, 0o644), "wb", buffering=0) as file:
        # An unbuffered write to a full disk writes a part and raises nothing.
        if file.write(content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_file(path: str) -> None:
    """Removes a file; ignores one that is gone, or open on Windows."""
    try:
        os.unlink(path)
    except OSError:
        return
