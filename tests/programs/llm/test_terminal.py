"""The chat in the terminal and the command line."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("tokenizers")

from aster_ml import cli
from aster_ml.apps.llm import __main__ as command
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.apps.llm.terminal import Chat, read_message, run_chat
from tests.programs.llm.random_models import write_model


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small random model."""
    path = tmp_path_factory.mktemp("llm") / "x.gguf"
    write_model(path, "llama")
    return path


@pytest.fixture(scope="module")
def language(model_path: pathlib.Path) -> Language:
    """It, loaded once."""
    return load_language(model_path, "f32", memory="f32")


def reader(lines: list[str]) -> Callable[[str], str]:
    """Gives the lines one after the other, then the end."""
    left: Iterator[str] = iter(lines)

    def read(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return read


def talk(language: Language, lines: list[str], **options: object) -> tuple[Chat, str]:
    """A chat of these lines, and what was written."""
    written: list[str] = []
    chat = Chat(language, Sampling(0.0), 5, write=written.append)
    assert run_chat(chat, reader(lines)) == 0
    return chat, "".join(written)


def test_a_chat_goes_on_and_is_saved(language: Language, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chat.json"
    lines = [
        "/system Be kind.",
        "Hi",
        "",
        "And?",
        f"/save {path}",
        "/save",
        "/reset",
        "/help",
        "/sytsem x",
        "/quit",
    ]
    chat, written = talk(language, [*lines, "never read"])
    saved = json.loads(path.read_text())["messages"]
    assert [m["role"] for m in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in saved if m["role"] != "assistant"] == ["Be kind.", "Hi", "And?"]
    assert saved[2]["content"] in written
    assert "/save wants" in written
    assert "Ctrl-C ends the answer" in written
    assert written.count("[there is no ") == 1
    assert "[there is no /sytsem]" in written
    assert chat.messages == []
    assert chat.system == "Be kind."
    before = language.engine.counts.reused_tokens
    talk(language, ["Hi", "And?"])
    assert language.engine.counts.reused_tokens > before


def test_messages_of_several_lines() -> None:
    assert read_message(reader(["one"])) == "one"
    assert read_message(reader(["one\\", "two\\", "three"])) == "one\ntwo\nthree"
    assert read_message(reader(['"""', "one", "", "two", '"""'])) == "one\n\ntwo"
    with pytest.raises(EOFError):
        read_message(reader([]))


def test_what_is_too_long_is_said_and_forgotten(language: Language) -> None:
    chat, written = talk(language, ["Hi", "word " * 400, "Hi"])
    assert "nothing is cut in silence" in written
    assert [m["content"] for m in chat.messages if m["role"] == "user"] == ["Hi", "Hi"]


def test_a_chat_that_cannot_be_saved_goes_on(language: Language, tmp_path: pathlib.Path) -> None:
    _, written = talk(language, [f"/save {tmp_path}/no/such/folder", "Hi"])
    assert "not saved" in written


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where a shell started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_answer_alone(language: Language) -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    chat = Chat(language, Sampling(0.0, logit_bias={language.tokenizer.eos or 0: -1e9}), 150)
    chat.write = write
    chat.say("Hi")
    assert written[-1] == "\n[cancelled]"
    assert len(written) < 20
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_one_answer(model_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(model_path), "--max-tokens", "4", "--temperature", "0"]
    assert command.main([*arguments, "-p", "Hi"]) == 0
    first = capsys.readouterr().out
    assert command.main([*arguments, "-p", "Hi"]) == 0
    assert capsys.readouterr().out == first
    assert command.main([*arguments, "-p", "Hi", "--raw"]) == 0
    assert capsys.readouterr().out != first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-file.gguf", "-p", "x"], "no-such-file"),
        (["MODEL", "-p", "x", "--temperature", "-1"], "temperature is -1"),
        (["MODEL", "-p", "x", "--context", "99999"], "context of 99999"),
        (["MODEL", "-p", "word " * 500], "nothing is cut"),
        (["MODEL", "--bench"], "bench"),
        (["MODEL", "-p", " "], "the question is empty"),
    ],
)
def test_what_is_refused(
    arguments: list[str], said: str, model_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(model_path) if a == "MODEL" else a for a in arguments]) == 1
    shown = capsys.readouterr()
    assert said in shown.err + shown.out


def test_an_address_that_is_taken_is_said_before_a_model_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert command.main(["no-such-file.gguf", "--serve", "--port", port]) == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err
    assert command.main(["no-such-file.gguf", "--serve", "--host", "no such host"]) == 1
    assert "cannot listen at no such host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "x", "--context", "-5"], "'-5': 0 to"),
        (["-p", "x", "--seed", "-3"], "'-3': 0 to"),
        (["-p", "x", "--max-tokens", "many"], "'many': 0 to"),
        (["--serve", "--port", "99999"], "'99999': 1 to 65535"),
        (["--serve", "--slots", "0"], "'0': 1 to"),
        (["--serve", "-p", "x"], "not allowed with"),
    ],
)
def test_what_is_not_understood(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["no-such-file.gguf", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_aster_llm_is_a_command(model_path: pathlib.Path) -> None:
    assert "llm" in cli.APPS
    call = [sys.executable, "-m", "aster_ml.cli", "llm", str(model_path), "-p", "Hi"]
    result = subprocess.run(
        [*call, "--max-tokens", "3"], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.endswith("[length]\n")
