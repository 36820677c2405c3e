"""Throughput of requests together against one after another: `python -m benchmarks.concurrency`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from omnilab import Pipeline, Workload
from omnilab.workload import closed


def main() -> None:
    """Run the same requests at concurrency 1 and at N, in one pipeline, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=300)
    parser.add_argument("--output-len", type=int, default=300)
    arguments = parser.parse_args()
    one = Workload.random(
        num_prompts=arguments.requests,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        frames=arguments.output_len,
        max_concurrency=1,
    )
    together = replace(one, arrivals=closed(arguments.requests))
    with Pipeline.open(arguments.model, max_num_seqs=arguments.requests) as pipe:
        warm = Workload.random(num_prompts=arguments.requests, input_len=100, output_len=5, frames=5, seed=1)
        pipe.run(replace(warm, arrivals=closed(arguments.requests)))
        walls = {name: pipe.run(workload).wall_s for name, workload in (("together", together), ("one by one", one))}
    for name, wall_s in walls.items():
        print(f"{name}: {wall_s:.1f} s, {arguments.requests * arguments.output_len / wall_s:.1f} frames a second")
    print(f"throughput together over one by one: {walls['one by one'] / walls['together']:.2f}")


if __name__ == "__main__":
    main()
