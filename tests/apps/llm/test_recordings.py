"""Recordings on the disk: a second start says the same and traces nothing."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("tokenizers")

from aster_ml.apps.llm import recordings
from aster_ml.apps.llm.answers import Answer, collect
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.runtime import object_cache
from tests.apps.llm.random_models import write_model


def ask(language: Language, prompt: list[int]) -> list[int]:
    """The tokens of an answer."""
    vocabulary = language.engine.model.vocabulary
    answer = Answer(
        language.tokenizer, prompt, Sampling(0.0), collect()[1], 6, vocabulary=vocabulary
    )
    return language.engine.run(answer).tokens


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
    kept = object_cache.get(recordings.key_of(first.engine))
    assert kept is not None
    assert len(kept) < first.engine.model.weights.nbytes()
    second = load_language(path, dtype, context=96, slots=2)

    def fail(*args: object) -> None:
        raise AssertionError("the forward pass ran again")

    with monkeypatch.context() as patch:
        patch.setattr(second.engine.model, "forward", fail)
        assert [ask(second, [5, 6, 7]), ask(second, [9] * 70)] == want
    # Memory is its own: the first goes on as it was.
    assert ask(first, [5, 6, 7]) == want[0]


def test_what_differs_is_recorded_apart(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=78)
    engines = [
        load_language(path, context=96).engine,
        load_language(path, context=97).engine,
        load_language(path, "f32", context=96).engine,
        load_language(path, context=96, slots=2).engine,
    ]
    assert len({recordings.key_of(engine) for engine in engines}) == 4
    assert recordings.key_of(load_language(path, context=96).engine) == recordings.key_of(
        engines[0]
    )


def test_damaged_recordings_count_as_missing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=79)
    language = load_language(path, context=80)
    object_cache.put(recordings.key_of(language.engine), b"no recordings")
    assert not recordings.recall(language.engine)
    assert ask(load_language(path, context=80), [1, 2]) == ask(language, [1, 2])


def test_one_short_answer_is_enough(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", seed=80)
    language = load_language(path, context=88)
    assert not language.keep()
    tokens = ask(language, [3, 4])
    assert language.keep()
    assert ask(language, [3, 4]) == tokens
