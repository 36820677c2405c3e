"""How close BEST comes to its busiest stage's own forwards, and is it flat? `python -m benchmarks.best`.

Counted from the Talker's first step: wall time over the forward time of the busiest stage; and the host work of a
Talker step, its last tenth over its first, over as many steps as there are frames: on the loop that the next forward
waits for, and with the receive thread, whose spans also hold its waits for the interpreter's lock.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from omnilab import Pipeline, Workload, recipes
from omnilab.metrics import HOST_SPANS
from omnilab.record import SpanRow

NETWORK = ("forward", "vocode")
LOOP = {"engine", "runner"}


def main() -> None:
    """Run the public workload once and print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--recipe", default="BEST")
    parser.add_argument("--input-len", type=int, default=2500)
    parser.add_argument("--output-len", type=int, default=900)
    parser.add_argument("--frames", type=int, default=2646)
    arguments = parser.parse_args()
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "frames": arguments.frames}
    with Pipeline.open(arguments.model, recipe=recipes.recipe_named(arguments.recipe)) as pipe:
        pipe.run(Workload.random(num_prompts=1, input_len=200, output_len=20, frames=60, seed=1))
        trial = pipe.run(Workload.random(num_prompts=1, seed=2, **lengths))
    rows = trial.span_rows
    first = min(row.start_ns for row in rows if (row.stage, row.name) == ("talker", "forward"))
    wall_s = (max(row.end_ns for row in rows if row.name == "vocode") - first) / 1e9
    busy: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.name in NETWORK and row.start_ns >= first:
            busy[row.stage] += (row.end_ns - row.start_ns) / 1e9
    stage = max(busy, key=lambda name: busy[name])
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in busy.items())
    print(f"{arguments.recipe}: {wall_s:.1f} s from the first chunk; forwards: {shown}")
    print(f"wall over the busiest stage ({stage}): {wall_s / busy[stage]:.3f}")
    print(f"audio rtf {trial.metrics['audio_rtf']:.3f}, first audio {trial.metrics['audio_ttfp_ms']:.0f} ms")
    loop, all_threads = growth(rows, LOOP), growth(rows, {"receive", *LOOP})
    print(
        f"host work a Talker step, last tenth over first of {arguments.frames} frames: {loop:.2f} on its loop, "
        f"{all_threads:.2f} with the receive thread"
    )


def growth(rows: list[SpanRow], threads: set[str]) -> float:
    """Return the Talker's work between forwards, last tenth of the steps over the first; the prefill's is left out."""
    names = {*HOST_SPANS, "schedule", "save", "sample", "events"}
    ends = sorted(row.end_ns for row in rows if (row.stage, row.name) == ("talker", "forward"))[1:]
    spent = [0] * len(ends)
    step = 0
    work = [row for row in rows if row.stage == "talker" and row.thread in threads and row.name in names]
    for row in sorted(work, key=lambda r: r.end_ns):
        while step < len(ends) - 1 and ends[step] < row.end_ns:
            step += 1
        spent[step] += row.end_ns - row.start_ns
    tenth = len(spent) // 10
    return sum(spent[-tenth:]) / sum(spent[1 : tenth + 1])


if __name__ == "__main__":
    main()
