"""Servers that say exactly what a test wants: raw bytes on a socket, and replies with times that a test invents."""

from __future__ import annotations

import base64
import io
import json
import socket
import ssl
import threading
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omnilab.client.wire import Reply

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
MS = 1_000_000  # ns
DONE = b"data: [DONE]\n\n"


def wav(samples: int, rate: int = 24_000, channels: int = 1) -> str:
    """Return silence as a base64 WAV of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, 2, rate, 0, "NONE", ""))
        out.writeframes(np.zeros(samples * channels, dtype="<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(content: str, tokens: int | None = None, prompt: int = 17, reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    usage = {} if tokens is None else {"usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}
    return event({"choices": [choice], "modality": "text", **usage, **more})


def audio(samples: int = 12_000, reason: str | None = None, data: str | None = None, **more: Any) -> bytes:
    delta = {"role": "assistant", "content": wav(samples) if data is None else data}
    choice = {"index": 0, "delta": delta, "finish_reason": reason} | more
    usage = {"prompt_tokens": 17, "completion_tokens": 0}
    return event({"choices": [choice], "modality": "audio", "usage": usage})


def usage(tokens: int, prompt: int = 17, **metrics: Any) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return event({"choices": [], "usage": counted, "metrics": {"num_tokens_out": tokens, **metrics}})


def answer() -> list[bytes]:
    """Return a whole good answer: two tokens, one second of audio."""
    return [text("", 0), text("Hi", 1), text(" you", 2, reason="stop"), audio(24_000, "stop"), usage(2), DONE]


def reply(pieces: Sequence[tuple[float, bytes]], start_ms: float = 0.0) -> Reply:
    """Return a reply of status 200 whose pieces came at these milliseconds."""
    stamped = [(round((start_ms + at) * MS), data) for at, data in pieces]
    start = round(start_ms * MS)
    return Reply(start, stamped[-1][0], 200, "text/event-stream; charset=utf-8", stamped)


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def body(*events: bytes) -> list[bytes]:
    """Return the writes of a well-formed answer, one an event."""
    return [HEAD, *map(chunked, events), END]


def refusal(status: str, message: str) -> list[bytes]:
    said = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": int(status[:3])}}).encode()
    return [f"HTTP/1.1 {status}\r\ncontent-length: {len(said)}\r\n\r\n".encode() + said]


@dataclass
class Scripted:
    """A server that plays `script(number of the request)`: bytes to write, numbers to sleep (s), None to hold on."""

    script: Callable[[int], Sequence[bytes | float | None]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    url: str = ""

    def play(self, connection: socket.socket, released: threading.Event) -> None:
        with connection, connection.makefile("rb") as file:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = file.readline()
                if not line:
                    return
                head += line
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            number = len(self.heads)
            self.heads.append(head.decode())
            self.requests.append(json.loads(file.read(int(lengths[0].split(b":")[1])) if lengths else b"{}"))
            try:
                for step in self.script(number):
                    if step is None:
                        released.wait(20)
                    elif isinstance(step, float):
                        time.sleep(step)
                    else:
                        connection.sendall(step)
            except OSError:
                pass  # the client has gone


@contextmanager
def scripted(
    script: Callable[[int], Sequence[bytes | float | None]], context: ssl.SSLContext | None = None
) -> Iterator[Scripted]:
    """Run a scripted server on a port of its own; with a context, over TLS."""
    server, released = Scripted(script), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http{'s' if context else ''}://127.0.0.1:{listener.getsockname()[1]}"
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if context is not None:
                try:
                    connection = context.wrap_socket(connection, server_side=True)
                except OSError:
                    continue  # the client does not trust us
            threads.append(threading.Thread(target=server.play, args=(connection, released)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        released.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(10)
            assert not thread.is_alive()
