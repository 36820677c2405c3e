"""What one trial gave: a record a request, spans, counters, and the metrics made of them.

A metric of requests is the median over those that succeeded; `omnilab.metrics` defines them all. Needs neither torch
nor, before a table is asked for, pandas.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from omnilab import metrics, show
from omnilab.clock import Clock
from omnilab.metrics import host_growth, span_totals
from omnilab.record import CounterRow, LostRow, SpanRow

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["RequestRecord", "Trial", "edge_of", "host_growth", "request_row", "span_totals"]


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request as its caller saw it. Times are seconds from the trial's start, one clock."""

    index: int
    request_id: str
    start_s: float
    end_s: float | None = None
    text_times_s: list[float] = field(default_factory=list)  # a time per text event ...
    text_token_counts: list[int] = field(default_factory=list)  # ... and the tokens it brought
    audio_times_s: list[float] = field(default_factory=list)  # a time per audio chunk ...
    audio_samples: list[int] = field(default_factory=list)  # ... and its samples
    input_tokens: int = 0
    output_tokens: int = 0
    frames: int = 0
    audio_s: float = 0.0
    finish_reason: str | None = None
    error: str | None = None
    token_ids: list[int] = field(default_factory=list)
    codes: NDArray[np.int64] | None = None  # [frames, G]
    audio: NDArray[np.float32] | None = None  # [samples]
    text: str | None = None  # as a server's client saw it, which may see no token ids

    @property
    def text_sha(self) -> str:
        """Hash of the text token ids, or of the text where there is one without ids."""
        if self.text is not None and not self.token_ids:
            return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return _sha(np.asarray(self.token_ids, dtype=np.int64))

    @property
    def codes_sha(self) -> str | None:
        """Hash of the codes; None when there are none."""
        return None if self.codes is None else _sha(np.asarray(self.codes, dtype=np.int64))

    @property
    def audio_sha(self) -> str | None:
        """Hash of the samples; None when there are none."""
        return None if self.audio is None else _sha(np.asarray(self.audio, dtype=np.float32))


