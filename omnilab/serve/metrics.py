"""Prometheus metrics of a served pipeline, under the names of vLLM (`vllm:`) and vLLM-Omni (`vllm_omni:`).

Labels are theirs too: `stage` is the stage's number (0 Thinker, 1 Talker, 2 Code2Wav), `replica` is always 0 here.
Text is of stage 0, audio of stage 2. Two differ in what they measure: `vllm_omni:audio_rtf` is the whole request's time
over its audio (vLLM-Omni: the last stage's), and reason "error" also counts requests that their caller gave up.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from omnilab import metrics
from omnilab.errors import BadInput
from omnilab.profile.arrows import STAGES
from omnilab.record import SpanRow
from omnilab.trial import RequestRecord, edge_of

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TEXT, AUDIO = 0, 2  # stages
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
RATIOS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 4, 8, 16)  # below 1 a player does not have to wait
BYTES = tuple(4**power for power in range(4, 15))  # 256 bytes to 256 MiB
AUDIBLE_S = 0.1  # a gap that is heard
IN_STAGE = ("model_name", "stage", "replica")
ON_EDGE = ("model_name", "from_stage", "from_replica", "to_stage", "to_replica")


class PipelineMetrics:
    """What a served pipeline says of itself. Each has a registry of its own; any thread may call any method."""

    def __init__(self, model_name: str) -> None:
        """Make all families; BadInput where prometheus_client is not installed."""
        if find_spec("prometheus_client") is None:
            raise BadInput("prometheus_client is not installed: pip install 'omnilab[serve]'")
        from prometheus_client import CollectorRegistry

        self._model, self._registry = model_name, CollectorRegistry()
        self._running = self._gauge("vllm:num_requests_running", "requests in a stage that are computed")
        self._waiting = self._gauge("vllm:num_requests_waiting", "requests in a stage that wait to be computed")
        self._all_running = self._gauge("vllm_omni:num_requests_running", "requests in the pipeline", ("model_name",))
        self._all_waiting = self._gauge("vllm_omni:num_requests_waiting", "requests not yet admitted", ("model_name",))
        self._prompt = self._counter("vllm:prompt_tokens", "prompt tokens of finished requests")
        self._generation = self._counter("vllm:generation_tokens", "text tokens of finished requests")
        self._success = self._counter("vllm:request_success", "finished requests", (*IN_STAGE, "finished_reason"))
        self._all_success = self._counter(
            "vllm_omni:requests_success", "finished requests", ("model_name", "finished_reason")
        )
        self._ttft = self._seconds("vllm:time_to_first_token_seconds", "request start to first text token")
        self._itl = self._seconds("vllm:inter_token_latency_seconds", "time between text tokens")
        self._tpot = self._seconds("vllm:request_time_per_output_token_seconds", "a request's time a text token")
        self._text = self._seconds("vllm:e2e_request_latency_seconds", "request start to the stage's last output")
        self._all = self._seconds("vllm_omni:e2e_request_latency_s", "request start to its end", ("model_name",))
        self._ttfp = self._seconds("vllm_omni:audio_ttfp_s", "request start to first audio packet")
        self._duration = self._seconds("vllm_omni:audio_duration_s", "seconds of audio of a request")
        self._rtf = self._histogram("vllm_omni:audio_rtf", "time to the last audio / seconds of audio", RATIOS)
        self._samples = self._counter("vllm_omni:audio_frames", "audio frames (samples of one channel)")
        self._underrun = self._seconds("vllm_omni:audio_underrun_s", "seconds that a player stands still")
        self._continuous = self._counter(
            "vllm_omni:audio_continuity_ok", "requests that a player plays without a gap", (*IN_STAGE, "threshold_ms")
        )
        self._size = self._histogram("vllm_omni:transfer_size_bytes", "bytes of a chunk", BYTES, ON_EDGE)
        self._tx = self._seconds("vllm_omni:transfer_tx_s", "encoding and sending a chunk", ON_EDGE)
        self._rx = self._seconds("vllm_omni:transfer_rx_s", "taking and decoding a chunk", ON_EDGE)
        self._flight = self._seconds("vllm_omni:transfer_in_flight_s", "from sent to being taken", ON_EDGE)
        self.set_live(0)

    def set_live(self, running: int, waiting: int = 0) -> None:
        """Say how many requests are in the pipeline, and how many wait to be admitted."""
        self._all_running.labels(self._model).set(running)
        self._all_waiting.labels(self._model).set(waiting)

    def set_stage(self, stage: str, running: int, waiting: int = 0) -> None:
        """Say how many requests a stage computes and how many wait there; BadInput for an unknown stage."""
        labels = (self._model, *_stage_labels(stage))
        self._running.labels(*labels).set(running)
        self._waiting.labels(*labels).set(waiting)

    def observe(self, record: RequestRecord) -> None:
        """Take a request that has ended. One that failed counts under its reason, with no time and no tokens."""
        reason = "error" if record.error is not None else record.finish_reason or "stop"
        text, audio = (self._model, str(TEXT), "0"), (self._model, str(AUDIO), "0")
        self._success.labels(*text, reason).inc()
        self._all_success.labels(self._model, reason).inc()
        if record.error is not None:
            return
        self._prompt.labels(*text).inc(record.input_tokens)
        self._generation.labels(*text).inc(record.output_tokens)
        _observe(self._ttft.labels(*text), metrics.ttft_ms(record), 1e-3)
        _observe(self._tpot.labels(*text), metrics.tpot_ms(record), 1e-3)
        _observe(self._all.labels(self._model), metrics.e2el_ms(record), 1e-3)
        for gap in _token_gaps_s(record):
            self._itl.labels(*text).observe(gap)
        if record.text_times_s:
            self._text.labels(*text).observe(record.text_times_s[-1] - record.start_s)
        if not record.audio_times_s:
            return
        _observe(self._ttfp.labels(*audio), metrics.audio_ttfp_ms(record), 1e-3)
        _observe(self._duration.labels(*audio), metrics.audio_s(record))
        _observe(self._rtf.labels(*audio), metrics.audio_rtf(record))
        self._samples.labels(*audio).inc(sum(record.audio_samples))
        stalled = metrics.audio_underrun_s(record)
        _observe(self._underrun.labels(*audio), stalled)
        if stalled is not None:
            self._continuous.labels(*audio, f"{1e3 * AUDIBLE_S:.0f}").inc(stalled < AUDIBLE_S)

    def observe_chunks(self, spans: Iterable[SpanRow]) -> None:
        """Take the spans of chunks: `encode`, `put` and `get`; others are passed over."""
        sending: dict[tuple[str, str, int], int] = {}
        sent: dict[tuple[str, str, int], int] = {}
        for row in sorted((row for row in spans if row.name in ("encode", "put", "get")), key=lambda row: row.end_ns):
            edge = edge_of(row.stage, "receive" if row.name == "get" else "send") or ""
            key, took = (edge, row.request, row.chunk), row.end_ns - row.start_ns
            labels = (self._model, *_edge_labels(edge))
            if row.name == "encode":
                sending[key] = took
            elif row.name == "put":
                sent[key] = row.end_ns
                self._tx.labels(*labels).observe((sending.pop(key, 0) + took) / 1e9)
                if row.num_bytes >= 0:
                    self._size.labels(*labels).observe(row.num_bytes)
            else:
                self._rx.labels(*labels).observe(took / 1e9)
                if key in sent:
                    self._flight.labels(*labels).observe(max(0, row.start_ns - sent.pop(key)) / 1e9)

    def render(self) -> bytes:
        """Return the exposition format, to be sent as CONTENT_TYPE."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _gauge(self, name: str, said: str, labels: tuple[str, ...] = IN_STAGE) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(name, said, labels, registry=self._registry)

    def _counter(self, name: str, said: str, labels: tuple[str, ...] = IN_STAGE) -> Counter:
        from prometheus_client import Counter

        return Counter(name, said, labels, registry=self._registry)

    def _seconds(self, name: str, said: str, labels: tuple[str, ...] = IN_STAGE) -> Histogram:
        return self._histogram(name, said, SECONDS, labels)

    def _histogram(
        self, name: str, said: str, buckets: tuple[float, ...], labels: tuple[str, ...] = IN_STAGE
    ) -> Histogram:
        from prometheus_client import Histogram

        return Histogram(name, said, labels, registry=self._registry, buckets=buckets)


def _observe(histogram: Any, value: float | None, scale: float = 1) -> None:
    if value is not None:
        histogram.observe(value * scale)


def _token_gaps_s(record: RequestRecord) -> list[float]:
    """Return the time before each text token but those of the first event; an event of k tokens gives k equal gaps."""
    times, counts = record.text_times_s, record.text_token_counts[1:]
    return [(now - before) / k for (before, now), k in zip(pairwise(times), counts, strict=True) for _ in range(k)]


def _stage_labels(stage: str) -> tuple[str, str]:
    if stage not in STAGES:
        raise BadInput(f"no stage is named {stage!r}; there are {', '.join(STAGES)}")
    return str(STAGES.index(stage)), "0"


def _edge_labels(edge: str) -> tuple[str, ...]:
    producer, _, consumer = edge.partition("->")
    return (*_stage_labels(producer), *_stage_labels(consumer))
