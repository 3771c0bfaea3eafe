"""Text to tokens and back: every pre-tokenizer and both kinds of vocabulary, against llama.cpp.

What llama.cpp makes of some texts is kept in `tokens.json` (`--update-golden` asks it anew).
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import random
from typing import Any

import pytest

from aster_ml.apps.llm.pretokenizers import PATTERNS, SAME
from aster_ml.apps.llm.tokenizer import CONTROL, Tokenizer
from aster_ml.errors import ArgumentError, FormatError
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.vocabularies import (
    byte_level,
    llama_tokens,
    plain,
    random_text,
    sentencepiece,
)

GOLDEN = pathlib.Path(__file__).parent / "tokens.json"
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"pre": name} for name in PATTERNS},
    "pieces": {"prefix": True},
    "pieces without a space": {"prefix": False},
}
SPECIAL = ["<|end|>abc<user> the <|begin|>", "a</s> b<s>", "", " ", "\n", "a  b", "1234567 I'VE's"]
# Of these llama.cpp writes other expressions than the models' own tokenizers state: it has no cases
# of letters beyond ASCII, and blanks beyond ASCII in no range.
DIFFERS = {
    "tekken": "αβγΑΒΓпривет\u0301\u0308देवनागरी",
    "deepseek-llm": "\u2003\u00a0",
    "deepseek-coder": "\u2003\u00a0",
}


def words_of(kind: str) -> dict[str, Any]:
    """The vocabulary of a kind."""
    options = KINDS[kind]
    return byte_level(**options) if "pre" in options else sentencepiece(**options)


def texts_of(kind: str, seed: int, count: int) -> list[str]:
    """Texts on which llama.cpp and the models' own tokenizers agree."""
    rng = random.Random(seed)
    texts = [random_text(rng, rng.randint(1, 12)) for _ in range(count)] + SPECIAL
    return [t for t in texts if not set(t) & set(DIFFERS.get(kind, ""))]


@pytest.fixture(autouse=True)
def _library() -> None:
    if importlib.util.find_spec("tokenizers") is None:
        pytest.skip("the package tokenizers is absent")


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_that_llama_cpp_gave(kind: str) -> None:
    tokenizer = Tokenizer(plain(words_of(kind)))
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))[kind]
    texts = texts_of(kind, 3, 40)
    assert len(kept) == len(texts) > 20
    for text, want in zip(texts, kept):
        assert tokenizer.encode(text, special=True, bos=False) == want, text


@pytest.mark.slow
def test_llama_cpp_gives_these_tokens(
    tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("xllamacpp")
    found = {}
    for i, kind in enumerate(KINDS):
        words = words_of(kind)
        tokenizer = Tokenizer(plain(words))
        for special in (False, True):
            texts = texts_of(kind, 4, 200)
            got = [tokenizer.encode(text, special, bos=False) for text in texts]
            assert got == llama_tokens(tmp_path / f"{i}.gguf", words, texts, special), kind
        found[kind] = llama_tokens(tmp_path / f"{i}.gguf", words, texts_of(kind, 3, 40), True)
    if request.config.getoption("--update-golden"):
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(GOLDEN.read_text()) == found


@pytest.mark.parametrize("kind", KINDS)
def test_texts_come_back(kind: str, record_property: Any) -> None:
    """At once and token by token; a space that is put first comes back too."""
    tokenizer = Tokenizer(plain(words_of(kind)))

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        text = random_text(rng, rng.randint(0, 10))
        tokens = tokenizer.encode(text, bos=False)
        want = " " + text if text and tokenizer.space_prefix else text
        stream = tokenizer.stream()
        streamed = "".join([stream.push(t) for t in tokens]) + stream.end()
        if tokenizer.decode(tokens) != want or streamed != want:
            return f"{text!r} came back as {tokenizer.decode(tokens)!r} and {streamed!r}"
        return None

    check_all(f"texts there and back, {kind}", draws(30, 2000), check, record_property)


def test_special_tokens_are_text_unless_asked_for() -> None:
    tokenizer = Tokenizer(plain(byte_level("gpt-2")))
    end, user = tokenizer.number["<|end|>"], tokenizer.number["<user>"]
    assert end not in tokenizer.encode("a<|end|>b")
    assert tokenizer.decode(tokenizer.encode("a<|end|>b")) == "a<|end|>b"
    assert end in tokenizer.encode("a<|end|>b", special=True)
    assert user in tokenizer.encode("a<user>b")
    assert tokenizer.decode([end, user]) == "<user>"


def test_half_a_character_waits_for_the_rest() -> None:
    tokenizer = Tokenizer(plain(sentencepiece()))
    stream = tokenizer.stream()
    euro = [tokenizer.number[f"<0x{b:02X}>"] for b in "€".encode()]
    assert [stream.push(t) for t in euro] == ["", "", "€"]
    assert stream.push(euro[0]) == ""
    assert stream.end() == "\ufffd"


def test_the_beginning_is_put_once() -> None:
    tokenizer = Tokenizer(plain(sentencepiece()))
    assert tokenizer.encode("ab")[0] == tokenizer.bos == 1
    assert tokenizer.encode("<s>ab", special=True).count(1) == 1
    assert 1 not in tokenizer.encode("ab", bos=False)


def test_every_name_leads_to_patterns() -> None:
    assert all(name in PATTERNS for name in SAME.values())
    # The names that the model families here carry.
    assert {"smollm", "llama-bpe", "qwen2", "gpt-2", "tekken", "deepseek-llm"} <= set(PATTERNS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pre": "secret"}, "pre is 'secret'.*known are"),
        ({"pre": ["gpt-2"]}, "not known here"),
        ({"model": "bert"}, "kind 'bert'"),
        ({"tokens": []}, "no vocabulary"),
        ({"tokens": [1, 2]}, "no list of texts"),
        ({"token_type": [1]}, "1 entries, the vocabulary"),
        ({"token_type": ["a"]}, "no list of numbers"),
        ({"eos_token_id": 1 << 40}, "eos_token_id is"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"merges": ["nospace"]}, "merge 'nospace'"),
        ({"merges": ["€ ab"]}, "not of two tokens"),
    ],
)
def test_a_damaged_vocabulary_is_refused(change: dict[str, Any], said: str) -> None:
    words = plain(byte_level("gpt-2"))
    words.update({f"tokenizer.ggml.{key}": value for key, value in change.items()})
    with pytest.raises(FormatError, match=said):
        Tokenizer(words)


