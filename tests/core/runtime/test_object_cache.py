"""The disk cache: what goes in comes out whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from aster_ml.config import Context
from aster_ml.runtime import object_cache
from aster_ml.runtime.object_cache import (
    COUNT_BYTES,
    DIGEST_BYTES,
    HEADER_BYTES,
    MAGIC,
    ObjectCache,
    cache_folder,
    digest,
)
from tests.core.runtime_kernels import python_environment

KEY, DATA = "kernel r_4_4 CPU llvm", bytes(range(256)) * 8


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


def entries(cache: ObjectCache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def test_round_trip(cache: ObjectCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA
    assert cache.get(KEY + " ") is None
    cache.put(KEY, b"")
    assert cache.get(KEY) == b""
    assert (cache.hits, cache.misses) == (2, 2)
    assert len(entries(cache)) == 1


def test_an_entry_of_several_keys_is_one_file(cache: ObjectCache) -> None:
    cache.put("a", DATA, "b", "c")
    assert [cache.get(key) for key in ("a", "b", "c", "d")] == [DATA, DATA, DATA, None]
    assert len({path.stat().st_ino for path in entries(cache)}) == 1
    cache.put("b", b"other", "d")
    assert [cache.get(key) for key in ("a", "b", "c", "d")] == [DATA, b"other", DATA, b"other"]
    cache.put("d", DATA, "a", "c")
    assert [cache.get(key) for key in ("a", "b", "c", "d")] == [DATA, b"other", DATA, DATA]
    assert not list(cache.folder.glob("*.tmp"))


@pytest.mark.parametrize("rest", [b"", b"\xff" * 4, b"\xff" * 60_000, bytes(60_000)])
def test_a_file_of_another_form_counts_as_missing_at_once(cache: ObjectCache, rest: bytes) -> None:
    """One of an older version says nothing of how many keys it has."""
    cache.put(KEY, DATA)
    for magic in (b"aster-object-1\n\0", MAGIC, b""):
        cache.path(KEY).write_bytes(magic + bytes(DIGEST_BYTES) + rest)
        start = time.process_time()
        assert cache.get(KEY) is None
        assert time.process_time() - start < 0.5
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


@pytest.mark.parametrize("count", [0, 2, 1 << 24, (1 << 32) - 1])
def test_a_sealed_file_with_more_names_than_bytes_counts_as_missing_at_once(
    cache: ObjectCache, count: int
) -> None:
    cache.put(KEY, DATA)
    rest = bytearray(cache.path(KEY).read_bytes()[HEADER_BYTES:])
    rest[:COUNT_BYTES] = count.to_bytes(COUNT_BYTES, "little")
    # That with two names has the data of one of them cut, and is another entry.
    del rest[COUNT_BYTES + 2 * DIGEST_BYTES - 1 :]
    cache.path(KEY).write_bytes(MAGIC + digest(bytes(rest)) + rest)
    start = time.process_time()
    assert cache.get(KEY) is None
    assert time.process_time() - start < 0.5
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_a_folder_where_files_have_one_name(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    cache.put("a", DATA, "b")
    assert cache.get("a") == cache.get("b") == DATA
    assert len({path.stat().st_ino for path in entries(cache)}) == 2


def test_a_file_goes_with_all_of_its_names(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_bytes=10_000)
    for index in range(30):
        cache.put(f"key {index}", bytes(1000), f"too {index}", f"more {index}")
    left = [index for index in range(30) if cache.get(f"key {index}") is not None]
    assert 5 <= len(left) <= 12
    assert left[-1] == 29
    for index in range(30):
        assert (cache.get(f"too {index}") is None) == (index not in left)
        assert (cache.get(f"more {index}") is None) == (index not in left)


def test_another_process_object_sees_it(cache: ObjectCache) -> None:
    cache.put(KEY, DATA)
    assert ObjectCache(cache.folder).get(KEY) == DATA


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_nobody_else_may_write_there(cache: ObjectCache) -> None:
    cache.put(KEY, DATA)
    assert cache.folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_an_entry_that_others_may_write_is_missing(cache: ObjectCache, mode: int) -> None:
    cache.put(KEY, DATA)
    cache.path(KEY).chmod(mode)
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_what_is_written_is_trusted_under_any_umask(cache: ObjectCache, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache.put(KEY, DATA)
    finally:
        os.umask(before)
    assert cache.get(KEY) == DATA
    assert cache.path(KEY).stat().st_mode & 0o022 == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    ObjectCache(tmp_path / "objects").put(KEY, DATA)
    (tmp_path / "objects").chmod(mode)
    cache = ObjectCache(tmp_path / "objects")
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert cache.get(KEY) is None
    cache.put("other", DATA)
    assert len(entries(cache)) == 1, "nothing is written there"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_is_missing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects")
    cache.put(KEY, DATA)
    os.chown(cache.path(KEY), 12345, -1)
    assert cache.get(KEY) is None
    os.chown(cache.folder, 12345, -1)
    with pytest.warns(RuntimeWarning, match="belongs to user 12345"):
        assert ObjectCache(tmp_path / "objects").get(KEY) is None


@pytest.mark.skipif(os.name != "posix", reason="kinds of file as POSIX has them")
def test_an_entry_that_is_no_file_is_missing_at_once(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put(KEY, DATA)
    whole = tmp_path / "whole"
    os.replace(cache.path(KEY), whole)
    os.mkfifo(cache.path(KEY))
    assert cache.get(KEY) is None
    for target in ("/dev/zero", str(whole)):
        cache.path(KEY).unlink()
        cache.path(KEY).symlink_to(target)
        assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_an_entry_larger_than_the_cache_is_missing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects", limit_bytes=1 << 16)
    cache.put(KEY, DATA)
    with open(cache.path(KEY), "r+b") as file:
        file.truncate(1 << 40)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, -1])
def test_truncated_entries_are_missing_and_written_again(cache: ObjectCache, length: int) -> None:
    cache.put(KEY, DATA)
    path = cache.path(KEY)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_a_changed_byte_anywhere_is_found(cache: ObjectCache) -> None:
    cache.put(KEY, b"some data")
    path = cache.path(KEY)
    whole = path.read_bytes()
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 1
        path.write_bytes(damaged)
        assert cache.get(KEY) is None, f"byte {index}"
    path.write_bytes(whole + b"x")
    assert cache.get(KEY) is None


def test_an_entry_under_another_name_is_missing(cache: ObjectCache) -> None:
    cache.put(KEY, DATA)
    os.replace(cache.path(KEY), cache.path("other"))
    assert cache.get("other") is None


def test_an_entry_that_is_a_folder_is_missing(cache: ObjectCache) -> None:
    cache.path(KEY).mkdir(parents=True)
    assert cache.get(KEY) is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.put(KEY, DATA)


def test_a_folder_removed_in_use_is_made_again(cache: ObjectCache) -> None:
    cache.put(KEY, DATA)
    cache.path(KEY).unlink()
    cache.folder.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_an_unwritable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = ObjectCache(tmp_path / "file" / "objects")
    with pytest.warns(RuntimeWarning, match="are not cached: .*objects cannot be written .*CACHE"):
        cache.put(KEY, DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, DATA)
        assert cache.get(KEY) is None


@pytest.mark.skipif(os.name != "posix", reason="limits as POSIX has them")
def test_a_disk_that_takes_only_a_part_costs_a_warning(cache: ObjectCache) -> None:
    import resource

    cache.put("other", DATA)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            cache.put(KEY, DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert cache.get(KEY) is None
    assert entries(cache) == [cache.path("other")]


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_bytes=10_000)
    start = time.time() - 1000
    for index in range(8):
        cache.put(f"key {index}", bytes(1000))
        os.utime(cache.path(f"key {index}"), (start + index, start + index))
    assert cache.get("key 0") is not None  # used now, so it is the youngest
    cache.allowance = 0
    for index in range(8, 12):
        cache.put(f"key {index}", bytes(1000))
    cache.evict()
    assert sum(path.stat().st_size for path in entries(cache)) <= 10_000
    kept = [index for index in range(12) if cache.path(f"key {index}").exists()]
    assert kept == [0, 4, 5, 6, 7, 8, 9, 10, 11]


def test_writing_alone_keeps_the_limit(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_bytes=100_000)
    most = 0
    for index in range(300):
        cache.put(f"key {index}", bytes(1000))
        most = max(most, len(entries(cache)) * (1000 + HEADER_BYTES))
    assert most <= 100_000 * 1.1


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    entry = cache.path("another")
    old, young = entry.with_suffix(".1-a-1.tmp"), entry.with_suffix(".1-a-2.tmp")
    alien = tmp_path / "notes.tmp"
    for path in (old, young, alien):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    os.utime(alien, (1, 1))
    cache.put(KEY, DATA)
    assert not old.exists()
    assert young.exists()
    assert alien.exists(), "it was not written by a cache"


RACER = """
import random, sys
from pathlib import Path
from aster_ml.runtime.object_cache import ObjectCache
cache = ObjectCache(Path(sys.argv[1]), limit_bytes=60_000)
rng = random.Random(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
found = 0
for step in range(1500):
    key = rng.randrange(40)
    data = bytes([key]) * (500 + 100 * key)
    got = cache.get(f"key {key}")
    if got is None:
        cache.put(f"key {key}", data)
    elif got != data:
        sys.exit(f"key {key}: {len(got)} bytes, wanted {len(data)}")
    else:
        found += 1
    if step % 50 == 0:  # as a crash in the middle of a disk's own writing would
        path = cache.path(f"key {key}")
        if path.exists():
            path.write_bytes(bytes(rng.randrange(300)))
print(found)
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", RACER, str(tmp_path), str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=python_environment(),
        )
        for seed in range(2)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    results = [racer.communicate("\n", timeout=120) for racer in racers]
    for racer, (output, errors) in zip(racers, results):
        assert racer.returncode == 0, errors
        assert int(output) > 100
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


