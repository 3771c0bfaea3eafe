"""An HTTP server in OpenAI's form for one model, by Starlette.

Receives a `Language` and settings; returns an ASGI app. Requests are checked before anything is
generated; what cannot be done as it was asked for is an error, and never another answer. A client
that leaves ends its answers.

Source: OpenAI's API reference for the form of requests and answers; the text format of Prometheus.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import importlib.resources
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from aster_ml.apps.llm.answers import Answer, Grammar, Piece
from aster_ml.apps.llm.constraints import Constraints
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.metrics import metrics_text
from aster_ml.apps.llm.replies import Reply, completion_of
from aster_ml.apps.llm.requests import (
    Fields,
    RequestError,
    Wanted,
    read_chat,
    read_completion,
    read_prompts,
)
from aster_ml.apps.llm.tools import CLOSING, OPENING, explain
from aster_ml.apps.llm.worker import BusyError, Pieces, Worker
from aster_ml.errors import AsterError

PAGE = importlib.resources.files("aster_ml.apps.llm") / "page.html"
# How often it is looked whether a client that waits is still there, in seconds.
LOOK = 0.2


@dataclass(frozen=True)
class Rules:
    """What the server allows: keys (none: everybody), origins of other pages, bytes of a body."""

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    body_bytes: int = 4 << 20


class Service:
    """The handlers, with what they share."""

    def __init__(
        self, language: Language, rules: Rules, embedder: Callable[[list[str]], Any] | None
    ) -> None:
        self.language, self.rules, self.embedder = language, rules, embedder
        self.worker = Worker(language.engine, when_idle=language.keep)
        self.made = int(time.time())
        self.prepared: Constraints | None = None
        self.embedding = asyncio.Lock()

    @property
    def constraints(self) -> Constraints:
        """Grammars for this vocabulary, prepared at the first use."""
        if self.prepared is None:
            self.prepared = Constraints(self.language.tokenizer)
        return self.prepared

    # bodies and errors

    def check_key(self, request: Request) -> None:
        """Raises RequestError, a 401, where keys are wanted and this is none of them."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        known = [hmac.compare_digest(given, key.encode()) for key in self.rules.keys]
        if known and not any(known):
            raise RequestError("the API key is absent or not known", status=401)

    async def body(self, request: Request) -> Any:
        """The JSON of a request.

        Raises: RequestError for no JSON, and for bodies that are too large.
        """
        self.check_key(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another site can send other types without asking.
        if kind != "application/json":
            raise RequestError("the content type has to be application/json", status=415)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self.rules.body_bytes:
                raise RequestError(
                    f"the body has more than {self.rules.body_bytes} bytes", status=413
                )
            parts.append(part)
        try:
            return json.loads(b"".join(parts), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is no JSON: {str(error)[:200]}") from error

    # answers

    def grammar_for(self, wanted: Wanted) -> Grammar | None:
        """What the answer has to be. Raises: ArgumentError where that is not supported."""
        if wanted.schema is not None:
            return self.constraints.schema(wanted.schema)
        if wanted.must_call:
            functions = [tool.function for tool in wanted.must_call]
            return self.constraints.calls(functions, OPENING, CLOSING)
        return None

    def prompts(self, wanted: Wanted) -> list[list[int]]:
        """The tokens of each prompt."""
        tokenizer = self.language.tokenizer
        if wanted.messages:
            tools = [tool.definition for tool in wanted.tools]
            if tools and not self.language.template.knows_tools:
                messages = explain(wanted.messages, tools)
                return [self.language.prompt_of(messages)]
            return [self.language.prompt_of(wanted.messages, tools=tools or None)]
        return [tokenizer.encode(p) if isinstance(p, str) else p for p in wanted.prompts]

    def answers(self, wanted: Wanted, pieces: Pieces, client: str) -> list[Answer]:
        """One answer for each choice of each prompt. Raises: ArgumentError before any is begun."""
        result: list[Answer] = []
        for prompt in self.prompts(wanted):
            self.language.engine.check(prompt)
            for i in range(wanted.count):
                sampling = wanted.sampling
                if sampling.seed is not None:
                    sampling = replace(sampling, seed=(sampling.seed + i) % (1 << 64))
                result.append(
                    Answer(
                        self.language.tokenizer,
                        prompt,
                        sampling,
                        pieces.deliver_to(len(result)),
                        wanted.max_tokens,
                        wanted.stop,
                        wanted.top,
                        self.grammar_for(wanted),
                        client,
                        self.language.engine.model.vocabulary,
                    )
                )
        return result

    async def generate(self, request: Request, wanted: Wanted, kind: str) -> Response:
        """Answers, as they come or at once."""
        pieces = Pieces(self.worker)
        client = wanted.user or (request.client.host if request.client else "")
        answers = await run_in_threadpool(self.answers, wanted, pieces, client)
        pieces.submit(answers)
        reply = Reply(self.language, wanted, answers, kind)
        if wanted.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            stream = self.events(pieces, reply)
            return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
        watch = asyncio.ensure_future(self.leaves(request))
        collected = asyncio.ensure_future(self.collect(pieces))
        try:
            await asyncio.wait({watch, collected}, return_when=asyncio.FIRST_COMPLETED)
            if not collected.done():
                raise ClientDisconnect
            return JSONResponse(completion_of(reply, collected.result()))
        finally:
            pieces.cancel()
            watch.cancel()
            collected.cancel()

    async def leaves(self, request: Request) -> None:
        """Returns when the client is gone."""
        while not await request.is_disconnected():
            await asyncio.sleep(LOOK)

    async def collect(self, pieces: Pieces) -> list[tuple[int, Piece]]:
        """All pieces. Raises: RequestError, a 500, where generating failed."""
        found = []
        async for number, piece in pieces:
            if piece.reason == "error":
                raise RequestError(f"generating failed: {piece.said}", status=500)
            found.append((number, piece))
        return found

    async def events(self, pieces: Pieces, reply: Reply) -> AsyncIterator[str]:
        """Server-sent events; the last says [DONE], unless generating failed."""
        for chunk in reply.begin():
            yield event(chunk)
        async for number, piece in pieces:
            if piece.reason == "error":
                yield event(error_body(f"generating failed: {piece.said}", "server_error"))
                return
            for chunk in reply.chunks(number, piece):
                yield event(chunk)
        for chunk in reply.finish():
            yield event(chunk)
        yield "data: [DONE]\n\n"

    # routes

    async def chat(self, request: Request) -> Response:
        """`/v1/chat/completions`."""
        wanted = read_chat(await self.body(request))
        return await self.generate(request, wanted, "chat")

    async def complete(self, request: Request) -> Response:
        """`/v1/completions`."""
        wanted = read_completion(await self.body(request))
        return await self.generate(request, wanted, "text")

    async def embed(self, request: Request) -> Response:
        """`/v1/embeddings`."""
        fields = Fields(await self.body(request))
        if self.embedder is None:
            raise RequestError("this server has no model of embeddings; --embed FOLDER brings one")
        texts = read_prompts(fields.body.get("input"), "input")
        plain = [text for text in texts if isinstance(text, str)]
        if len(plain) < len(texts):
            raise RequestError("input: texts are wanted, and no tokens", "input")
        form = fields.text("encoding_format", "float")
        if form not in ("float", "base64"):
            raise RequestError("encoding_format: float or base64 is wanted", "encoding_format")
        if fields.get("dimensions", int, None, "a whole number") is not None:
            raise RequestError("dimensions is not supported", "dimensions")
        async with self.embedding:
            vectors, count = await run_in_threadpool(self.embedder, plain)
        data = [
            {"object": "embedding", "index": i, "embedding": encoded(vector, form)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse(
            {"object": "list", "data": data, "model": fields.text("model"), "usage": usage}
        )

    async def models(self, request: Request) -> Response:
        """`/v1/models`."""
        self.check_key(request)
        model = {"id": self.language.name, "object": "model", "created": self.made}
        return JSONResponse({"object": "list", "data": [{**model, "owned_by": "aster-ml"}]})

    async def health(self, request: Request) -> Response:
        """`/health`: whether the thread that computes lives."""
        alive = self.worker.thread.is_alive()
        return JSONResponse({"status": "ok" if alive else "stopped"}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        """`/metrics`, for Prometheus."""
        self.check_key(request)
        return Response(metrics_text(self.language.engine), media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        """`/`: a page to chat on."""
        return Response(PAGE.read_bytes(), media_type="text/html")


def encoded(vector: Any, form: str) -> Any:
    """A vector as a list, or as base64 of float32."""
    if form == "float":
        return [float(x) for x in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def refuse_constant(name: str) -> None:
    """NaN and infinity are no JSON."""
    raise ValueError(f"{name} is no JSON")


def event(body: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_body(said: str, kind: str, field: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": said, "type": kind, "param": field, "code": None}}


async def on_error(request: Request, error: Exception) -> Response:
    """What was refused, and why."""
    status = getattr(error, "status", 503 if isinstance(error, BusyError) else 400)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse(error_body(str(error), kind, getattr(error, "field", None)), status)


async def on_status(request: Request, error: Exception) -> Response:
    """No such address, or no such method of one."""
    status = getattr(error, "status_code", 500)
    said = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
    return JSONResponse(error_body(said, "invalid_request_error"), status)


async def on_leave(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=499)


def make_app(
    language: Language,
    rules: Rules | None = None,
    embedder: Callable[[list[str]], Any] | None = None,
) -> Starlette:
    """The ASGI app. `embedder` makes vectors of texts, and says how many tokens they had."""
    service = Service(language, rules or Rules(), embedder)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            service.worker.stop()

    routes: Sequence[tuple[str, str, Callable[[Request], Coroutine[Any, Any, Response]]]] = (
        ("POST", "/v1/chat/completions", service.chat),
        ("POST", "/v1/completions", service.complete),
        ("POST", "/v1/embeddings", service.embed),
        ("GET", "/v1/models", service.models),
        ("GET", "/health", service.health),
        ("GET", "/metrics", service.metrics),
        ("GET", "/", service.page),
    )
    middleware = []
    if service.rules.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(service.rules.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        )
    app = Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in routes],
        middleware=middleware,
        exception_handlers={
            AsterError: on_error,
            HTTPException: on_status,
            ClientDisconnect: on_leave,
        },
        lifespan=lifespan,
    )
    app.state.service = service
    return app
