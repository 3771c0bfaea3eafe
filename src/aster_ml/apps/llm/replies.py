"""Answers in OpenAI's form: at once, and as chunks of a stream.

Receives pieces of answers; returns the JSON of replies. How they travel is in `server`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from aster_ml.apps.llm.answers import Answer, Piece
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.requests import Wanted
from aster_ml.apps.llm.sampling import Picked
from aster_ml.apps.llm.tools import Call, ToolReader


class Reply:
    """The reply to one request, and how far each choice is. `kind` is "chat" or "text"."""

    def __init__(
        self, language: Language, wanted: Wanted, answers: Sequence[Answer], kind: str
    ) -> None:
        self.language, self.wanted, self.answers, self.kind = language, wanted, answers, kind
        names = [tool.name for tool in (wanted.must_call or wanted.tools)]
        most = 1 if wanted.one_call else None
        self.readers = [ToolReader(names, most) if names else None for _ in answers]
        self.offsets = [0] * len(answers)
        self.called = [False] * len(answers)
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        self.id, self.created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())

    def head(self, streamed: bool) -> dict[str, Any]:
        """Fields that begin every body."""
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        object_ = name + (".chunk" if streamed and self.kind == "chat" else "")
        head = {"id": self.id, "object": object_, "created": self.created}
        return {**head, "model": self.language.name}

    def usage(self) -> dict[str, Any]:
        """Counts of prompt and answer tokens; a prompt of several choices counts once."""
        prompts = sum([len(a.prompt) for a in self.answers[:: self.wanted.count]])
        cached = sum([a.reused for a in self.answers[:: self.wanted.count]])
        made = sum([len(a.tokens) for a in self.answers])
        return {
            "prompt_tokens": prompts,
            "completion_tokens": made,
            "total_tokens": prompts + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def reason(self, number: int, reason: str | None) -> str | None:
        """Why a choice ended, in OpenAI's words."""
        return "tool_calls" if reason == "stop" and self.called[number] else reason

    # odds

    def token_text(self, token: int) -> tuple[str, list[int]]:
        """A token as text and as bytes; one of control by its name."""
        tokenizer = self.language.tokenizer
        if token >= len(tokenizer.tokens):
            return "", []
        raw = tokenizer.bytes_of[token] or tokenizer.tokens[token].encode("utf-8", "replace")
        return raw.decode("utf-8", "replace"), list(raw)

    def odds(self, number: int, tokens: Sequence[Picked]) -> dict[str, Any] | None:
        """The odds of the tokens of a piece."""
        if self.wanted.top is None:
            return None
        if self.kind == "chat":
            return {"content": [self.chat_odds(t) for t in tokens]}
        texts = [self.token_text(t.token)[0] for t in tokens]
        offsets = []
        for text in texts:
            offsets.append(self.offsets[number])
            self.offsets[number] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [
                {self.token_text(n)[0]: x for n, x in t.top[: self.wanted.top]} for t in tokens
            ],
            "text_offset": offsets,
        }

    def chat_odds(self, picked: Picked) -> dict[str, Any]:
        """The odds of one token of a chat."""
        text, raw = self.token_text(picked.token)
        top = []
        for token, value in picked.top[: self.wanted.top]:
            name, codes = self.token_text(token)
            top.append({"token": name, "bytes": codes, "logprob": value})
        return {"token": text, "bytes": raw, "logprob": picked.logprob, "top_logprobs": top}

    # streams

    def chunk(self, number: int, delta: Any, reason: str | None, odds: Any) -> dict[str, Any]:
        """One chunk of one choice."""
        choice = {"index": number, "finish_reason": reason, "logprobs": odds}
        key = "delta" if self.kind == "chat" else "text"
        body = {**self.head(True), "choices": [{**choice, key: delta}]}
        return {**body, "usage": None} if self.wanted.usage else body

    def begin(self) -> list[dict[str, Any]]:
        """The first chunk of each choice of a chat."""
        if self.kind != "chat":
            return []
        first = {"role": "assistant", "content": ""}
        return [self.chunk(i, first, None, None) for i in range(len(self.answers))]

    def chunks(self, number: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of a piece."""
        text, calls = self.split(number, piece)
        odds = self.odds(number, piece.tokens)
        result = []
        if self.kind != "chat":
            return [self.chunk(number, text, self.reason(number, piece.reason), odds)]
        if text or (odds and piece.tokens):
            result.append(self.chunk(number, {"content": text}, None, odds))
        for call in calls:
            # The name first, then the arguments, as clients add them up.
            whole = call.as_json(True)
            first = {**whole, "function": {"name": call.name, "arguments": ""}}
            rest = {"index": call.number, "function": {"arguments": call.arguments}}
            result += [self.chunk(number, {"tool_calls": [c]}, None, None) for c in (first, rest)]
        if piece.reason is not None:
            result.append(self.chunk(number, {}, self.reason(number, piece.reason), None))
        return result

    def split(self, number: int, piece: Piece) -> tuple[str, list[Call]]:
        """The text of a piece that is for people, and the calls in it."""
        reader = self.readers[number]
        if reader is None:
            return piece.text, []
        text, calls = reader.push(piece.text)
        if piece.reason is not None:
            more, others = reader.end()
            text, calls = text + more, calls + others
        self.called[number] |= bool(calls)
        return text, calls

    def finish(self) -> list[dict[str, Any]]:
        """Lists the parts after all choices: the count of tokens, where it is asked for."""
        if not self.wanted.usage:
            return []
        return [{**self.head(True), "choices": [], "usage": self.usage()}]


def completion_of(reply: Reply, pieces: Sequence[tuple[int, Piece]]) -> dict[str, Any]:
    """The reply as one body."""
    choices = []
    for number in range(len(reply.answers)):
        mine = [piece for n, piece in pieces if n == number]
        whole = Piece(
            "".join([p.text for p in mine]), [t for p in mine for t in p.tokens], mine[-1].reason
        )
        text, calls = reply.split(number, whole)
        choice: dict[str, Any] = {
            "index": number,
            "finish_reason": reply.reason(number, whole.reason),
            "logprobs": reply.odds(number, whole.tokens),
        }
        if reply.kind == "chat":
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                message["content"] = text or None
                message["tool_calls"] = [call.as_json(False) for call in calls]
            choice["message"] = message
        else:
            choice["text"] = text
        choices.append(choice)
    return {**reply.head(False), "choices": choices, "usage": reply.usage()}
