"""What programs import from `helpers`: settings, timing, downloads, tools."""

from __future__ import annotations

import ctypes
import gzip
import pathlib

import pytest

import aster_ml
from aster_ml import Context, Tensor, config
from aster_ml.compat import helpers
from aster_ml.compat.helpers import (
    ContextVar,
    GlobalCounters,
    Timing,
    ansilen,
    ansistrip,
    colored,
    fetch,
    from_mv,
    get_single_element,
    getenv,
    mv_address,
    temp,
    to_mv,
    tqdm,
    trange,
    unwrap,
)
from aster_ml.errors import ArgumentError, DownloadError


def test_every_name_of_the_list_is_there() -> None:
    assert len(set(helpers.__all__)) == len(helpers.__all__)
    for name in helpers.__all__:
        assert hasattr(helpers, name), name


def test_top_level_names() -> None:
    assert aster_ml.getenv is getenv
    assert aster_ml.fetch is fetch


def test_getenv_takes_the_type_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTER_TEST_NUMBER", "12")
    monkeypatch.setenv("ASTER_TEST_TEXT", "12")
    monkeypatch.setenv("ASTER_TEST_FLOAT", "1.5")
    assert getenv("ASTER_TEST_NUMBER") == 12
    assert getenv("ASTER_TEST_TEXT", "") == "12"
    assert getenv("ASTER_TEST_FLOAT", 0.0) == 1.5
    assert getenv("ASTER_TEST_ABSENT") == 0
    assert getenv("ASTER_TEST_ABSENT", "x") == "x"


def test_a_setting_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SETTINGS", dict(config.SETTINGS))
    setting = ContextVar("ASTER_TEST_SETTING", 3)
    assert (setting.value, setting >= 3, bool(setting)) == (3, True, True)
    with Context(ASTER_TEST_SETTING=0):
        assert not setting
    assert setting == 3


def test_timing(capsys: pytest.CaptureFixture[str]) -> None:
    with Timing("load: ", on_exit=lambda ns: f", {ns > 0}") as timing:
        pass
    assert timing.et > 0
    text = capsys.readouterr().out
    assert text.startswith("load: ")
    assert text.endswith(" ms, True\n")
    with Timing("quiet", enabled=False):
        pass
    assert capsys.readouterr().out == ""

    @Timing("call: ")
    def call() -> int:
        return 3

    assert call() == 3
    assert capsys.readouterr().out.startswith("call: ")


def test_counters_count_and_start_again() -> None:
    x = Tensor.ones(64).contiguous().realize()
    GlobalCounters.reset()
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops) == (0, 0)
    (x * 2 + x.sum()).realize()
    assert GlobalCounters.kernel_count > 0
    assert GlobalCounters.global_ops >= 64
    assert GlobalCounters.global_mem >= 512


def test_fetch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aster_ml.downloads.cache_folder", lambda: tmp_path / "cache")
    source = tmp_path / "source.bin"
    source.write_bytes(b"one")
    url = source.as_uri()
    assert fetch(str(source)) == source
    kept = fetch(url, name="kept", subdir="some")
    assert kept == tmp_path / "cache" / "downloads" / "some" / "kept"
    assert kept.read_bytes() == b"one"
    source.write_bytes(b"two")
    assert fetch(url, name="kept", subdir="some").read_bytes() == b"one"
    assert fetch(url, name="kept", subdir="some", allow_caching=False).read_bytes() == b"two"
    source.write_bytes(gzip.compress(b"three"))
    assert fetch(url, gunzip=True).read_bytes() == b"three"
    assert Tensor.from_url(url, gunzip=True).tolist() == list(b"three")
    assert Tensor.from_url(url, gunzip=True, device="CPU").device == "CPU"
    with pytest.raises(DownloadError, match="could not be downloaded"):
        fetch((tmp_path / "absent").as_uri())


def test_fetch_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aster_ml.downloads.cache_folder", lambda: None)
    with pytest.raises(DownloadError, match="there is no home folder to keep it in; set CACHEDIR"):
        fetch("https://example.org/x")


def test_memory_by_address() -> None:
    data = bytearray(b"abcdefgh")
    view = memoryview(data)
    assert bytes(to_mv(mv_address(view) + 2, 3)) == b"cde"
    pointer = from_mv(view, ctypes.c_uint32)
    assert list(pointer) == [int.from_bytes(b"abcd", "little"), int.from_bytes(b"efgh", "little")]
    pointer[0] = 0
    assert bytes(data[:4]) == bytes(4)


def test_colours() -> None:
    for color in ("red", "GREEN", None):
        text = colored("some text", color)
        assert (ansistrip(text), ansilen(text)) == ("some text", 9)
    assert colored("x", "red") != "x"
    assert ansistrip(f"a{colored('b', 'blue')}c") == "abc"


def test_small_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "someone")
    assert pathlib.Path(temp("x", append_user=True)).name == "x.someone"
    assert pathlib.Path(temp("x")).is_absolute()
    assert unwrap(0) == 0
    assert get_single_element([5]) == 5
    with pytest.raises(ArgumentError, match="the value is None"):
        unwrap(None)
    with pytest.raises(ArgumentError, match="one element is wanted, given 2"):
        get_single_element([1, 2])


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(trange(3, disable=True)) == [0, 1, 2]
    assert list(tqdm([1, 2], desc="reading")) == [1, 2]
    assert "reading" in capsys.readouterr().err
    bar = tqdm(total=4, disable=True)
    bar.update(2)
    bar.set_description("half")
    bar.close()
