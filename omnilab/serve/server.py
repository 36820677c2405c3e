"""A server from its command line's values: the port first, then the model, then requests until a signal."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from omnilab.errors import BadInput
from omnilab.pipeline import Pipeline
from omnilab.recipe import Recipe
from omnilab.serve.app import make_app
from omnilab.serve.service import Served

END_WITHIN_S = 10  # for requests that run when the server is told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is served, where, and how its pipeline is opened."""

    served: Served
    model: str
    recipe: Recipe
    host: str = "127.0.0.1"
    port: int = 8091
    opening: dict[str, Any] = field(default_factory=dict)  # more keywords of Pipeline.open
    version: str = "0"

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then let running requests end, for END_WITHIN_S at most.

        Raises BadInput, before anything is loaded, when the address cannot be used.
        """
        import uvicorn

        listener = self._bound()
        before = signal.signal(signal.SIGTERM, _interrupt)  # while the model loads, and once uvicorn puts it back
        try:
            with listener, self._open() as pipe:
                app = make_app(pipe, self.served, version=self.version)
                config = uvicorn.Config(
                    app, http="h11", ws="none", loop="asyncio", log_level="warning", access_log=False,
                    timeout_graceful_shutdown=END_WITHIN_S, server_header=False,
                )  # fmt: skip
                self._say(listener)
                uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            print("omnilab serve: ended", file=sys.stderr)
        finally:
            signal.signal(signal.SIGTERM, before)

    def _bound(self) -> socket.socket:
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, proto)
        except OSError as error:
            raise BadInput(f"--host {self.host}: {error.strerror or error}") from None
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            said = f"port {self.port} of {self.host} cannot be used ({error.strerror})"
            raise BadInput(f"{said}: end what listens there, or choose another --port") from None
        return listener

    def _open(self) -> Pipeline:
        opener = Pipeline
        if self.served.profile_dir is not None:
            from omnilab.profile.watched import ProfiledPipeline

            opener = ProfiledPipeline
        return opener.open(self.model, recipe=self.recipe, max_num_seqs=self.served.max_running, **self.opening)

    def _say(self, listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        served = self.served
        print(f"{served.model} with {served.recipe}: http://{host}:{port} (page), /v1 (OpenAI clients)", flush=True)
        print(f"{served.max_running} requests run at once, {served.max_waiting} wait, others get 429", flush=True)
        if served.api_key is None and not _is_loopback(self.host):
            print("anyone who reaches this address may use it: there is no --api-key", file=sys.stderr, flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
