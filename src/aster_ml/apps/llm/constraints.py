"""Makes grammars of answers that have to be of a form: a JSON schema, a call of a tool, or either.

Receives schemas; returns a `Grammar` whose masks leave only tokens that keep the answer valid. The
package llguidance computes them. What it does not support, what would take long and what no answer
can be of is found out in a process with limits (`schema_check`) before anything is generated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.limits import Confined, LimitError
from aster_ml.apps.llm.sampling import Array
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.errors import ArgumentError

# A schema as text; larger ones take long to compile.
MAX_SCHEMA = 200_000
# JSON is written in one way: where blanks may stand, a model can write them without end.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CHECK = Confined("schema_check")


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
    """Makes grammars for one tokenizer; the vocabulary is prepared once.

    `context` is how many tokens an answer has room for.
    """

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self.library = needed("llguidance", "serve")
        if not tokenizer.ends:
            raise ArgumentError("the vocabulary has no token that ends an answer")
        self.size = len(tokenizer.tokens)
        wrapped = Words(tokenizer)
        self.most = context * max([len(raw) for raw in wrapped.tokens])
        self.words = self.library.LLTokenizer(
            self.library.TokenizerWrapper(wrapped),
            n_vocab=self.size,
            eos_token=sorted(tokenizer.ends),
        )
        # The same as where they are tried.
        self.limits = needed("aster_ml.apps.llm.schema_check", "serve").limits()

    def schema(self, schema: Mapping[str, Any]) -> SchemaGrammar:
        """A grammar for values of a JSON schema.

        Raises: ArgumentError for a schema that is not supported, damaged, too large or without a
        value that has room.
        """
        return self.made(f"start: answer\n{rule('answer', schema)}", [schema], "the schema")

    def calls(
        self,
        tools: Sequence[Mapping[str, Any]],
        opening: str,
        closing: str,
        otherwise: Mapping[str, Any] | None = None,
    ) -> SchemaGrammar:
        """A grammar for one call of one of these tools, between two marks.

        With `otherwise`, a value of that schema may stand in its place.

        Raises: ArgumentError where a tool's parameters are no supported schema.
        """
        variants = [call_schema(tool) for tool in tools]
        schema = variants[0] if len(variants) == 1 else {"anyOf": variants}
        # References in its parameters are to the parameters.
        schemas = [tool.get("parameters") or {} for tool in tools]
        start = f"{json.dumps(opening)} call {json.dumps(closing)}"
        rules = rule("call", schema)
        if otherwise is not None:
            start, rules = f"answer | {start}", rules + rule("answer", otherwise)
            schemas.append(otherwise)
        return self.made(f"start: {start}\n{rules}", schemas, "the parameters of a tool")

    def made(self, lark: str, schemas: Sequence[Mapping[str, Any]], what: str) -> SchemaGrammar:
        """A grammar that compiles, without a part that would be passed over in silence."""
        if len(lark) > MAX_SCHEMA:
            raise ArgumentError(f"{what} has {len(lark)} characters; {MAX_SCHEMA} at most")
        matcher = self.library.LLMatcher
        grammar = matcher.grammar_from_lark(lark)
        try:
            wrong = CHECK.ask({"grammar": grammar, "schemas": schemas, "most": self.most})["wrong"]
        except LimitError as error:
            wrong = str(error)
        if wrong:
            raise ArgumentError(f"{what} is not supported: {wrong}")
        made = SchemaGrammar(
            matcher(self.words, grammar, log_level=0, limits=self.limits), self.size
        )
        # Here, where nobody else waits for it.
        made.mask()
        return made


def rule(name: str, schema: Mapping[str, Any]) -> str:
    """A rule of a grammar for JSON of a schema. Raises: ArgumentError for one that is too deep."""
    try:
        return f"{name}: %json {json.dumps({**schema, 'x-guidance': SPACING})}\n"
    except RecursionError as error:
        raise ArgumentError("the schema is nested too deep") from error


def call_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call of a tool."""
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool["name"]},
            "arguments": tool.get("parameters") or {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class SchemaGrammar:
    """Schema as a constraint on the next token."""

    def __init__(self, matcher: Any, size: int) -> None:
        self.matcher, self.size = matcher, size
        self.fill = needed("llguidance.numpy", "serve")
        self.bits: Array = self.fill.allocate_token_bitmask(1, size)

    def copy(self) -> SchemaGrammar:
        """The same for another answer."""
        return SchemaGrammar(self.matcher.deep_copy(), self.size)

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
