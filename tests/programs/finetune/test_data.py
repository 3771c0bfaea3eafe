"""Lines of JSON as examples, and examples in rows."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from aster_ml.apps.finetune.data import (
    NOTHING,
    POSITIONS,
    TARGETS,
    TEXTS,
    TOKENS,
    Example,
    Reader,
    length_for,
    pack,
)
from aster_ml.apps.llm.template import CHATML, ChatTemplate
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError, FormatError
from tests.programs.llm.random_models import vocabulary

# Messages in the words of these tests: (role, text) pairs.
Pairs = list[tuple[str, str]]
SIMPLE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}:{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)


def reader(template: str = SIMPLE, **words: Any) -> Reader:
    """A reader with a small vocabulary."""
    values = {
        key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in vocabulary().items()
    }
    values |= {f"tokenizer.ggml.{name}_token_id": int(values[f"tokenizer.ggml.{name}_token_id"])
               for name in ("bos", "eos")}  # fmt: skip
    return Reader(Tokenizer(values | words), ChatTemplate(template))


def chat(*pairs: tuple[str, str]) -> bytes:
    """A line with these messages."""
    return json.dumps({"messages": [{"role": r, "content": c} for r, c in pairs]}).encode()


def learned_text(made: Reader, example: Example) -> list[str]:
    """The learned tokens, as they are written."""
    names = made.tokenizer.tokens
    return [names[t] for t, use in zip(example.tokens, example.learned) if use]


def test_only_answers_are_learned_and_their_ends() -> None:
    made = reader()
    line = chat(("system", "be"), ("user", "hi"), ("assistant", "yo"), ("user", "a"),
                ("assistant", "no"), ("user", "not read"))  # fmt: skip
    example = made.example(line)
    assert learned_text(made, example) == ["y", "o", "<|end|>", "n", "o", "<|end|>"]
    whole = made.template.render(json.loads(line)["messages"][:5], prompt=False)
    written = "".join([made.tokenizer.tokens[t] for t in example.tokens])
    assert written == whole.replace("\n", "Ċ")


def test_what_is_read_before_an_answer_is_what_a_chat_reads() -> None:
    made = reader()
    example = made.example(chat(("user", "the inner"), ("assistant", "yo")))
    prompt = made.template.render([{"role": "user", "content": "the inner"}])
    tokens = made.tokenizer.encode(prompt, special=True)
    assert example.tokens[: len(tokens)] == tokens
    assert not any(example.learned[: len(tokens)])


def test_a_text_is_learned_whole_and_ends() -> None:
    made = reader()
    example = made.example(b'{"text": "in the end"}')
    assert example.learned == [False] + [True] * (len(example.tokens) - 1)
    assert example.tokens[-1] == made.tokenizer.eos
    begun = reader(**{"tokenizer.ggml.add_bos_token": True}).example(b'{"text": "a"}')
    assert begun.tokens[0] == made.tokenizer.bos


@pytest.mark.parametrize("line, want", [
    (b"{", "it is no JSON"),
    (b"\xff", "it is no JSON"),
    (b"[" * 100_000, "it is no JSON"),
    (b"[1]", 'either "messages" or "text"'),
    (b'{"text": "a", "messages": []}', 'either "messages" or "text"'),
    (b'{"text": 3}', "text is 3"),
    (b'{"text": ""}', "a text is wanted"),
    (b'{"messages": []}', "a list of messages"),
    (b'{"messages": [{"role": "robot", "content": "a"}]}', "role is 'robot'"),
    (b'{"messages": [{"role": "assistant"}]}', "message 0: content is None"),
    (b'{"messages": [{"role": "user", "content": "a"}]}', "no message is an answer"),
])  # fmt: skip
def test_wrong_lines_are_named_by_number(line: bytes, want: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a b"}\n\n' + line + b'\n{"text": "c d"}\n')
    with pytest.raises(FormatError) as caught:
        reader().read(path)
    assert "1 lines are no examples\nline 3: " in str(caught.value)
    assert want in str(caught.value)


def test_many_wrong_lines_are_counted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("no\n" * 30)
    with pytest.raises(FormatError, match="30 lines are no examples") as caught:
        reader().read(path)
    assert str(caught.value).endswith("and 22 more")
    path.write_text("\n")
    with pytest.raises(FormatError, match="no line is an example"):
        reader().read(path)


def test_a_template_that_rewrites_what_was_said() -> None:
    # The last message is marked, so a chat is no beginning of the same chat with one more.
    source = "{% for m in messages %}{{ '>' if loop.last }}{{ m['content'] }}|{% endfor %}"
    line = chat(("user", "a"), ("assistant", "b"))
    with pytest.raises(RuntimeError, match="one answer a line"):
        reader(source).example(line)


def test_packing_keeps_every_example_once() -> None:
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(60):
        size = int(rng.integers(2, 33))
        use = [bool(x) for x in rng.integers(0, 2, size)]
        examples.append(Example([int(t) for t in rng.integers(1, 200, size)], use))
    rows = pack(examples, 32)
    found = []
    for row in rows:
        for text in range(1, row[TEXTS].max() + 1):
            at = np.flatnonzero(row[TEXTS] == text)
            assert (np.diff(at) == 1).all()
            assert row[POSITIONS, at].tolist() == list(range(len(at)))
            tokens, targets = row[TOKENS, at].tolist(), row[TARGETS, at].tolist()
            assert targets[-1] == NOTHING
            learned = [False, *[t != NOTHING for t in targets[:-1]]]
            assert [t for t in targets if t != NOTHING] == [
                t for t, use in zip(tokens, learned) if use
            ]
            found.append(Example(tokens, learned))
    want = [Example(e.tokens, [False, *e.learned[1:]]) for e in examples]
    assert sorted(found) == sorted(want)
    assert (rows[:, TARGETS][rows[:, TEXTS] == 0] == NOTHING).all()
    used = sum([len(e.tokens) for e in examples])
    assert len(rows) <= -(-used // 32) + 3


def test_the_length_of_rows() -> None:
    short, long = Example([1] * 10, [True] * 10), Example([1] * 200, [True] * 200)
    assert length_for([short], 4096) == 128
    assert length_for([short, long], 4096) == 224
    assert length_for([short], 64) == 64
    assert length_for([short], 4096, 16) == 16
    with pytest.raises(ArgumentError, match="example 2 has 200 tokens, a row 128; --length 200"):
        length_for([short, long], 4096, 128)
    with pytest.raises(ArgumentError, match="made for 64"):
        length_for([short], 64, 128)
    with pytest.raises(ArgumentError, match="the model has 100"):
        length_for([long], 100)


def test_a_chat_without_a_template_is_in_chatml() -> None:
    made = reader(CHATML)
    assert any(made.example(chat(("user", "a"), ("assistant", "b"))).learned)