class Trial:
    """One variant, measured once. `spans`, `counters` and `requests` are tables; the raw rows are beside them."""

    def __init__(
        self,
        records: Sequence[RequestRecord],
        spans: Sequence[SpanRow] = (),
        counters: Sequence[CounterRow] = (),
        *,
        lost: Sequence[LostRow] = (),
        wall_s: float = 0.0,
        cpu_s: Mapping[str, float] | None = None,
        occupants: Mapping[str, Mapping[str, str]] | None = None,
        sample_rate: int = 24000,
        clocks: Mapping[str, Clock] | None = None,
    ) -> None:
        """`lost` are the spans that full rings overwrote, `clocks` those of the stages' processes, by "stage/process".

        `cpu_s` is by stage, `occupants` by stage and seam, as each stage process reported them.
        """
        self.records = list(records)
        self.span_rows, self.counter_rows = list(spans), list(counters)
        self.lost_rows, self.clocks = list(lost), dict(clocks or {})
        self.wall_s, self.sample_rate = wall_s, sample_rate
        self.cpu_s = dict(cpu_s or {})
        self.occupants = {stage: dict(by_seam) for stage, by_seam in (occupants or {}).items()}

    @cached_property
    def metrics(self) -> dict[str, float | None]:
        """All METRICS."""
        done = [record for record in self.records if record.error is None]
        values = {name: metrics.median_of(function, done) for name, function in metrics.PER_REQUEST.items()}
        values["host_ms_per_step"] = metrics.host_ms_per_step(self.span_rows, self.counter_rows, self.lost_rows)
        values["cpu_s"] = sum(self.cpu_s.values()) if self.cpu_s else None
        values["wall_s"] = self.wall_s or None
        totals = {
            "request_throughput": len(done), "output_throughput": sum(r.output_tokens for r in done),
            "audio_throughput": sum(r.audio_s for r in done),
        }  # fmt: skip
        values |= {name: metrics.ratio(total, self.wall_s) for name, total in totals.items()}
        values |= {"completed": len(done), "failed": len(self.records) - len(done)}
        sums = ("input_tokens", "output_tokens", "frames")
        return values | {name: sum(getattr(record, name) for record in done) for name in sums}

    @cached_property
    def requests(self) -> DataFrame:
        """A row a request: times in seconds, lengths, hashes, error."""
        import pandas as pd

        return pd.DataFrame([request_row(record) for record in self.records])

    @cached_property
    def counters(self) -> DataFrame:
        """Columns stage, thread, edge, counter, value; `edge` is where the counter's stage stands."""
        import pandas as pd

        table = pd.DataFrame(self.counter_rows, columns=list(CounterRow._fields))
        table.insert(2, "edge", [edge_of(row.stage, row.thread) for row in self.counter_rows])
        return table

    @cached_property
    def spans(self) -> DataFrame:
        """Columns stage, thread, name, request, chunk, start_ns, end_ns, num_bytes."""
        import pandas as pd

        return pd.DataFrame(self.span_rows, columns=list(SpanRow._fields))

    def __repr__(self) -> str:
        """Return one line."""
        done = sum(record.error is None for record in self.records)
        return f"<Trial of {len(self.records)} requests, {done} succeeded, {self.wall_s:.3g} s>"

    def _repr_html_(self) -> str:
        """Return metrics with their meaning, and spans by stage, as HTML."""
        known = [[name, show.amount(v, _unit(name))] for name, v in self.metrics.items() if v is not None]
        unknown = [name for name, value in self.metrics.items() if value is None]
        table = show.table(["metric", "value"], known, titles=metrics.METRICS)
        left = [table, *[show.line(f"undefined here: {', '.join(unknown)}", soft=True)] * bool(unknown)]
        errors = [f"request {record.index} failed: {record.error}" for record in self.records if record.error]
        spans = show.heading("Spans by stage") + self._span_table()
        head = show.heading("Trial", repr(self)[7:-1])
        return show.frame(head, *map(show.line, errors[:3]), show.columns("".join(left), spans))

    def _span_table(self) -> str:
        totals = span_totals(self.span_rows, self.lost_rows)
        number = Counter((row.stage, row.name) for row in self.span_rows)
        for row in self.lost_rows:
            number[row.stage, row.name] += row.number
        order = sorted(totals, key=lambda key: (_FLOW.get(key[0], 0), -totals[key]))
        rows = [
            [stage, name, f"{number[stage, name]:,}", show.amount(totals[stage, name], "ms")] for stage, name in order
        ]
        return show.table(["stage", "span", "number", "time, all loops"], rows, left=2)


_FLOW = {"thinker": 0, "talker": 1, "code2wav": 2}  # as data flows


def _unit(name: str) -> str:
    if name.endswith("throughput"):
        return "/s"
    return "ms" if "_ms" in name else "s" if name.endswith("_s") else ""


def edge_of(stage: str, thread: str) -> str | None:
    """Return the edge that a sending or receiving loop stands on, None for the others."""
    after = {"thinker": "thinker->talker", "talker": "talker->code2wav"}
    before = {"talker": "thinker->talker", "code2wav": "talker->code2wav"}
    return {"send": after, "receive": before}.get(thread, {}).get(stage)


def request_row(record: RequestRecord) -> dict[str, Any]:
    """Return a request as a flat row, its event times as lists, its outputs by hash."""
    text, audio = record.text_times_s, record.audio_times_s
    return {
        "index": record.index, "request_id": record.request_id, "start_s": record.start_s,
        "first_text_s": text[0] if text else None, "last_text_s": text[-1] if text else None,
        "first_audio_s": audio[0] if audio else None, "last_audio_s": audio[-1] if audio else None,
        "end_s": record.end_s, "input_tokens": record.input_tokens, "output_tokens": record.output_tokens,
        "frames": record.frames, "audio_s": record.audio_s, "finish_reason": record.finish_reason,
        "error": record.error, "text_sha": record.text_sha, "codes_sha": record.codes_sha,
        "audio_sha": record.audio_sha, "text_times_s": list(text), "text_token_counts": list(record.text_token_counts),
        "audio_times_s": list(audio), "audio_samples": list(record.audio_samples),
    }  # fmt: skip


def _sha(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
