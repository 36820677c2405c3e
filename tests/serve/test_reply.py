"""Places and answers without a pipeline: who is next, and clients that read nothing or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from omnilab.serve.admission import Admission
from omnilab.serve.errors import ApiError
from omnilab.serve.reply import Reply
from omnilab.serve.service import Accepted


class Request:
    """Stands in for Accepted."""

    queue_ms = 0.0

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


async def forever(*_given: Any) -> Any:
    """Never come back."""
    await asyncio.Event().wait()


async def pieces(ended: list[bool]) -> AsyncGenerator[bytes]:
    """Some of an answer, and then a wait for more that does not come."""
    try:
        yield b"some"
        await forever()
    finally:
        ended.append(True)


def answered(receive: Any, send: Any) -> tuple[Request, list[bool]]:
    """Run a reply to its end; return its request, and whether its pieces were ended."""
    request, ended = Request(), list[bool]()

    async def run() -> None:
        reply = Reply(cast(Accepted, request), pieces(ended), media_type="text/plain", read_within_s=0.05)
        async with asyncio.timeout(10):
            await reply({"type": "http"}, receive, send)

    asyncio.run(run())
    return request, ended


def test_a_client_that_reads_nothing_is_given_up() -> None:
    """A place is not held for ever by who does not read."""
    request, ended = answered(forever, forever)
    assert request.closed == 1 and ended


def test_a_client_that_goes_while_nothing_comes() -> None:
    """It is noticed although there is nothing to send."""
    sent: list[Any] = []

    async def receive() -> Any:
        while len(sent) < 2:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    request, ended = answered(receive, send)
    assert request.closed == 1 and ended and [m["type"] for m in sent] == ["http.response.start", "http.response.body"]


def test_turns_come_in_order_and_places_are_given_on() -> None:
    """First come, first served; who leaves the queue makes room in it; a pause lets none begin."""

    async def scene() -> None:
        admission = Admission(1, 3)
        first, *others = tickets = [admission.take() for _ in range(4)]
        with pytest.raises(ApiError) as refused:
            admission.take()
        assert refused.value.status == 429 and int(refused.value.headers["Retry-After"]) >= 1
        turns: list[int] = []

        async def wait(number: int) -> None:
            await tickets[number].turn()
            turns.append(number)

        waiting = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0.01)
        assert turns == [0] and (admission.running, admission.waiting) == (1, 3)
        waiting[1].cancel()
        others[0].leave()  # it stood next
        pausing = asyncio.create_task(admission.pause())
        await asyncio.sleep(0.01)
        first.leave()
        first.leave()  # once is enough
        await pausing
        assert turns == [0] and admission.running == 0
        admission.resume()
        await asyncio.sleep(0.01)
        assert turns == [0, 2]
        others[1].leave()
        await waiting[3]
        assert turns == [0, 2, 3]
        others[2].leave()
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(scene())
