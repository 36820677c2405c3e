"""A kept trial as OpenTelemetry: a trace a request, a span a stage.

Attributes follow OpenTelemetry's conventions for generative AI (`gen_ai.*`) where they have one, else `omnilab.*`. Ids
are made of what they name, so that the same trial gives the same traces each time. Span rows hold the host's monotonic
clock; a run knows the wall clock only where it started, to a second. So its first row is put there, plus the seconds
that opening the stages took by trials.jsonl: distances are exact, the date is good to some seconds.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.checks.recount import read_rows
from omnilab.experiment.results import read_run
from omnilab.metrics import audio_rtf, audio_ttfp_ms, ttft_ms
from omnilab.profile.arrows import STAGES
from omnilab.profile.chrome import from_run, span_rows
from omnilab.profile.order import pieces_of
from omnilab.profile.path import rows_by_request
from omnilab.record import SpanRow
from omnilab.trial import RequestRecord
from omnilab.workload import derive_seed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, Tracer

Attributes: TypeAlias = dict[str, Any]
EXTRA = "pip install 'omnilab[export]'"
UNREADABLE = (OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTrial:
    """One trial with what its traces say beside its rows. `wall_ns` is what to add to its clock to get Unix time."""

    records: Sequence[RequestRecord]
    rows: Sequence[SpanRow]
    wall_ns: int
    attributes: Mapping[str, Any]  # of every request
    sampling: Sequence[Mapping[str, Any]] = ()  # by index of request
    key: str = ""  # what its ids are made of


def read_trial(folder: Path, variant: str, block: int | None = None) -> ToldTrial:
    """Read a trial of a run folder; errors are those of `chrome.from_run`."""
    frame = from_run(folder, variant, block)
    run, lines = read_run(folder)
    block = int(frame["block"].iloc[0])
    ours = [line for line in lines if (line["kind"], line["variant"], line["block"]) == ("trial", variant, block)]
    line = next((line for line in ours if not line.get("error")), ours[0])
    try:
        files = [name for name in line["files"] if not name.startswith("spans.parquet/")]
        records, wall_ns = read_rows(folder, files).records, _wall_ns(folder, run, lines)
    except UNREADABLE as error:
        raise RunFolderError(f"{folder}: is damaged: {type(error).__name__}: {error}") from error
    about = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "omnilab", "gen_ai.output.type": "speech",
        "gen_ai.request.model": run["model"], "omnilab.experiment": run["experiment"], "omnilab.variant": variant,
        "omnilab.block": block,
    }  # fmt: skip
    return ToldTrial(
        records=records,
        rows=span_rows(frame),
        wall_ns=wall_ns,
        attributes=about,
        sampling=[
            {**request["sampling"], "seed": derive_seed(run["workload_seeds"][block], index, 0)}  # as with_seed gave it
            for index, request in enumerate(run["workload"]["requests"])
        ],
        key=f"{run['plan_hash']} {run['started']} {variant} {block}",
    )


def traces(trial: ToldTrial) -> list[list[ReadableSpan]]:
    """Return the ended spans of each request: its stages, then itself. BadInput without the extra `export`."""
    needs_sdk()
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), _provider(trial.key)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer, found = provider.get_tracer("omnilab"), list[list[Any]]()
    by_request, busy, at = rows_by_request(trial.rows), _busy(trial), _Clock(trial.wall_ns + _start_ns(trial))
    for record in trial.records:
        root = tracer.start_span(
            f"chat {trial.attributes['gen_ai.request.model']}",
            kind=_server(),
            attributes=_of_request(trial, record),
            start_time=at.seconds(record.start_s),
        )
        _events_of_request(root, record, at)
        for stage in STAGES:
            rows = [row for row in by_request.get(record.request_id, ()) if row.stage == stage]
            if rows:
                _add_stage(tracer, root, stage, rows, busy[record.request_id, stage], trial.wall_ns)
        root.end(at.seconds(record.end_s if record.end_s is not None else record.start_s))
        found.append(list(kept.get_finished_spans()))
        kept.clear()
    provider.shutdown()
    return found


class _Clock:
    """Seconds of a trial as Unix nanoseconds."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns

    def seconds(self, seconds: float) -> int:
        return self._start_ns + round(seconds * 1e9)


