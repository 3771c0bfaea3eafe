"""Downloads files to the cache folder, and writes files atomically.

Receives a URL; returns the path of a file. Formats of files and published checksums do not belong
here.
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
    """Calls `write` with a temporary file, then renames it to `path` atomically.

    A symbolic link stays and its target is replaced; permissions stay.

    Raises: FileNotFoundError without the folder; FileKindError where `path` is a folder, a device
    or a pipe.
    """
    target = pathlib.Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(target.parent)!r} to write to; make it first")
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        raise FileKindError(
            f"it is {kind_of_file(mode)}, a file to write is wanted", path=str(path)
        )
    temporary = target.with_name(f".aster-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        # An existing file or a planted link of this name is never written to.
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
    """The path of a downloaded file in the cache folder; a local path is returned as it is.

    `name` is its name in the cache (or a path, if it has folders), `subdir` its folder there. Only
    complete files are kept: of the length that the server announced and, with `gunzip`, of the size
    and checksum in the gzip trailer. `allow_caching=False` downloads again.

    Raises: DownloadError when the file is not in the cache and the download fails; FormatError when
    `gunzip` finds no complete gzip file.
    """
    if url.startswith(("/", ".")) or "://" not in url:
        return pathlib.Path(url)
    kept = str(name or hashlib.sha256(url.encode()).hexdigest() + (".gunzip" if gunzip else ""))
    path = (
        pathlib.Path(kept) if name and "/" in kept else (downloads_folder() / (subdir or "") / kept)
    )
    if path.is_file() and allow_caching:
        return path
    # It takes a fifth of the time to import Aster, and few programs need it.
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
    """The folder of downloaded files.

    Raises: DownloadError without a home folder, or where another user could replace the folder.
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
    """Writes the body of an answer. Raises: OSError where it is shorter than announced."""
    stated = answer.headers.get("Content-Length")
    start = file.tell()
    shutil.copyfileobj(answer, file, CHUNK)
    nbytes = file.tell() - start
    if stated is not None and nbytes != int(stated):
        raise OSError(f"{nbytes} bytes have come, {stated} were announced")
