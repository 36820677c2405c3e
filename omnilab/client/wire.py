"""One request on one connection. Every read is stamped as it comes from the socket; its bytes are only kept.

An own `asyncio.Protocol` on purpose: HTTP libraries hand bytes over when the reading task gets its turn, which is later
when many streams are read at once. Nothing is asked twice: an answer that needed a second try was not a fast one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from omnilab.errors import BadInput

END_WITHIN_S = 1.0  # for HTTP to end after [DONE]: closing at once would look like a client that has gone
DONE_MARKS = (b"\ndata: [DONE]", b"\ndata:[DONE]")
TAIL_BYTES = 64  # enough for a mark and the line ends behind it


class Fault(NamedTuple):
    """Why a request failed: `kind` is one of FAULTS."""

    kind: str
    said: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}"


FAULTS = {
    "connect": "the server could not be reached",
    "refused": "status 429 or 503: no room",
    "http": "another status than 200",
    "cut": "the connection ended before the answer",
    "timeout": "no end within the request's time",
    "error": "the stream said so in an event",
    "unreadable": "an event or a sound could not be read",
    "empty": "status 200 without text or audio, although asked",
    "stopped": "given up by the caller",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: `prefix` stands before every path."""

    host: str
    port: int
    prefix: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL, with or without /v1 at its end; BadInput when it is none."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BadInput(f"url {url!r}: {error}: give one such as http://127.0.0.1:8091") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.username is not None:
            raise BadInput(f"url {url!r}: give one such as http://127.0.0.1:8091")
        secure = parts.scheme == "https"
        return cls(host, port or (443 if secure else 80), parts.path.rstrip("/").removesuffix("/v1"), secure)

    @property
    def netloc(self) -> str:
        """Host and port as the Host header has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The server's root, without a slash at the end."""
        return f"http{'s' if self.secure else ''}://{self.netloc}{self.prefix}"


@dataclass(slots=True)
class Reply:
    """What came: status, and (nanoseconds, bytes) of the body a read. `fault` is set when it did not end well."""

    start_ns: int = 0
    end_ns: int = 0
    status: int | None = None
    content_type: str = ""
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    fault: Fault | None = None
    framed: bool = True  # does HTTP say where the body ends? Else the end of the connection may be a cut


def request_to(to: Address, path: str, length: int, headers: Sequence[tuple[str, str]]) -> h11.Request:
    """Return the head of a POST with a body of so many bytes; BadInput for headers that HTTP does not allow."""
    named = [("Host", to.netloc), ("Content-Length", str(length)), ("Connection", "close"), *headers]
    try:
        return h11.Request(method="POST", target=to.prefix + path, headers=named)
    except (h11.LocalProtocolError, UnicodeEncodeError, TypeError) as error:
        raise BadInput(f"headers: {error}") from None


async def post(
    to: Address, request: h11.Request, body: bytes, context: ssl.SSLContext | None, within_s: float
) -> Reply:
    """Send a request and collect the answer; whatever goes wrong is the reply's fault. Clock: `time.perf_counter_ns`.

    Nothing of the environment is used: no proxy, no keys.
    """
    reply = Reply(start_ns=time.perf_counter_ns())
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within_s):
            _, exchange = await loop.create_connection(
                lambda: Exchange(loop, reply, request, body), to.host, to.port, ssl=context
            )
            try:
                await exchange.ended
            finally:
                await exchange.close()
    except TimeoutError:
        reply.fault = Fault("timeout", f"no end within {within_s:g} s")
    except OSError as error:
        reply.fault = Fault("connect", f"{to.netloc}: {error}: is the server running there?")
    reply.end_ns = reply.end_ns or time.perf_counter_ns()
    return reply


class Exchange(asyncio.Protocol):
    """The connection of one request; `ended` when its answer is complete, or will not be."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reply: Reply, request: h11.Request, body: bytes) -> None:
        """Collect into `reply`."""
        self._loop, self._reply, self._request, self._body = loop, reply, request, body
        self._http = h11.Connection(h11.CLIENT)
        self._tail = b"\n"  # of the body: the first line begins after it
        self._transport: asyncio.BaseTransport | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()

    async def close(self) -> None:
        """Close the connection and wait until it is."""
        if self._waiting is not None:
            self._waiting.cancel()
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()
        await self._lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        for event in (self._request, h11.Data(data=self._body), h11.EndOfMessage()):
            transport.write(self._http.send(event) or b"")

    def data_received(self, data: bytes) -> None:
        """Stamp a read and keep its bytes."""
        self._take(time.perf_counter_ns(), data)

    def eof_received(self) -> None:
        """Take the end of the connection, which may be that of the answer."""
        self._take(time.perf_counter_ns(), b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of everything."""
        self._finish(time.perf_counter_ns(), Fault("cut", str(exc or "the server closed the connection")))
        if not self._lost.done():
            self._lost.set_result(None)

    def _take(self, now: int, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._reply.status = event.status_code
                    kinds = [value for name, value in event.headers if name == b"content-type"]
                    self._reply.content_type = kinds[0].decode("latin-1") if kinds else ""
                    names = {name for name, _ in event.headers}
                    self._reply.framed = bool(names & {b"content-length", b"transfer-encoding"})
                elif isinstance(event, h11.Data):
                    self._keep(now, bytes(event.data))
                elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)) or event is h11.PAUSED:
                    early = self._reply.status is None
                    self._finish(now, Fault("cut", "the server closed the connection unanswered") if early else None)
                    return
        except h11.RemoteProtocolError as error:
            said = "in the middle of the answer" if not data else f"HTTP that cannot be read ({error})"
            self._finish(now, Fault("cut" if not data else "unreadable", said))

    def _keep(self, now: int, data: bytes) -> None:
        self._reply.pieces.append((now, data))
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self._waiting is None and self._tail.rstrip().endswith(DONE_MARKS):
            self._waiting = self._loop.call_later(END_WITHIN_S, self._finish, now, None)

    def _finish(self, now: int, fault: Fault | None) -> None:
        if not self.ended.done():
            if self._waiting is None:  # after [DONE] nothing can be missing
                self._reply.fault = fault
            self._reply.end_ns = now
            self.ended.set_result(None)
