"""What trials.jsonl says of a trial beside its rows: metrics, hashes of outputs, sums of counters and spans."""

from __future__ import annotations

from collections import Counter
from typing import Any

from omnilab.metrics import PER_REQUEST, host_growth
from omnilab.trial import Trial


def summary(trial: Trial, span_ns: float) -> dict[str, Any]:
    """Return a trial's part of its line; `span_ns` is what recording one span costs here."""
    counters = Counter[str]()
    for row in trial.counter_rows:
        counters[f"{row.stage}/{row.thread}/{row.counter}"] += row.value
    return {
        "metrics": trial.metrics,
        "per_request": _per_request(trial),
        "outputs": _outputs(trial),
        "counters": dict(counters),
        **_of_spans(trial),
        "span_ns": span_ns,
        "clocks": trial.clocks,
        "cpu_s": trial.cpu_s,
        "occupants": trial.occupants,
    }


def _of_spans(trial: Trial) -> dict[str, Any]:
    """Sum the spans by loop and name, those that full rings overwrote included, and say how many these were."""
    sums, numbers, lost = Counter[str](), Counter[str](), dict[str, dict[str, list[float]]]()
    for row in trial.span_rows:
        sums[f"{row.stage}/{row.thread}/{row.name}"] += row.end_ns - row.start_ns
        numbers[f"{row.stage}/{row.thread}"] += 1
    for row in trial.lost_rows:
        loop = f"{row.stage}/{row.thread}"
        sums[f"{loop}/{row.name}"] += row.ns
        numbers[loop] += row.number
        lost.setdefault(loop, {})[row.name] = [row.number, row.ns / 1e6]
    return {
        "host_growth": host_growth(trial.span_rows, trial.lost_rows),
        "spans_ms": {name: ns / 1e6 for name, ns in sums.items()},
        "span_numbers": dict(numbers),
        "spans_lost": lost,
    }


def _outputs(trial: Trial) -> list[list[str | None]]:
    """Hashes of each request's tokens, codes and samples."""
    return [[record.text_sha, record.codes_sha, record.audio_sha] for record in trial.records]


def _per_request(trial: Trial) -> dict[str, list[float | None]]:
    done = [record for record in trial.records if record.error is None]
    return {name: [function(record) for record in done] for name, function in PER_REQUEST.items()}
