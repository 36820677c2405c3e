"""The server's paths, over a pipeline that its opener keeps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omnilab.errors import Error
from omnilab.pipeline import Pipeline
from omnilab.serve.asked import MODALITIES, Asked, chat_asked, speech_asked
from omnilab.serve.audio import FORMATS, media_type
from omnilab.serve.bodies import (
    ChatBody,
    DetokenizeBody,
    RequestId,
    SpeechBody,
    TokenizeBody,
    decoded,
    decoder,
)
from omnilab.serve.chat import Chat
from omnilab.serve.errors import ApiError, told
from omnilab.serve.guard import Guard, read_body
from omnilab.serve.metrics import CONTENT_TYPE
from omnilab.serve.profiling import ProfileSwitch
from omnilab.serve.reply import Reply
from omnilab.serve.schema import openapi
from omnilab.serve.service import Accepted, Served, Service
from omnilab.serve.speech import spoken

CHAT, SPEECH = decoder(ChatBody), decoder(SpeechBody)
TOKENIZE, DETOKENIZE = decoder(TokenizeBody), decoder(DetokenizeBody)
# the page may run its own script and style, and ask this server alone
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; media-src blob:; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class Paths:
    """One method a path."""

    def __init__(self, service: Service, version: str) -> None:
        """Answer for `service`."""
        self._service, self._limits = service, service.served.limits
        self.profile = ProfileSwitch(service)
        self._openapi = _json(openapi(version)).body
        self._page = files("omnilab.serve").joinpath("page.html").read_bytes()
        self._started = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = decoded(CHAT, await read_body(request, self._limits))
        self._service.find(body.model)
        request_id = body.request_id or _request_id(request)

        async def ask() -> Asked:
            return await chat_asked(body, self._service.served.allowed, self._limits)

        asked, accepted = await self._accepted(ask)
        chat = Chat(asked, accepted, self._service.served.model, request_id)
        if asked.stream:
            return self._reply(accepted, chat.chunks(), "text/event-stream")
        return self._reply(accepted, chat.whole(), "application/json")

    async def speech(self, request: Request) -> Response:
        """POST /v1/audio/speech."""
        body = decoded(SPEECH, await read_body(request, self._limits))
        self._service.find(body.model)

        async def ask() -> Asked:
            return speech_asked(body)

        asked, accepted = await self._accepted(ask)
        reply = self._reply(accepted, spoken(asked, accepted), media_type(asked.kind))
        reply.headers["x-sample-rate"] = str(accepted.sample_rate)
        return reply

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = decoded(TOKENIZE, await read_body(request, self._limits))
        self._service.find(body.model)
        tokens = await self._service.in_intake(self._service.pipe.intake.tokenize, body.prompt)
        most = self._service.pipe.intake.max_model_len
        return _json({"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = decoded(DETOKENIZE, await read_body(request, self._limits))
        self._service.find(body.model)
        return _json({"prompt": await self._service.in_intake(self._service.pipe.intake.detokenize, body.tokens)})

    async def models(self, _request: Request) -> Response:
        """GET /v1/models."""
        served, intake = self._service.served, self._service.pipe.intake
        model = {
            "id": served.model, "object": "model", "created": self._started, "owned_by": "omnilab",
            "root": str(intake.folder), "parent": None, "max_model_len": intake.max_model_len,
            "recipe": {"name": served.recipe, "changed": served.changed}, "modalities": MODALITIES,
            "voices": intake.speakers, "audio_formats": FORMATS, "sample_rate_hz": intake.sample_rate,
            "max_running": served.max_running, "max_waiting": served.max_waiting, "limits": asdict(served.limits),
        }  # fmt: skip
        return _json({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        """GET /health."""
        failure = self._service.pipe.failure
        if failure is not None:
            raise ApiError(503, f"{failure}; start the server again")
        return _json({"status": "healthy"})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        return Response(self._service.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def schema(self, _request: Request) -> Response:
        """GET /openapi.json."""
        return Response(self._openapi, media_type="application/json")

    async def page(self, _request: Request) -> Response:
        """GET /."""
        return Response(self._page, headers=PAGE_HEADERS, media_type="text/html")

    async def start_profile(self, _request: Request) -> Response:
        """POST /start_profile; its body, a chat's in vLLM's client, is not looked at."""
        return _json(await self.profile.start())

    async def stop_profile(self, _request: Request) -> Response:
        """POST /stop_profile."""
        return _json(await self.profile.stop())

    async def _accepted(self, ask: Callable[[], Awaitable[Asked]]) -> tuple[Asked, Accepted]:
        """Take a place first: what is refused for want of one costs nothing."""
        ticket = self._service.place()
        try:
            asked = await ask()
        except BaseException:
            ticket.leave()
            raise
        return asked, await self._service.accept(ticket, asked)

    def _reply(self, accepted: Accepted, pieces: Any, kind: str) -> Reply:
        return Reply(accepted, pieces, media_type=kind, read_within_s=self._limits.read_within_s)


def make_app(pipe: Pipeline, served: Served, *, version: str = "0") -> Starlette:
    """Return the ASGI application over an open pipeline, whose stages are processes."""
    service = Service(pipe, served)
    paths = Paths(service, version)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await paths.profile.close()
        service.close()

    post, get = ["POST"], ["GET"]
    routes = [
        Route("/", paths.page, methods=get),
        Route("/health", paths.health, methods=get),
        Route("/metrics", paths.metrics, methods=get),
        Route("/openapi.json", paths.schema, methods=get),
        Route("/v1/models", paths.models, methods=get),
        Route("/v1/chat/completions", paths.chat, methods=post),
        Route("/v1/audio/speech", paths.speech, methods=post),
        Route("/tokenize", paths.tokenize, methods=post),
        Route("/detokenize", paths.detokenize, methods=post),
        Route("/start_profile", paths.start_profile, methods=post),
        Route("/stop_profile", paths.stop_profile, methods=post),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, served.api_key, served.recipe)],
        exception_handlers={Exception: _refused, Error: _refused, ApiError: _refused, HTTPException: _not_found},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


async def _refused(_request: Request, error: Exception) -> Response:
    return told(error).response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.scope['path'][:200]}: {error.detail}; GET /openapi.json lists what there is"
    return ApiError(error.status_code, said, headers=error.headers).response()


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _request_id(request: Request) -> str | None:
    given = request.headers.get("x-request-id")
    if given is None:
        return None
    try:
        return msgspec.convert(given, RequestId)
    except msgspec.ValidationError:
        raise ApiError(400, "x-request-id: give 1 to 128 printable ASCII characters", "x-request-id") from None
