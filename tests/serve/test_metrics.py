"""Prometheus metrics: what a scrape of a real pipeline's requests reads, by Prometheus's own parser."""

import threading
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omnilab.errors import BadInput
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt, Sampling
from omnilab.record import SpanRow
from omnilab.serve.metrics import PipelineMetrics
from omnilab.trial import RequestRecord
from omnilab.workload import Workload, closed

TEXT = {"model_name": "tiny", "stage": "0", "replica": "0"}
AUDIO = TEXT | {"stage": "2"}
WHOLE = {"model_name": "tiny"}
MS = 1_000_000
# what a dashboard that was made for vLLM-Omni looks for
THEIRS = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm_omni:num_requests_running": "gauge",
    "vllm_omni:num_requests_waiting": "gauge",
    "vllm_omni:requests_success": "counter",
    "vllm_omni:e2e_request_latency_s": "histogram",
    "vllm_omni:audio_ttfp_s": "histogram",
    "vllm_omni:audio_duration_s": "histogram",
    "vllm_omni:audio_rtf": "histogram",
    "vllm_omni:audio_frames": "counter",
    "vllm_omni:audio_underrun_s": "histogram",
    "vllm_omni:audio_continuity_ok": "counter",
    "vllm_omni:transfer_size_bytes": "histogram",
    "vllm_omni:transfer_tx_s": "histogram",
    "vllm_omni:transfer_rx_s": "histogram",
    "vllm_omni:transfer_in_flight_s": "histogram",
}