# which folder


def test_settings_choose_the_folder(tmp_path: Path) -> None:
    with Context(CACHEDIR=str(tmp_path / "one"), CACHE=1):
        assert cache_folder() == tmp_path / "one"
        object_cache.put(KEY, DATA)
        assert object_cache.get(KEY) == DATA
        with Context(CACHEDIR=str(tmp_path / "two")):
            assert object_cache.get(KEY) is None
        with Context(CACHE=0):
            assert object_cache.get(KEY) is None
            object_cache.put("unwanted", DATA)
        assert object_cache.get("unwanted") is None
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize(
    "platform, environment, wanted",
    [
        ("linux", {}, "home/.cache/aster-ml"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/aster-ml"),
        ("linux", {"XDG_CACHE_HOME": "ROOT/xdg"}, "xdg/aster-ml"),
        ("darwin", {"XDG_CACHE_HOME": "ROOT/xdg"}, "home/Library/Caches/aster-ml"),
        ("win32", {"LOCALAPPDATA": "ROOT/local"}, "local/aster-ml"),
        ("win32", {}, "home/AppData/Local/aster-ml"),
    ],
)
def test_the_platforms_own_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str,
    environment: dict[str, str], wanted: str,
) -> None:  # fmt: skip
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("ROOT", str(tmp_path)))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    with Context(CACHEDIR=""):
        assert cache_folder() == tmp_path / wanted


def test_no_home_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", homeless)
    with Context(CACHEDIR="", CACHE=1):
        assert cache_folder() is None
        object_cache.put(KEY, DATA)
        assert object_cache.get(KEY) is None
