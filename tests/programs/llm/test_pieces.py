"""Texts merged to the pieces of random vocabularies, against two other packages.

`tokenizers` is told every pair of tokens that makes a piece; llama.cpp reads a file.
"""

from __future__ import annotations

import itertools
import pathlib
import random
from typing import Any

import numpy as np
import pytest

from aster_ml.apps.llm.pieces import SPACE, Pieces
from aster_ml.apps.llm.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER, Tokenizer
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.vocabularies import llama_tokens, plain

LETTERS = f"abc{SPACE}é日\U0001f600\n"


def vocabulary(rng: random.Random, has_ties: bool) -> dict[str, Any]:
    """Tokens of few letters, in some order, with the bytes of what has no token."""
    letters = rng.sample(LETTERS, rng.randint(1, 5))
    longest = rng.randint(1, 7)
    count = rng.choice([0, 1, 20, 200])
    pieces = {
        "".join(rng.choices(letters, k=rng.randint(2, max(2, longest)))) for _ in range(count)
    }
    if rng.random() < 0.5:
        # As most vocabularies are: blanks only begin a word.
        pieces = {text for text in pieces if SPACE not in text.lstrip(SPACE)}
    words = [*letters, *sorted(pieces)]
    rng.shuffle(words)
    scores = [float(rng.randint(-3, 0)) for _ in words]
    if not has_ties:
        scores = [-float(x) for x in rng.sample(range(len(words)), len(words))]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *words]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array([0.0] * 259 + scores, np.float32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


def text_of(rng: random.Random) -> str:
    """A text of some of the letters."""
    letters = [*rng.sample(LETTERS, rng.randint(1, len(LETTERS))), " "]
    return "".join(rng.choices(letters, k=rng.choice([0, 1, 2, 3, 10, 60])))


def package_of(words: dict[str, Any]) -> Any:
    """What the package `tokenizers` makes of a vocabulary."""
    library = pytest.importorskip("tokenizers")
    tokens, scores = words["tokenizer.ggml.tokens"], words["tokenizer.ggml.scores"].tolist()
    kinds = words["tokenizer.ggml.token_type"].tolist()
    number = {token: i for i, token in reversed(list(enumerate(tokens)))}
    pieces = sorted(
        [(-scores[i], i, t) for t, i in number.items() if kinds[i] in (NORMAL, USER) and len(t) > 1]
    )
    merges = [
        (text[:at], text[at:])
        for _, _, text in pieces
        for at in range(1, len(text))
        if text[:at] in number and text[at:] in number
    ]
    made = library.models.BPE(number, merges, byte_fallback=True, unk_token="<unk>")
    engine = library.Tokenizer(made)
    engine.normalizer = library.normalizers.Replace(" ", SPACE)
    return engine


def test_the_package_finds_the_same_tokens(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        words = vocabulary(rng, has_ties=False)
        tokenizer, package = Tokenizer(plain(words)), package_of(words)
        for _ in range(5):
            text = text_of(rng)
            got, want = tokenizer.encode(text), package.encode(text, add_special_tokens=False).ids
            if got != want:
                return f"{text!r} became {got}, {want} is wanted"
        return None

    check_all("texts of pieces, by tokenizers", draws(100, 5000), check, record_property)


@pytest.mark.slow
def test_llama_cpp_finds_the_same_tokens(tmp_path: pathlib.Path, record_property: Any) -> None:
    """With pieces of equal scores too."""
    pytest.importorskip("xllamacpp")

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        words = vocabulary(rng, has_ties=True)
        tokenizer = Tokenizer(plain(words))
        texts = [text_of(rng) for _ in range(50)]
        wanted = llama_tokens(tmp_path / f"{seed}.gguf", words, texts)
        for text, want in zip(texts, wanted):
            if (got := tokenizer.encode(text)) != want:
                return f"{text!r} became {got}, {want} is wanted"
        return None

    check_all("texts of pieces, by llama.cpp", draws(4, 100), check, record_property)


def merged_slowly(text: str, scores: dict[str, float]) -> list[str]:
    """The pieces of a text: the best neighbours of all that make a piece are merged, repeatedly."""
    parts = list(text)
    while True:
        made = [
            (-scores[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]
        if not made:
            return parts
        _, at = min(made)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_equal_scores_are_merged_from_the_left(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        words = vocabulary(rng, has_ties=rng.random() < 0.7)
        tokens, scores = words["tokenizer.ggml.tokens"], words["tokenizer.ggml.scores"].tolist()
        tokenizer = Tokenizer(plain(words))
        known = {t: scores[i] for i, t in enumerate(tokens) if i >= 259 and len(t) > 1}
        text = text_of(rng)
        want = merged_slowly(text.replace(" ", SPACE), known)
        spelt = []
        for part in want:
            number = tokenizer.number.get(part)
            each = [tokenizer.number[f"<0x{b:02X}>"] for b in part.encode()]
            spelt += each if number is None else [number]
        got = tokenizer.encode(text)
        return None if got == spelt else f"{text!r} became {got}, {spelt} is wanted"

    check_all("texts of pieces, one by one", draws(200, 10000), check, record_property)


@pytest.mark.parametrize(("unknown", "want"), [(0, [1, 0, 1]), (None, [1, 1])])
def test_letters_whose_bytes_are_no_tokens(unknown: int | None, want: list[int]) -> None:
    number = {"<unk>": 0, "a": 1, "<0xC3>": 2}
    pieces = Pieces(number, [False, True, False], [0.0, 0.0, 0.0], unknown)
    assert pieces("aéa") == want


def test_only_pieces_are_merged_to() -> None:
    number = {"a": 0, "b": 1, "ab": 2, "ba": 3}
    pieces = Pieces(number, [True, True, False, True], [0.0, 0.0, 9.0, 0.0], None)
    assert pieces("abab") == [0, 3, 1]
