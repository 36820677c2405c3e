"""A bench's result as one flat JSON object: the keys and units of vLLM-Omni 0.30's, and ours under names of their own.

Strict JSON: what is undefined is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from omnilab import metrics
from omnilab.client import compat
from omnilab.client.goodput import Goals
from omnilab.client.server import ServedTrial
from omnilab.trial import RequestRecord, Trial, request_row

DEFINITIONS = {
    "audio_rtf": "(last audio packet - request start) / audio seconds: the time to the first packet is in it",
    "e2el_ms": "request start to the last chunk, the one with the usage too, [DONE] not",
    "itl_ms": "a gap a token: the gap between text events, shared by the later one's tokens",
    "tpot_ms": "mean of a request's itl_ms",
    "audio_underrun_s": "largest deficit of a player that starts with the first packet, on the chat path too",
    "audio_continuity_ok_rate": f"requests with audio_underrun_s of at most {compat.CONTINUOUS_S} s / those with audio",
    "max_concurrent_requests": "most requests that touch one second: an over-count",
    "total_audio_frames": "audio samples of one channel, as vLLM-Omni counts them; not codec frames",
    "start": "connection, upload and the server's queue are in every time; waiting for --max-concurrency is not",
    "stamp": "every event has the time of the socket read that brought its last byte",
    "failed": "refused, cut, timed out, empty and unreadable answers: in no latency, their time is in duration",
    "percentile": "linear interpolation, as numpy's",
    "event_gap_ms": "gap between two text events of a request, however many tokens they bring; all requests pooled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was asked of a bench, as its result says it."""

    backend: str
    model: str
    tokenizer: str | None = None
    num_prompts: int
    request_rate: float | None = None  # None: all at once
    burstiness: float | None = None
    max_concurrency: int | None = None
    percentiles: Sequence[float] = (50, 90, 99)
    goals: Goals = field(default_factory=Goals)
    more: Mapping[str, Any] = field(default_factory=dict)  # under names that 0.30 does not have


def summary(trial: Trial, setting: Setting) -> dict[str, Any]:
    """Return the result, keys in 0.30's order, ours after them."""
    done = [record for record in trial.records if record.error is None]
    return (
        _head(setting)
        | _totals(trial, done, setting)
        | _latencies(done, setting)
        | _detail(trial)
        | _ours(trial, done, setting)
    )


def spread(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    """Return mean, median and percentiles by name; None without values."""
    names = ["mean", "median", *(f"p{p:g}" for p in percentiles)]
    if not values:
        return dict.fromkeys(names)
    found = [np.mean(values), np.median(values), *np.percentile(values, percentiles)]
    return {name: float(value) for name, value in zip(names, found, strict=True)}


def _head(setting: Setting) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), "endpoint_type": setting.backend,
        "backend": setting.backend, "label": None, "model_id": setting.model, "tokenizer_id": setting.tokenizer,
        "num_prompts": setting.num_prompts, "max_concurrency": setting.max_concurrency,
        "request_rate": "inf" if setting.request_rate is None else setting.request_rate,
        "burstiness": 1.0 if setting.burstiness is None else setting.burstiness,
    }  # fmt: skip


def _totals(trial: Trial, done: Sequence[RequestRecord], setting: Setting) -> dict[str, Any]:
    wall, read, written = trial.wall_s, sum(r.input_tokens for r in done), sum(r.output_tokens for r in done)
    audio_s = sum(r.audio_s for r in done)
    good = None if not setting.goals else metrics.ratio(sum(map(setting.goals.met, done)), wall)
    return {
        "duration": wall, "completed": len(done), "failed": len(trial.records) - len(done),
        "total_input_tokens": read, "total_output_tokens": written,
        "request_throughput": metrics.ratio(len(done), wall), "request_goodput": good,
        "output_throughput": metrics.ratio(written, wall),
        "total_token_throughput": metrics.ratio(read + written, wall),
        "total_audio_duration_s": audio_s, "total_audio_frames": sum(sum(r.audio_samples) for r in done),
        "audio_throughput": metrics.ratio(audio_s, wall), "rtfx": metrics.ratio(audio_s, wall),
        "max_output_tokens_per_s": compat.peak_tokens_a_second(done),
        "max_concurrent_requests": compat.peak_concurrency(done),
        "audio_continuity_ok_rate": compat.continuity(done),
    }  # fmt: skip


def _latencies(done: Sequence[RequestRecord], setting: Setting) -> dict[str, Any]:
    found = compat.samples(done)
    rows = {
        f"{which}_{name}": value
        for name, values in found.items()
        for which, value in spread(values, setting.percentiles).items()
    }
    counted = ("ttft_ms", "tpot_ms", "itl_ms", "audio_ttfp_ms", "audio_rtf")
    return rows | {f"num_{name.removesuffix('_ms')}_samples": len(found[name]) for name in counted}


def _detail(trial: Trial) -> dict[str, Any]:
    """A list entry a request, failed ones too, in seconds."""
    good = [(record, record.error is None) for record in trial.records]
    return {
        "input_lens": [record.input_tokens for record, _ in good],
        "output_lens": [record.output_tokens if ok else 0 for record, ok in good],
        "ttfts": [_seconds(metrics.ttft_ms(record)) if ok else None for record, ok in good],
        "itls": [compat.itls_s(record) if ok else [] for record, ok in good],
        "generated_texts": [record.text or "" for record, _ in good],
        "errors": [record.error or "" for record, _ in good],
        "start_times": [record.start_s for record, _ in good],
    }  # fmt: skip


def _ours(trial: Trial, done: Sequence[RequestRecord], setting: Setting) -> dict[str, Any]:
    served = isinstance(trial, ServedTrial)
    told = trial.server_metrics if served else [{}] * len(trial.records)
    rows = [
        {**request_row(record), **{name: one(record) for name, one in metrics.PER_REQUEST.items()}, "server": said}
        for record, said in zip(trial.records, told, strict=True)
    ]
    gaps = [1e3 * gap for record in done for gap in np.diff(record.text_times_s).tolist()]
    values = {name: [v for r in done if (v := one(r)) is not None] for name, one in metrics.PER_REQUEST.items()}
    values["event_gap_ms"] = gaps
    return {
        "corrected": {
            name: {**spread(found, setting.percentiles), "samples": len(found)} for name, found in values.items()
        },
        "client_lag_ms": trial.client_lag_ms if served else None,
        "errors_by_class": dict(Counter(r.error.partition(":")[0] for r in trial.records if r.error)),
        "ended_at_length": sum(record.finish_reason == "length" for record in done),
        "goodput": setting.goals.limits, "server_metrics": medians(told), "trial_metrics": trial.metrics,
        "requests": rows, "definitions": {**metrics.METRICS, **DEFINITIONS}, **setting.more,
    }  # fmt: skip


def medians(told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of every number that a server said of its requests; names of nested ones have dots."""
    found: dict[str, list[float]] = {}
    for one in told:
        for name, value in _leaves(one, ""):
            found.setdefault(name, []).append(value)
    return {name: float(np.median(values)) for name, values in found.items()}


def _leaves(value: Any, name: str) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{name}.{key}" if name else str(key))]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
    return [(name, float(value))] if is_number and name != "stage_id" else []


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3
