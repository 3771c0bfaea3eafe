"""A digest of what Aster's own source files say, by which kernels on the disk are kept apart.

Receives nothing; returns text that is another one after any change of a source file. To read all
files takes 5 to 10 ms, most of what a small program spends before its first kernel, so the digest
is kept on the disk under what the system says of each file, its time of change (ctime) among it:
unlike the time of writing, no program sets that, so an upgrade cannot leave it as it was.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time

from aster_ml.runtime import object_cache

# A file changed since may change again within one tick of the system's clock.
SETTLED_AFTER_S = 2


@functools.cache
def source_digest() -> str:
    """A hash of what Aster's source files say: another compiler compiles anew.

    Of all of them, looked at once a process when a kernel is first looked for on the disk: which of
    them the code of a kernel depends on is more than a list can keep up with.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    paths = source_files(root)
    state = state_of(paths)
    known = None if state is None else object_cache.get(state)
    if known is not None:
        return known.decode()
    found = content_digest(root, paths)
    if state is not None:
        object_cache.put(state, found.encode())
    return found


def source_files(root: str) -> list[str]:
    """The source files below a folder, in one order wherever."""
    return sorted(
        [
            os.path.join(folder, name)
            for folder, _, names in os.walk(root)
            for name in names
            if name.endswith(".py")
        ]
    )


def state_of(paths: list[str]) -> str | None:
    """What changes with any change of these files; None where nothing is sure to."""
    if sys.platform == "win32":
        # What stands for the time of change is that of making there.
        return None
    found = [os.stat(path) for path in paths]
    if time.time() - max([s.st_ctime for s in found]) < SETTLED_AFTER_S:
        return None
    parts = [
        f"{path} {s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
        for path, s in zip(paths, found, strict=True)
    ]
    return "|".join(["sources", *parts])


def content_digest(root: str, paths: list[str]) -> str:
    """A hash of the names and the content of these files."""
    made = hashlib.blake2b(digest_size=12)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        made.update(f"{path[len(root) :]} {len(content)}|".encode())
        made.update(content)
    return made.hexdigest()
