"""What serving costs a request over the pipeline in process: `python -m benchmarks.serving_cost`.

The same requests on the same stages, in process and over HTTP in turns, in random order within a pair. The server and
its client share the caller's process, and so its interpreter's lock: in life the cost is less.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import random
import socket
import threading
import time
from typing import NamedTuple

import httpx
import uvicorn
from scipy import stats

from omnilab import AudioChunk, Pipeline, TextDelta, recipes
from omnilab.serve.app import make_app
from omnilab.serve.service import Served

PROMPT = "Tell me about rivers. " * 20


class Times(NamedTuple):
    """Of one request, seconds."""

    first_text_s: float
    rtf: float


def main() -> None:
    """Run the pairs and print both costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--output-len", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=12)
    arguments = parser.parse_args()
    with Pipeline.open(arguments.model, recipe=recipes.BEST) as pipe:
        app = make_app(pipe, Served(model=arguments.model, recipe="BEST"))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", loop="asyncio", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=300) as client:
                report(measured(pipe, client, arguments.output_len, arguments.pairs), arguments)
        finally:
            server.should_exit = True
            thread.join()


def measured(pipe: Pipeline, client: httpx.Client, output_len: int, pairs: int) -> list[tuple[Times, Times]]:
    """Return the times in process and served, a pair each."""
    found: list[tuple[Times, Times]] = []
    for number in range(pairs + 1):  # the first warms both ways up
        order = random.Random(number).sample((True, False), 2)
        times = {way: served(client, output_len) if way else in_process(pipe, output_len) for way in order}
        found.append((times[False], times[True]))
    return found[1:]


def in_process(pipe: Pipeline, output_len: int) -> Times:
    """Answer in process."""
    began, first, last, samples = time.monotonic(), 0.0, 0.0, 0
    for event in pipe.stream(PROMPT, max_text_tokens=output_len, seed=1):
        if isinstance(event, TextDelta):
            first = first or time.monotonic()
        elif isinstance(event, AudioChunk):
            last, samples = time.monotonic(), samples + len(event.audio)
    return Times(first - began, (last - began) / (samples / 24_000))


def served(client: httpx.Client, output_len: int) -> Times:
    """Answer over HTTP; sounds are decoded after the end, their arrival is what counts."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": output_len, "seed": 1, "stream": True}
    began, lines = time.monotonic(), list[tuple[float, str]]()
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines.extend((time.monotonic(), line) for line in reply.iter_lines() if line.startswith("data: {"))
    chunks = [(at, json.loads(line[6:])) for at, line in lines]
    texts = [at for at, chunk in chunks if chunk.get("modality") == "text"]
    sounds = [(at, chunk["choices"][0]["delta"]["content"]) for at, chunk in chunks if chunk.get("modality") == "audio"]
    samples = sum((len(base64.b64decode(data)) - 44) // 2 for _, data in sounds)
    return Times(texts[0] - began, (sounds[-1][0] - began) / (samples / 24_000))


def report(pairs: list[tuple[Times, Times]], arguments: argparse.Namespace) -> None:
    """Print the costs: means with 95 % intervals, and the least of each side, which a busy machine disturbs least."""
    later = [1e3 * (there.first_text_s - here.first_text_s) for here, there in pairs]
    slower = [math.log(there.rtf / here.rtf) for here, there in pairs]
    least = [Times(*map(min, zip(*side, strict=True))) for side in zip(*pairs, strict=True)]
    low, high = stats.ttest_1samp(later, 0.0).confidence_interval()
    print(f"BEST on {arguments.model}, {arguments.output_len} text tokens, {len(pairs)} pairs, one request at a time")
    print(f"first text: {sum(later) / len(later):+.2f} ms [{low:+.2f}, {high:+.2f}] over in process;")
    print(f"  least {1e3 * least[0].first_text_s:.2f} ms in process, {1e3 * least[1].first_text_s:.2f} ms served")
    low, high = stats.ttest_1samp(slower, 0.0).confidence_interval()
    ratio = math.exp(sum(slower) / len(slower))
    print(f"real-time factor: {ratio:.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}] of that in process;")
    print(f"  least {least[0].rtf:.4f} in process, {least[1].rtf:.4f} served")


if __name__ == "__main__":
    main()
