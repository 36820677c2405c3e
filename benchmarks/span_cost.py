"""What recording spans costs a trial: `python -m benchmarks.span_cost`.

Twice. Trials with and without spans take turns, in random order within a pair; machines are noisier than the answer, so
the interval says how much could be seen. And what one span costs, times the spans of the busiest stage, over the wall
time: what reports print.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter

from scipy import stats

from omnilab import Pipeline, Workload, recipes
from omnilab.record import span_cost_ns
from omnilab.trial import Trial


def main() -> None:
    """Run the pairs and print both answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--recipe", default="BEST")
    parser.add_argument("--input-len", type=int, default=300)
    parser.add_argument("--output-len", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=12)
    arguments = parser.parse_args()
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "frames": arguments.output_len}
    workload = Workload.random(num_prompts=1, **lengths)
    walls, cpus, computed = list[float](), list[float](), list[float]()
    with Pipeline.open(arguments.model, recipe=recipes.recipe_named(arguments.recipe)) as pipe:
        pipe.run(workload)
        for number in range(arguments.pairs):
            order = random.Random(number).sample((True, False), 2)
            trials = {spans: pipe.run(workload, spans=spans) for spans in order}
            walls.append(math.log(trials[True].wall_s / trials[False].wall_s))
            cpus.append(math.log(sum(trials[True].cpu_s.values()) / sum(trials[False].cpu_s.values())))
            computed.append(share(trials[True]))
    print(f"{arguments.recipe} on {arguments.model}, {arguments.input_len} in, {arguments.output_len} out")
    for name, logs in (("wall time", walls), ("CPU seconds", cpus)):
        print(f"{name} with spans over without: {said(logs)} ({len(logs)} pairs)")
    print(f"computed: one span {span_cost_ns() / 1e3:.2f} us; about {max(computed):.2%} of a trial's wall time")


def share(trial: Trial) -> float:
    """Return what recording took of the wall time, on the stage that recorded most: its loops may be one thread."""
    numbers = Counter(row.stage for row in trial.span_rows)
    for row in trial.lost_rows:
        numbers[row.stage] += row.number
    return max(numbers.values()) * span_cost_ns() / 1e9 / trial.wall_s


def said(logs: list[float]) -> str:
    """Write a ratio with its interval."""
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval()
    return f"{math.exp(sum(logs) / len(logs)):.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}]"


if __name__ == "__main__":
    main()