def test_a_vocabulary_with_holes() -> None:
    """Tokens that are empty or there twice: texts still come back, byte by byte."""
    words = plain(byte_level("gpt-2"))
    tokens = words["tokenizer.ggml.tokens"]
    hole = tokens.index(words["tokenizer.ggml.merges"][-1].replace(" ", ""))
    words["tokenizer.ggml.merges"].pop()
    tokens[hole] = ""
    tokens += ["a", "a", ""]
    words["tokenizer.ggml.token_type"] += [1, 1, 1]
    tokenizer = Tokenizer(words)
    for text in texts_of("gpt-2", 9, 20):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([hole, len(tokens) - 1, 1 << 30]) == ""
    words["tokenizer.ggml.model"] = "llama"
    words["tokenizer.ggml.scores"] = [float("nan")] * len(tokens)
    with pytest.raises(FormatError, match="no number"):
        Tokenizer(words)


def test_an_absent_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from aster_ml.apps.llm import extras

    with pytest.raises(ArgumentError, match=r"pip install 'aster-ml\[llm\]'"):
        extras.needed("no_such_package", "llm")


CONTROL_NAMES = ["<|begin|>", "<|end|>", "<s>", "</s>", "<unk>"]


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_text_never_become_control(kind: str, record_property: Any) -> None:
    """Texts of names and their parts, put together as a template does, one behind the other."""
    tokenizer = Tokenizer(plain(words_of(kind)))
    control = {
        i for i, k in enumerate(tokenizer.kinds) if k == CONTROL or i in {*tokenizer.ends}
    } - {tokenizer.number.get("<unk>")}
    parts = [name[:i] for name in CONTROL_NAMES for i in range(1, len(name) + 1)]
    parts += [name[i:] for name in CONTROL_NAMES for i in range(1, len(name))]
    parts += ["a", " ", "<user>", "\n", "x<", ">"]
    begin = next(t for t in ("<|begin|>", "<s>") if t in tokenizer.number)

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        texts = ["".join(rng.choices(parts, k=rng.randint(0, 4))) for _ in range(3)]
        mark = tokenizer.spare_letter(texts)
        told = tokenizer.marked({"messages": texts}, mark)["messages"]
        tokens = tokenizer.encode(begin + "".join(told), special=True, bos=False, mark=mark)
        wrong = [t for t in tokens[1:] if t in control]
        said = tokenizer.decode(tokens)
        want = "".join(texts)
        if (
            tokens[0] != tokenizer.number[begin]
            or wrong
            or said.replace(" ", "") != want.replace(" ", "")
        ):
            return f"{texts} became {tokens}, which says {said!r}"
        return None

    check_all(f"names of control in texts, {kind}", draws(100, 5000), check, record_property)


def test_what_begins_and_ends_texts_is_control_whatever_a_file_calls_it() -> None:
    words = plain(byte_level("gpt-2"))
    end = words["tokenizer.ggml.tokens"].index("<|end|>")
    words["tokenizer.ggml.token_type"][end] = 4
    tokenizer = Tokenizer(words)
    assert tokenizer.ends == {end}
    assert end not in tokenizer.encode("a<|end|>b")
    assert end in tokenizer.encode("a<|end|>b", special=True)


def test_a_text_that_has_no_room_is_refused_early() -> None:
    tokenizer = Tokenizer(plain(byte_level("gpt-2")))
    seen: list[int] = []
    whole = tokenizer.merged

    def merged(text: str) -> list[int]:
        seen.append(len(text))
        return whole(text)

    tokenizer.merged = merged  # type: ignore[method-assign]
    # Too many letters, too many tokens of a beginning, of names, of the whole.
    for text, most in (("x" * 3201, 0), ("Z" * 3200, 800), ("<user>" * 400, 0), ("Z" * 101, 101)):
        seen.clear()
        with pytest.raises(ArgumentError, match="nothing is cut in silence"):
            tokenizer.encode(text, room=100)
        assert sum(seen) <= most
    assert len(tokenizer.encode("Z" * 100, room=100)) == 100
