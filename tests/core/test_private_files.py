"""Folders and files of one user: what others may have planted is refused, never followed.

The tests give files away, so those of other users are for root alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.compat import disk_cache
from aster_ml.config import CACHEDIR
from aster_ml.downloads import downloads_folder
from aster_ml.engine import fallback
from aster_ml.engine.search import beam as search
from aster_ml.errors import ArgumentError, DownloadError
from aster_ml.nn.download import datasets_folder
from aster_ml.private_files import (
    UnsafeFolderError,
    check_folder,
    make_folder,
    own_folder,
    replace_own,
)
from aster_ml.runtime import object_cache
from aster_ml.runtime.object_cache import ObjectCache
from aster_ml.viz.session import recorded
from tests.core.runtime_kernels import python_environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners of files as POSIX has them")
as_root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root gives files away"
)
STRANGER = 12345
TEXT = fallback.HEAD + "\n# stage kernel\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder as /tmp is: everybody may write, and nobody remove what is another's."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def write_failures(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Writes a text where there is no cache folder and `place` is that of temporary files."""
    monkeypatch.setattr(fallback, "cache_folder", lambda: None)
    monkeypatch.setattr(fallback.tempfile, "gettempdir", lambda: str(place))
    monkeypatch.setattr(fallback, "MOST_TEXTS", 3)
    return fallback.write("kernel-ab.txt", TEXT)


