"""A bench's result as text: laid out as vLLM-Omni 0.30 prints its own, then what omnilab adds to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnilab.client import compat

WIDTH = 50
TEXT = ("ttft_ms", "tpot_ms", "itl_ms")
AUDIO = ("audio_ttfp_ms", "audio_rtf", "audio_duration_s", "audio_underrun_s")
MOST_SERVER_LINES = 24
CORRECTED = {
    "ttft_ms": "First text (ms)",
    "event_gap_ms": "Gap between text events (ms)",
    "audio_ttfp_ms": "First packet (ms)",
    "audio_rtf": "RTF, first packet's time included",
    "audio_underrun_s": "Silence while playing (s)",
}


def lines_of(result: Mapping[str, Any], percentiles: Sequence[float]) -> list[str]:
    """Return both parts of the report of a `summary`."""
    return [*theirs(result, percentiles), "", *ours(result, percentiles)]


def theirs(result: Mapping[str, Any], percentiles: Sequence[float]) -> list[str]:
    """Return the report in 0.30's layout; a metric without a sample has no block."""
    lines = [_title(" Serving Benchmark Result ", "="), *_run(result), *_block("e2el_ms", result, percentiles)]
    lines += [_title(" Text Result ", "="), *_text(result)]
    lines += [line for name in TEXT for line in _block(name, result, percentiles)]
    if result["total_audio_frames"]:
        lines += [_title(" Audio Result ", "="), *_audio(result)]
        lines += [line for name in AUDIO for line in _block(name, result, percentiles)]
    return [*lines, "=" * WIDTH]


def ours(result: Mapping[str, Any], percentiles: Sequence[float]) -> list[str]:
    """Return what 0.30 does not print, or prints by another definition."""
    lines = [_title(" omnilab ", "=")]
    for metric, label in CORRECTED.items():
        found = result["corrected"][metric]
        if found["samples"]:
            lines.append(_row(f"{label}:", ""))
            which = ("median", f"p{percentiles[-1]:g}") if percentiles else ("median",)
            lines += [_row(f"  {name} of {found['samples']:,}:", found[name]) for name in which]
    if (lag := result["client_lag_ms"]) is not None:
        shown = {f"  {name}:": value for name, value in lag.items() if value is not None}
        lines += [_row("The client's own lag (ms):", ""), *(_row(*pair) for pair in shown.items())]
    if told := result["server_metrics"]:
        lines.append(_row("As the server measured, medians:", ""))
        lines += [_row(f"  {name}:", value) for name, value in list(told.items())[:MOST_SERVER_LINES]]
    lines.append(_row("Ended at their limit (length):", result["ended_at_length"]))
    lines += [_row(f"Failed, {kind}:", count) for kind, count in result["errors_by_class"].items()]
    lines += [f"  request {row['index']}: {row['error']}" for row in _failed(result)[:3]]
    return [*lines, "=" * WIDTH]


def _run(result: Mapping[str, Any]) -> Iterator[str]:
    yield _row("Successful requests:", result["completed"])
    yield _row("Failed requests:", result["failed"])
    if result["max_concurrency"] is not None:
        yield _row("Maximum request concurrency:", result["max_concurrency"])
    if result["request_rate"] != "inf":
        yield _row("Request rate configured (RPS):", float(result["request_rate"]))
    yield _row("Benchmark duration (s):", result["duration"])
    yield _row("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _row("Request goodput (req/s):", result["request_goodput"])
    yield _row("Peak concurrent requests:", _float(result["max_concurrent_requests"]))


def _text(result: Mapping[str, Any]) -> Iterator[str]:
    yield _row("Total input tokens:", result["total_input_tokens"])
    yield _row("Total generated tokens:", result["total_output_tokens"])
    yield _row("Output token throughput (tok/s):", result["output_throughput"])
    yield _row("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    yield _row("Peak concurrent requests:", _float(result["max_concurrent_requests"]))
    yield _row("Total Token throughput (tok/s):", result["total_token_throughput"])


def _audio(result: Mapping[str, Any]) -> Iterator[str]:
    yield _row("Total audio duration generated(s):", result["total_audio_duration_s"])
    yield _row("Total audio frames generated:", result["total_audio_frames"])
    yield _row("Audio throughput(audio duration/s):", result["audio_throughput"])
    if (rate := result["audio_continuity_ok_rate"]) is not None:
        yield _row("Streaming continuity OK rate:", f"{rate:.2%}")


def _block(name: str, result: Mapping[str, Any], percentiles: Sequence[float]) -> Iterator[str]:
    if result[f"mean_{name}"] is None:
        return
    named = compat.METRICS[name]
    unit = f" ({named.unit})" if named.unit else ""
    yield _title(named.title, "-")
    for which in _names(percentiles):
        label = which.capitalize() if which in ("mean", "median") else which.upper()
        yield _row(f"{label} {named.short}{unit}:", result[f"{which}_{name}"])


def _names(percentiles: Sequence[float]) -> list[str]:
    return ["mean", "median", *(f"p{p:g}" for p in percentiles)]


def _failed(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result["requests"] if row["error"]]


def _title(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _row(label: str, value: float | int | str | None) -> str:
    shown = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {shown:<10}"


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


assert set(compat.METRICS) == {"e2el_ms", *TEXT, *AUDIO}
