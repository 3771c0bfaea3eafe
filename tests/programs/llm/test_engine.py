"""Several answers at once: slots, turns, what is kept, what ends an answer."""

from __future__ import annotations

import pathlib
import random
import time
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from aster_ml.apps.llm.answers import Answer, Piece, collect
from aster_ml.apps.llm.engine import CHUNK, PART_SECONDS, Engine, Queue
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.recordings import jits_of
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.errors import ArgumentError
from tests.programs.llm.random_models import write_model


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """A random model with three slots; its steps are recorded once for all tests."""
    path = tmp_path_factory.mktemp("llm") / "x.gguf"
    write_model(path, "llama")
    return load_language(path, "f32", slots=3, memory="f32")


def ask(
    language: Language, prompt: list[int], count: int = 6, **options: Any
) -> tuple[Answer, list[Piece]]:
    """An answer that is not begun, and its pieces to come."""
    pieces, deliver = collect()
    sampling = options.pop("sampling", Sampling(0.0))
    return Answer(language.tokenizer, prompt, sampling, deliver, count, **options), pieces


def alone(language: Language, prompt: list[int], count: int = 6) -> list[int]:
    """The tokens of an answer that nobody shares the model with, read anew."""
    for slot in language.engine.slots:
        slot.tokens = []
    return language.engine.run(ask(language, prompt, count)[0]).tokens


