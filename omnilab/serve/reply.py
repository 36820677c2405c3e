"""An answer on its way: sent piece by piece as it comes, and given up in every stage when its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnilab.serve.errors import ClientGone
from omnilab.serve.service import Accepted

T = TypeVar("T")


class Reply(Response):
    """The pieces of one answer. Headers go out with the first: a request that fails before has a status of its own."""

    def __init__(
        self, accepted: Accepted, pieces: AsyncGenerator[bytes], *, media_type: str, read_within_s: float
    ) -> None:
        """`read_within_s`: for the client to take a piece."""
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"  # nginx would collect the pieces
        self._accepted, self._pieces, self._read_within_s = accepted, pieces, read_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the request is over when this returns, however it does."""
        assert scope["type"] == "http"
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            return
        finally:
            self._accepted.close()

    async def _send(self, send: Send) -> None:
        began = False
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if not began:
                    self.headers["x-omnilab-queue-ms"] = f"{self._accepted.queue_ms:.1f}"
                    start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                    await self._taken(send(start))
                    began = True
                await self._taken(send({"type": "http.response.body", "body": piece, "more_body": True}))
        await self._taken(send({"type": "http.response.body", "body": b"", "more_body": False}))

    async def _taken(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._read_within_s):
                await sending
        except (TimeoutError, OSError) as error:
            raise ClientGone from error


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it and raise ClientGone when the client goes first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for one in (working, leaving):
            one.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
