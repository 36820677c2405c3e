"""How much of a trial's wall time is neither a forward nor a named span: `python -m benchmarks.accounted`.

Counted are the forwards of all stages and the spans of the Talker, which is never done waiting for the others here.
Spans of a stage that waits are left out: its idle steps would cover the whole trial and account for nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from omnilab import Pipeline, Workload, recipes
from omnilab.record import SpanRow

NETWORK = ("forward", "vocode", "embed")


def main() -> None:
    """Print the shares of one trial under AFTER_1378."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--input-len", type=int, default=300)
    parser.add_argument("--output-len", type=int, default=300)
    parser.add_argument("--recipe", default="AFTER_1378")
    arguments = parser.parse_args()
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "frames": arguments.output_len}
    with Pipeline.open(arguments.model, recipe=recipes.recipe_named(arguments.recipe)) as pipe:
        pipe.run(Workload.random(num_prompts=1, seed=1, **lengths))
        trial = pipe.run(Workload.random(num_prompts=1, seed=2, **lengths))
    forwards = [row for row in trial.span_rows if row.name in NETWORK]
    named = [row for row in trial.span_rows if row.stage == "talker"]
    first, last = covered(forwards) / trial.wall_s, covered([*forwards, *named]) / trial.wall_s
    print(f"{arguments.recipe}: wall {trial.wall_s:.2f} s; forwards {first:.1%}, with the Talker's spans {last:.1%}")
    print(f"neither: {1 - last:.1%}")


def covered(rows: Iterable[SpanRow]) -> float:
    """Return the seconds in which at least one span is open."""
    total, end = 0, 0
    for row in sorted(rows, key=lambda row: row.start_ns):
        if row.end_ns > end:
            total += row.end_ns - max(row.start_ns, end)
            end = row.end_ns
    return total / 1e9


if __name__ == "__main__":
    main()
