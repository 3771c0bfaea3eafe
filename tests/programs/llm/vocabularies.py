"""Small vocabularies of both kinds as a GGUF file's metadata, and random texts to cut.

`llama_tokens` asks llama.cpp (the package xllamacpp) what it makes of texts.
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import random
import urllib.request
from typing import Any

import numpy as np

from tests.programs.llm.random_models import byte_letters, write_model

ALPHABETS = [
    "abcdefgh", "ABCD", "0123456789", " ", "  \t", "\n", "\r\n", ".,;:!?'\"()[]{}/\\-_", "äöüßéñ",
    "привет", "ΑΒΓαβγ", "日本語中文", "한국어", "ひらがな", "カタカナ", "😀🎉🚀", "\u0301\u0308",
    "٣٤٥", "¼²",
    "\u00a0\u2003", "’“”…", "！？，。", "देवनागरी",
]  # fmt: skip
WORDS = ["'s", "'re", "'LL", " the", "the", "I'm", " hello", "123", "  ", "\n\n", " don't", "it's"]


def random_text(rng: random.Random, parts: int) -> str:
    """A text of several scripts, digits, blanks and marks."""
    result = []
    for _ in range(parts):
        if rng.random() < 0.4:
            result.append(rng.choice(WORDS))
        else:
            letters = rng.choice(ALPHABETS)
            result.append("".join(rng.choices(letters, k=rng.randint(1, 5))))
    return "".join(result)


def merges_of(texts: list[str], count: int) -> list[str]:
    """Merges of the pairs that are most frequent in texts, without regard to words."""
    letters = byte_letters()
    lines = [[letters[b] for b in text.encode()] for text in texts]
    merges: list[str] = []
    for _ in range(count):
        pairs: dict[tuple[str, str], int] = {}
        for line in lines:
            for pair in itertools.pairwise(line):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(" ".join(best))
        for at, line in enumerate(lines):
            merged, i = [], 0
            while i < len(line):
                if tuple(line[i : i + 2]) == best:
                    merged.append(line[i] + line[i + 1])
                    i += 2
                else:
                    merged.append(line[i])
                    i += 1
            lines[at] = merged
    return merges


@functools.cache
def trained() -> tuple[str, ...]:
    """Merges for all byte-level vocabularies."""
    rng = random.Random(5)
    return tuple(merges_of([random_text(rng, 30) for _ in range(60)], 150))


def byte_level(pre: str) -> dict[str, Any]:
    """A byte-level vocabulary with this pre-tokenizer."""
    merges = list(trained())
    tokens = list(dict.fromkeys([*byte_letters(), *[m.replace(" ", "") for m in merges]]))
    plain = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "<|end|>", "<|begin|>", "<user>"],
        "tokenizer.ggml.token_type": np.array([1] * plain + [3, 3, 4], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": np.uint32(plain + 1),
        "tokenizer.ggml.eos_token_id": np.uint32(plain),
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece(prefix: bool = True) -> dict[str, Any]:
    """A vocabulary of pieces with scores, with bytes for what it does not know."""
    rng = random.Random(6)
    space = "\u2581"
    letters = [*"abcdefghotABCD0123456789.,!?'", space, *"äöüßпривет日本語"]
    pieces = [
        "the",
        space + "the",
        space + "t",
        "th",
        "he",
        "ab",
        "abc",
        "bc",
        "12",
        "123",
        space * 2,
    ]
    pieces += [
        "привет",
        "при",
        "вет",
        "пр",
        "ив",
        "ет",
        "日本",
        "a" + space,
        "cd",
        "abcd",
        "of",
        "o",
    ]
    pieces += ["".join(rng.choices(letters, k=2)) for _ in range(40)]
    pieces = list(dict.fromkeys([*letters, *pieces]))
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-float(i) for i in rng.sample(range(len(pieces)), len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def plain(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata as they are read: numbers and lists of Python."""
    return {
        key: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        for key, value in metadata.items()
    }


def llama_tokens(
    path: pathlib.Path, words: dict[str, Any], texts: list[str], special: bool = False
) -> list[list[int]]:
    """What llama.cpp makes of texts, with a model of this vocabulary written to the path."""
    import xllamacpp

    write_model(path, "llama", words=words)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = str(path), 256, False
    params.n_parallel, params.fit_params = 1, False
    server = xllamacpp.Server(params)
    result = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": False, "parse_special": special})
        request = urllib.request.Request(
            server.listening_address + "/tokenize",
            body.encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            result.append(json.loads(answer.read())["tokens"])
    return result
