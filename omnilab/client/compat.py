"""The metrics of `vllm bench serve --omni`, by its definitions: 0.30.0's for every run, 0.16.0's to read old reports.

Both have their quirks (docs/bench.md lists them); `omnilab.metrics` has the corrected ones. What is undefined is not in
a list: neither version's zeros for requests without text or audio are taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from omnilab import metrics
from omnilab.client.reading import Reading
from omnilab.trial import RequestRecord

CONTINUOUS_S = 0.1  # an underrun up to this is no gap that a listener hears


class Named(NamedTuple):
    """How 0.30 prints a metric."""

    title: str
    short: str
    unit: str


METRICS = {
    "e2el_ms": Named("End-to-end Latency", "E2EL", "ms"),
    "ttft_ms": Named("Time to First Token", "TTFT", "ms"),
    "tpot_ms": Named("Time per Output Token (excl. 1st token)", "TPOT", "ms"),
    "itl_ms": Named("Inter-token Latency", "ITL", "ms"),
    "audio_ttfp_ms": Named("Time to First Packet", "AUDIO_TTFP", "ms"),
    "audio_rtf": Named("Real Time Factor", "AUDIO_RTF", ""),
    "audio_duration_s": Named("Audio Duration", "AUDIO_DURATION", "s"),
    "audio_underrun_s": Named("Streaming Audio Underrun", "AUDIO_UNDERRUN", "s"),
}


def samples(records: Iterable[RequestRecord]) -> dict[str, list[float]]:
    """Return the values of each of METRICS over requests that succeeded; `itl_ms` has every gap of all of them."""
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for record in records:
        gaps = itls_s(record)
        one = {
            "e2el_ms": metrics.e2el_ms(record), "ttft_ms": metrics.ttft_ms(record), "tpot_ms": _tpot_ms(gaps),
            "audio_ttfp_ms": metrics.audio_ttfp_ms(record), "audio_rtf": metrics.audio_rtf(record),
            "audio_duration_s": metrics.audio_s(record), "audio_underrun_s": underrun_s(record),
        }  # fmt: skip
        found["itl_ms"] += [1e3 * gap for gap in gaps]
        for name, value in one.items():
            if value is not None:
                found[name].append(value)
    return found


def itls_s(record: RequestRecord) -> list[float]:
    """Return a gap a token after the first: an event's gap is shared by its tokens, the first event's others are 0."""
    if not record.text_times_s:
        return []
    gaps = [0.0] * (record.text_token_counts[0] - 1)
    later = zip(np.diff(record.text_times_s).tolist(), record.text_token_counts[1:], strict=True)
    return gaps + [gap / count for gap, count in later for _ in range(count)]


def underrun_s(record: RequestRecord) -> float | None:
    """Return the largest deficit of a player that starts with the first packet; its clock never waits for a stall."""
    if not record.audio_times_s or not record.audio_s:
        return None
    second = record.audio_s / sum(record.audio_samples)  # of one sample
    before = [0, *accumulate(record.audio_samples)]
    late = zip(record.audio_times_s, before, strict=False)
    return max(time_s - record.audio_times_s[0] - samples * second for time_s, samples in late)


def continuity(records: Iterable[RequestRecord]) -> float | None:
    """Return the share of requests with audio whose underrun is at most CONTINUOUS_S."""
    found = [late <= CONTINUOUS_S for record in records if (late := underrun_s(record)) is not None]
    return sum(found) / len(found) if found else None


def peak_tokens_a_second(records: Sequence[RequestRecord]) -> float | None:
    """Return the most tokens in one of the seconds since the first start; those of an event spread over its gap."""
    first = min((record.start_s for record in records), default=0.0)
    found: Counter[int] = Counter()
    for record in records:
        before: float | None = None
        for time_s, count in zip(record.text_times_s, record.text_token_counts, strict=True):
            gap = 0.0 if before is None else time_s - before
            found.update(int(time_s - gap * later / count - first) for later in range(count))
            before = time_s
    return float(max(found.values())) if found else None


def peak_concurrency(records: Sequence[RequestRecord]) -> int | None:
    """Return the most requests that touch one of the seconds since the first start: more than run at any moment."""
    first = min((record.start_s for record in records), default=0.0)
    found: Counter[int] = Counter()
    for record in records:
        if record.end_s is not None:
            found.update(range(int(record.start_s - first), int(record.end_s - first) + 1))
    return max(found.values()) if found else None


@dataclass(frozen=True, slots=True)
class Old:
    """One request by 0.16's definitions. Text chunks count, the empty opener too, and only `num_tokens_out`."""

    ttft_ms: float | None
    itls_ms: list[float]
    tpot_ms: float | None
    input_tokens: int
    output_tokens: int
    peak_tokens_a_second: int


def by_0_16(reading: Reading, start_ns: int, prompt_len: int) -> Old:
    """Return what 0.16's client makes of a stream; `prompt_len` is its own count of the prompt, without a template."""
    at = [(ns - start_ns) / 1e6 for ns in reading.text_chunks_ns]
    told = reading.metrics.get("num_tokens_out")
    tokens = told if isinstance(told, int) else 0
    seconds = Counter(int(ms // 1e3) for ms in at)
    return Old(
        ttft_ms=at[0] if at else None,
        itls_ms=np.diff(at).tolist() if at else [],
        tpot_ms=(at[-1] - at[0]) / (tokens - 1) if at and tokens > 1 else None,
        input_tokens=prompt_len,
        output_tokens=tokens,
        peak_tokens_a_second=max(seconds.values(), default=0),
    )


def _tpot_ms(gaps: Sequence[float]) -> float | None:
    """Mean gap; all of them 0 means that the tokens came in one piece, so that none was measured."""
    return 1e3 * sum(gaps) / len(gaps) if any(gaps) else None
