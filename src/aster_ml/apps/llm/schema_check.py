"""Tries grammars of strangers' schemas before a model answers in one.

Receives schemas and the grammar that is made of them; says what is wrong with them: not supported,
too large, without a value that is short enough. Runs in a process of its own (`confined`), whose
limits of time and memory hold for what the package llguidance does with a schema.

Source: the JSON Schema specification, draft 2020-12, for what keywords mean.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# What a grammar may take: the work that is done before the first token and before each other one,
# in the package's own units. A step of others waits for a mask, so it is a tenth of a second here.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 20_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}
# Steps that are tried, each with a byte that may come next.
TRIED_STEPS = 48
# How often lengths of schemas that refer to one another are computed anew.
ROUNDS = 32
ENDLESS = 1 << 62
WORDS = LLTokenizer("byte")
LENGTHS = {"null": 4, "boolean": 4, "number": 1, "integer": 1, "string": 2, "array": 2, "object": 2}


def limits() -> Any:
    """Limits of a grammar, as the package takes them."""
    return LLParserLimits(**LIMITS, verbose_errors=False)


class Shortest:
    """The length of the shortest JSON of a schema, or less; never more.

    Schemas may refer to themselves, so lengths of what is referred to begin as endless and are
    computed anew until none changes.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.named: dict[str, int] = {}

    def length(self) -> int:
        """The length for the whole schema; ENDLESS where it has no value."""
        found = self.of(self.root)
        for _ in range(ROUNDS):
            before = dict(self.named)
            for name in before:
                self.named[name] = self.of(self.target(name))
            found = self.of(self.root)
            if self.named == before:
                return found
        # It may still become shorter.
        return found if not self.named else 0

    def target(self, name: str) -> Any:
        """Resolves a reference; anything where its target is not found here."""
        if not name.startswith("#"):
            return {}
        value: Any = self.root
        for part in name[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        return value

    def of(self, schema: Any) -> int:
        """The length for a part of the schema."""
        if schema is False:
            return ENDLESS
        if not isinstance(schema, Mapping):
            return 1
        return max([1, *self.demands(schema)])

    def demands(self, schema: Mapping[str, Any]) -> Iterator[int]:
        """Yields the size that each keyword demands; all of them have to be met."""
        if isinstance(schema.get("$ref"), str):
            yield self.named.setdefault(schema["$ref"], ENDLESS)
        if "const" in schema:
            yield len(json.dumps(schema["const"], separators=(",", ":")))
        if isinstance(schema.get("enum"), list):
            yield least([len(json.dumps(x, separators=(",", ":"))) for x in schema["enum"]])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                yield least([self.of(part) for part in schema[key]])
        if isinstance(schema.get("allOf"), list):
            yield from [self.of(part) for part in schema["allOf"]]
        kinds = schema.get("type")
        if isinstance(kinds, str):
            kinds = [kinds]
        if isinstance(kinds, list):
            yield least([self.of_type(schema, kind) for kind in kinds])

    def of_type(self, schema: Mapping[str, Any], kind: Any) -> int:
        """The length for a value of one type."""
        length = LENGTHS.get(kind, 1) if isinstance(kind, str) else 1
        if kind == "string":
            length += whole(schema.get("minLength"))
        elif kind == "array":
            first = schema.get("prefixItems")
            given = first if isinstance(first, list) else []
            count = whole(schema.get("minItems"))
            items = [self.of(part) for part in given[:count]]
            rest = self.of(schema.get("items", {})) if count > len(items) else 0
            length += sum(items) + (count - len(items)) * rest + max(0, count - 1)
        elif kind == "object":
            parts = schema.get("properties")
            known = parts if isinstance(parts, Mapping) else {}
            names = schema.get("required")
            needed = [x for x in names if isinstance(x, str)] if isinstance(names, list) else []
            for name in dict.fromkeys(needed):
                length += len(json.dumps(name)) + 1 + self.of(known.get(name, {}))
            length += max(0, len(needed) - 1)
        return min(length, ENDLESS)


def least(lengths: Sequence[int]) -> int:
    """The least of some lengths; without one there is no value."""
    return min(lengths, default=ENDLESS)


def whole(value: Any) -> int:
    """A count that a schema names, 0 where it names none."""
    return max(0, value) if value.__class__ is int else 0


def answer(question: Mapping[str, Any]) -> dict[str, str]:
    """Names what is wrong with a grammar and the schemas in it; "" where nothing is."""
    for schema in question["schemas"]:
        length = Shortest(schema).length()
        if length >= ENDLESS:
            return {"wrong": "there is no value of it"}
        if length > question["most"]:
            return {
                "wrong": f"its shortest value has {length:,} bytes, an answer has room for "
                f"{question['most']:,}"
            }
    matcher = LLMatcher(WORDS, question["grammar"], log_level=0, limits=limits())
    wrong = matcher.get_error() or "; ".join(matcher.get_grammar_warnings())
    return {"wrong": (wrong or trial(matcher))[:500]}


def trial(matcher: Any) -> str:
    """Tries some steps of an answer, and names what goes wrong."""
    rng = random.Random(0)
    for _ in range(TRIED_STEPS):
        if matcher.is_stopped():
            break
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [i for i in range(WORDS.vocab_size) if bits >> i & 1]
        if matcher.is_error() or not allowed:
            break
        matcher.consume_token(rng.choice(allowed))
    return str(matcher.get_error())