def scraped(metrics):
    """Parse what a scrape gets: value by name and labels."""
    families = list(text_string_to_metric_families(metrics.render().decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics, name, labels):
    return scraped(metrics)[name, frozenset(labels.items())]


def record(**changes):
    """A request of 5 text tokens in 3 events and of 2 s of audio in two packets, the second half a second late."""
    given = RequestRecord(
        index=0, request_id="r", start_s=10.0, end_s=13.0, text_times_s=[10.2, 10.3, 10.5], text_token_counts=[1, 2, 2],
        audio_times_s=[11.0, 12.5], audio_samples=[24000, 24000], input_tokens=7, output_tokens=5, frames=25,
        audio_s=2.0, finish_reason="stop",
    )  # fmt: skip
    return replace(given, **changes)


def test_the_families_are_those_of_vllm_and_vllm_omni():
    families = text_string_to_metric_families(PipelineMetrics("tiny").render().decode())
    found = {family.name: family.type for family in families if not family.name.endswith("_created")}
    assert found == THEIRS


def test_one_request():
    metrics = PipelineMetrics("tiny")
    metrics.observe(record())
    expected = {
        ("vllm:time_to_first_token_seconds_sum", "TEXT"): 0.2,
        ("vllm:inter_token_latency_seconds_sum", "TEXT"): 0.3,
        ("vllm:inter_token_latency_seconds_count", "TEXT"): 4,
        ("vllm:request_time_per_output_token_seconds_sum", "TEXT"): 0.3 / 4,
        ("vllm:e2e_request_latency_seconds_sum", "TEXT"): 0.5,
        ("vllm:prompt_tokens_total", "TEXT"): 7,
        ("vllm:generation_tokens_total", "TEXT"): 5,
        ("vllm_omni:e2e_request_latency_s_sum", "WHOLE"): 3.0,
        ("vllm_omni:audio_ttfp_s_sum", "AUDIO"): 1.0,
        ("vllm_omni:audio_duration_s_sum", "AUDIO"): 2.0,
        ("vllm_omni:audio_rtf_sum", "AUDIO"): 1.25,
        ("vllm_omni:audio_frames_total", "AUDIO"): 48000,
        ("vllm_omni:audio_underrun_s_sum", "AUDIO"): 0.5,
    }
    labels = {"TEXT": TEXT, "AUDIO": AUDIO, "WHOLE": WHOLE}
    found = {key: value(metrics, key[0], labels[key[1]]) for key in expected}
    assert found == pytest.approx(expected)
    assert value(metrics, "vllm:request_success_total", TEXT | {"finished_reason": "stop"}) == 1
    assert value(metrics, "vllm_omni:audio_rtf_bucket", AUDIO | {"le": "1.0"}) == 0
    assert value(metrics, "vllm_omni:audio_rtf_bucket", AUDIO | {"le": "1.25"}) == 1
    assert value(metrics, "vllm_omni:audio_continuity_ok_total", AUDIO | {"threshold_ms": "100"}) == 0
    metrics.observe(record(audio_times_s=[11.0, 12.05]))
    assert value(metrics, "vllm_omni:audio_continuity_ok_total", AUDIO | {"threshold_ms": "100"}) == 1


def test_a_failed_request_counts_and_has_no_time():
    metrics = PipelineMetrics("tiny")
    metrics.observe(record(error="the talker died", finish_reason="error"))
    assert value(metrics, "vllm_omni:requests_success_total", WHOLE | {"finished_reason": "error"}) == 1
    assert ("vllm:prompt_tokens_total", frozenset(TEXT.items())) not in scraped(metrics)


def test_a_request_without_audio_has_no_audio():
    metrics = PipelineMetrics("tiny")
    metrics.observe(record(audio_times_s=[], audio_samples=[], audio_s=0.0, frames=0))
    assert value(metrics, "vllm_omni:e2e_request_latency_s_count", WHOLE) == 1
    assert not [name for name, _ in scraped(metrics) if name.startswith("vllm_omni:audio")]


def test_chunks():
    metrics = PipelineMetrics("tiny")
    edge = {"model_name": "tiny", "from_stage": "0", "from_replica": "0", "to_stage": "1", "to_replica": "0"}
    metrics.observe_chunks([
        SpanRow("talker", "receive", "get", "r", 0, 9 * MS, 11 * MS, 5000),
        SpanRow("thinker", "send", "encode", "r", 0, 0, 1 * MS),
        SpanRow("thinker", "send", "put", "r", 0, 1 * MS, 4 * MS, 5000),
        SpanRow("thinker", "engine", "forward", "r", -1, 0, 50 * MS),
        SpanRow("thinker", "send", "put", "r", 1, 20 * MS, 21 * MS, 300),  # not taken yet
    ])  # fmt: skip
    expected = {"size_bytes": 5300, "tx_s": 0.005, "rx_s": 0.002, "in_flight_s": 0.005}
    found = {name: value(metrics, f"vllm_omni:transfer_{name}_sum", edge) for name in expected}
    assert found == pytest.approx(expected)
    assert value(metrics, "vllm_omni:transfer_tx_s_count", edge) == 2


def test_live_state():
    metrics = PipelineMetrics("tiny")
    assert value(metrics, "vllm_omni:num_requests_running", WHOLE) == 0
    metrics.set_live(running=3, waiting=1)
    metrics.set_stage("talker", running=2)
    assert value(metrics, "vllm_omni:num_requests_running", WHOLE) == 3
    assert value(metrics, "vllm_omni:num_requests_waiting", WHOLE) == 1
    assert value(metrics, "vllm:num_requests_running", TEXT | {"stage": "1"}) == 2
    with pytest.raises(BadInput, match="no stage is named 'speaker'; there are thinker, talker, code2wav"):
        metrics.set_stage("speaker", 1)


def test_two_pipelines_in_one_process_and_threads():
    one, other = PipelineMetrics("tiny"), PipelineMetrics("tiny")
    threads = [threading.Thread(target=lambda: [one.observe(record()) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(one, "vllm:prompt_tokens_total", TEXT) == 4 * 50 * 7
    assert "vllm:prompt_tokens_total{" not in other.render().decode()


def test_what_a_scrape_of_a_real_pipeline_reads():
    sampling = Sampling(max_text_tokens=6, max_frames=30, ignore_eos=True)
    prompts = [Prompt(text=text) for text in ("One.", "Where do rivers begin?", "Count to three.")]
    with Pipeline.open("tiny", topology="inline", connector="memory", timeout_s=20) as pipeline:
        trial = pipeline.run(Workload.prompts(prompts, sampling, arrivals=closed(2)))
    metrics = PipelineMetrics("tiny")
    for done in trial.records:
        metrics.observe(done)
    metrics.observe_chunks(trial.span_rows)
    found = scraped(metrics)
    assert value(metrics, "vllm:generation_tokens_total", TEXT) == trial.metrics["output_tokens"] == 18
    assert value(metrics, "vllm:prompt_tokens_total", TEXT) == trial.metrics["input_tokens"]
    ends = [done.end_s - done.start_s for done in trial.records]
    assert value(metrics, "vllm_omni:e2e_request_latency_s_sum", WHOLE) == pytest.approx(sum(ends))
    assert value(metrics, "vllm_omni:audio_duration_s_sum", AUDIO) == pytest.approx(
        sum(d.audio_s for d in trial.records)
    )
    puts = sum(row.name == "put" for row in trial.span_rows)
    assert sum(v for (name, _), v in found.items() if name == "vllm_omni:transfer_tx_s_count") == puts > 3
    sizes = sum(row.num_bytes for row in trial.span_rows if row.name == "put")
    assert sum(v for (name, _), v in found.items() if name == "vllm_omni:transfer_size_bytes_sum") == sizes > 0
