"""Keeps files and folders that one user alone may write, in places that others may know.

Receives paths; returns bytes, or writes them in one step. What others could have planted is refused
and never followed: a link, a folder or a file of another user, one that others may write to. Which
folders there are, and what is in their files, callers know.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path

# Where files have owners. A link is not followed, and a pipe is not waited for.
HAS_OWNERS = hasattr(os, "geteuid")
READ_FLAGS = os.O_RDONLY
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    READ_FLAGS |= getattr(os, _name, 0)
    WRITE_FLAGS |= getattr(os, _name, 0)
READ_FLAGS |= getattr(os, "O_NONBLOCK", 0)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# As many links as Linux follows on one way.
MOST_LINKS = 40
# What tells our temporary files from those of other machines, and from one another.
TOKEN = os.urandom(4).hex()
NUMBERS = itertools.count()
TEMPORARY = ".tmp"


class UnsafeFolderError(PermissionError):
    """A folder that is not this user's alone to write, or that lies where others may replace it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)
        self.why = why


def others_may_write(found: os.stat_result) -> str | None:
    """Why a file or folder is not this user's alone to write, or root's; None where it is."""
    if not HAS_OWNERS:
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & OTHERS_WRITE:
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


def own_folder(parent: Path, name: str) -> Path:
    """The folder of this user in one that users may share: `name`, or `name-UID`.

    The first where it is this user's, or not there yet, or root's in a folder that cannot be
    written to; the second where another user was first.
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
    """Returns where a folder is this user's alone to write.

    The folder itself may be no link, and it and the folder that it lies in belong to this user or
    to root. On the way there, nobody else has laid a link or a folder where all may write.

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
    """Returns where a folder is not one of another user's. Raises: as `walk_to`."""
    if not HAS_OWNERS:
        return
    found = walk_to(path)
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFolderError(str(path), f"{path} belongs to user {found.st_uid}")


def walk_to(path: Path) -> os.stat_result:
    """Looks at the end of a path, and at each folder and link on the way.

    Raises: FileNotFoundError; UnsafeFolderError where another user could have laid one of them;
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
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = os.readlink(below)
        if os.path.isabs(target):
            here, place = os.sep, os.lstat(os.sep)
        parts += target.split(os.sep)[::-1]
    return place


def check_way(path: Path) -> bool:
    """Looks at the part of a path that is there; whether the whole of it is.

    Raises: UnsafeFolderError where another user could have laid a part of it; OSError.
    """
    first = path
    while not os.path.lexists(first) and first != first.parent:
        first = first.parent
    if HAS_OWNERS:
        walk_to(first)
    return first == path


def make_folder(path: Path) -> None:
    """Makes a folder that nobody else may look into, and those above it; checks what is there.

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
        # A raw file gives what there is, so one that is cut meanwhile comes back short.
        return file.read(found.st_size)


def replace_own(path: str, content: bytes) -> None:
    """Puts a file in its place, whole. Raises: OSError."""
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
        # Without a buffer a disk that fills up takes the first part and says nothing.
        if file.write(content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_file(path: str) -> None:
    """Removes a file; one that is gone, or held open on Windows, is left to the next one."""
    try:
        os.unlink(path)
    except OSError:
        return