def prompts_of(seed: int, count: int, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def test_together_they_say_what_each_says_alone(language: Language) -> None:
    prompts = [*prompts_of(1, 6), prompts_of(2, 1, 1)[0] * (CHUNK + 20)]
    want = [alone(language, prompt, 4 + i) for i, prompt in enumerate(prompts)]
    engine = language.engine
    asked = [ask(language, prompt, 4 + i) for i, prompt in enumerate(prompts)]
    for answer, _ in asked:
        engine.submit(answer)
    most = 0
    while engine.step():
        most = max(most, len(engine.busy))
    assert most == 3
    assert [answer.tokens for answer, _ in asked] == want
    for answer, pieces in asked:
        assert pieces[-1].reason == answer.reason
        text = "".join([p.text for p in pieces])
        assert text.rstrip("\ufffd") == language.tokenizer.decode(answer.tokens).rstrip("\ufffd")
        assert [t.token for p in pieces for t in p.tokens] == answer.tokens


def test_what_a_slot_has_is_not_read_again(language: Language) -> None:
    prompt = prompts_of(3, 1)[0] + [1, 2, 3]
    first = alone(language, prompt)
    longer = prompt + first[:-1] + [7, 8]
    want = alone(language, longer)
    alone(language, prompt)
    before = language.engine.counts.prompt_tokens
    answer, _ = ask(language, longer)
    language.engine.run(answer)
    assert answer.reused == len(longer) - 2
    assert language.engine.counts.prompt_tokens - before == 2
    assert answer.tokens == want


def test_an_answer_that_is_cancelled_leaves_the_others(language: Language) -> None:
    engine = language.engine
    prompts = prompts_of(4, 5)
    want = [alone(language, prompt) for prompt in prompts]
    asked = [ask(language, prompt)[0] for prompt in prompts]
    for answer in asked:
        engine.submit(answer)
    asked[4].cancel()
    engine.step()
    asked[0].cancel()
    while engine.step():
        assert asked[0] not in [slot.answer for slot in engine.slots]
    assert asked[0].reason == asked[4].reason == "cancelled"
    assert asked[4].tokens == []
    assert [a.tokens for a in asked[1:4]] == want[1:4]


def test_a_long_prompt_is_cancelled_between_its_chunks(language: Language) -> None:
    answer, pieces = ask(language, prompts_of(5, 1)[0][:1] * (CHUNK + 30))
    language.engine.submit(answer)
    language.engine.step()
    assert not answer.tokens
    answer.cancel()
    assert not language.engine.step()
    assert [p.reason for p in pieces] == ["cancelled"]


def test_stop_strings(language: Language) -> None:
    prompt = prompts_of(6, 1)[0]
    tokens = alone(language, prompt, 12)
    text = language.tokenizer.decode(tokens)
    for length in (1, 2, 3):
        stop = text[4 : 4 + length]
        answer, pieces = ask(language, prompt, 12, stop=[stop, "never to be said"])
        language.engine.run(answer)
        said = "".join([p.text for p in pieces])
        assert said == text[: text.index(stop)]
        assert answer.reason == "stop"


def test_the_context_ends_an_answer_and_refuses_a_prompt(language: Language) -> None:
    context = language.engine.model.context
    answer, _ = ask(language, [5] * (context - 3), 100)
    language.engine.run(answer)
    # A token is drawn after each of the last three places.
    assert answer.reason == "length"
    assert len(answer.tokens) == 4 - 1
    with pytest.raises(ArgumentError, match=f"{context} tokens, the context {context}"):
        language.engine.submit(ask(language, [5] * context)[0])
    with pytest.raises(ArgumentError, match="token 9999 is none"):
        language.engine.submit(ask(language, [9999])[0])
    with pytest.raises(ArgumentError, match="prompt is empty"):
        ask(language, [])


def test_an_end_token_ends_it(language: Language) -> None:
    end = language.tokenizer.eos
    assert end is not None
    sampling = Sampling(0.0, logit_bias={end: 1000.0})
    answer, pieces = ask(language, [5, 6], 10, sampling=sampling)
    language.engine.run(answer)
    assert answer.reason == "stop"
    assert answer.tokens == []
    assert [p.text for p in pieces] == [""]


def test_an_error_reaches_all_that_wait(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = language.engine
    asked = [ask(language, prompt) for prompt in prompts_of(7, 2)]
    for answer, _ in asked:
        engine.submit(answer)

    def fail(*args: Any) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "sampler", fail)
        with pytest.raises(ValueError, match="broken"):
            engine.step()
    assert [p[-1].reason for _, p in asked] == ["error"] * 2
    assert "broken" in asked[0][1][-1].said
    assert alone(language, [1, 2, 3])


def test_clients_take_turns(language: Language) -> None:
    queue = Queue()
    for client, count in (("a", 4), ("b", 1), ("c", 2)):
        for i in range(count):
            queue.put(ask(language, [i + 1], client=client)[0])
    order = []
    while (answer := queue.take()) is not None:
        order.append(answer.client)
    assert order == ["a", "b", "c", "a", "c", "a", "a"]
    assert len(queue) == 0


def test_a_chat_is_the_template_and_the_beginning_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama")
    language = load_language(path, "f32")
    prompt = language.prompt_of([{"role": "user", "content": "the"}])
    assert language.tokenizer.decode(prompt).startswith("<|im_start|>user\nthe")
    with pytest.raises(ArgumentError, match="a context of 999 is asked for"):
        load_language(path, context=999)


def test_engines_have_slots_of_their_own(language: Language) -> None:
    assert isinstance(language.engine, Engine)
    assert [slot.number for slot in language.engine.slots] == [0, 1, 2]


def test_a_server_that_is_warm_records_nothing_more(tmp_path: pathlib.Path) -> None:
    """Whatever answers want, alone or together."""
    write_model(tmp_path / "x.gguf", "llama")
    own = load_language(tmp_path / "x.gguf", "f32", slots=3, memory="f32")
    own.engine.warm()
    jits = list(jits_of(own.engine).values())
    before = [len(jit.portable()) for jit in jits]
    assert all(before)
    kinds: list[dict[str, Any]] = [
        {},
        {"sampling": Sampling(top_p=0.5), "top": 3},
        {"sampling": Sampling(0.0), "top": 20},
        {"sampling": Sampling(top_k=5, repetition_penalty=2.0)},
        {"sampling": Sampling(top_k=5)},
        {"sampling": Sampling(0.0, logit_bias={3: 5.0}), "top": 1},
        {"sampling": Sampling(presence_penalty=1.0, top_p=0.9)},
        {"sampling": Sampling(top_p=0.9)},
    ]
    rng = random.Random(3)
    for together in (1, 2, 3, 3, 2):
        for _ in range(6):
            for prompt in prompts_of(rng.randrange(99), together):
                own.engine.submit(ask(own, prompt, 3, **rng.choice(kinds))[0])
            while own.engine.step():
                continue
    assert [len(jit.portable()) for jit in jits] == before


def test_a_prompt_is_read_in_smaller_parts_while_others_wait(language: Language) -> None:
    """Slow steps make parts small, and what is said is the same."""
    engine = language.engine
    prompt = [i % 200 for i in range(CHUNK + 30)]
    want = alone(language, prompt, 3)
    plain, sizes = engine.read_chunk, list[int]()

    def slowly(tokens: Any, slot: Any, start: Any, groups: Any, last: Any) -> Any:
        sizes.append(groups.unbind()[1])
        time.sleep(0.02 * sizes[-1])
        return plain(tokens, slot, start, groups, last)

    engine.read_chunk = slowly  # type: ignore[assignment]
    try:
        for slot in engine.slots:
            slot.tokens = []
        writing, _ = ask(language, [1, 2, 3], 120)
        reading, _ = ask(language, prompt, 3)
        engine.submit(writing)
        engine.step()
        engine.submit(reading)
        while engine.step():
            continue
    finally:
        engine.read_chunk = plain
    assert reading.tokens == want
    assert max(sizes) * 0.02 <= PART_SECONDS + 0.04
    # Alone it is read as before.
    assert alone(language, prompt, 3) == want
