"""Profiles of a served pipeline: begun and ended by a request, while no other runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omnilab.engine.messages import Profiled
from omnilab.profile.torch_trace import TorchTrace
from omnilab.profile.watched import ProfiledPipeline
from omnilab.serve.errors import ApiError
from omnilab.serve.service import Service

IDLE_WITHIN_S = 120.0  # for running requests to end; those that wait go on waiting
STOP_WITHIN_S = 120.0


class ProfileSwitch:
    """At most one profile at a time, into a new folder below the server's."""

    def __init__(self, service: Service) -> None:
        """Nothing runs yet."""
        self._service, self._lock = service, asyncio.Lock()
        self._running: ExitStack | None = None
        self._answers: list[Profiled] = []
        self._folder = Path()

    async def start(self) -> dict[str, Any]:
        """Begin; ApiError 400 when one runs already or the server was started without a folder."""
        async with self._lock:
            pipe, root = self._service.pipe, self._service.served.profile_dir
            if root is None or not isinstance(pipe, ProfiledPipeline):
                raise ApiError(400, "profiles are not offered here: start the server with --profile-dir DIR")
            if self._running is not None:
                raise ApiError(400, "a profile runs already: POST /stop_profile first")
            self._folder = Path(root) / f"serve-{time.strftime('%Y%m%d-%H%M%S')}"
            self._folder.mkdir(parents=True, exist_ok=True)
            stack = ExitStack()
            profiled = pipe.profiled(TorchTrace(folder=str(self._folder)), STOP_WITHIN_S)
            self._answers = await self._while_idle(lambda: stack.enter_context(profiled))
            self._running = stack
            return {"folder": str(self._folder)}

    async def stop(self) -> dict[str, Any]:
        """End; return the files, and by process what is missing. ApiError 400 when none runs."""
        async with self._lock:
            if self._running is None:
                raise ApiError(400, "no profile runs: POST /start_profile first")
            await self._while_idle(self._running.close)
            self._running = None
            files = [path for one in self._answers for path in one.files]
            notes = {one.worker: one.notes for one in self._answers if one.notes}
            missing = {one.worker: one.error for one in self._answers if one.error}
            return {"folder": str(self._folder), "files": files, "notes": notes, "missing": missing}

    async def close(self) -> None:
        """End what still runs, with the server."""
        if self._running is not None:
            await asyncio.to_thread(self._running.close)

    async def _while_idle(self, work: Callable[[], Any]) -> Any:
        admission = self._service.admission
        try:
            async with asyncio.timeout(IDLE_WITHIN_S):
                await admission.pause()
            return await asyncio.to_thread(work)
        except TimeoutError:
            raise ApiError(503, f"requests still run after {IDLE_WITHIN_S:g} s: try again later") from None
        finally:
            admission.resume()
