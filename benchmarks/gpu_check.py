"""The released size on a GPU within nine minutes: `python -m benchmarks.gpu_check`.

Builds `full` with random weights, calibrates a Thinker step and a Talker frame against public figures, then runs 2,500
in and 900 out under BEST and BEFORE_1378, and 300 in and 300 out under BEFORE_1378 and each of the four alone. Every
recipe replays CUDA graphs, as the real stages did. Stops at the limit with what it has. On a CPU it runs `tiny` at a
twentieth of the lengths: that tests the script and says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from omnilab import Pipeline, Recipe, Trial, Workload, recipe_with, recipes
from omnilab.experiment.plan import warm_up
from omnilab.metrics import counter_totals, span_totals
from omnilab.toggles import THE_FOUR, graphed_step

LIMIT_S = 540
MAX_LEN = {"full": 8192, "tiny": 4096}
# public figures of vLLM-Omni at 2,500 in, 900 out: ms a text token, ms a Talker frame (lowest and highest seen)
PUBLISHED_STEP_MS, PUBLISHED_FRAME_MS = 13.3, (9.4, 20.5)
SHOWN = ("ttft_ms", "tpot_ms", "audio_ttfp_ms", "audio_rtf", "host_ms_per_step", "wall_s")


class OutOfTime(Exception):
    """The limit has come."""


class Check:
    """One run against the clock."""

    def __init__(self, limit_s: float, on_gpu: bool) -> None:
        self._ends = time.monotonic() + limit_s
        self._on_gpu = on_gpu

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe as the device runs it."""
        return recipe_with(graphed_step.TOGGLE, base=recipe) if self._on_gpu else recipe

    def need(self, seconds: float) -> None:
        """Raise OutOfTime when less than so many seconds are left."""
        if time.monotonic() + seconds > self._ends:
            raise OutOfTime

    def measure(self, pipe: Pipeline, title: str, recipe: Recipe, workload: Workload, seconds: float) -> Trial:
        """Rewire, warm up, run, print; `seconds` is what this is expected to take at most."""
        self.need(seconds)
        pipe.apply(self.recipe(recipe))
        pipe.run(warm_up(workload))
        trial = pipe.run(workload)
        print(f"{title}: " + shown(trial), flush=True)
        for record in trial.records:
            if record.error:
                raise RuntimeError(record.error)
        return trial


def main() -> None:
    """Run all that fits into the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds")
    parser.add_argument("--topology", default="processes", choices=("processes", "inline"))
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    check = Check(arguments.limit, on_gpu)
    size, scale = ("full", 1) if on_gpu else ("tiny", 20)
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, torch {torch.__version__}, size {size}", flush=True)
    long = Workload.random(num_prompts=1, input_len=2500 // scale, output_len=900 // scale, seed=0)
    short = Workload.random(num_prompts=1, input_len=300 // scale + 20, output_len=300 // scale, seed=0)
    try:
        with opened(size, check, arguments.topology) as pipe:
            calibrate(check.measure(pipe, "BEST, 2,500 in, 900 out", recipes.BEST, long, 90))
            before = recipes.BEFORE_1378
            check.measure(pipe, "BEFORE_1378, 2,500 in, 900 out", before, long, 150)
            check.measure(pipe, "BEFORE_1378, 300 in, 300 out", before, short, 60)
            for toggle in THE_FOUR:
                alone = recipe_with(toggle, base=before)
                check.measure(pipe, f"{toggle.name} alone, 300 in, 300 out", alone, short, 60)
    except OutOfTime:
        print(f"stopped at the limit of {arguments.limit:g} s: what is above is what there is")


@contextmanager
def opened(size: str, check: Check, topology: str) -> Iterator[Pipeline]:
    """Open the stages under BEST and print how long their weights took."""
    check.need(60)
    began = time.monotonic()
    limits = {"max_num_seqs": 1, "max_model_len": MAX_LEN[size], "timeout_s": 240}
    pipe = Pipeline.open(size, recipe=check.recipe(recipes.BEST), topology=topology, **limits)
    print(f"built and started in {time.monotonic() - began:.1f} s", flush=True)
    with pipe:
        yield pipe


def calibrate(trial: Trial) -> None:
    """Print measured ms a Thinker step and a Talker frame beside the published ones."""
    spans, counts = span_totals(trial.span_rows, trial.lost_rows), counter_totals(trial.counter_rows)
    step = spans["thinker", "forward"] / counts["thinker", "steps"]
    frame = spans["talker", "forward"] / counts["talker", "steps"]
    low, high = PUBLISHED_FRAME_MS
    print(f"calibration: {step:.1f} ms a Thinker step (published {PUBLISHED_STEP_MS}), ", end="")
    print(f"{frame:.1f} ms a Talker frame (published {low} to {high})", flush=True)


def shown(trial: Trial) -> str:
    """Return the metrics in one line."""
    found = {name: trial.metrics[name] for name in SHOWN}
    return ", ".join(f"{name} {'-' if value is None else format(value, '.3g')}" for name, value in found.items())


if __name__ == "__main__":
    main()
