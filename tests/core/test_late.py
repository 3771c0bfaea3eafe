"""Modules that are imported when something of them is first read."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from aster_ml.late import LateFunction, LateModule, late


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that notes that it runs."""
    (tmp_path / "late_sample.py").write_text("number = 3\n\n\ndef double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "late_sample", raising=False)
    return "late_sample"


def test_it_is_imported_when_a_name_is_read(written: str) -> None:
    module = LateModule(written)
    assert "late_sample" in repr(module)
    assert written not in sys.modules
    assert module.double(module.number) == 6
    assert vars(module) is vars(sys.modules[written])


def test_names_are_those_of_the_module(written: str) -> None:
    module = LateModule(written)
    assert module.number == 3
    vars(sys.modules[written])["number"] = 4
    assert module.number == 4
    with pytest.raises(AttributeError, match="module 'late_sample' has no attribute 'nothing'"):
        _ = module.nothing


def test_a_function_is_imported_when_it_is_called(written: str) -> None:
    double = LateFunction(LateModule(written), "double")
    assert callable(double)
    assert written not in sys.modules
    assert double(4) == 8
    assert inspect.unwrap(double) is sys.modules[written].double


def test_a_module_that_is_not_there() -> None:
    module = late("no_such_module")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match=r"aster_ml\.no_such_module"):
            _ = module.anything
