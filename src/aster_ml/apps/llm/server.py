"""Serves one model over HTTP in OpenAI's form, by Starlette.

Receives a `Language` and settings; returns an ASGI app. Requests are checked before anything is
generated; what cannot be done as it was asked for is an error, and never another answer. A client
that leaves ends its answers. Who may ask is decided first (`Gate`); texts, templates and schemas
are prepared beside the steps of others, one request after the other.

Source: OpenAI's API reference for the form of requests and answers; the text format of Prometheus.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import importlib.resources
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from starlette.types import ASGIApp, Receive, Scope, Send

from aster_ml.apps.llm.answers import Answer, Piece
from aster_ml.apps.llm.constraints import Constraints, SchemaGrammar
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.metrics import metrics_text
from aster_ml.apps.llm.replies import Reply, completion_of
from aster_ml.apps.llm.requests import (
    RequestError,
    Wanted,
    read_chat,
    read_completion,
    read_embedding,
    refuse_constant,
    shown,
)
from aster_ml.apps.llm.tools import CLOSING, OPENING, explain
from aster_ml.apps.llm.worker import BusyError, Pieces, Worker
from aster_ml.errors import AsterError
from aster_ml.hosts import why_refused

LOG = logging.getLogger("aster_ml.llm")
PAGE = importlib.resources.files("aster_ml.apps.llm") / "page.html"
# How often it is looked whether a client that waits is still there, in seconds.
LOOK = 0.2


# Requests that are prepared or wait for it.
MOST_PREPARED = 64


@dataclass(frozen=True)
class Rules:
    """Permissions of the server.

    `keys` are those that may ask (none: everybody), `origins` the pages that may, `hosts` the names
    by which it may be asked beside this machine's own ("*": any). A body has `body_bytes` at most,
    all bodies that are being read or prepared `waiting_bytes`, and `body_seconds` to arrive.
    """

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    body_bytes: int = 4 << 20
    hosts: tuple[str, ...] = ()
    waiting_bytes: int = 32 << 20
    body_seconds: float = 30.0
    embedder_name: str = ""


class Gate:
    """Refuses requests that a page of another site makes, before anything is done for them."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Request(scope).headers
            said = why_refused(
                headers.get("host"), headers.get("origin"), self.rules.hosts, self.rules.origins
            )
            if said is not None:
                said += "; --allow-host and --cors name who may ask"
                refused = JSONResponse(error_body(said, "invalid_request_error"), 403)
                await refused(scope, receive, send)
                return
        await self.app(scope, receive, send)


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
        # One thread: what many ask for at once takes no more of the processors than one.
        self.preparing = ThreadPoolExecutor(1, "aster-llm-prepare")
        self.waiting = self.held_bytes = 0

    @property
    def constraints(self) -> Constraints:
        """Grammars for this vocabulary, prepared once."""
        if self.prepared is None:
            self.prepared = Constraints(self.language.tokenizer, self.language.room)
        return self.prepared

    # bodies and errors

    def check_key(self, request: Request) -> None:
        """Raises RequestError, a 401, where keys are wanted and this is none of them."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sent = given.strip().encode("latin-1", "replace")
        known = [hmac.compare_digest(sent, key.encode()) for key in self.rules.keys]
        if known and not (any(known) and scheme.lower() == "bearer"):
            raise RequestError("the API key is absent or not known", status=401)

    def check_model(self, name: str, names: Sequence[str]) -> None:
        """Raises RequestError, a 404, for a model that is not here."""
        if name and name not in names:
            raise RequestError(
                f"the model {shown(name)} is not here; {', '.join(dict.fromkeys(names))} is",
                "model",
                404,
                "model_not_found",
            )

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[Any]:
        """The JSON of a request, which is held as long as the block lasts.

        Raises: RequestError for no JSON, and for bodies that are too large or slow; BusyError where
        all together are too large.
        """
        self.check_key(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another site can send other types without asking.
        if kind != "application/json":
            raise RequestError("the content type has to be application/json", status=415)
        held = 0
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(self.rules.body_seconds):
                    async for part in request.stream():
                        held += len(part)
                        self.held_bytes += len(part)
                        self.check_size(held)
                        parts.append(part)
            except TimeoutError as error:
                raise RequestError(
                    f"the body took more than {self.rules.body_seconds:g} s to arrive", status=408
                ) from error
            try:
                found = json.loads(b"".join(parts), parse_constant=refuse_constant)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"the body is no JSON: {str(error)[:200]}") from error
            parts.clear()
            yield found
        finally:
            self.held_bytes -= held

    def check_size(self, held: int) -> None:
        """Raises RequestError for a body that is too large, BusyError where all together are."""
        if held > self.rules.body_bytes:
            raise RequestError(f"the body has more than {self.rules.body_bytes} bytes", status=413)
        if self.held_bytes > self.rules.waiting_bytes:
            raise BusyError(
                f"all that wait have more than {self.rules.waiting_bytes} bytes; try again later"
            )

    # answers

    def grammar_for(self, wanted: Wanted) -> SchemaGrammar | None:
        """Builds the constraint of an answer. Raises: ArgumentError where it is not supported."""
        functions = [tool.function for tool in wanted.must_call or wanted.tools]
        if wanted.must_call or (wanted.schema is not None and functions):
            return self.constraints.calls(functions, OPENING, CLOSING, wanted.schema)
        return None if wanted.schema is None else self.constraints.schema(wanted.schema)

    def prompts(self, wanted: Wanted) -> list[list[int]]:
        """The tokens of each prompt. Raises: ArgumentError for one that has no room."""
        language = self.language
        if wanted.messages:
            tools = [tool.definition for tool in wanted.tools]
            try:
                if tools and not language.template.knows_tools:
                    return [language.prompt_of(explain(wanted.messages, tools))]
                return [language.prompt_of(wanted.messages, tools or None)]
            except RecursionError as error:
                raise RequestError("tools or their arguments are nested too deep") from error
        room = language.room
        return [
            language.tokenizer.encode(p, room=room) if isinstance(p, str) else p
            for p in wanted.prompts
        ]

    def check_count(self, wanted: Wanted) -> None:
        """Raises RequestError for more answers than may wait, BusyError where too many do."""
        count = max(1, len(wanted.prompts)) * wanted.count
        if count > self.worker.limit:
            raise RequestError(f"{count} answers are asked for; {self.worker.limit} at most", "n")
        self.worker.check_room(count)

    def answers(self, wanted: Wanted, pieces: Pieces, client: str) -> list[Answer]:
        """One answer for each choice of each prompt. Raises: ArgumentError before any is begun."""
        self.check_count(wanted)
        result: list[Answer] = []
        tokenizer, engine = self.language.tokenizer, self.language.engine
        prompts = self.prompts(wanted)
        for prompt in prompts:
            engine.check(prompt)
        grammar = self.grammar_for(wanted)
        # An answer that may call once is over with its call.
        ends = (CLOSING,) if wanted.one_call and wanted.tools else ()
        for prompt in prompts:
            for i in range(wanted.count):
                sampling = wanted.sampling
                if sampling.seed is not None:
                    sampling = replace(sampling, seed=(sampling.seed + i) % (1 << 64))
                result.append(
                    Answer(
                        tokenizer,
                        prompt,
                        sampling,
                        pieces.deliver_to(len(result)),
                        wanted.max_tokens,
                        (*wanted.stop, *ends),
                        wanted.top,
                        None if grammar is None else grammar.copy(),
                        client,
                        engine.model.vocabulary,
                    )
                )
        return result

    async def prepare(self, work: Callable[..., Any], *given: Any) -> Any:
        """What a call gives that runs beside the steps of others, when its turn comes.

        Raises: BusyError where too many wait for theirs.
        """
        if self.waiting >= MOST_PREPARED:
            raise BusyError(f"{self.waiting} requests are being prepared; try again later")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.preparing, work, *given)
        finally:
            self.waiting -= 1

    async def begin(self, request: Request, wanted: Wanted, kind: str) -> tuple[Pieces, Reply]:
        """Answers that wait for their turn, and the reply that they become."""
        self.check_model(wanted.model, self.language.names)
        self.check_count(wanted)
        pieces = Pieces(self.worker)
        client = wanted.user or (request.client.host if request.client else "")
        answers = await self.while_here(request, self.prepare(self.answers, wanted, pieces, client))
        pieces.submit(answers)
        # Texts are not kept as long as an answer takes.
        return pieces, Reply(self.language, replace(wanted, messages=[], prompts=[]), answers, kind)

    async def generate(self, request: Request, pieces: Pieces, reply: Reply) -> Response:
        """Answers, as they come or at once."""
        if reply.wanted.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            stream = self.events(pieces, reply)
            return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
        try:
            found = await self.while_here(request, self.collect(pieces))
            return JSONResponse(completion_of(reply, found))
        finally:
            pieces.cancel()

    async def while_here(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine gives. Raises: ClientDisconnect where the client leaves meanwhile."""
        watch = asyncio.ensure_future(self.leaves(request))
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({watch, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            watch.cancel()
            working.cancel()

    async def leaves(self, request: Request) -> None:
        """Returns when the client is gone."""
        while not await request.is_disconnected():
            await asyncio.sleep(LOOK)

    async def collect(self, pieces: Pieces) -> list[tuple[int, Piece]]:
        """All pieces. Raises: RequestError, a 500, where generating failed."""
        found = []
        async for number, piece in pieces:
            if piece.reason == "error":
                status = 503 if self.worker.is_over else 500
                raise RequestError(f"generating failed: {piece.said}", status=status)
            found.append((number, piece))
        return found

    async def events(self, pieces: Pieces, reply: Reply) -> AsyncIterator[str]:
        """Server-sent events; the last says [DONE], also after an error."""
        for chunk in reply.begin():
            yield event(chunk)
        async for number, piece in pieces:
            if piece.reason == "error":
                yield event(error_body(f"generating failed: {piece.said}", "server_error"))
                break
            for chunk in reply.chunks(number, piece):
                yield event(chunk)
        else:
            for chunk in reply.finish():
                yield event(chunk)
        yield "data: [DONE]\n\n"

    # routes

    async def chat(self, request: Request) -> Response:
        """`/v1/chat/completions`."""
        async with self.body(request) as body:
            begun = await self.begin(request, read_chat(body), "chat")
        return await self.generate(request, *begun)

    async def complete(self, request: Request) -> Response:
        """`/v1/completions`."""
        async with self.body(request) as body:
            begun = await self.begin(request, read_completion(body), "text")
        return await self.generate(request, *begun)

    async def embed(self, request: Request) -> Response:
        """`/v1/embeddings`."""
        async with self.body(request) as body:
            texts, form, name = read_embedding(body)
            if self.embedder is None:
                raise RequestError(
                    "this server has no model of embeddings; --embed FOLDER brings one"
                )
            names = [n for n in (self.rules.embedder_name, *self.language.names) if n]
            self.check_model(name, names)
            async with self.embedding:
                vectors, count = await run_in_threadpool(self.embedder, texts)
        data = [
            {"object": "embedding", "index": i, "embedding": encoded(vector, form)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse(
            {"object": "list", "data": data, "model": name or names[0], "usage": usage}
        )

    async def models(self, request: Request) -> Response:
        """`/v1/models`."""
        self.check_key(request)
        common = {"object": "model", "created": self.made, "owned_by": "aster-ml"}
        names = [n for n in (self.language.name, self.rules.embedder_name) if n]
        return JSONResponse({"object": "list", "data": [{"id": n, **common} for n in names]})

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


def event(body: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_body(
    said: str, kind: str, field: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": said, "type": kind, "param": field, "code": code}}


async def on_error(request: Request, error: Exception) -> Response:
    """What was refused, and why."""
    status = getattr(error, "status", 503 if isinstance(error, BusyError) else 400)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = error_body(str(error), kind, getattr(error, "field", None), getattr(error, "code", None))
    return JSONResponse(body, status, {"Retry-After": "1"} if status == 503 else None)


async def on_status(request: Request, error: Exception) -> Response:
    """No such address, or no such method of one."""
    status = getattr(error, "status_code", 500)
    said = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
    return JSONResponse(error_body(said, "invalid_request_error"), status)


async def on_leave(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=499)


def prepare_grammars(service: Service) -> None:
    """Prepares the vocabulary for grammars, where it can have any."""
    try:
        service.constraints  # noqa: B018
    except AsterError as error:
        LOG.info("no grammars: %s", error)


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
        # Before anybody is answered: it holds Python's lock, for 1.6 s of 262,144 tokens.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(service.preparing, prepare_grammars, service)
        try:
            yield
        finally:
            service.worker.stop()
            service.preparing.shutdown(wait=False, cancel_futures=True)

    routes: Sequence[tuple[str, str, Callable[[Request], Coroutine[Any, Any, Response]]]] = (
        ("POST", "/v1/chat/completions", service.chat),
        ("POST", "/v1/completions", service.complete),
        ("POST", "/v1/embeddings", service.embed),
        ("GET", "/v1/models", service.models),
        ("GET", "/health", service.health),
        ("GET", "/metrics", service.metrics),
        ("GET", "/", service.page),
    )
    middleware = [Middleware(Gate, rules=service.rules)]
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
