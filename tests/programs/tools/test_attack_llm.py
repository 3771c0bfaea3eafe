"""The attack on a server of language models, in small: nobody is let in, nothing is left."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("llguidance")
pytest.importorskip("uvicorn")

from tests.programs.llm.random_models import write_model
from tools import attack_llm


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process as Linux tells it")
def test_a_small_attack(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write_model(tmp_path / "x.gguf", "llama", more={"context_length": 2048})
    monkeypatch.setattr(attack_llm, "LETTERS", {"blanks": " ", "control words": "<|end|>"})
    some = {name: attack_llm.SCHEMAS[name] for name in ("many items", "itself")}
    monkeypatch.setattr(attack_llm, "SCHEMAS", some)
    monkeypatch.setattr(sys, "argv", ["attack_llm", str(tmp_path / "x.gguf"), "--quick"])
    # Seconds are measured where nothing else runs, and here are no figures.
    monkeypatch.setattr(attack_llm, "SILENCE", float("inf"))
    assert attack_llm.main() == 0
    table = capsys.readouterr().out
    assert "! " not in table
    for name in ("wrong fields", "32,768 answers", "silent connections", "SIGTERM", "templates"):
        assert name in table
