"""A server of `tiny` on a port of its own: the app under uvicorn in a thread, the stages in processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from omnilab.pipeline import Pipeline
from omnilab.recipes import BEST
from omnilab.serve.app import make_app
from omnilab.serve.service import Served

MAX_RUNNING = 8


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs: where, and the pipeline behind it."""

    url: str
    pipe: Pipeline
    server: uvicorn.Server


@contextmanager
def tiny_pipe(**settings: Any) -> Iterator[Pipeline]:
    """Open `tiny` in processes."""
    with Pipeline.open("tiny", **{"recipe": BEST, "max_num_seqs": MAX_RUNNING, "timeout_s": 60} | settings) as pipe:
        yield pipe


@contextmanager
def serving(pipe: Pipeline, **served: Any) -> Iterator[Running]:
    """Serve a pipeline; its loop's unhandled errors fail the test."""
    settings = {"model": "tiny", "recipe": "BEST", "changed": BEST.changed(), "max_running": MAX_RUNNING}
    settings |= {"max_waiting": 64} | served
    app = make_app(pipe, Served(**settings))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", log_level="error", timeout_graceful_shutdown=5, lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test/uvicorn")
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", pipe, server)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()
