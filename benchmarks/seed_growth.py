"""How the Talker's host work grows with the answer, before and after the four: `python -m benchmarks.seed_growth`.

The public change's own workload, 2,500 tokens in and 900 out, one request; as many frames as text tokens unless asked
otherwise, since only steps that consume a chunk are counted.
"""

from __future__ import annotations

import argparse

from omnilab import Pipeline, Workload, recipes
from omnilab.metrics import HOST_SPANS, counter_totals, host_growth, span_totals
from omnilab.trial import Trial


def main() -> None:
    """Run both recipes once and print their host work and its ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--input-len", type=int, default=2500)
    parser.add_argument("--output-len", type=int, default=900)
    parser.add_argument("--frames", type=int)
    arguments = parser.parse_args()
    workload = Workload.random(
        num_prompts=1,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        frames=arguments.frames or arguments.output_len,
    )
    warm = Workload.random(num_prompts=1, input_len=200, output_len=8, frames=8, seed=1)
    totals: dict[str, float] = {}
    with Pipeline.open(arguments.model) as pipe:
        for name in ("BEFORE_1378", "AFTER_1378"):
            pipe.apply(recipes.recipe_named(name))
            pipe.run(warm)
            trial = pipe.run(workload)
            totals[name] = show(name, trial)
    print(f"host work, BEFORE over AFTER: {totals['BEFORE_1378'] / totals['AFTER_1378']:.1f}")


def show(name: str, trial: Trial) -> float:
    """Print a trial's host work by span; return its sum in ms."""
    spans = span_totals(trial.span_rows, trial.lost_rows)
    by_name = {span: spans.get(("talker", span), 0.0) for span in (*HOST_SPANS, "transport")}
    parts = "  ".join(f"{span} {ms / 1e3:.2f} s" for span, ms in by_name.items())
    growth = host_growth(trial.span_rows)
    visited = counter_totals(trial.counter_rows).get(("talker", "elements_visited"), 0)
    print(f"{name}: wall {trial.wall_s:.1f} s, last tenth over first tenth {growth:.2f}, elements visited {visited:,}")
    print(f"  Talker: {parts}  forward {spans.get(('talker', 'forward'), 0.0) / 1e3:.1f} s")
    return sum(by_name[span] for span in HOST_SPANS)


if __name__ == "__main__":
    main()
