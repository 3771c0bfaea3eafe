"""Computes sentence embeddings by a BERT model from its folder: `aster embed FOLDER TEXT...`.

Receives texts; returns a vector for each, the mean of its tokens' states, of length 1 where the
folder asks for it. Prints how near the texts are to one another.

Source: Devlin et al., BERT (2018); Reimers and Gurevych, Sentence-BERT (2019).
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit
from aster_ml.apps.llm.extras import needed
from aster_ml.apps.reporting import reports_errors
from aster_ml.errors import FormatError
from aster_ml.nn.state import safe_load

Array = np.ndarray[Any, np.dtype[Any]]
# Texts that are computed together, and the shortest length that they are filled up to.
MAX_BATCH, MIN_LENGTH = 8, 16


def read_json(path: pathlib.Path, default: Any = None) -> Any:
    """The JSON of a file. Raises: FormatError where it is none, or absent without a default."""
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{error}", "embed", path=str(path)) from error


class Embedder:
    """A model of sentences.

    Raises: FormatError where the folder has no such model, or one that is not known here.
    """

    def __init__(self, folder: str | pathlib.Path) -> None:
        library = needed("tokenizers", "llm")
        place = pathlib.Path(folder)
        self.config = read_json(place / "config.json")
        if not isinstance(self.config, dict) or self.config.get("model_type") != "bert":
            raise FormatError(
                "config.json names no model of the type bert", "embed", path=str(place)
            )
        if self.config.get("hidden_act") != "gelu":
            raise FormatError("the activation is not gelu", "embed", path=str(place))
        pooling = read_json(place / "1_Pooling" / "config.json", {})
        if not pooling.get("pooling_mode_mean_tokens", True):
            raise FormatError("only the mean of tokens is known here", "embed", path=str(place))
        modules = read_json(place / "modules.json", [])
        self.normalizes = any(["Normalize" in str(m.get("type")) for m in modules])
        self.heads = int(self.config["num_attention_heads"])
        self.epsilon = float(self.config["layer_norm_eps"])
        longest = read_json(place / "sentence_bert_config.json", {}).get("max_seq_length", 512)
        self.longest = min(int(longest), int(self.config["max_position_embeddings"]))
        self.tokenizer = library.Tokenizer.from_file(str(place / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.longest)
        self.tokenizer.no_padding()
        found = safe_load(place / "model.safetensors")
        names = [name for name in found if not name.endswith("position_ids")]
        self.weights = {name.removeprefix("bert."): found[name].float() for name in names}
        self.weights = {n: t.to(None).contiguous() for n, t in self.weights.items()}
        Tensor.realize(*self.weights.values())
        self.step = TinyJit(self.states)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A layer by its name. Raises: FormatError where the file has none of this name."""
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" not in self.weights:
                raise FormatError(f"tensor {name}.{kind} is absent", "embed")
        return x.linear(self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Layer normalisation by its name."""
        return (
            x.layernorm(eps=self.epsilon) * self.weights[f"{name}.weight"]
            + self.weights[f"{name}.bias"]
        )

    def states(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The mean state of the tokens of each text.

        Shapes: tokens int [b, n], mask [b, n] -> [b, e].
        """
        w, (b, n) = self.weights, tokens.shape
        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][:n]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        bias = (mask - 1).reshape(b, 1, 1, n) * 1e9
        for i in range(int(self.config["num_hidden_layers"])):
            at = f"encoder.layer.{i}."
            q, k, v = [
                self.linear(x, f"{at}attention.self.{name}")
                .reshape(b, n, self.heads, -1)
                .transpose(1, 2)
                for name in ("query", "key", "value")
            ]
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)
            attended = self.linear(mixed, f"{at}attention.output.dense")
            x = self.norm(x + attended, f"{at}attention.output.LayerNorm")
            inner = self.linear(x, f"{at}intermediate.dense")
            inner = inner * 0.5 * ((inner / math.sqrt(2)).erf() + 1)
            fed = self.linear(inner, f"{at}output.dense")
            x = self.norm(x + fed, f"{at}output.LayerNorm")
        weight = mask.unsqueeze(-1)
        mean = (x * weight).sum(1) / weight.sum(1).maximum(1e-9)
        if self.normalizes:
            mean = mean / (mean * mean).sum(-1, keepdim=True).sqrt().maximum(1e-12)
        return mean.realize()

    def __call__(self, texts: Sequence[str]) -> tuple[Array, int]:
        """A vector for each text, float32 [b, e], and how many tokens they had."""
        found = [self.tokenizer.encode(text).ids for text in texts]
        result = np.zeros((len(texts), int(self.config["hidden_size"])), np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(found[i]))
        for at in range(0, len(order), MAX_BATCH):
            part = order[at : at + MAX_BATCH]
            result[part] = self.batch([found[i] for i in part])
        return result, sum([len(ids) for ids in found])

    def batch(self, found: Sequence[Sequence[int]]) -> Array:
        """The vectors of a few texts, filled up to a size that was computed before."""
        rows = 1 << (len(found) - 1).bit_length()
        longest = max(MIN_LENGTH, *[len(ids) for ids in found])
        length = min(1 << (longest - 1).bit_length(), self.longest)
        tokens, mask = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.float32)
        for i, ids in enumerate(found):
            tokens[i, : len(ids)] = ids
            mask[i, : len(ids)] = 1
        vectors: Array = self.step(Tensor(tokens).realize(), Tensor(mask).realize()).numpy()
        return vectors[: len(found)]


@reports_errors("aster embed")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aster embed`; returns its exit code: 0 all is well, 1 the model was refused."""
    parser = argparse.ArgumentParser(
        prog="aster embed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", help="with config.json, tokenizer.json and model.safetensors")
    parser.add_argument("texts", nargs="+", help="how near each is to the first is printed")
    options = parser.parse_args(argv)
    vectors, _ = Embedder(options.folder)(options.texts)
    for text, vector in zip(options.texts, vectors):
        near = vector @ vectors[0] / np.linalg.norm(vector) / np.linalg.norm(vectors[0])
        print(f"{near:6.3f}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
