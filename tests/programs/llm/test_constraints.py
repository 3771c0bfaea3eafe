"""Grammars of schemas: what is refused before an answer begins, and that JSON is of one form."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

from aster_ml.apps.llm.constraints import Constraints, SchemaGrammar
from aster_ml.apps.llm.schema_check import ENDLESS, Shortest
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError
from tests.fuzz.budget import check_all, draws
from tests.programs.llm.vocabularies import byte_level, plain

ITSELF = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
TREE = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 0}},
}


@pytest.fixture(scope="module")
def constraints() -> Constraints:
    """Grammars for a small vocabulary."""
    return Constraints(Tokenizer(plain(byte_level("gpt-2"))), 100)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}, "not supported"),
        ({"type": "array", "minItems": 10**9}, "shortest value has 2,000,000,001 bytes"),
        ({"type": "string", "minLength": 5000}, "5,002 bytes"),
        ({"$ref": "#"}, "no value of it"),
        (ITSELF, "no value of it"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no value of it"),
        ({"anyOf": []}, "no value of it"),
        ({"type": "integer", "multipleOf": 999983}, "processor time"),
        ({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"enum": ["a" * 210_000]}, "200000 at most"),
    ],
)
def test_schemas_that_are_refused(
    schema: dict[str, Any], said: str, constraints: Constraints
) -> None:
    with pytest.raises(ArgumentError, match=said):
        constraints.schema(schema)
    # The next one is none the worse for it.
    constraints.schema(TREE)


def test_a_schema_that_is_nested_too_deep(constraints: Constraints) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ArgumentError, match="nested too deep"):
        constraints.schema(schema)


def written(grammar: SchemaGrammar, tokenizer: Tokenizer, rng: random.Random) -> str:
    """A text that a grammar allows, of tokens that are drawn, short ones first."""
    tokens: list[int] = []
    while not grammar.is_done and len(tokens) < 400:
        bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
        allowed = [i for i in np.flatnonzero(bits).tolist() if i < len(tokenizer.tokens)]
        ends = [i for i in allowed if i in tokenizer.ends]
        if ends and rng.random() < 0.5:
            break
        token = rng.choice([i for i in allowed if i not in tokenizer.ends] or allowed)
        tokens.append(token)
        grammar.accept(token)
    return tokenizer.decode(tokens)


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """A schema whose values are short."""
    kinds = ["integer", "enum", "null", "boolean"] + ["array", "object", "anyOf"] * (depth > 0)
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"enum": rng.sample(["x", "yy", 1, None, [1, 2]], rng.randint(1, 3))}
    if kind == "array":
        low = rng.randint(0, 2)
        items = random_schema(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + 1}
    if kind == "object":
        names = rng.sample(["a", "b", "c c"], rng.randint(0, 3))
        parts = {name: random_schema(rng, depth - 1) for name in names}
        required = [name for name in names if rng.random() < 0.7]
        return {
            "type": "object", "properties": parts, "required": required,
            "additionalProperties": False,
        }  # fmt: skip
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    return {"type": kind, "minimum": 0, "maximum": 99} if kind == "integer" else {"type": kind}


def test_values_are_json_of_one_form_and_no_shorter_than_the_shortest(
    constraints: Constraints, record_property: Any
) -> None:
    """Where blanks may stand is settled, so a model cannot write them without end."""
    tokenizer = Tokenizer(plain(byte_level("gpt-2")))

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        schema = random_schema(rng, 3)
        least = Shortest(schema).length()
        text = written(constraints.schema(schema), tokenizer, rng)
        value = json.loads(text)
        if text != json.dumps(value, ensure_ascii=False):
            return f"{schema}: {text!r} is written in another way"
        if len(json.dumps(value, separators=(",", ":"))) < least:
            return f"{schema}: {text!r} is shorter than {least}"
        return None

    check_all("values of schemas", draws(60, 3000), check, record_property)


@pytest.mark.parametrize(
    ("schema", "length"),
    [
        ({}, 1),
        (TREE, 2),
        (ITSELF, ENDLESS),
        ({"type": ["string", "null"], "minLength": 9}, 4),
        ({"const": {"a": 1}}, len('{"a":1}')),
        ({"allOf": [{"type": "string"}, {"minLength": 3}]}, 2),
        ({"type": "array", "prefixItems": [{"const": "abc"}], "minItems": 2}, len('["abc",1]')),
        (
            {
                "$ref": "#/$defs/x",
                "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"const": 11}]}},
            },
            2,
        ),
        ({"$ref": "https://elsewhere"}, 1),
        ({"type": 5, "minItems": "a", "required": 3, "properties": []}, 1),
    ],
)
def test_lengths_of_shortest_values(schema: dict[str, Any], length: int) -> None:
    assert Shortest(schema).length() == length


def test_an_answer_or_a_call(constraints: Constraints) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": 1}}}}
    grammar = constraints.calls([tool], "<c>", "</c>", {"const": 5})
    for text in ('<c>{"name": "f", "arguments": {"a": 1}}</c>', "5"):
        own = grammar.copy()
        for token in constraints.words.tokenize_str(text):
            own.accept(token)
        assert own.may_end
    with pytest.raises(ArgumentError, match="grammar failed"):
        for token in constraints.words.tokenize_str("6"):
            grammar.accept(token)
