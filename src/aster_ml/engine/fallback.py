"""Takes another way where the compiler itself fails, and says so once.

Receives the error of a stage and the graph that the stage was working on; says whether the error is
Aster's own, warns once for each graph, and writes a text from which `reproduce` gives the failure
again. Which plainer ways there are is the business of the stages (`compile`, `realize`). With
STRICT=1 nothing is taken for Aster's own here, so that errors are raised as they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aster_ml.config import SETTINGS, STRICT
from aster_ml.errors import (
    AsterError,
    CompileError,
    FormatError,
    InternalError,
    KernelOptError,
)
from aster_ml.frames import user_line
from aster_ml.late import late
from aster_ml.private_files import READ_FLAGS, make_folder, own_folder, remove_file, replace_own
from aster_ml.runtime.object_cache import cache_folder
from aster_ml.target import Target
from aster_ml.uop.node import UOp

if TYPE_CHECKING:
    from aster_ml.uop.print import text as node_text
else:
    node_text = late("uop.print.text")

# Errors of this family that are Aster's own and not a user's.
OWN = (InternalError, KernelOptError, CompileError)
# What says more about the machine than about Aster.
OF_THE_MACHINE = (MemoryError, OSError)
FOLDER = "failures"
# So many texts stay; the oldest go.
MOST_TEXTS = 100
OWN_NAME = re.compile(r"[a-z]+-[0-9a-f]+\.txt")
HEAD = "# Aster ML failed inside, and took a plainer way. Again: aster reproduce THIS_FILE"


class FallbackWarning(UserWarning):
    """Aster failed inside and took a plainer way: results are right, and maybe slower."""


T = TypeVar("T")

# Stages and graphs whose failure was reported.
REPORTED: set[tuple[str, str]] = set()


def may_fall_back(error: Exception) -> bool:
    """Whether a plainer way may do what failed: Aster's own error, and not with STRICT=1."""
    if STRICT or isinstance(error, OF_THE_MACHINE):
        return False
    return isinstance(error, OWN) or not isinstance(error, AsterError)


def take_plainer_way(
    stage: str,
    root: UOp,
    target: Target | None,
    error: Exception,
    ways: Iterable[tuple[str, Callable[[], T]]],
) -> T:
    """Gives the result of the first of these ways, by name, that does not fail inside as well.

    Raises: the `error` for which none was taken, where it is a user's, or where no way does it.
    """
    if not may_fall_back(error):
        raise error
    for name, make in ways:
        try:
            made = make()
        except Exception as again:
            if not may_fall_back(again):
                break
            continue
        report_fallback(stage, root, target, error, name)
        return made
    raise error


def report_fallback(
    stage: str, root: UOp, target: Target | None, error: Exception, taken: str
) -> None:
    """Warns of a failure, once for a graph, and says where its text is.

    `taken` names the way that was taken in place of the one that failed.
    """
    key = stage, hashlib.blake2b(root.key.encode(), digest_size=8).hexdigest()
    if key in REPORTED:
        return
    REPORTED.add(key)
    try:
        text = failure_text(stage, root, target, error)
    except Exception as other:
        # Of a graph that has no text, at least the trace.
        text = "".join([HEAD, "\n", *traceback.format_exception(error), repr(other), "\n"])
    place = write(f"{stage}-{key[1]}.txt", text)
    file, line = user_line()
    warnings.warn_explicit(
        f"Aster failed inside ({stage}: {type(error).__name__}: {str(error)[:200]}) and took "
        f"{taken} instead; results are right. Please report {place or 'this'}"
        f"{f' (aster reproduce {place})' if place else ''}; STRICT=1 raises the error",
        FallbackWarning,
        file,
        line,
    )


def failure_text(stage: str, root: UOp, target: Target | None, error: Exception) -> str:
    """All that it takes to see a failure again, as text that `read_failure` reads."""
    changed = [s for s in SETTINGS.values() if s.affects and s.value != s.default]
    trace = traceback.format_exception(error)
    lines = [
        HEAD,
        f"# stage {stage}",
        f"# target {target.key if target is not None else ''}".rstrip(),
        f"# settings {' '.join([f'{s.name}={s.value}' for s in changed])}".rstrip(),
        *[f"#   {line}" for part in trace for line in part.splitlines()],
        node_text.to_text(root),
    ]
    return "\n".join(lines) + "\n"


def write(name: str, text: str) -> Path | None:
    """The file with this text, in the cache folder, else in that of temporary files."""
    for place in (cache_folder, temporary_folder):
        try:
            parent = place()
            if parent is None:
                continue
            folder = own_folder(parent, FOLDER)
            make_folder(folder)
            old = sorted(texts_in(folder))
            for _, path in old[: max(len(old) - MOST_TEXTS + 1, 0)]:
                remove_text(path)
            replace_own(str(folder / name), text.encode("utf-8", "backslashreplace"))
        except OSError:
            continue  # a folder that may not be written; the next one may
        return folder / name
    return None


def temporary_folder() -> Path:
    """A folder of this user's in that of temporary files. Raises: OSError where there is none."""
    folder = own_folder(Path(tempfile.gettempdir()), "aster-ml")
    make_folder(folder)
    return folder


def texts_in(folder: Path) -> Iterator[tuple[float, str]]:
    """When each text of a failure in a folder was written, and its path. Raises: OSError."""
    with os.scandir(folder) as listing:
        for item in listing:
            if OWN_NAME.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                yield item.stat(follow_symlinks=False).st_mtime, item.path


def remove_text(path: str) -> None:
    """Removes a file that begins as a text of a failure does. Raises: OSError."""
    with open(os.open(path, READ_FLAGS), "rb") as file:
        is_text = file.read(len(HEAD)) == HEAD.encode()
    if is_text:
        remove_file(path)


class Failure(NamedTuple):
    """Failure, as a text of `failure_text` describes it."""

    stage: str
    target: Target | None
    settings: dict[str, int | str]
    root: UOp


def read_failure(text: str) -> Failure:
    """The failure of a text. Raises: FormatError for what is none."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        word, _, rest = line.removeprefix("# ").partition(" ")
        if line.startswith("# ") and word in ("stage", "target", "settings"):
            said.setdefault(word, rest)
    if "stage" not in said:
        raise FormatError("reproduce: no text of a failure: a line '# stage ...' is wanted")
    settings: dict[str, int | str] = {}
    for pair in said.get("settings", "").split():
        name, _, value = pair.partition("=")
        if name not in SETTINGS:
            raise FormatError(f"reproduce: no setting is named {name}")
        settings[name] = value if isinstance(SETTINGS[name].default, str) else int(value)
    target = Target.parse(said["target"]) if said.get("target") else None
    return Failure(said["stage"], target, settings, node_text.parse(text))
