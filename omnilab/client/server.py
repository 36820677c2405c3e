"""A server on the bench: the same workloads as the lab's pipeline, the same records of them."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import h11

from omnilab.client import sound
from omnilab.client.asking import body_of
from omnilab.client.lag import LagTicker
from omnilab.client.random_text import random_texts
from omnilab.client.reading import Reading
from omnilab.client.recorded import MODALITIES, record_of
from omnilab.client.wire import Address, Reply, post, request_to
from omnilab.errors import Aborted, BadInput
from omnilab.trial import RequestRecord, Trial
from omnilab.workload import Workload

T = TypeVar("T")
PATH = "/v1/chat/completions"
STOP_ASKED_S = 0.05


class ServedTrial(Trial):
    """A trial of a server. `readings` are the streams, one a record; `client_lag_ms` is the client's own lateness."""

    def __init__(
        self, records: Sequence[RequestRecord], readings: Sequence[Reading], lag_ms: Mapping[str, float | None],
        *, wall_s: float, sample_rate: int, began_ns: int,
    ) -> None:  # fmt: skip
        """`lag_ms` has p50, p99 and max; `began_ns` is the trial's start on the clock of the readings."""
        super().__init__(records, wall_s=wall_s, sample_rate=sample_rate)
        self.readings, self.client_lag_ms, self.began_ns = list(readings), dict(lag_ms), began_ns

    @property
    def server_metrics(self) -> list[dict[str, Any]]:
        """What the server measured of each request, {} where it said nothing."""
        return [reading.metrics for reading in self.readings]


class Stopped(Aborted):
    """The trial was given up; `trial` has the requests that had ended."""

    def __init__(self, trial: ServedTrial) -> None:
        """Keep what there is."""
        super().__init__("the trial was stopped")
        self.trial = trial


class Server:
    """A server that speaks the OpenAI omni protocol, measured as the lab's pipeline is."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        modalities: Sequence[str] = MODALITIES,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 900.0,
        tokenizer: str | Path | None = None,
    ) -> None:
        """`timeout_s` bounds each request; `tokenizer` is a folder, for prompts of random tokens. BadInput."""
        self._address = Address.of(url)
        if timeout_s <= 0:
            raise BadInput(f"timeout_s: must be more than 0 seconds, not {timeout_s}")
        if not modalities or set(modalities) - set(MODALITIES):
            raise BadInput(f"modalities: {list(modalities)}; give one or both of text and audio")
        self.model, self.modalities, self.timeout_s = model, tuple(modalities), timeout_s
        self._extra = dict(extra_body or {})
        self._tokenizer = None if tokenizer is None else Path(tokenizer)
        audio = self._extra.get("audio")
        self._bare = isinstance(audio, dict) and audio.get("format") in sound.BARE
        self._headers = [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
            *(headers or {}).items(),
        ]
        if api_key:
            self._headers.append(("Authorization", f"Bearer {api_key}"))
        self._request(0, "check")  # before anything is sent
        self._context = ssl.create_default_context() if self._address.secure else None

    @property
    def url(self) -> str:
        """The server's root."""
        return self._address.url

    def run(self, workload: Workload, *, stop: Callable[[], bool] | None = None) -> ServedTrial:
        """Run a workload and measure it; a request that fails is a record with an error. Blocks.

        `stop` is asked while it runs; once it says yes, `Stopped` is raised with what was finished.
        """
        return _blocking(self.arun(workload, stop=stop))

    async def arun(self, workload: Workload, *, stop: Callable[[], bool] | None = None) -> ServedTrial:
        """`run` on the caller's event loop; what else runs there shows as the client's lag."""
        bodies = await asyncio.to_thread(self.bodies, workload)
        run_id, ticker = secrets.token_hex(4), LagTicker()
        ticking = asyncio.create_task(ticker.run())
        began = time.perf_counter_ns()
        due = workload.arrivals.start_times(len(bodies), workload.seed)
        places = asyncio.Semaphore(workload.arrivals.max_concurrency or len(bodies))
        tasks = [
            asyncio.create_task(self._one(body, begin, began, places, f"bench-{run_id}-{index}"))
            for index, (body, begin) in enumerate(zip(bodies, due, strict=True))
        ]
        try:
            stopped = await _all_done(tasks, stop)
            wall_s = (time.perf_counter_ns() - began) / 1e9
        finally:
            started: list[asyncio.Task[Any]] = [*tasks, ticking]
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
        replies = {index: task.result() for index, task in enumerate(tasks) if not task.cancelled()}
        trial = await asyncio.to_thread(self._trial, replies, run_id, ticker.ms(), wall_s, began)
        if stopped:
            raise Stopped(trial)
        return trial

    def bodies(self, workload: Workload) -> list[bytes]:
        """Return what is sent for each request. Raises BadInput for media that cannot be read."""
        lengths = [item.prompt.random_tokens for item in workload.requests]
        wanted = [length for length in lengths if length is not None]
        texts = iter(random_texts(wanted, workload.seed, self._tokenizer) if wanted else ())
        return [
            body_of(
                item.prompt, item.sampling, model=self.model, modalities=self.modalities, extra_body=self._extra,
                random_text=None if length is None else next(texts),
            )
            for item, length in zip(workload.requests, lengths, strict=True)
        ]  # fmt: skip

    async def _one(self, body: bytes, due: float, began: int, places: asyncio.Semaphore, request_id: str) -> Reply:
        wait = due - (time.perf_counter_ns() - began) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)
        async with places:
            return await post(self._address, self._request(len(body), request_id), body, self._context, self.timeout_s)

    def _request(self, length: int, request_id: str) -> h11.Request:
        return request_to(self._address, PATH, length, [*self._headers, ("X-Request-Id", request_id)])

    def _trial(
        self, replies: dict[int, Reply], run_id: str, lag_ms: Mapping[str, float | None], wall_s: float, began: int
    ) -> ServedTrial:
        found: list[tuple[RequestRecord, Reading]] = []
        rates: set[int] = set()
        for index in list(replies):
            record, reading, rate = record_of(
                replies.pop(index), index=index, name=f"bench-{run_id}-{index}", began_ns=began,
                modalities=self.modalities, bare=self._bare,
            )  # fmt: skip
            found.append((record, reading))
            rates |= {rate} - {0}
        records, readings = [record for record, _ in found], [reading for _, reading in found]
        rate = min(rates, default=24000)
        return ServedTrial(records, readings, lag_ms, wall_s=wall_s, sample_rate=rate, began_ns=began)


async def _all_done(tasks: Sequence[asyncio.Task[Reply]], stop: Callable[[], bool] | None) -> bool:
    """Wait for all; return whether `stop` said yes before."""
    waiting: set[asyncio.Task[Reply]] = set(tasks)
    while waiting:
        if stop is not None and stop():
            return True
        done, waiting = await asyncio.wait(
            waiting, timeout=None if stop is None else STOP_ASKED_S, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()  # a defect of ours, not of a request
    return False


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on a thread of its own where this one has a loop that runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="omnilab/client") as thread:
        return thread.submit(asyncio.run, work).result()