def needs_sdk() -> None:
    """Raise BadInput, naming the extra, where OpenTelemetry is not installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise BadInput(f"OpenTelemetry is not installed: {EXTRA}")


def _server() -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind.SERVER


def _provider(key: str) -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    class Named(IdGenerator):
        """Ids that depend on the trial and their number only."""

        def __init__(self) -> None:
            self._made = 0

        def _next(self, bits: int) -> int:
            self._made += 1
            digest = hashlib.sha256(f"{key} {self._made}".encode()).digest()
            return int.from_bytes(digest[: bits // 8], "big") or 1

        def generate_span_id(self) -> int:
            return self._next(64)

        def generate_trace_id(self) -> int:
            return self._next(128)

    # not Resource.create: that gives each call an instance id of its own
    resource = Resource({"service.name": "omnilab"}).merge(OTELResourceDetector().detect())
    return TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=Named(), shutdown_on_exit=False)


def _of_request(trial: ToldTrial, record: RequestRecord) -> Attributes:
    sampling = trial.sampling[record.index] if record.index < len(trial.sampling) else {}
    first_text, first_audio = ttft_ms(record), audio_ttfp_ms(record)
    found = {
        **trial.attributes,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.finish_reasons": [record.finish_reason] if record.finish_reason else None,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.request.max_tokens": sampling.get("max_text_tokens"),
        "gen_ai.request.temperature": sampling.get("temperature"),
        "gen_ai.request.seed": sampling.get("seed"),
        "gen_ai.response.time_to_first_chunk": None if first_text is None else first_text / 1e3,
        "omnilab.audio.time_to_first_packet": None if first_audio is None else first_audio / 1e3,
        "omnilab.audio.seconds": record.audio_s,
        "omnilab.audio.frames": record.frames,
        "omnilab.audio.rtf": audio_rtf(record),
        "error.type": "request_failed" if record.error else None,
        "error.message": record.error,
    }
    return {name: value for name, value in found.items() if value is not None}


def _events_of_request(root: Span, record: RequestRecord, at: _Clock) -> None:
    from opentelemetry.trace import StatusCode

    for name, times in (("first text", record.text_times_s), ("first audio", record.audio_times_s)):
        if times:
            root.add_event(name, timestamp=at.seconds(times[0]))
    if record.error:
        root.set_status(StatusCode.ERROR, record.error)


def _busy(trial: ToldTrial) -> dict[tuple[str, str], dict[str, float]]:
    """Return by request and stage the ms of each span name in the steps that served it, those of batches in full."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    every = {record.request_id for record in trial.records}
    for piece in pieces_of(trial.rows):
        for request in every if piece.serves is None else piece.serves & every:
            found[request, piece.stage][piece.name] += (piece.end - piece.start) / 1e6
    return found


def _add_stage(
    tracer: Tracer, root: Span, stage: str, rows: Sequence[SpanRow], busy: Mapping[str, float], wall_ns: int
) -> None:
    """Add the span of a stage: from the request's first row there to its last, with what it did in between."""
    from opentelemetry.trace import set_span_in_context

    attributes: Attributes = {"omnilab.stage": stage}
    attributes |= {f"omnilab.busy_ms.{name}": round(ms, 6) for name, ms in sorted(busy.items())}
    for name, word in (("get", "taken"), ("put", "sent")):
        chunks = [row for row in rows if row.name == name]
        attributes |= {f"omnilab.chunks.{word}": len(chunks)} if chunks else {}
        if chunks and all(row.num_bytes >= 0 for row in chunks):
            attributes[f"omnilab.bytes.{word}"] = sum(row.num_bytes for row in chunks)
    span = tracer.start_span(
        stage,
        context=set_span_in_context(root),
        attributes=attributes,
        start_time=wall_ns + min(row.start_ns for row in rows),
    )
    for name, word in (("get", "first chunk taken"), ("put", "first chunk sent"), ("vocode", "first audio")):
        ends = [row.end_ns for row in rows if row.name == name]
        if ends:
            span.add_event(word, timestamp=wall_ns + min(ends))
    span.end(wall_ns + max(row.end_ns for row in rows))


def _start_ns(trial: ToldTrial) -> int:
    """Return where the trial's seconds begin on the clock of its rows: no request has a row before its start."""
    firsts: dict[str, int] = {}
    for row in trial.rows:
        firsts[row.request] = min(row.start_ns, firsts.get(row.request, row.start_ns))
    latest = [firsts[r.request_id] - round(r.start_s * 1e9) for r in trial.records if r.request_id in firsts]
    return min(latest or firsts.values())


def _wall_ns(folder: Path, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> int:
    """Return what to add to the clock of a run's rows to get Unix time."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    started_ns = round(datetime.strptime(run["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp() * 1e9)
    passed = 0.0
    for line in lines:
        for name in line.get("files") or ():
            if name.startswith("spans.parquet/") and (folder / name).is_file():
                starts = pq.ParquetFile(folder / name).read(columns=["start_ns"])["start_ns"]
                if len(starts):
                    return started_ns + round(passed * 1e9) - pc.call_function("min", [starts]).as_py()
        passed += line.get("seconds") or 0.0
    raise ValueError("no span rows")
