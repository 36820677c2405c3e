"""Metrics: their definitions on scripted times, what is undefined, the tables, host work and its growth."""

import json

import numpy as np
import pytest

from omnilab.experiment.results import strict_json
from omnilab.metrics import METRICS, host_growth, host_ms_per_step, span_totals
from omnilab.record import CounterRow, LostRow, SpanRow
from omnilab.trial import RequestRecord, Trial

MS = 1_000_000


def record(**changes):
    given = {"index": 0, "request_id": "r0", "start_s": 0.0, "end_s": 6.5}
    return RequestRecord(**{**given, **changes})


def test_rtf_includes_the_time_to_the_first_packet():
    spoken = record(audio_times_s=[2.0, 4.0, 6.0], audio_samples=[1, 1, 1], audio_s=4.0)
    metrics = Trial([spoken]).metrics
    assert metrics["audio_rtf"] == 1.5
    assert metrics["audio_ttfp_ms"] == 2000
    assert metrics["e2el_ms"] == 6500
    assert "includes the time to the first packet" in METRICS["audio_rtf"]


def test_a_player_stands_still_for_what_comes_late_and_a_stall_is_counted_once():
    # 2 s, 2 s, 4 s of sound at 1, 3.5 and 4 s: half a second late, then 1.5 s of stock.
    spoken = record(audio_times_s=[1.0, 3.5, 4.0], audio_samples=[2, 2, 4], audio_s=8.0)
    assert Trial([spoken]).metrics["audio_underrun_s"] == pytest.approx(0.5)
    in_time = record(audio_times_s=[1.0, 2.0], audio_samples=[2, 2], audio_s=4.0)
    assert Trial([in_time]).metrics["audio_underrun_s"] == 0
    assert Trial([record()]).metrics["audio_underrun_s"] is None


def test_tpot_and_itl_count_tokens_not_events():
    text = record(text_times_s=[0.0, 0.1, 0.2, 0.3], text_token_counts=[1, 4, 4, 1], output_tokens=10)
    metrics = Trial([text]).metrics
    assert metrics["tpot_ms"] == pytest.approx(300 / 9)
    assert metrics["itl_ms"] == pytest.approx(25)  # four gaps of 25, four of 25, one of 100


def test_text_and_audio_are_timed_apart():
    late_text = record(start_s=1.0, text_times_s=[1.7], text_token_counts=[1], audio_times_s=[1.5], audio_s=1.0)
    metrics = Trial([late_text]).metrics
    assert (metrics["audio_ttfp_ms"], metrics["ttft_ms"]) == (pytest.approx(500), pytest.approx(700))


@pytest.mark.parametrize(
    ("changes", "undefined"),
    [
        ({}, {"ttft_ms", "tpot_ms", "itl_ms", "audio_ttfp_ms", "audio_rtf", "audio_s"}),
        ({"text_times_s": [0.1], "text_token_counts": [1]}, {"tpot_ms", "itl_ms", "audio_ttfp_ms"}),
        ({"audio_times_s": [0.5], "audio_s": 0.0}, {"audio_rtf", "ttft_ms"}),
        ({"end_s": None}, {"e2el_ms"}),
    ],
)
def test_undefined_is_none(changes, undefined):
    metrics = Trial([record(**changes)], wall_s=1.0).metrics
    assert {name for name in undefined if metrics[name] is None} == undefined


def test_no_request_and_only_failed_requests_give_none_and_strict_json():
    for records in ([], [record(error="StageFailed: talker", text_times_s=[0.1], text_token_counts=[1])]):
        metrics = Trial(records).metrics
        assert metrics["ttft_ms"] is None
        assert metrics["wall_s"] is None
        assert metrics["failed"] == len(records)
        json.loads(strict_json(metrics), parse_constant=pytest.fail)
        assert set(metrics) == set(METRICS)


