"""Runs the command `aster llm MODEL.gguf`: a chat, one answer, a measurement, or a server.

Exit codes: 0 all is well, 1 the model or the question was refused, 2 the command line was not
understood.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Sequence

from aster_ml.apps.llm.extras import needed, require
from aster_ml.apps.llm.loading import Language, load_language
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.apps.llm.terminal import Chat, run_chat
from aster_ml.apps.llm.tokenizer import BYTES_A_TOKEN
from aster_ml.apps.llm.weights import AUTO, DTYPES, FLOAT, INT8, PACKED
from aster_ml.apps.reporting import reports_errors
from aster_ml.errors import ArgumentError
from aster_ml.hosts import EVERY, is_loopback

MOST_SLOTS = 64
KEY_VARIABLE = "ASTER_API_KEY"
BODY_LEAST, BODY_MOST = 1 << 20, 4 << 20


def whole(least: int, most: int = 1 << 31) -> Callable[[str], int]:
    """Makes a parser of whole numbers within these limits."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: {least} to {most} is wanted")
        return value

    return read


# Settings of sampling, and what they are in a chat.
DRAWN = {
    "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """The command line of `aster llm`."""
    parser = argparse.ArgumentParser(
        prog="aster llm", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("model", help="a GGUF file")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("-p", "--prompt", help="answer this, once; - reads it from standard input")
    instead.add_argument("--bench", action="store_true", help="measure tokens per second here")
    instead.add_argument("--serve", action="store_true", help="answer over HTTP")
    parser.add_argument("--raw", action="store_true", help="with -p: go on from the text itself")
    parser.add_argument("--system", default="", help="what the model is told first")
    parser.add_argument(
        "--dtype", choices=sorted([*DTYPES, PACKED]), default=PACKED, help="of the weights"
    )
    parser.add_argument("--adapter", help="a folder that aster finetune (or PEFT) wrote")
    parser.add_argument(
        "--no-map", action="store_true", help="read weights into memory: the file may change then"
    )
    parser.add_argument(
        "--products", choices=(AUTO, INT8, FLOAT), default=AUTO,
        help="of packed weights; for int8 what they multiply is rounded to 15 bits; auto is "
        "the quicker one here, by type and shape",
    )  # fmt: skip
    parser.add_argument("--kv-dtype", choices=sorted(DTYPES), default="f16", help="of the memory")
    parser.add_argument(
        "--context", type=whole(0), default=0, help="tokens of a chat (the model's, 4096)"
    )
    parser.add_argument(
        "--max-tokens", type=whole(0), default=0, help="of an answer; 0 is no limit"
    )
    server = parser.add_argument_group("a server in OpenAI's form")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=whole(1, 65535), default=8000)
    server.add_argument(
        "--slots", type=whole(1, MOST_SLOTS), default=4, help="answers that are made together"
    )
    server.add_argument(
        "--api-key",
        action="append",
        default=[],
        help=f"wanted of each request; {KEY_VARIABLE} in the environment is one too",
    )
    server.add_argument("--api-key-file", help="a file with a key a line")
    server.add_argument(
        "--allow-host",
        action="append",
        default=[],
        help="a name by which it may be asked beside localhost; * is any",
    )
    server.add_argument("--cors", action="append", default=[], help="an origin that may ask")
    server.add_argument("--embed", help="a folder with a model of sentences")
    sampling = parser.add_argument_group("how tokens are drawn")
    for name, default in DRAWN.items():
        flag = f"--{name.replace('_', '-')}"
        sampling.add_argument(flag, type=type(default), default=default)
    sampling.add_argument("--seed", type=whole(0, (1 << 64) - 1))
    return parser


def sampling_of(options: argparse.Namespace) -> Sampling:
    """Reads settings of sampling from options."""
    return Sampling(**{name: getattr(options, name) for name in DRAWN}, seed=options.seed)


def answer_once(chat: Chat, text: str, raw: bool) -> int:
    """Answers one question, or goes on from a text."""
    if not raw:
        chat.say(text)
        chat.write("\n")
        return 0
    prompt = chat.language.tokenizer.encode(text)
    chat.language.engine.run(chat.answer_to(prompt, lambda piece: chat.write(piece.text)))
    chat.write("\n")
    return 0


def keys_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The keys of which requests need one. Raises: ArgumentError for one that is empty."""
    found = [("--api-key", key) for key in options.api_key]
    if KEY_VARIABLE in os.environ:
        found.append((KEY_VARIABLE, os.environ[KEY_VARIABLE]))
    if options.api_key_file:
        lines = pathlib.Path(options.api_key_file).read_text(encoding="utf-8").splitlines()
        keys = [line.strip() for line in lines if line.strip()]
        found += [("--api-key-file", key) for key in keys or [""]]
    for source, key in found:
        # Not every letter can be sent in a header.
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise ArgumentError(
                f"{source}: a key is empty, or has letters that no header can have; without a key, "
                "leave it out"
            )
    return tuple([key for _, key in found])


def serve(
    options: argparse.Namespace,
    language: Language,
    keys: tuple[str, ...],
    address: socket.socket,
) -> int:
    """Answers over HTTP until a signal."""
    app_module = needed("aster_ml.apps.llm.server", "serve")
    listening = needed("aster_ml.apps.llm.listening", "serve")
    embedder, name = None, ""
    if options.embed:
        embedder = needed("aster_ml.apps.embed", "llm").Embedder(options.embed)
        name = pathlib.Path(options.embed).resolve().name
    here = is_loopback(options.host)
    if not here and not keys:
        print("aster llm: anybody who reaches this address may ask; --api-key", file=sys.stderr)
    hosts = tuple([h.lower() for h in options.allow_host]) or (() if here else (EVERY,))
    rules = app_module.Rules(
        keys, tuple(options.cors), hosts=hosts, embedder_name=name,
        body_bytes=body_bytes(language.room),
    )  # fmt: skip
    app = app_module.make_app(language, rules, embedder)
    # Kept for the next start. Later it would stop those who read a stream.
    language.engine.warm()
    said = f"{language.name}: {listening.address_of(options.host, options.port)}"
    server = listening.Server(app, app.state.service.worker.finish, said)
    server.run(sockets=[address])
    language.keep()
    return 0


def body_bytes(room: int) -> int:
    """The most bytes of a body: enough for any prompt that has room, and tools and schemas."""
    return min(BODY_LEAST + 2 * BYTES_A_TOKEN * room, BODY_MOST)


def run(options: argparse.Namespace) -> int:
    """Does what the command line says."""
    sampling = sampling_of(options)
    # Before a model is read, which takes longer than to find out.
    address: socket.socket | None = None
    keys: tuple[str, ...] = ()
    for name in ("uvicorn", "starlette") if options.serve else ():
        require(name, "serve")
    for name in ("jinja2", "tokenizers"):
        # Templates and tokenizers are imported later, and in a process of their own.
        require(name, "llm")
    if options.serve:
        keys = keys_of(options)
        listening = needed("aster_ml.apps.llm.listening", "serve")
        address = listening.bound(options.host, options.port)
    language: Language = load_language(
        options.model,
        options.dtype,
        options.context,
        options.slots if options.serve else 1,
        memory=options.kv_dtype,
        progress=sys.stderr.isatty(),
        adapter=options.adapter,
        mapped=not options.no_map,
        products=options.products,
    )
    if options.bench:
        # Who asks a question does not wait for what it needs.
        bench = needed("aster_ml.apps.llm.bench", "llm")
        code: int = bench.run_bench(language)
        return code
    if address is not None:
        with address:
            return serve(options, language, keys, address)
    chat = Chat(language, sampling, options.max_tokens, options.system)
    if options.prompt is not None:
        text = sys.stdin.read() if options.prompt == "-" else options.prompt
        if not text.strip():
            raise ArgumentError("the question is empty; -p wants a text")
        code = answer_once(chat, text, options.raw)
    else:
        code = run_chat(chat)
    language.keep()
    return code


@reports_errors("aster llm", interrupted=1)
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aster llm`; returns its exit code."""
    return run(make_parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
