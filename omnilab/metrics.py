"""Definitions of the metrics: pure functions over a request's times, spans and counters.

What is undefined is None, never 0 or NaN. METRICS says each in words, so that it can be printed beside the number.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from omnilab.record import CounterRow, LostRow, SpanRow
    from omnilab.trial import RequestRecord

METRICS = {
    "ttft_ms": "request start to first text tokens",
    "tpot_ms": "(last text - first text) / (text tokens - those of the first event)",
    "itl_ms": "gap between text events, divided over the tokens of the later one",
    "e2el_ms": "request start to its end, audio included",
    "audio_ttfp_ms": "request start to first audio packet",
    "audio_rtf": "(last audio - request start) / audio seconds; includes the time to the first packet",
    "audio_underrun_s": "seconds that a player, started by the first audio packet, stands still for want of the next",
    "audio_s": "seconds of audio of a request",
    "host_ms_per_step": "Talker's spans get, accumulate, pickle, unpickle, merge, on all its threads / its steps",
    "cpu_s": "processor seconds of all stage processes over the trial",
    "wall_s": "start of the trial to the end of its last request",
    "request_throughput": "requests completed / wall_s",
    "output_throughput": "text tokens / wall_s",
    "audio_throughput": "audio seconds / wall_s",
    "completed": "requests that succeeded",
    "failed": "requests that failed; they are in no other metric, but their time is in wall_s",
    "input_tokens": "prompt tokens of all requests",
    "output_tokens": "text tokens of all requests",
    "frames": "audio frames of all requests",
}  # fmt: skip
# A verdict can be on any of these; more of a throughput is better, less of the others.
THROUGHPUTS = ("request_throughput", "output_throughput", "audio_throughput")
VERDICT_METRICS = (
    "wall_s", "host_ms_per_step", "cpu_s", "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "audio_ttfp_ms", "audio_rtf",
    *THROUGHPUTS,
)  # fmt: skip
# What a Talker does for its chunks on the host. Not the forward, not waiting: `transport` is the time a pickle is under
# way, in which the worker also computes, so it would count the forward.
HOST_SPANS = ("get", "accumulate", "pickle", "unpickle", "merge")


def ttft_ms(record: RequestRecord) -> float | None:
    """Time to the first text tokens in ms."""
    return (record.text_times_s[0] - record.start_s) * 1e3 if record.text_times_s else None


def tpot_ms(record: RequestRecord) -> float | None:
    """Time per text token after the first event in ms; None with a single event."""
    later = sum(record.text_token_counts[1:])
    return (record.text_times_s[-1] - record.text_times_s[0]) * 1e3 / later if later else None


def itl_ms(record: RequestRecord) -> float | None:
    """Median gap between text tokens in ms; an event of k tokens gives k equal gaps."""
    gaps = np.diff(record.text_times_s) * 1e3
    counts = record.text_token_counts[1:]
    each = [gap / count for gap, count in zip(gaps.tolist(), counts, strict=True) for _ in range(count)]
    return statistics.median(each) if each else None


def e2el_ms(record: RequestRecord) -> float | None:
    """Request start to its end in ms."""
    return None if record.end_s is None else (record.end_s - record.start_s) * 1e3


def audio_ttfp_ms(record: RequestRecord) -> float | None:
    """Time to the first audio packet in ms."""
    return (record.audio_times_s[0] - record.start_s) * 1e3 if record.audio_times_s else None


def audio_rtf(record: RequestRecord) -> float | None:
    """(last audio - start) / audio seconds; includes the time to the first packet."""
    return ratio(record.audio_times_s[-1] - record.start_s, record.audio_s) if record.audio_times_s else None


def audio_underrun_s(record: RequestRecord) -> float | None:
    """Seconds that a player stands still after it started with the first packet; a stall moves its clock."""
    if not record.audio_times_s or not sum(record.audio_samples):
        return None
    second = record.audio_s / sum(record.audio_samples)  # of one sample
    stalled, plays_until = 0.0, record.audio_times_s[0]
    for time_s, samples in zip(record.audio_times_s, record.audio_samples, strict=True):
        stalled += max(0.0, time_s - plays_until)
        plays_until = max(plays_until, time_s) + samples * second
    return stalled


def median_of(function: Callable[[RequestRecord], float | None], records: Iterable[RequestRecord]) -> float | None:
    """Median of a per-request metric over the requests where it is defined."""
    values = [value for record in records if (value := function(record)) is not None]
    return statistics.median(values) if values else None


def span_totals(spans: Iterable[SpanRow], lost: Iterable[LostRow] = ()) -> dict[tuple[str, str], float]:
    """Return ms by (stage, name), those that a full ring overwrote included."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for row in spans:
        totals[row.stage, row.name] += row.end_ns - row.start_ns
    for row in lost:
        totals[row.stage, row.name] += row.ns
    return {key: total / 1e6 for key, total in totals.items()}


def counter_totals(counters: Iterable[CounterRow]) -> dict[tuple[str, str], int]:
    """Return counts by (stage, counter), over the stage's loops."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for row in counters:
        totals[row.stage, row.counter] += row.value
    return dict(totals)


def host_ms_per_step(
    spans: Iterable[SpanRow], counters: Iterable[CounterRow], lost: Iterable[LostRow] = ()
) -> float | None:
    """Return the Talker's HOST_SPANS in ms over its counter `steps`; None without steps or without such spans."""
    totals = span_totals(spans, lost)
    host = [totals[key] for name in HOST_SPANS if (key := ("talker", name)) in totals]
    return ratio(sum(host), counter_totals(counters).get(("talker", "steps"), 0)) if host else None


def host_growth(spans: Iterable[SpanRow], lost: Iterable[LostRow] = ()) -> float | None:
    """Return the Talker's host work per chunk-consuming step, last tenth over first tenth; None below 100 such steps.

    A step that consumes a chunk ends its host work with a merge; its work is what HOST_SPANS took since the last one.
    The step of the prefill's chunk, and steps after the one that took the last chunk, are left out. None also where
    the first of these spans are lost.
    """
    if any(row.stage == "talker" and row.name in HOST_SPANS for row in lost):
        return None
    host = sorted((r for r in spans if r.stage == "talker" and r.name in HOST_SPANS), key=lambda row: row.end_ns)
    chunks = [row.end_ns for row in host if row.name == "accumulate"]
    merges = [row.end_ns for row in host if row.name == "merge"]
    if not chunks:
        return None
    merges = merges[: int(np.searchsorted(merges, chunks[-1])) + 1]
    step = np.searchsorted(merges, [row.end_ns for row in host])  # index of the first merge that ends no earlier
    work = np.bincount(step, [row.end_ns - row.start_ns for row in host], len(merges) + 1)[1 : len(merges)]
    tenth = len(work) // 10
    return ratio(float(work[-tenth:].mean()), float(work[:tenth].mean())) if tenth >= 10 else None


def audio_s(record: RequestRecord) -> float | None:
    """Seconds of audio; None without any."""
    return record.audio_s or None


def ratio(numerator: float, denominator: float) -> float | None:
    """Quotient; None where the denominator is 0."""
    return numerator / denominator if denominator else None


PER_REQUEST: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft_ms": ttft_ms,
    "tpot_ms": tpot_ms,
    "itl_ms": itl_ms,
    "e2el_ms": e2el_ms,
    "audio_ttfp_ms": audio_ttfp_ms,
    "audio_rtf": audio_rtf,
    "audio_underrun_s": audio_underrun_s,
    "audio_s": audio_s,
}
