"""What serving costs a request over the pipeline in process: `python -m benchmarks.serving_cost`.

The same requests in process and over HTTP in turns, in random order within a pair. Each side has stages of its own, and
the server a process of its own; the side that is not asked waits. Times are the caller's: of the pipeline's events in
process, of socket reads over HTTP.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from omnilab import AudioChunk, Pipeline, Prompt, Sampling, TextDelta, metrics, recipes
from omnilab.client import Server, wait_ready
from omnilab.launch import Command, free_port, running
from omnilab.workload import WorkItem, Workload, closed

PROMPT = "Tell me about rivers. " * 20


class Times(NamedTuple):
    """Of one request."""

    first_text_ms: float
    rtf: float


def main() -> None:
    """Run the pairs and print both costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--output-len", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=12)
    arguments = parser.parse_args()
    sampling = Sampling(max_text_tokens=arguments.output_len, seed=1)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="omnilab-cost-") as folder:
        words = (sys.executable, "-m", "omnilab.serve", "--model", arguments.model, "--port", str(port))
        command = Command(words=words, log=Path(folder) / "server.log", port=port)
        with running(command) as process, Pipeline.open(arguments.model, recipe=recipes.BEST) as pipe:
            wait_ready(f"http://127.0.0.1:{port}", alive=process.ended)
            server = Server(f"http://127.0.0.1:{port}", arguments.model)
            report(measured(pipe, server, sampling, arguments.pairs), arguments)


def measured(pipe: Pipeline, server: Server, sampling: Sampling, pairs: int) -> list[tuple[Times, Times]]:
    """Return the times in process and served, a pair each."""
    found: list[tuple[Times, Times]] = []
    for number in range(pairs + 1):  # the first warms both ways up
        order = random.Random(number).sample((True, False), 2)
        times = {way: served(server, sampling) if way else in_process(pipe, sampling) for way in order}
        found.append((times[False], times[True]))
    return found[1:]


def in_process(pipe: Pipeline, sampling: Sampling) -> Times:
    """Answer in process."""
    began, first, last, samples = time.monotonic(), 0.0, 0.0, 0
    for event in pipe.stream(PROMPT, max_text_tokens=sampling.max_text_tokens, seed=sampling.seed):
        if isinstance(event, TextDelta):
            first = first or time.monotonic()
        elif isinstance(event, AudioChunk):
            last, samples = time.monotonic(), samples + len(event.audio)
    return Times(1e3 * (first - began), (last - began) / (samples / 24_000))


def served(server: Server, sampling: Sampling) -> Times:
    """Answer over HTTP."""
    work = Workload(requests=(WorkItem(Prompt(text=PROMPT), sampling),), arrivals=closed(1))
    (record,) = server.run(work).records
    first, rtf = metrics.ttft_ms(record), metrics.audio_rtf(record)
    if first is None or rtf is None:
        raise SystemExit(f"the server's answer lacks text or sound: {record.error}")
    return Times(first, rtf)


def report(pairs: list[tuple[Times, Times]], arguments: argparse.Namespace) -> None:
    """Print the costs: medians of the pairs with 95 % intervals, and the least of each side."""
    later = [there.first_text_ms - here.first_text_ms for here, there in pairs]
    slower = [there.rtf / here.rtf for here, there in pairs]
    least = [Times(*map(min, zip(*side, strict=True))) for side in zip(*pairs, strict=True)]
    print(f"BEST on {arguments.model}, {arguments.output_len} text tokens, {len(pairs)} pairs, one request at a time")
    print(f"first text: {median(later, '+.2f')} ms over in process;")
    print(f"  least {least[0].first_text_ms:.2f} ms in process, {least[1].first_text_ms:.2f} ms served")
    print(f"real-time factor: {median(slower, '.3f')} of that in process;")
    print(f"  least {least[0].rtf:.4f} in process, {least[1].rtf:.4f} served")


def median(values: list[float], form: str) -> str:
    """Return the median with its 95 % interval by order statistics: one slow pair on a busy machine moves neither."""
    interval = stats.quantile_test(values, p=0.5).confidence_interval()
    return f"{statistics.median(values):{form}} [{interval.low:{form}}, {interval.high:{form}}]"


if __name__ == "__main__":
    main()
