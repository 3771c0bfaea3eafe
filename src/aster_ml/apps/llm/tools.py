"""Calls of tools in what a model writes.

Receives text as it comes; gives the text that is meant for people, and calls of tools with their
arguments. Known forms: JSON between <tool_call> and </tool_call> (Hermes, Qwen, SmolLM2), an answer
that is JSON with a name and arguments or parameters (Llama 3), or a list of such (Mistral).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# What a model is told where its template says nothing of tools.
EXPLANATION = (
    "You may call one or more functions. Their signatures are within <tools></tools>:\n<tools>\n"
    "{tools}\n</tools>\nFor each call, write a JSON object with the function's name and arguments "
    'within <tool_call></tool_call>:\n<tool_call>\n{{"name": NAME, "arguments": OBJECT}}\n'
    "</tool_call>"
)


class Call(NamedTuple):
    """A call: its number in the answer, what it is known by, the tool, its arguments as JSON."""

    number: int
    id: str
    name: str
    arguments: str

    def as_json(self, streamed: bool) -> dict[str, Any]:
        """OpenAI's form; a streamed one has its index."""
        function = {"name": self.name, "arguments": self.arguments}
        body = {"id": self.id, "type": "function", "function": function}
        return {"index": self.number, **body} if streamed else body


def call_of(value: Any, names: Sequence[str]) -> tuple[str, str] | None:
    """The name and arguments of a value that is a call of one of these tools."""
    if not isinstance(value, Mapping) or value.get("name") not in names:
        return None
    given = value.get("arguments", value.get("parameters", {}))
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    if not isinstance(given, Mapping):
        return None
    return value["name"], json.dumps(given, ensure_ascii=False)


class ToolReader:
    """Takes the text of one answer apart as it comes. Calls beyond `most` are left out."""

    def __init__(self, names: Sequence[str], most: int | None = None) -> None:
        self.names, self.most = list(names), most
        self.held = ""
        self.count = 0
        self.has_begun = self.is_behind_call = False

    def push(self, text: str) -> tuple[str, list[Call]]:
        """More text: what of it is for people, and calls that are complete."""
        self.held += text
        if not self.has_begun and self.may_be_bare():
            return "", []
        self.has_begun = True
        plain: list[str] = []
        calls: list[Call] = []
        while True:
            at = self.held.find(OPENING)
            if at < 0:
                keep = self.beginning()
                plain.append(self.held[: len(self.held) - keep])
                self.held = self.held[len(self.held) - keep :]
                break
            plain.append(self.held[:at])
            self.held = self.held[at:]
            end = self.held.find(CLOSING)
            if end < 0:
                break
            inner = self.held[len(OPENING) : end]
            found = self.parse(inner)
            if found:
                calls += found
            else:
                plain.append(self.held[: end + len(CLOSING)])
            self.held = self.held[end + len(CLOSING) :]
        said = "".join(plain)
        # Blank lines behind a call are nobody's text; those within a text are its own.
        if not said.strip() and (calls or self.is_behind_call):
            said = ""
        self.is_behind_call = bool(calls) or (self.is_behind_call and not said)
        return said, calls

    def may_be_bare(self) -> bool:
        """Whether the answer may still be a call without marks, which only its end tells."""
        begin = self.held.lstrip()
        return not begin or begin[0] in "{["

    def beginning(self) -> int:
        """Length of the end that may begin a mark."""
        return max(
            [n for n in range(1, len(OPENING)) if self.held.endswith(OPENING[:n])], default=0
        )

    def parse(self, text: str) -> list[Call]:
        """The calls in a text that is JSON; none where it is something else."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return []
        found = [call_of(v, self.names) for v in (value if isinstance(value, list) else [value])]
        if None in found or not found:
            return []
        calls = []
        room = None if self.most is None else max(0, self.most - self.count)
        for name, arguments in [f for f in found if f is not None][:room]:
            calls.append(Call(self.count, f"call_{secrets.token_hex(12)}", name, arguments))
            self.count += 1
        return calls

    def end(self) -> tuple[str, list[Call]]:
        """Returns the rest when the answer is over: a call whose closing mark is missing too."""
        left, self.held = self.held, ""
        calls = self.parse(left.strip().removeprefix(OPENING).removesuffix(CLOSING))
        return ("", calls) if calls else (left, [])


def explain(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages with the tools told first, for templates that say nothing of tools."""
    text = EXPLANATION.format(tools="\n".join([json.dumps(tool) for tool in tools]))
    rest = [dict(m) for m in messages]
    for m in rest:
        if m["role"] == "tool":
            m["role"], m["content"] = "user", f"<tool_response>\n{m['content']}\n</tool_response>"
        for call in m.get("tool_calls") or []:
            m["content"] = f"{m['content']}{OPENING}\n{json.dumps(call['function'])}\n{CLOSING}"
    if rest and rest[0]["role"] == "system":
        rest[0]["content"] = f"{rest[0]['content']}\n\n{text}"
        return rest
    return [{"role": "system", "content": text}, *rest]
