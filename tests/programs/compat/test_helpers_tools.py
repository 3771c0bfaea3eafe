"""Tools that programs import from `helpers`: profiles, caches, downloads, bits, pointers, text."""

from __future__ import annotations

import ctypes
import functools
import gc
import http.server
import os
import pickle
import pstats
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aster_ml import Context, config, helpers
from aster_ml.compat import disk_cache
from aster_ml.errors import ArgumentError, DownloadError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config.CACHEDIR, "value", str(tmp_path / "cache"))
    return tmp_path / "cache"


def work(n: int) -> int:
    """Something that calls something."""
    return sum(square(i) for i in range(n))


def square(i: int) -> int:
    """What is called."""
    return i * i


def test_profiling(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with helpers.Profiling(frac=1.0, sort="tottime", fn=str(tmp_path / "profile")):
        work(500)
    lines = [helpers.ansistrip(line) for line in capsys.readouterr().out.splitlines()]
    squares = next(line for line in lines if ":square" in line)
    assert squares.startswith("n:     500  tm:")
    assert "<genexpr>" in squares.partition("<-")[2]
    stats = pstats.Stats(str(tmp_path / "profile"))
    assert any(name == "square" for _, _, name in stats.stats)  # type: ignore[attr-defined]
    with helpers.Profiling(enabled=False):
        work(5)
    assert capsys.readouterr().out == ""


def test_profiling_shows_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    with helpers.Profiling(frac=1.0):
        work(5)
    everything = capsys.readouterr().out.count("\n")
    with helpers.Profiling(frac=0.5):
        work(5)
    assert 0 < capsys.readouterr().out.count("\n") < everything


@pytest.mark.filterwarnings("ignore:without effect in Aster. PROFILE")
def test_spans_and_marks_are_recorded_while_profiling() -> None:
    helpers.cpu_events.clear()
    helpers.profile_marker("before")
    with Context(PROFILE=1):
        helpers.profile_marker("start", color="red")
        with helpers.cpu_profile("work", "CPU") as span:
            work(10)
        with helpers.cpu_profile("hidden", display=False):
            work(10)
    mark, recorded = helpers.cpu_events
    assert mark.arg == {"name": "start", "color": "red"}
    assert recorded is span
    assert (span.name, span.device) == ("work", "CPU")
    assert mark.ts < span.st < span.en < helpers.perf_counter_us()
    helpers.cpu_events.clear()


def test_stack_trace() -> None:
    frames = helpers.get_stacktrace(sys._getframe(), max_frames=2)
    assert len(frames) == 2
    assert frames[0][:1] + frames[0][2:3] == (__file__, "test_stack_trace")


CALLS: list[Any] = []


@helpers.diskcache
def slow_sum(a: Any, b: int = 1) -> Any:
    """Something to keep."""
    CALLS.append((a, b))
    return None if a is None else a + b


def test_diskcache_calls_once_for_each_set_of_arguments() -> None:
    CALLS.clear()
    assert [slow_sum(1, 2), slow_sum(1, 2), slow_sum(1, b=3), slow_sum(None), slow_sum(None)] == [
        3, 3, 4, None, None,
    ]  # fmt: skip
    assert CALLS == [(1, 2), (1, 3), (None, 1)]
    with Context(CACHE=0):
        assert slow_sum(1, 2) == 3
    assert len(CALLS) == 4
    helpers.diskcache_clear()
    assert slow_sum(1, 2) == 3
    assert len(CALLS) == 5


@pytest.mark.parametrize("key", ["text", 7, {"device": "CPU", "name": 'a"b', "n": 3}])
def test_diskcache_tables(key: Any) -> None:
    get, put = helpers.diskcache_get, helpers.diskcache_put
    assert get("some table", key) is None
    assert put("some table", key, [1, "two"]) == [1, "two"]
    assert get("some table", key) == [1, "two"]
    assert put("some table", key, {"other": 1}) == {"other": 1}
    assert get("some table", key) == {"other": 1}
    put("some table", key, pickle.dumps(5), prepickled=True)
    assert get("some table", key) == 5
    assert get("another", key) is None


def test_diskcache_outlives_the_process(own_cache: Path) -> None:
    code = "from aster_ml.helpers import diskcache_get, diskcache_put as put; {}"
    run = functools.partial(
        subprocess.run,
        env={**os.environ, "CACHEDIR": str(own_cache)},
        check=True,
        capture_output=True,
    )
    run([sys.executable, "-c", code.format("put('t', 'k', (1, 2))")])
    assert helpers.diskcache_get("t", "k") == (1, 2)
    assert (own_cache / "tables" / "cache.db").stat().st_mode & 0o777 == 0o600


def test_connections_of_diskcache_are_closed(own_cache: Path) -> None:
    """Python 3.13 and later complain of those that are not; a fork's are its parent's."""
    code = """
import gc, os, threading
from aster_ml.helpers import diskcache_get, diskcache_put
def body():
    diskcache_put("t", "k", 1)
body()
thread = threading.Thread(target=body)
thread.start()
thread.join()
if hasattr(os, "fork"):
    child = os.fork()
    assert diskcache_get("t", "k") == 1
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
gc.collect()
print("ran")
"""
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_diskcache_in_threads() -> None:
    found: list[Any] = []

    def body(i: int) -> None:
        helpers.diskcache_put("threads", i, i * i)
        found.append(helpers.diskcache_get("threads", i))

    threads = [threading.Thread(target=body, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found) == [i * i for i in range(8)]


def test_a_cache_that_others_may_write_is_not_read(own_cache: Path) -> None:
    place = own_cache / "tables" / "cache.db"
    place.parent.mkdir(parents=True, mode=0o700)
    place.write_bytes(b"")
    place.chmod(0o666)
    with pytest.raises(ArgumentError, match=r"cache\.db is not read, since others may write to it"):
        helpers.diskcache_get("t", "k")
    place.unlink()
    place.mkdir()
    with pytest.raises(ArgumentError, match=r"cache\.db is no regular file"):
        helpers.diskcache_put("t", "k", 1)


@pytest.mark.parametrize("content", [b"", b"no database", bytes(5000), b"SQLite format 3\0" * 400])
def test_a_damaged_cache_is_made_anew(own_cache: Path, content: bytes) -> None:
    helpers.diskcache_put("t", "k", 1)
    disk_cache.OPEN.opened = None
    place = own_cache / "tables" / "cache.db"
    place.write_bytes(content)
    assert helpers.diskcache_get("t", "k") is None
    helpers.diskcache_put("t", "k", 2)
    disk_cache.OPEN.opened = None
    assert helpers.diskcache_get("t", "k") == 2


def test_a_table_that_is_not_as_its_name_says_is_made_anew(own_cache: Path) -> None:
    helpers.diskcache_put("t", "k", 1)
    disk_cache.db_connection().execute('ALTER TABLE "t_2 key" RENAME COLUMN key TO kez')
    assert helpers.diskcache_get("t", "k") is None
    helpers.diskcache_put("t", "k", 2)
    assert helpers.diskcache_get("t", "k") == 2


def test_a_damaged_value_counts_as_missing(own_cache: Path) -> None:
    helpers.diskcache_put("t", "k", "a value")
    change = 'UPDATE "t_2 key" SET val = ?'
    for found in (b"", b"\x80\x05N.", bytes(40), 5, "text", None):
        disk_cache.db_connection().execute(change, (found,))
        assert helpers.diskcache_get("t", "k") is None
    for pickled in (b"cnobody\nnothing\n.", b"\x80\x05"):
        helpers.diskcache_put("t", "k", pickled, prepickled=True)
        assert helpers.diskcache_get("t", "k") is None


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with Context(CACHEDIR=str(tmp_path / "file")):
        with pytest.warns(RuntimeWarning, match="results are not kept"):
            assert helpers.diskcache_put("t", "k", 1) == 1
        assert helpers.diskcache_get("t", "k") is None


def test_mistakes_of_a_caller_drop_no_file(own_cache: Path) -> None:
    helpers.diskcache_put("t", "k", 1)
    with pytest.raises(sqlite3.Error):
        helpers.diskcache_get("t", {"key": [1]})
    assert helpers.diskcache_put("t", {"other": 1}, 2) == 2
    assert helpers.diskcache_get("t", {"other": 1}) == 2
    assert helpers.diskcache_get("t", "k") == 1


def test_no_folder_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "cache_folder", lambda: None)
    with pytest.raises(ArgumentError, match="set CACHEDIR"):
        helpers.diskcache_get("t", "k")


class Files(http.server.BaseHTTPRequestHandler):
    """Serves /whole; of /short less than it announces; /echo what a header says."""

    asked: list[str] = []

    def do_GET(self) -> None:
        """Answers one request."""
        self.asked.append(self.path)
        body = {"/whole": b"x" * 3_000_000, "/short": b"abc"}.get(self.path, b"")
        if self.path == "/echo":
            body = self.headers["X-Token"].encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body) + (self.path == "/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server on this machine."""
    Files.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join()


def test_fetch_keeps_what_it_got(server: str) -> None:
    for _ in range(2):
        path = helpers.fetch(f"{server}/whole")
        assert path.stat().st_size == 3_000_000
    assert Files.asked == ["/whole"]
    helpers.fetch(f"{server}/whole", allow_caching=False)
    assert Files.asked == ["/whole"] * 2
    assert path.parent == helpers._ensure_downloads_dir()
    token = helpers.fetch(f"{server}/echo", headers={"X-Token": "secret"}, name="t", subdir="s")
    assert token.read_bytes() == b"secret"
    assert token == helpers._ensure_downloads_dir() / "s" / "t"


@pytest.mark.parametrize("place", ["short", "absent"])
def test_fetch_keeps_nothing_that_is_not_whole(server: str, place: str) -> None:
    with pytest.raises(DownloadError, match=f"/{place} could not be downloaded"):
        helpers.fetch(f"{server}/{place}", name="kept")
    assert not (helpers._ensure_downloads_dir() / "kept").exists()
    assert not list(helpers._ensure_downloads_dir().iterdir())


def test_bits() -> None:
    value = (7 << 32) | 5
    assert (helpers.lo32(value), helpers.hi32(value)) == (5, 7)
    assert (helpers.data64(value), helpers.data64_le(value)) == ((7, 5), (5, 7))
    assert helpers.getbits(0b110100, 2, 4) == 0b101
    assert [helpers.i2u(8, v) for v in (-1, -128, 5)] == [255, 128, 5]
    assert [helpers.pad_bytes(b"abc", n) for n in (1, 3, 4)] == [b"abc", b"abc", b"abc\0"]


def test_pointers() -> None:
    numbers = memoryview(bytearray(b"abcdefgh")).cast("I", (2, 1))
    assert bytes(helpers.flat_mv(numbers)) == b"abcdefgh"
    assert helpers.flat_mv(memoryview(b"")).nbytes == 0
    texts = helpers.to_char_p_p([b"one", b"two"])
    assert [ctypes.string_at(t) for t in texts] == [b"one", b"two"]
    assert ctypes.string_at(helpers.charptr("text")) == b"text"
    pair = helpers.init_c_struct_t((("a", ctypes.c_uint8), ("b", ctypes.c_uint32)))
    assert ctypes.sizeof(pair) == 5
    filled = helpers.init_c_var(ctypes.c_int(), lambda v: setattr(v, "value", 4))
    assert filled.value == 4


def test_text() -> None:
    assert helpers.word_wrap("abcdefgh", 3) == "abc\ndef\ngh"
    red = helpers.colored("abcdef", "red")
    assert [helpers.ansilen(part) for part in helpers.word_wrap(red, 4).split("\n")] == [4, 2]
    assert helpers.word_wrap("ab\ncdef", 3) == "ab\ncde\nf"
    assert [helpers.strip_parens(s) for s in ("(a+b)", "(a)+(b)", "()", "a")] == [
        "a+b", "(a)+(b)", "", "a",
    ]  # fmt: skip
    colors = [helpers.colorize_float(x).partition("m")[0][2:] for x in (0.5, 1.0, 1.5)]
    assert colors == ["32", "33", "31"]
    assert helpers.to_function_name("a b-c") == "a20b2Dc"
    assert "def test_text" in helpers.printable((__file__, helpers.lines(__file__).index(
        "def test_text() -> None:\n") + 1))  # fmt: skip
    assert helpers.printable(("no such file", 1)) == "<missing>"


def test_children_by_path() -> None:
    class Layer:
        weights = {"w": [1, 2], "3": "three"}

    model = {"layers": [Layer(), Layer()]}
    assert helpers.get_child(model, "layers.1.weights.w.0") == 1
    for path, error in (
        ("layers.2", IndexError),
        ("other", KeyError),
        ("layers.0.x", AttributeError),
    ):
        with pytest.raises(error):
            helpers.get_child(model, path)


def test_shapes_of_reshapes() -> None:
    assert helpers.canonicalize_strides((1, 3, 1), (9, 1, 4)) == (0, 1, 0)
    contraction = helpers.get_contraction
    assert contraction((2, 3, 4), (6, 4)) == [[0, 1], [2]]
    assert contraction((1, 2, 3, 1), (2, 3)) == [[0, 1], [2, 3]]
    assert contraction((2, 3), (1, 2, 3, 1)) == [[], [0], [1], []]
    assert contraction((6,), (2, 3)) is None
    assert contraction((), (1,)) == [[]]
    assert contraction((2, 1, 3), (2, 3)) == [[0], [1, 2]]


def test_candidates_and_conditions() -> None:
    def fails() -> int:
        raise OSError("not here")

    cache: dict[Any, Any] = {}
    assert helpers.select_first_inited([fails, int], "none", cache) == 0
    assert helpers.select_first_inited([int], "none", {int: 5}) == 5
    assert helpers.select_first_inited([[fails, int], [int, None]], "none") == (0, None)
    with pytest.raises(ExceptionGroup, match="none works") as raised:
        helpers.select_first_inited([fails, fails], "none works")
    assert [str(e) for e in raised.value.exceptions] == ["not here"] * 2
    values = iter([1, 2, 3])
    assert helpers.wait_cond(lambda: next(values), value=3)
    with pytest.raises(TimeoutError, match="ready within 5 ms: 0, 1 is wanted"):
        helpers.wait_cond(lambda: 0, value=1, timeout_ms=5, msg="ready")


def test_processes_and_errors(capfd: pytest.CaptureFixture[str]) -> None:
    assert helpers.system("echo some words") == "some words"
    with pytest.raises(RuntimeError, match="false: exit status 1"):
        helpers.system("false")
    helpers.stderr_log("a line\n")
    assert capfd.readouterr().err == "a line\n"
    with pytest.raises(RuntimeError, match="PANIC"):
        helpers.panic()
    with pytest.raises(KeyError):
        helpers.panic(KeyError("x"))


def test_objects() -> None:
    numbers = helpers.count(3, 2)
    assert [next(numbers), next(numbers)] == [3, 5]
    assert next(pickle.loads(pickle.dumps(numbers))) == 7
    assert helpers.fromimport("math", "inf") == float("inf")
    assert helpers.unwrap_class_type(functools.partial(int, base=2)) is int
    assert helpers.unwrap_class_type(int) is int
    assert not helpers.is_numpy_ndarray([1])
    with helpers.disable_gc():
        assert not gc.isenabled()
        with helpers.disable_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()

    @helpers.suppress_finalizing
    def raises() -> None:
        raise AttributeError("of the time before the end")

    with pytest.raises(AttributeError):
        raises()


def test_progress_takes_arguments_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    bar = helpers.tqdm(range(4), "loading", False, "B")
    assert sum(bar) == 6
    assert bar.n == 4
    shown = capsys.readouterr().err
    assert "loading" in shown
    assert "4/4" in shown
    bar = helpers.tqdm(total=10, unit="B", unit_scale=True)
    bar.update(4)
    bar.write("a line of text")
    bar.update(6, close=True)
    assert bar.disable
    assert "a line of text" in capsys.readouterr().out
    assert list(helpers.trange(3, desc="x")) == [0, 1, 2]
    assert "3/3" in capsys.readouterr().err
