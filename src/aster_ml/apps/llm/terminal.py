"""Runs a chat in the terminal: reads lines and commands, prints answers as they come.

Receives a `Language` and lines; prints. Ctrl-C ends an answer, and at the prompt an empty line's
Ctrl-D ends the program.
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aster_ml.apps.llm.answers import Answer, Piece
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.errors import AsterError

HELP = """/system TEXT   what the model is told first; without a text, nothing
/reset         forget what was said
/save FILE     write the chat as JSON
/help          this
/quit          leave (Ctrl-D does too)
A line that ends in a backslash goes on; so does all between two lines of three quotes.
Ctrl-C ends the answer, not the program."""
QUOTES = '"""'


class Interrupts:
    """While an answer is made, Ctrl-C ends it between two steps, and nothing else."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.before: Any = None

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGINT, lambda *_: self.answer.cancel())

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)


@dataclass
class Chat:
    """A conversation with a model."""

    language: Language
    sampling: Sampling
    max_tokens: int = 0
    system: str = ""
    write: Callable[[str], None] = lambda text: print(text, end="", flush=True)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def told(self) -> list[dict[str, Any]]:
        """All messages, the system's first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def say(self, text: str) -> str:
        """Answers a text and writes the answer as it comes.

        Raises: ArgumentError where the chat is longer than the context, or the template refuses it;
        the message is not kept then.
        """
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []

        def deliver(piece: Piece) -> None:
            parts.append(piece.text)
            self.write(piece.text)

        try:
            prompt = self.language.prompt_of(self.told())
            answer = self.answer_to(prompt, deliver)
            with Interrupts(answer):
                self.language.engine.run(answer)
        except AsterError:
            self.messages.pop()
            raise
        said = "".join(parts)
        self.messages.append({"role": "assistant", "content": said})
        if answer.reason != "stop":
            self.write(f"\n[{answer.reason}]")
        return said

    def answer_to(self, prompt: list[int], deliver: Callable[[Piece], None]) -> Answer:
        """An answer with the settings of this chat."""
        return Answer(
            self.language.tokenizer,
            prompt,
            self.sampling,
            deliver,
            self.max_tokens,
            vocabulary=self.language.engine.model.vocabulary,
        )

    def command(self, line: str) -> bool:
        """Does what a line says that begins with a slash; False ends the chat."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/quit", "/exit", "/bye"):
            return False
        if name == "/system":
            self.system = rest
            self.write(f"[system: {rest or 'nothing'}]\n")
        elif name == "/reset":
            self.messages.clear()
            self.write("[forgotten]\n")
        elif name == "/save":
            self.save(rest)
        else:
            unknown = "" if name == "/help" else f"[there is no {name}]\n"
            self.write(f"{unknown}{HELP}\n")
        return True

    def save(self, name: str) -> None:
        """Writes the chat to a file, and says where, or why not."""
        if not name:
            self.write("/save wants the name of a file\n")
            return
        text = json.dumps({"model": self.language.name, "messages": self.told()}, indent=1)
        try:
            pathlib.Path(name).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.write(f"[not saved: {error}]\n")
        else:
            self.write(f"[saved to {name}]\n")


def read_message(read: Callable[[str], str]) -> str:
    """The next message, of one line or several. Raises: EOFError at the end of what is typed."""
    line = read(">>> ")
    if line.strip() == QUOTES:
        lines = []
        while (line := read("... ")).strip() != QUOTES:
            lines.append(line)
        return "\n".join(lines)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read("... "))
    return "\n".join(lines)


def run_chat(chat: Chat, read: Callable[[str], str] = input) -> int:
    """Asks and answers until there is no more to read."""
    if sys.stdin.isatty():
        chat.write(f"{chat.language.name}: /help says what there is, Ctrl-D leaves\n")
    while True:
        try:
            message = read_message(read).strip()
        except EOFError:
            chat.write("\n")
            return 0
        except KeyboardInterrupt:
            chat.write("\n")
            continue
        if not message:
            continue
        if message.startswith("/"):
            if not chat.command(message):
                return 0
            continue
        try:
            chat.say(message)
        except AsterError as error:
            chat.write(f"[{error}]")
        chat.write("\n")
