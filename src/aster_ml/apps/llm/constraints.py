"""Answers that have to be of a form: JSON, a JSON schema, a call of a tool.

Receives a schema; returns a `Grammar` whose masks leave only tokens that keep the answer valid. The
package llguidance computes them. What it does not support is refused before anything is generated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.sampling import Array
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError

# A schema as text; larger ones take long to compile.
MAX_SCHEMA = 200_000


class Words:
    """A tokenizer as llguidance wants to see one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ends = sorted(tokenizer.ends)
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos if tokenizer.eos is not None else ends[0]
        self.bos_token_id = tokenizer.bos
        self.tokens = list(tokenizer.bytes_of)
        self.special_token_ids = [i for i, b in enumerate(self.tokens) if not b]

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self.tokenizer.encode(plain, bos=False)


class Constraints:
    """Makes grammars for one tokenizer; the vocabulary is prepared once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.library = needed("llguidance", "serve")
        if not tokenizer.ends:
            raise ArgumentError("the vocabulary has no token that ends an answer")
        self.size = len(tokenizer.tokens)
        wrapper = self.library.TokenizerWrapper(Words(tokenizer))
        self.words = self.library.LLTokenizer(
            wrapper, n_vocab=self.size, eos_token=sorted(tokenizer.ends)
        )

    def schema(self, schema: Mapping[str, Any]) -> SchemaGrammar:
        """A grammar for values of a JSON schema.

        Raises: ArgumentError for a schema that is not supported, damaged or too large.
        """
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA:
            raise ArgumentError(f"the schema has {len(text)} characters; {MAX_SCHEMA} at most")
        matcher = self.library.LLMatcher
        try:
            grammar = matcher.grammar_from_json_schema(text)
        except ValueError as error:
            raise ArgumentError(f"the schema is not supported: {error}") from error
        return self.checked(grammar, "the schema")

    def calls(
        self, tools: Sequence[Mapping[str, Any]], opening: str, closing: str
    ) -> SchemaGrammar:
        """A grammar for one call of one of these tools, between two marks.

        Raises: ArgumentError where a tool's parameters are no supported schema.
        """
        variants = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["name"]},
                    "arguments": tool.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        schema = variants[0] if len(variants) == 1 else {"anyOf": variants}
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA:
            raise ArgumentError(f"the tools have {len(text)} characters; {MAX_SCHEMA} at most")
        lark = f"start: {json.dumps(opening)} call {json.dumps(closing)}\ncall: %json {text}\n"
        grammar = self.library.LLMatcher.grammar_from_lark(lark)
        return self.checked(grammar, "the parameters of a tool")

    def checked(self, grammar: str, what: str) -> SchemaGrammar:
        """A grammar that compiles, without a part that would be passed over in silence."""
        matcher = self.library.LLMatcher(self.words, grammar, log_level=0)
        said = (
            matcher.get_error() if matcher.is_error() else "; ".join(matcher.get_grammar_warnings())
        )
        if said:
            raise ArgumentError(f"{what} is not supported: {said[:500]}")
        return SchemaGrammar(matcher, self.size)


class SchemaGrammar:
    """What may come next, token by token."""

    def __init__(self, matcher: Any, size: int) -> None:
        self.matcher = matcher
        self.fill = needed("llguidance.numpy", "serve")
        self.bits: Array = self.fill.allocate_token_bitmask(1, size)

    def mask(self) -> Array:
        """The tokens that may come next. Raises: ArgumentError where the grammar gave up."""
        self.fill.fill_next_token_bitmask(self.matcher, self.bits, 0)
        self.check()
        row: Array = self.bits[0]
        return row

    def accept(self, token: int) -> None:
        """Takes note of a token. Raises: ArgumentError where it is none that may come."""
        self.matcher.consume_token(token)
        self.check()

    def check(self) -> None:
        """Fails closed: nothing is generated past an error."""
        if self.matcher.is_error():
            raise ArgumentError(f"the grammar failed: {self.matcher.get_error()[:500]}")

    @property
    def may_end(self) -> bool:
        """Whether what there is so far is valid as it is."""
        return bool(self.matcher.is_accepting())

    @property
    def is_done(self) -> bool:
        """Whether nothing may follow."""
        return bool(self.matcher.is_stopped())
