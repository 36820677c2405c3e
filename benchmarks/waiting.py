"""What waiting costs, and how fast a chunk wakes a stage: `python -m benchmarks.waiting`.

First a request whose frames come in one chunk, at its end: until then Code2Wav waits, and its processor time is that of
waiting. Then one in chunks of 25: the delay from the end of a chunk's put to the start of the get that takes it.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

from omnilab import Pipeline, Recipe, Trial, Workload, recipes

WARM = Workload.random(num_prompts=1, input_len=100, output_len=10, frames=30, seed=1)
ASKED = Workload.random(num_prompts=1, input_len=300, output_len=200, frames=400, seed=2)


def main() -> None:
    """Print both under each named recipe that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--recipes", default="AFTER_1378,LIKE_0_16,BEST")
    arguments = parser.parse_args()
    for name in arguments.recipes.split(","):
        recipe = recipes.recipe_named(name)
        share = waiting_share(arguments.model, recipe)
        with Pipeline.open(arguments.model, recipe=recipe) as pipe:
            pipe.run(WARM)
            delay = statistics.median(delays_ms(pipe.run(ASKED)))
        print(f"{name}: waiting takes {share:.1%} of a core; put to get, median {delay:.2f} ms", flush=True)


def waiting_share(model: str, recipe: Recipe) -> float:
    """Return the share of a core that Code2Wav uses while the Talker works on a chunk that only leaves at its end."""
    with Pipeline.open(model, recipe=recipe, codec_chunk_frames=100_000) as pipe:
        pipe.run(WARM)
        samples: list[tuple[float, float]] = []
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(0.1):
                samples.append((time.monotonic(), pipe._topology.cpu_seconds()["code2wav"]))

        sampler = threading.Thread(target=sample)
        sampler.start()
        pipe.run(ASKED)
        ended.set()
        sampler.join()
    # the last tenth may see the decode
    (start, before), (end, after) = samples[len(samples) // 5], samples[len(samples) * 4 // 5]
    return (after - before) / (end - start)


def delays_ms(trial: Trial) -> list[float]:
    """Return ms from the end of each put of the Talker to the start of its get by Code2Wav, which waited for it."""
    puts = {(r.request, r.chunk): r.end_ns for r in trial.span_rows if (r.stage, r.name) == ("talker", "put")}
    gets = {(r.request, r.chunk): r.start_ns for r in trial.span_rows if (r.stage, r.name) == ("code2wav", "get")}
    return [(gets[key] - put) / 1e6 for key, put in puts.items() if key in gets]


if __name__ == "__main__":
    main()
