"""Outcomes of self-tests on disk: what is not whole, or of another device, is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aster_ml import Context
from aster_ml.runtime import verdicts

DEVICE = "device=CUDA arch=sm_90a driver=13000"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with Context(CACHEDIR=str(tmp_path / "cache")):
        yield


def test_what_is_kept_is_found() -> None:
    assert verdicts.passed_parts(DEVICE) == frozenset()
    path = verdicts.keep_verdicts(DEVICE, {"ops": True, "programs": False, "boxes": True})
    assert verdicts.passed_parts(DEVICE) == {"ops", "boxes"}
    assert verdicts.passed_parts(DEVICE + "0") == frozenset()
    assert path.stat().st_mode & 0o022 == 0
    verdicts.keep_verdicts(DEVICE, {"ops": False, "programs": False, "boxes": False})
    assert verdicts.passed_parts(DEVICE) == frozenset()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: text[:40],
        lambda text: b"\xff\xfe" + text,
        lambda text: text.replace(b"edition 1", b"edition 0"),
        lambda text: text.replace(b"sm_90a", b"sm_80"),
        lambda text: text + bytes(1 << 17),
    ],
)
def test_what_is_not_whole_is_none(change: object) -> None:
    path = verdicts.keep_verdicts(DEVICE, {"boxes": True})
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    assert verdicts.passed_parts(DEVICE) == frozenset()
    verdicts.keep_verdicts(DEVICE, {"boxes": True})
    assert verdicts.passed_parts(DEVICE) == {"boxes"}


def test_another_process_is_let_know(tmp_path: Path) -> None:
    verdicts.copy_to(tmp_path / "search")
    verdicts.keep_verdicts(DEVICE, {"boxes": True})
    verdicts.copy_to(tmp_path / "search")
    with Context(CACHEDIR=str(tmp_path / "search")):
        assert verdicts.passed_parts(DEVICE) == {"boxes"}


def test_without_a_folder_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "cache_folder", lambda: None)
    assert verdicts.passed_parts(DEVICE) == frozenset()
    with pytest.raises(OSError, match="CACHEDIR"):
        verdicts.keep_verdicts(DEVICE, {"ops": True})
