"""Renders chats: messages as one text, in the words of the model.

Receives a Jinja2 template from a model's file, which nobody has looked at, and messages; returns
the text. The template runs in a process with limits (`limits`), in a sandbox (`template_sandbox`);
what takes more steps, text, memory or time than a chat needs is refused. Messages are checked by
who receives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aster_ml.apps.llm.extras import require
from aster_ml.apps.llm.limits import Confined, LimitError
from aster_ml.errors import ArgumentError, FormatError

# Templates of published models are below 20,000 characters.
MAX_TEMPLATE = 200_000
# For files without a template: the form that most models know.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# One process for the templates of all models: a question brings its template along.
SANDBOX = Confined("template_sandbox")


class ChatTemplate:
    """A chat template.

    Raises: FormatError where it is no template. ArgumentError where the package jinja2 is absent.
    """

    def __init__(self, source: str = CHATML, names: Mapping[str, str] | None = None) -> None:
        require("jinja2", "llm")
        if len(source) > MAX_TEMPLATE:
            raise FormatError(
                f"the chat template has {len(source):,} characters; {MAX_TEMPLATE:,} at most",
                "gguf",
            )
        self.source, self.names = source, dict(names or {})
        try:
            found = SANDBOX.ask({"source": source})
        except LimitError as error:
            raise FormatError(f"the chat template is damaged: {error}", "gguf") from error
        if "damaged" in found:
            raise FormatError(f"the chat template is damaged: {found['damaged']}", "gguf")

    @property
    def knows_tools(self) -> bool:
        """Whether it says anything of tools."""
        return "tools" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = True,
        **others: Any,
    ) -> str:
        """The text of these messages; with `prompt`, up to where the answer begins.

        Raises: ArgumentError where the template refuses them, fails, or does too much.
        """
        values = {
            "messages": [dict(m) for m in messages],
            "tools": [dict(t) for t in tools] if tools else None,
            "add_generation_prompt": prompt,
            **self.names,
            **others,
        }
        try:
            found = SANDBOX.ask({"source": self.source, "values": values})
        except LimitError as error:
            raise ArgumentError(
                f"the model's chat template fails for these messages: {error}"
            ) from error
        if "said" in found:
            raise ArgumentError(f"the chat template says: {found['said']}")
        if "failed" in found:
            raise ArgumentError(
                f"the model's chat template fails for these messages: {found['failed']}"
            )
        return str(found["text"])
