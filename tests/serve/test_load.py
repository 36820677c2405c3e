"""Many at once, and clients that go away: nobody is mixed up, nobody starves, nothing is left."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import time
import wave
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from omnilab.pipeline import Pipeline
from omnilab.speech import Speech
from tests.serve.served import MAX_RUNNING, Running, serving

CHAT = "/v1/chat/completions"
NUM_GONE = int(os.environ.get("OMNILAB_DISCONNECTS", "50"))  # 500 is the long form
# Between two events of a stream that runs no other gets more chunks of sound than this: its 25 frames, the small first
# chunk of a request that begins meanwhile and the short last one. How long 25 frames take is the machine's matter.
MOST_OF_OTHERS = 4
KINDS = 8


def body(number: int, **more: Any) -> dict[str, Any]:
    """One of KINDS requests."""
    kind = number % KINDS
    turns = [{"role": "user", "content": f"Tell me of number {kind}."}]
    return {"messages": turns, "max_tokens": 6 + kind, "seed": kind, "stream": True, **more}


@dataclass
class Heard:
    """One stream as its client saw it."""

    text: str = ""
    samples: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    sound_times: list[float] = field(default_factory=list)
    queue_ms: float = 0.0
    done: bool = False

    def take(self, line: str) -> None:
        """Take one line of the stream."""
        if line == "data: [DONE]":
            self.done = True
        elif line:
            self.times.append(time.monotonic())
            event = json.loads(line.removeprefix("data: "))
            content = event["choices"][0]["delta"].get("content")
            if event.get("modality") == "text":
                self.text += content
            elif event.get("modality") == "audio":
                self.sound_times.append(self.times[-1])
                with wave.open(io.BytesIO(base64.b64decode(content))) as file:
                    self.samples.append(np.frombuffer(file.readframes(file.getnframes()), "<i2"))


async def listen(client: httpx.AsyncClient, number: int) -> Heard:
    """Read one stream to its end."""
    heard = Heard()
    async with client.stream("POST", CHAT, json=body(number)) as reply:
        assert reply.status_code == 200, await reply.aread()
        heard.queue_ms = float(reply.headers["x-omnilab-queue-ms"])
        async for line in reply.aiter_lines():
            heard.take(line)
    return heard


def most_of_others(one: Heard, heard: list[Heard]) -> int:
    """The most chunks of sound that another stream got between two events of this one."""
    gaps = list(pairwise(one.times))
    return max(
        sum(start < at < end for at in other.sound_times)
        for start, end in gaps
        for other in heard
        if other is not one and other.times[0] < end and other.times[-1] > start
    )


def patient(server: Running) -> httpx.AsyncClient:
    """A client of any number of connections."""
    return httpx.AsyncClient(base_url=server.url, timeout=100, limits=httpx.Limits(max_connections=None))


@pytest.fixture(scope="module")
def answers(pipe: Pipeline) -> list[Speech]:
    """What each kind of request says in process, alone."""
    return [pipe.speak(f"Tell me of number {kind}.", max_text_tokens=6 + kind, seed=kind) for kind in range(KINDS)]


def test_64_streams_are_not_mixed_up_and_none_starves(server: Running, http: httpx.Client, answers: Any) -> None:
    """Each gets the answer of its own seed, all samples of it; eight run at once, and the rest wait in their turn."""

    async def all_of_them() -> list[Heard]:
        async with patient(server) as client:
            return await asyncio.gather(*(listen(client, number) for number in range(64)))

    heard = asyncio.run(all_of_them())
    for number, one in enumerate(heard):
        speech = answers[number % KINDS]
        spoken = np.rint(np.clip(speech.audio, -1, 1) * 32767).astype("<i2")
        assert one.done and one.text == speech.text
        assert np.array_equal(np.concatenate(one.samples), spoken)
        assert most_of_others(one, heard) <= MOST_OF_OTHERS
    whole_s = max(one.times[-1] for one in heard) - min(one.times[0] for one in heard)
    assert max(max(np.diff(one.times)) for one in heard) < whole_s / 4
    waited = sorted(one.queue_ms for one in heard)
    assert waited[MAX_RUNNING // 2] < 1000 < waited[-1]


def test_clients_that_go_at_random_moments_leave_nothing(server: Running, http: httpx.Client) -> None:
    """Before the first byte, between text and sound, after some of it; streamed or whole, running or waiting."""
    draw = random.Random(1)

    async def leave(client: httpx.AsyncClient, number: int, after_s: float) -> bool:
        asked = body(number, max_tokens=60, stream=draw.random() < 0.7)
        try:
            async with asyncio.timeout(after_s):
                await client.post(CHAT, json=asked)
        except TimeoutError:
            return True
        return False

    async def all_of_them() -> int:
        left = 0
        async with patient(server) as client:
            for start in range(0, NUM_GONE, 25):
                times = [draw.choice([0.01, 0.1, 0.3, 0.6, 1.0]) * draw.random() for _ in range(25)]
                left += sum(await asyncio.gather(*(leave(client, start + n, t) for n, t in enumerate(times))))
        return left

    assert asyncio.run(all_of_them()) > 0.8 * NUM_GONE  # some had their answer before
    until = time.monotonic() + 20
    while 'num_requests_running{model_name="tiny"} 0.0' not in http.get("/metrics").text:
        assert time.monotonic() < until, "requests of clients that went still run"
    # that no table of any stage holds anything is what the fixture `http` looks at


def test_a_client_that_goes_stops_every_stage(server: Running, pipe: Pipeline, http: httpx.Client) -> None:
    """Long work is given up at once, not when it would have ended."""
    spoken = {"max_tokens": 3000, "ignore_eos": True}
    asked = body(0, max_tokens=900, ignore_eos=True, sampling_params_list=[{}, spoken])
    with http.stream("POST", CHAT, json=asked) as reply:
        lines = reply.iter_lines()
        for _ in range(9):
            next(lines)
    began = time.monotonic()
    assert not any(pipe.tables().values())  # waits until every stage has let go of it
    assert time.monotonic() - began < 10  # its 3,000 frames take a minute


def test_beyond_the_bound_is_refused_at_once(pipe: Pipeline) -> None:
    """One runs, one waits, the third is told to come again; a place that is left is given on."""
    long = {"max_tokens": 300, "ignore_eos": True, "modalities": ["text"]}

    async def scene(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            running = asyncio.create_task(client.post(CHAT, json=body(0, **long)))
            while 'num_requests_running{model_name="tiny"} 1.0' not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)  # else the short one may come first, and leave its place
            waiting = asyncio.create_task(client.post(CHAT, json=body(1, **{**long, "max_tokens": 2})))
            while 'num_requests_waiting{model_name="tiny"} 1.0' not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
            reply = await client.post(CHAT, json=body(2, **long))
            assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["type"] == "RateLimitError"
            speech = await client.post("/v1/audio/speech", json={"input": "Hello."})
            assert speech.status_code == 429
            running.cancel()
            answer = await waiting
            assert answer.status_code == 200 and float(answer.headers["x-omnilab-queue-ms"]) > 1
            assert (await client.post(CHAT, json=body(2, **{**long, "max_tokens": 2}))).status_code == 200

    with serving(pipe, max_running=1, max_waiting=1) as running:
        asyncio.run(scene(running.url))
    assert not any(pipe.tables().values())
