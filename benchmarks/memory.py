"""Is memory flat over many requests? `python -m benchmarks.memory`."""

from __future__ import annotations

import argparse

import psutil

from omnilab import Pipeline, Workload


def main() -> None:
    """Print resident memory of all processes after 10 requests and after all, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--input-len", type=int, default=200)
    parser.add_argument("--output-len", type=int, default=20)
    arguments = parser.parse_args()
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "frames": arguments.output_len}
    with Pipeline.open(arguments.model) as pipe:
        levels: list[float] = []
        for trial in range(arguments.requests // 10):  # a trial keeps the rows of its requests: many short ones
            pipe.run(Workload.random(num_prompts=10, seed=trial, max_concurrency=4, **lengths))
            levels.append(resident_mib())
        print(f"tables: {sum(pipe.tables().values())} entries")
    first, last = levels[0], levels[-1]
    print(f"after 10 requests {first:.0f} MiB, after {arguments.requests} {last:.0f} MiB: x {last / first:.3f}")


def resident_mib() -> float:
    """Resident memory of this process and its children in MiB."""
    me = psutil.Process()
    return sum(process.memory_info().rss for process in (me, *me.children(recursive=True))) / 2**20


if __name__ == "__main__":
    main()
