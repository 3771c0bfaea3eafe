"""A digest of what Aster's own code says, by which kernels on the disk are kept apart.

Receives nothing; returns text that is another one after any change of Aster's code, however it is
installed: as source files, as compiled files alone, in a zip, in a program of one file. To read all
files takes 5 to 10 ms, most of what a small program spends before its first kernel, so the digest
is kept on the disk under what the system says of each file, its time of change (ctime) among it:
unlike the time of writing, no program sets that, so an upgrade cannot leave it as it was.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import time

from aster_ml.runtime import object_cache

# A file changed since may change again within one tick of the system's clock.
SETTLED_AFTER_S = 2
DIGEST_BYTES = 12
DIGEST = re.compile(rb"[0-9a-f]{%d}" % (2 * DIGEST_BYTES))
# Files with code, of Python and of the languages of kernels; compiled files count where there are
# no sources.
CODE = (".py", ".pyc", ".hpp", ".cuh", ".metal", ".wgsl")
COMPILED_APART = "__pycache__"


@functools.cache
def source_digest() -> str:
    """A hash of what Aster's code says: another compiler compiles anew.

    Of all of it, looked at once a process when a kernel is first looked for on the disk: which of
    the files the code of a kernel depends on is more than a list can keep up with.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    paths = code_files(root)
    try:
        return digest_of_files(root, paths) if paths else os.urandom(DIGEST_BYTES).hex()
    except OSError:
        # Code that cannot be looked at may be another one in the next process.
        return os.urandom(DIGEST_BYTES).hex()


def digest_of_files(root: str, paths: list[str]) -> str:
    """The digest, from the disk where that has it for files in this state. Raises: OSError."""
    state = state_of(paths)
    known = None if state is None else object_cache.get(state)
    if known is not None and DIGEST.fullmatch(known):
        return known.decode()
    found = content_digest(root, paths)
    if state is not None:
        object_cache.put(state, found.encode())
    return found


def code_files(root: str) -> list[str]:
    """The files that the code below a folder is in, in one order wherever.

    Of a folder within a file, such as a zip, that file; of a frozen program its executable. Empty
    where neither is to be found.
    """
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(root)
        if os.path.basename(folder) != COMPILED_APART
        for name in names
        if name.endswith(CODE)
    ]
    if found:
        return sorted(found)
    place = root
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if getattr(sys, "frozen", False):
        place = sys.executable
    return [place] if os.path.isfile(place) else []


def state_of(paths: list[str]) -> str | None:
    """Digest that changes with any change of these files; None where nothing is sure to."""
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
    made = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        name = path.removeprefix(root)
        made.update(f"{name} {len(content)}|".encode("utf-8", "surrogatepass"))
        made.update(content)
    return made.hexdigest()