def test_failed_requests_are_left_out_and_medians_taken():
    fast, slow, broken = (
        record(text_times_s=[0.1], text_token_counts=[1], output_tokens=1),
        record(text_times_s=[0.3], text_token_counts=[1], output_tokens=1),
        record(text_times_s=[99.0], text_token_counts=[1], output_tokens=50, error="Timeout: code2wav"),
    )
    metrics = Trial([fast, slow, broken], wall_s=2.0, cpu_s={"thinker": 1.0, "talker": 0.5}).metrics
    assert metrics["ttft_ms"] == pytest.approx(200)
    assert (metrics["completed"], metrics["failed"], metrics["output_tokens"]) == (2, 1, 2)
    assert metrics["request_throughput"] == 1.0
    assert metrics["cpu_s"] == 1.5


def test_hashes_tell_outputs_apart():
    codes = np.arange(32).reshape(2, 16)
    spoken = record(token_ids=[1, 2], codes=codes, audio=np.zeros(10, dtype=np.float32))
    other = record(token_ids=[1, 3], codes=codes + 1, audio=np.ones(10, dtype=np.float32))
    assert spoken.text_sha != other.text_sha
    assert spoken.codes_sha != other.codes_sha
    assert spoken.audio_sha != other.audio_sha
    assert record().codes_sha is None


def test_tables():
    spans = [SpanRow("talker", "receive", "get", "r0", 0, 0, MS)]
    counters = [CounterRow("thinker", "send", "bytes_put", 5), CounterRow("talker", "engine", "steps", 2)]
    trial = Trial([record()], spans, counters)
    columns = ["stage", "thread", "name", "request", "chunk", "start_ns", "end_ns", "num_bytes"]
    assert list(trial.spans.columns) == columns
    assert trial.counters["edge"].tolist()[0] == "thinker->talker"
    assert trial.requests.loc[0, "request_id"] == "r0"
    assert list(Trial([]).counters.columns) == ["stage", "thread", "edge", "counter", "value"]


def test_host_work_is_the_talkers_and_leaves_waiting_and_forward_out():
    spans = [
        SpanRow("talker", "receive", "accumulate", "", 0, 0, 2 * MS),
        SpanRow("talker", "runner", "merge", "", -1, 5 * MS, 9 * MS),
        SpanRow("talker", "runner", "forward", "", -1, 9 * MS, 99 * MS),
        SpanRow("talker", "engine", "transport", "", -1, 9 * MS, 99 * MS),
        SpanRow("thinker", "engine", "pickle", "", -1, 0, 50 * MS),
    ]
    steps = [CounterRow("talker", "engine", "steps", 3)]
    assert host_ms_per_step(spans, steps) == 2.0
    assert host_ms_per_step(spans, []) is None
    assert host_ms_per_step([], steps) is None  # not 0: spans were not recorded
    assert host_ms_per_step(spans, steps, [LostRow("talker", "runner", "merge", 2, 3 * MS)]) == 3.0
    assert span_totals(spans)["talker", "forward"] == 90.0


def chunk_spans(count, cost):
    """Accumulate, pickle, unpickle and merge of `count` chunks, `cost(i)` ms each."""
    rows, now = [], 0
    for i in range(count):
        for thread, name in (
            ("receive", "accumulate"),
            ("engine", "pickle"),
            ("runner", "unpickle"),
            ("runner", "merge"),
        ):
            rows.append(SpanRow("talker", thread, name, "r0", i, now, now + round(cost(i) * MS)))
            now += round(cost(i) * MS) + MS
    return rows, now


def test_growth_of_host_work():
    flat, _ = chunk_spans(201, lambda i: 1.0)
    assert host_growth(flat) == pytest.approx(1.0)
    growing, now = chunk_spans(201, lambda i: 1.0 + i / 100)
    expected = (1 + np.arange(181, 201).mean() / 100) / (1 + np.arange(1, 21).mean() / 100)
    assert host_growth(growing) == pytest.approx(expected)
    # Steps after the text has ended bring no chunk: they are not part of it.
    after = [SpanRow("talker", "engine", "pickle", "r0", -1, now + i, now + i + 900 * MS) for i in range(50)]
    assert host_growth(growing + after) == pytest.approx(expected)


def test_growth_needs_enough_steps():
    assert host_growth([]) is None
    assert host_growth(chunk_spans(50, lambda i: 1.0)[0]) is None
