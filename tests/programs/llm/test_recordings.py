"""Recordings on the disk: a second start says the same and traces nothing."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

pytest.importorskip("tokenizers")

from aster_ml import Context
from aster_ml.apps.llm.answers import Answer, collect
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.recordings import Recordings
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.nn.state import QuantTensor, gguf_load, gguf_save
from aster_ml.runtime import object_cache
from tests.programs.llm.random_models import write_model


def ask(language: Language, prompt: list[int], count: int = 6) -> list[int]:
    """The tokens of an answer."""
    vocabulary = language.engine.model.vocabulary
    answer = Answer(
        language.tokenizer, prompt, Sampling(0.0), collect()[1], count, vocabulary=vocabulary
    )
    return language.engine.run(answer).tokens


@contextlib.contextmanager
def untraced(language: Language, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No function of the engine may be run but by replays."""

    def fail(*args: object) -> None:
        raise AssertionError("a function ran again")

    with monkeypatch.context() as patch:
        patch.setattr(language.engine.model, "forward", fail)
        patch.setattr(language.engine.sampler, "report", fail)
        yield


def ask_three(language: Language, n: int) -> None:
    """Three answers together: a step of four rows."""
    answers = [Answer(language.tokenizer, [n, i], Sampling(0.0), collect()[1], 4) for i in range(3)]
    for answer in answers:
        language.engine.submit(answer)
    while language.engine.step():
        continue


def ask_two(language: Language) -> list[list[int]]:
    """The tokens of two answers that are made together, drawn with a seed."""
    engine = language.engine
    vocabulary = engine.model.vocabulary
    answers = [
        Answer(
            language.tokenizer, [n], Sampling(0.9, 5, seed=n), collect()[1], 6,
            vocabulary=vocabulary, top=2,
        )
        for n in (5, 6)
    ]  # fmt: skip
    for answer in answers:
        engine.submit(answer)
    while engine.step():
        continue
    return [answer.tokens for answer in answers]


@pytest.mark.parametrize("dtype", ["f16", "packed"])
def test_a_second_start_traces_nothing(
    dtype: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=77, quantise="Q4_1")
    first = load_language(path, dtype, context=96, slots=2)
    want = [ask(first, [5, 6, 7]), ask(first, [9] * 70)]
    assert first.keep()
    # Names of memory, and none of its content.
    kept = object_cache.get(first.recordings.key_of("one"))
    assert kept is not None
    assert len(kept) < first.engine.model.weights.nbytes()
    second = load_language(path, dtype, context=96, slots=2)
    with untraced(second, monkeypatch):
        assert [ask(second, [5, 6, 7]), ask(second, [9] * 70)] == want
    # Memory is its own: the first goes on as it was.
    assert ask(first, [5, 6, 7]) == want[0]


@pytest.mark.parametrize(
    ("dtype", "quantise"), [("f16", "Q4_1"), ("f16", "F16"), ("f32", "F32"), ("packed", "F16")]
)
def test_recordings_hold_no_content_of_weights(
    dtype: str, quantise: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "x.gguf"
    # As wide as it takes for products to want weights of norms in memory of their own.
    write_model(path, "llama", seed=85, quantise=quantise, size=256)
    language = load_language(path, dtype, context=48)
    ask(language, [5, 6, 7])
    assert language.keep()
    kept = [object_cache.get(language.recordings.key_of(name)) for name in ("chunk", "one")]
    for name, b in language.recordings.known.memory.items():
        start = bytes(b.as_memoryview(copy=True))[:32]
        if name.startswith("weight") and len(set(start)) > 8:
            assert not any([start in (data or b"") for data in kept]), name


def test_what_differs_is_recorded_apart(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=78)
    engines = [
        load_language(path, context=96).engine,
        load_language(path, context=97).engine,
        load_language(path, "f32", context=96).engine,
        load_language(path, context=96, slots=2).engine,
    ]
    assert len({Recordings(engine).key for engine in engines}) == 4
    assert load_language(path, context=96).recordings.key == Recordings(engines[0]).key


def test_types_of_as_many_bits_are_recorded_apart(tmp_path: pathlib.Path) -> None:
    # Blocks of both have 18 bytes for 32 numbers: memory of the same sizes, unpacked otherwise.
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_model(path, "llama", seed=81, quantise="Q4_0")
    metadata, tensors = gguf_load(path, raw=True)
    changed = {
        name: QuantTensor("IQ4_NL", t.blocks) if t.type == "Q4_0" else t
        for name, t in tensors.items()
    }
    gguf_save(changed, other, metadata)
    first = load_language(path, context=80)
    ask(first, [1, 2, 3])
    assert first.keep()
    second = load_language(other, context=80)
    assert second.recordings.key != first.recordings.key
    with Context(CACHE=0):
        want = load_language(other, context=80)
        assert not any(want.recordings.kept.values())
    assert ask(second, [1, 2, 3]) == ask(want, [1, 2, 3])


def test_weights_elsewhere_in_the_file_are_recorded_apart(tmp_path: pathlib.Path) -> None:
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_model(path, "llama", seed=82, quantise="Q8_0")
    metadata, tensors = gguf_load(path, raw=True)
    gguf_save(dict(reversed(tensors.items())), other, metadata)
    first = load_language(path, context=72)
    want = ask(first, [1, 2, 3])
    assert first.keep()
    second = load_language(other, context=72)
    assert path.stat().st_size == other.stat().st_size
    assert second.recordings.key != first.recordings.key
    assert ask(second, [1, 2, 3]) == want


def test_steps_of_several_slots_and_draws_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=83, quantise="Q4_0")
    first = load_language(path, context=64, slots=4)
    assert not first.keep()
    want = ask_two(first)
    ask(first, [7, 8])
    assert first.keep()
    assert all(first.recordings.kept.values())
    second = load_language(path, context=64, slots=4)
    assert second.recordings.kept == first.recordings.kept
    with untraced(second, monkeypatch):
        assert ask_two(second) == want
    # What it adds is kept beside what it had.
    ask(second, [9] * 3)
    for n in range(3):
        ask_three(second, n)
    assert second.keep()
    assert second.recordings.kept["rows"] == first.recordings.kept["rows"] + 1
    third = load_language(path, context=64, slots=4)
    with untraced(third, monkeypatch):
        assert ask_two(third) == want


def test_damaged_recordings_count_as_missing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=79)
    language = load_language(path, context=80)
    for name in language.recordings.jits:
        object_cache.put(language.recordings.key_of(name), b"no recordings")
    assert not language.recordings.recall()
    assert ask(load_language(path, context=80), [1, 2]) == ask(language, [1, 2])


def test_one_short_answer_is_enough(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=80)
    language = load_language(path, context=88)
    assert not language.keep()
    tokens = ask(language, [3, 4])
    assert language.keep()
    assert ask(language, [3, 4]) == tokens


def test_an_answer_of_one_token_traces_nothing_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=84)
    language = load_language(path, context=56)
    tokens = ask(language, [3, 4], 1)
    assert not language.keep(), "no step of one token was taken"
    second = load_language(path, context=56)
    assert second.recordings.kept["chunk"] == second.recordings.kept["greedy"] == 1
    with untraced(second, monkeypatch):
        assert ask(second, [3, 4], 1) == tokens
