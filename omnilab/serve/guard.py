"""What every request passes first: the API key and the bounds of its body; and what every answer bears: the recipe."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnilab.serve.errors import ApiError
from omnilab.serve.limits import Limits

OPEN_PATHS = ("/health",)
PAGE_PATH = "/"


class Guard:
    """Refuses requests without the key, if there is one, and adds the header x-omnilab-recipe."""

    def __init__(self, app: ASGIApp, api_key: str | None, recipe: str) -> None:
        """Stand before `app`."""
        self._app, self._recipe = app, recipe
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 401."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-omnilab-recipe"] = self._recipe
            await send(message)

        if self._key is None or scope["path"] in OPEN_PATHS or self._knows(Headers(scope=scope)):
            return await self._app(scope, receive, send_named)
        # a browser asks its user for the key, once, and sends it with what the page asks for
        scheme = "Basic" if scope["path"] == PAGE_PATH else "Bearer"
        said = "this server wants its API key: send Authorization: Bearer KEY"
        refusal = ApiError(401, said, headers={"WWW-Authenticate": f'{scheme} realm="omnilab"'})
        return await refusal.response()(scope, receive, send_named)

    def _knows(self, headers: Headers) -> bool:
        assert self._key is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        if scheme.lower() == "basic":
            return hmac.compare_digest(_password(given), self._key)
        return False


def _password(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return a JSON body. ApiError 413 while it is too large, 408 when it is too slow, 400 for another content type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, "the body must be JSON: send Content-Type: application/json")
    too_large = ApiError(413, f"the body is larger than {limits.body_bytes:,} bytes, the most that is taken")
    if int(request.headers.get("content-length", "0")) > limits.body_bytes:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(limits.body_within_s):
            async for piece in request.stream():
                data += piece
                if len(data) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {limits.body_within_s:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client has gone") from None
    return bytes(data)
