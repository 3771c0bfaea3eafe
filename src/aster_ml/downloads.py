"""Files from the net, kept in the cache folder, and files written in one step.

Receives an address; returns the path of a file. What is in a file, and checksums that somebody has
published, belong elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import Any

from aster_ml.errors import DownloadError, FileKindError
from aster_ml.private_files import check_way, own_folder
from aster_ml.runtime.disk import kind_of_file
from aster_ml.runtime.object_cache import cache_folder
from aster_ml.unpacking import Allowance, unpack

TIMEOUT_S = 30
CHUNK = 1 << 20


def write_atomically(path: pathlib.Path, write: Callable[[Any], None]) -> None:
    """Call `write` with a new file beside `path`, then give it that name in one step.

    A symbolic link stays, and what it leads to is replaced; permissions stay as they were.

    Raises: FileNotFoundError without the folder; FileKindError where the name is that of a folder,
    a device or a pipe.
    """
    target = pathlib.Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(target.parent)!r} to write to")
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        raise FileKindError(
            f"it is {kind_of_file(mode)}, a file to write is wanted", path=str(path)
        )
    temporary = target.with_name(f".aster-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        # A file of this name that is there, or a link that somebody has laid, is never written.
        with open(temporary, "xb") as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def fetch(
    url: str,
    name: pathlib.Path | str | None = None,
    subdir: str | None = None,
    gunzip: bool = False,
    allow_caching: bool = True,
    headers: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """The path of a file from the net, kept in the cache folder; a path of a local file is itself.

    `name` is what it is kept as (a path where it has folders), `subdir` the folder for it there.
    What is kept is whole: as long as the server said it would be and, with `gunzip`, of the size
    and sum that its end states. `allow_caching=False` asks the server again.

    Raises: DownloadError when the file is neither in the cache nor to be had as a whole;
    FormatError when it is to be unpacked and is no whole gzip file.
    """
    if url.startswith(("/", ".")) or "://" not in url:
        return pathlib.Path(url)
    kept = str(name or hashlib.sha256(url.encode()).hexdigest() + (".gunzip" if gunzip else ""))
    path = (
        pathlib.Path(kept) if name and "/" in kept else (downloads_folder() / (subdir or "") / kept)
    )
    if path.is_file() and allow_caching:
        return path
    # A fifth of the time to import Aster, for what most programs never do.
    import http.client
    import urllib.request

    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not gunzip:
                write_atomically(path, lambda file: copy_whole(answer, file))
                return path
            packed = io.BytesIO()
            copy_whole(answer, packed)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DownloadError(f"{url} could not be downloaded: {error}") from error
    data = packed.getvalue()
    content = bytes(unpack(data, "gzip", Allowance(len(data)), url))
    write_atomically(path, lambda file: file.write(content))
    return path


def downloads_folder() -> pathlib.Path:
    """Where downloaded files are kept.

    Raises: DownloadError where there is no home folder, or others decide where the folder is.
    """
    folder = cache_folder()
    if folder is None:
        raise DownloadError("there is no home folder to keep it in; set CACHEDIR")
    found = own_folder(folder, "downloads")
    try:
        check_way(found)
    except OSError as error:
        raise DownloadError(f"{found} is not used ({error}); set CACHEDIR") from error
    return found


def copy_whole(answer: Any, file: Any) -> None:
    """Writes what a server sends. Raises: OSError where that is less than it said."""
    stated = answer.headers.get("Content-Length")
    start = file.tell()
    shutil.copyfileobj(answer, file, CHUNK)
    nbytes = file.tell() - start
    if stated is not None and nbytes != int(stated):
        raise OSError(f"{nbytes} bytes have come, {stated} were announced")