def listing(folder: Path) -> dict[str, bytes]:
    """What lies in a folder: names, and what files hold."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b""
        for p in sorted(folder.rglob("*"))
    }


# what is refused


def test_a_folder_that_was_made_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "one" / "two" / "three")
    finally:
        os.umask(before)
    for path in ("one", "one/two", "one/two/three"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700
    check_folder(tmp_path / "one" / "two" / "three")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    make_folder(tmp_path / "open")
    (tmp_path / "open").chmod(mode)
    with pytest.raises(UnsafeFolderError, match="others may write"):
        make_folder(tmp_path / "open")


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeFolderError, match="a link"):
        check_folder(tmp_path / "link")
    make_folder(tmp_path / "link" / "below")
    assert (tmp_path / "real" / "below").is_dir(), "our own links on the way are followed"


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        make_folder(tmp_path / "a" / "folder")


@pytest.mark.parametrize("way", ["./real/../link/sub", "link/../real/sub", "real//sub"])
def test_ways_with_dots_lead_where_the_system_goes(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "real" / "sub")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other/../real")
    folder = Path(os.path.join(way, "x"))
    make_folder(folder)
    assert (tmp_path / "real" / "sub" / "x").is_dir()


@as_root
@pytest.mark.parametrize("what", ["link", "folder", "file"])
def test_what_a_stranger_has_laid_on_the_way_is_refused(
    tmp_path: Path, shared: Path, what: str
) -> None:
    treasure = tmp_path / "treasure"
    make_folder(treasure)
    planted = shared / "aster"
    if what == "link":
        planted.symlink_to(treasure)
    elif what == "folder":
        planted.mkdir(mode=0o777)
    else:
        planted.write_text("")
    os.lchown(planted, STRANGER, -1)
    for folder in (planted / "cache", planted / "deep" / "cache"):
        with pytest.raises(UnsafeFolderError, match=f"user {STRANGER}"):
            make_folder(folder)
    assert listing(treasure) == {}


@as_root
def test_a_folder_of_a_stranger_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    os.chown(tmp_path / "theirs", STRANGER, -1)
    with pytest.raises(UnsafeFolderError, match=f"user {STRANGER}"):
        make_folder(tmp_path / "theirs" / "objects")
    assert listing(tmp_path / "theirs") == {}


@as_root
def test_users_of_one_folder_have_folders_of_their_own(shared: Path) -> None:
    assert own_folder(shared, "objects") == shared / "objects"
    make_folder(shared / "objects")
    assert own_folder(shared, "objects") == shared / "objects"
    os.chown(shared / "objects", STRANGER, -1)
    mine = own_folder(shared, "objects")
    assert mine == shared / f"objects-{os.geteuid()}"
    make_folder(mine)
    (shared / "objects").rmdir()
    (shared / "objects").symlink_to(mine)
    os.lchown(shared / "objects", STRANGER, -1)
    assert own_folder(shared, "objects") == mine


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "entry").symlink_to(target)
    replace_own(str(tmp_path / "entry"), b"new")
    assert (tmp_path / "entry").read_bytes() == b"new"
    assert not (tmp_path / "entry").is_symlink()
    assert target.read_text() == "precious"


# those who write


def old_texts(folder: Path, content: str = "mine") -> dict[str, bytes]:
    """Ten old files that texts of failures would have pushed out."""
    for i in range(10):
        path = folder / f"kernel-{i}.txt"
        path.write_text(content)
        os.utime(path, (i, i))
    return listing(folder)


@pytest.mark.parametrize("owner", [None, pytest.param(STRANGER, marks=as_root)])
@pytest.mark.parametrize("level", ["aster-ml", "failures"])
def test_failures_leave_alone_what_a_link_leads_to(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, level: str, owner: int | None
) -> None:
    treasure = tmp_path / "treasure"
    make_folder(treasure / "failures")
    inside = treasure / "failures" if level == "aster-ml" else treasure
    before = old_texts(inside)
    planted = shared / "aster-ml"
    if level == "failures":
        make_folder(planted)
        planted /= "failures"
    planted.symlink_to(treasure)
    if owner is not None:
        os.lchown(planted, owner, -1)
    write_failures(shared, monkeypatch)
    assert listing(inside) == before


@as_root
def test_failures_go_to_a_folder_of_the_user(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / "aster-ml").mkdir(mode=0o777)
    os.chown(shared / "aster-ml", STRANGER, -1)
    place = write_failures(shared, monkeypatch)
    assert place is not None
    assert place.parent.parent == shared / f"aster-ml-{os.geteuid()}"
    assert listing(shared / "aster-ml") == {}


def test_failures_push_out_texts_of_failures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "failures"
    make_folder(folder)
    before = old_texts(folder)
    monkeypatch.setattr(fallback, "MOST_TEXTS", 3)
    with Context(CACHEDIR=str(tmp_path)):
        for i in range(6):
            fallback.write(f"plan-{i}.txt", TEXT)
    left = listing(folder)
    assert {name: left.get(name) for name in before} == before


def test_a_cache_evicts_its_own_entries_alone(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    make_folder(folder)
    for name in ("letter.txt", "photo.tmp", "0" * 31, "abc.1-2.tmp"):
        (folder / name).write_bytes(bytes(10_000))
        os.utime(folder / name, (1, 1))
    before = listing(folder)
    cache = ObjectCache(folder, limit_bytes=3000)
    for i in range(20):
        cache.put(f"key {i}", bytes(1000))
    left = listing(folder)
    assert {name: left.get(name) for name in before} == before
    assert len(left) < 10


def compute() -> None:
    """A kernel that is compiled, kept, and right."""
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal((Tensor(x) * 3.25 + 1).numpy(), x * 3.25 + 1)


@as_root
@pytest.mark.parametrize(
    "name", ["objects", "schedules", "tables", "failures", "downloads", "datasets", ""]
)
def test_nothing_is_kept_in_a_planted_folder(
    tmp_path: Path, shared: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's link at each folder of the cache: nothing is written where it leads to."""
    treasure = tmp_path / "treasure"
    make_folder(treasure / "objects")
    (treasure / "mine.txt").write_text("mine")
    before = listing(treasure)
    place = shared / "cache"
    if name:
        make_folder(place)
        place.chmod(0o1777)
    (place / name).symlink_to(treasure)
    os.lchown(place / name, STRANGER, -1)
    monkeypatch.setattr(fallback.tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(search, "REMEMBERED", {})
    with Context(CACHEDIR=str(place), CACHE=1):
        for folder in (downloads_folder, lambda: datasets_folder("digits")):
            if name:
                made = folder()
                assert place in made.parents
                assert not made.resolve().is_relative_to(treasure)
            else:
                with pytest.raises(DownloadError, match=f"user {STRANGER}"):
                    folder()
        record = search.Record(1, ())
        search.keep("name", record, "version 0\n")
        fallback.write("kernel-0.txt", TEXT)
        cache = ObjectCache(own_folder(Path(CACHEDIR.value), "objects"))
        if name:
            cache.put("key", b"data")
            assert cache.get("key") == b"data"
            assert disk_cache.diskcache_put("t", "k", 7) == 7
            assert disk_cache.diskcache_get("t", "k") == 7
        else:
            with pytest.warns(RuntimeWarning, match=f"user {STRANGER}"):
                cache.put("key", b"data")
            with pytest.raises(ArgumentError, match=f"user {STRANGER}"):
                disk_cache.diskcache_put("t", "k", 7)
    assert listing(treasure) == before


TWO_USERS = """
import os, sys, warnings
warnings.simplefilter("error", RuntimeWarning)
from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.compat.disk_cache import diskcache_get, diskcache_put
from aster_ml.engine.sources import source_digest
# Before the other user takes over, who may not be let into the folders of Python.
with Context(CACHE=0):
    x = Tensor([1.0, 2.0, 3.0]).realize()
    (x + 1.5).realize()
    source_digest()
GlobalCounters.reset()
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
assert (x * 2.125 + 1).tolist() == [3.125, 5.25, 7.375]
found = diskcache_get("t", "k")
diskcache_put("t", "k", os.getuid())
print(GlobalCounters.compiled_kernels, found)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder as /tmp is that other users reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@as_root
def test_two_users_share_a_cache_folder(open_to_all: Path) -> None:
    """Each has kernels of its own there, and nobody is warned."""
    shared, printed = open_to_all, []
    for user in (0, STRANGER, 0, STRANGER):
        done = subprocess.run(
            [sys.executable, "-c", TWO_USERS, str(user)], capture_output=True, text=True,
            env=python_environment() | {"CACHEDIR": str(shared), "HOME": "/nowhere"},
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    assert [words[1] for words in printed] == ["None", "None", "0", str(STRANGER)]
    assert [int(words[0]) > 0 for words in printed[:2]] == [True, True]
    assert [words[0] for words in printed[2:]] == ["0", "0"]
    assert {p.stat().st_uid for p in shared.rglob("*")} == {0, STRANGER}
    assert all(p.stat().st_mode & 0o077 == 0 for p in shared.iterdir())


def test_an_object_is_never_opened_through_a_link(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects")
    cache.put("key", b"data")
    elsewhere = tmp_path / "elsewhere"
    os.replace(cache.path("key"), elsewhere)
    cache.path("key").symlink_to(elsewhere)
    assert cache.get("key") is None


def test_keys_of_paths_that_are_no_text(tmp_path: Path) -> None:
    """A path of bytes that are no UTF-8 has surrogates, which have no UTF-8 of their own."""
    with Context(CACHEDIR=str(tmp_path), CACHE=1):
        object_cache.put("sources /home/\udce9/x", b"data")
        assert object_cache.get("sources /home/\udce9/x") == b"data"
        found: Any = object_cache.get("sources /home/\udce8/x")
        assert found is None


@as_root
@pytest.mark.parametrize("end", [".html", ".json"])
def test_the_page_of_a_run_is_not_written_through_a_stranger_s_link(
    tmp_path: Path, shared: Path, end: str
) -> None:
    target = tmp_path / "treasure"
    target.write_text("mine")
    page = shared / f"page{end}"
    page.symlink_to(target)
    with recorded(page):
        compute()
    assert target.read_text() != "mine", "our own link is followed"
    target.write_text("mine")
    os.lchown(page, STRANGER, -1)
    with pytest.raises(ArgumentError, match=f"user {STRANGER}"), recorded(page):
        compute()
    assert target.read_text() == "mine"
