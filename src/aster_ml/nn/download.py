"""Downloads files, keeps them on disk and checks them by their published checksums.

A file is looked for in the cache, then asked of each address in turn, and takes its place in the
cache only once its checksum is right. Nothing here knows what is in a file.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from aster_ml.downloads import write_atomically
from aster_ml.errors import DownloadError
from aster_ml.extend import cache_folder
from aster_ml.private_files import check_way, own_folder

TIMEOUT_S = 30
CHUNK_NBYTES = 1 << 16


class RemoteFile(NamedTuple):
    """A file by name, with its MD5 as published and the addresses that have it."""

    name: str
    md5: str
    addresses: tuple[str, ...]


def datasets_folder(name: str) -> pathlib.Path:
    """Where the files of a data set are kept: below the folder of all of Aster's caches.

    Raises: DownloadError when there is no such folder.
    """
    folder = cache_folder()
    if folder is None:
        raise DownloadError(
            f"{name}: there is no home folder to keep the files in; the setting CACHEDIR names one"
        )
    found = own_folder(folder, "datasets")
    try:
        check_way(found)
    except OSError as error:
        raise DownloadError(f"{name}: {found} is not used ({error}); set CACHEDIR") from error
    return found / name


def md5_of(path: pathlib.Path) -> str:
    """The MD5 of a file, in hexadecimal; against damage, not against malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fetch_files(files: Sequence[RemoteFile], folder: pathlib.Path) -> list[pathlib.Path]:
    """The paths of the files in the folder; what is not there yet is downloaded.

    Raises: DownloadError that names the files, the addresses tried and where to put the files by
    hand.
    """
    paths = [folder / file.name for file in files]
    problems: list[str] = []
    for file, path in zip(files, paths):
        if path.exists():
            try:
                found = md5_of(path)
            except OSError as error:
                raise DownloadError(
                    f"{path} is where {file.name} is kept, and cannot be read as a file: {error}; "
                    "move it away, or set CACHEDIR"
                ) from error
            if found == file.md5:
                continue
            problems.append(
                f"  {path}: its MD5 is {found}, {file.md5} is wanted: it is damaged, and is "
                "replaced by a download"
            )
        failed = download(file, path)
        if failed:
            problems += failed
            raise DownloadError(
                f"{file.name} is not in the cache and could not be downloaded:\n"
                + "\n".join(problems)
                + f"\nPut these files into {folder} by hand, or set CACHEDIR: "
                + ", ".join(f.name for f in files)
            )
        problems.clear()
    return paths


def download(file: RemoteFile, path: pathlib.Path) -> list[str]:
    """Try each address in turn; returns what went wrong at each, nothing once one had the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [f"  {path.parent}: there can be no such folder: {error}"]
    # Part of the time to start for what most programs never do.
    import http.client
    import urllib.request

    problems = []
    for address in file.addresses:
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:
                write_atomically(path, functools.partial(copy_checked, file, response))
            return []
        except (OSError, http.client.HTTPException, ChecksumError) as error:
            problems.append(f"  {address}: {error}")
    return problems


class ChecksumError(ValueError):
    """An address gave other bytes than the file has."""


def copy_checked(file: RemoteFile, response: Any, out: Any) -> None:
    """Copy a response with a progress bar; other bytes than wanted are a ChecksumError."""
    checksum = hashlib.md5(usedforsecurity=False)
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else None
    with tqdm(total=total, unit="B", unit_scale=True, desc=file.name, leave=False) as bar:
        while chunk := response.read(CHUNK_NBYTES):
            checksum.update(chunk)
            out.write(chunk)
            bar.update(len(chunk))
    if checksum.hexdigest() != file.md5:
        raise ChecksumError(f"MD5 {checksum.hexdigest()} instead of {file.md5}")
