"""The result: the public run's block recomputed, percentiles, goodput, nulls, and what is not counted."""

import json

import numpy as np
import pytest

from omnilab.client import compat
from omnilab.client.goodput import Goals
from omnilab.client.printed import lines_of, theirs
from omnilab.client.summary import Setting, medians, summary
from omnilab.errors import BadInput
from omnilab.trial import RequestRecord, Trial

# As the change's own test printed it: one request, 2,500 tokens in, 900 out, 54.16665 s. The run lasted a little longer
# than its request: 900 / 54.16665 would print as 16.62. The peaks and the underrun are of times made up.
PUBLIC = """\
============ Serving Benchmark Result ============
Successful requests:                     1
Failed requests:                         0
Maximum request concurrency:             1
Benchmark duration (s):                  54.17
Request throughput (req/s):              0.02
Peak concurrent requests:                1.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          54166.65
Median E2EL (ms):                        54166.65
P99 E2EL (ms):                           54166.65
================== Text Result ===================
Total input tokens:                      2500
Total generated tokens:                  900
Output token throughput (tok/s):         16.61
Peak output token throughput (tok/s):    84.00
Peak concurrent requests:                1.00
Total Token throughput (tok/s):          62.77
---------------Time to First Token----------------
Mean TTFT (ms):                          308.13
Median TTFT (ms):                        308.13
P99 TTFT (ms):                           308.13
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          13.28
Median TPOT (ms):                        13.28
P99 TPOT (ms):                           13.28
---------------Inter-token Latency----------------
Mean ITL (ms):                           13.28
Median ITL (ms):                         12.24
P99 ITL (ms):                            133.63
================== Audio Result ==================
Total audio duration generated(s):       211.66
Total audio frames generated:            5079900
Audio throughput(audio duration/s):      3.91
Streaming continuity OK rate:            100.00%
---------------Time to First Packet---------------
Mean AUDIO_TTFP (ms):                    1370.63
Median AUDIO_TTFP (ms):                  1370.63
P99 AUDIO_TTFP (ms):                     1370.63
-----------------Real Time Factor-----------------
Mean AUDIO_RTF:                          0.26
Median AUDIO_RTF:                        0.26
P99 AUDIO_RTF:                           0.26
------------------Audio Duration------------------
Mean AUDIO_DURATION (s):                 211.66
Median AUDIO_DURATION (s):               211.66
P99 AUDIO_DURATION (s):                  211.66
-------------Streaming Audio Underrun-------------
Mean AUDIO_UNDERRUN (s):                 0.00
Median AUDIO_UNDERRUN (s):               0.00
P99 AUDIO_UNDERRUN (s):                  0.00
=================================================="""


def public_run():
    """900 tokens whose gaps have the mean, median and P99 that were printed; 107 packets, the last at the end."""
    gaps = np.full(899, 12.24)
    gaps[np.linspace(40, 880, 10).astype(int)] = 133.63
    short = np.flatnonzero(gaps < 100)[::2]
    gaps[short] -= (gaps.mean() - 13.28) * 899 / len(short)
    samples = np.full(107, 48_000)
    samples[-1] = 5_079_900 - samples[:-1].sum()
    return RequestRecord(
        index=0, request_id="seed", start_s=0.0, end_s=54.16665, input_tokens=2500, output_tokens=900,
        text_times_s=(0.30813 + np.concatenate([[0], np.cumsum(gaps)]) / 1e3).tolist(), text_token_counts=[1] * 900,
        audio_times_s=np.linspace(1.37063, 54.16665, 107).tolist(), audio_samples=samples.tolist(),
        audio_s=5_079_900 / 24_000, finish_reason="length",
    )  # fmt: skip


def setting(**more):
    return Setting(**{"backend": "b", "model": "m", "num_prompts": 1, "percentiles": [99]} | more)


def test_the_public_run_recomputes():
    result = summary(Trial([public_run()], wall_s=54.17), setting(max_concurrency=1))
    assert [line.rstrip() for line in theirs(result, [99])] == PUBLIC.split("\n")
    assert result["total_audio_duration_s"] == 211.6625
    assert result["rtfx"] == result["audio_throughput"] == pytest.approx(3.9074, abs=1e-4)
    assert result["median_itl_ms"] == pytest.approx(12.24)
    without_first_packet = (54.16665 - 1.37063) / 211.6625
    assert f"{without_first_packet:.2f}" == "0.25"  # what an older definition would print


def record(index=0, start=0.0, **more):
    usual = {
        "end_s": start + 2.0, "input_tokens": 10, "output_tokens": 3, "text": "a b c", "audio_s": 1.0,
        "text_times_s": [start + 0.5, start + 0.6, start + 0.8], "text_token_counts": [1, 1, 1],
        "audio_times_s": [start + 1.0, start + 2.0], "audio_samples": [12_000, 12_000],
    }  # fmt: skip
    return RequestRecord(index=index, request_id=str(index), start_s=start, **usual | more)


FAILED = {
    "error": "refused: status 429: full", "text_times_s": [], "text_token_counts": [], "audio_times_s": [],
    "audio_samples": [], "audio_s": 0.0, "output_tokens": 0, "end_s": 0.001,
}  # fmt: skip


def test_percentiles_are_numpys_over_what_succeeded():
    ends = [1.0, 2.0, 3.0, 7.0]
    records = [record(i, end_s=end) for i, end in enumerate(ends)] + [record(9, **FAILED)]
    result = summary(Trial(records, wall_s=8.0), setting(num_prompts=5, percentiles=[25, 90, 99.9]))
    for share, name in ((25, "p25"), (90, "p90"), (99.9, "p99.9")):
        assert result[f"{name}_e2el_ms"] == pytest.approx(np.percentile(ends, share) * 1e3)
    assert (result["mean_e2el_ms"], result["median_e2el_ms"]) == (3250, 2500)
    assert (result["completed"], result["failed"], result["duration"]) == (4, 1, 8.0)
    assert result["request_throughput"] == 0.5
    assert result["errors_by_class"] == {"refused": 1}
    assert result["errors"][4] == "refused: status 429: full"
    assert (result["ttfts"][4], result["itls"][4], result["output_lens"][4]) == (None, [], 0)
    assert "Failed, refused:                         1" in [line.rstrip() for line in lines_of(result, [99.9])]


def test_what_is_undefined_is_null_and_has_no_block():
    silent = record(
        audio_times_s=[], audio_samples=[], audio_s=0.0, text_times_s=[0.5], text_token_counts=[3], text=None
    )
    result = json.loads(json.dumps(summary(Trial([silent], wall_s=2.0), setting()), allow_nan=False))
    assert result["mean_ttft_ms"] == 500
    # three tokens in one event: there is no gap that was measured
    undefined = ["mean_tpot_ms", "mean_audio_ttfp_ms", "p99_audio_rtf", "median_audio_duration_s", "request_goodput"]
    assert [result[name] for name in undefined] == [None] * 5
    assert result["audio_continuity_ok_rate"] is None
    assert (result["num_tpot_samples"], result["num_audio_rtf_samples"]) == (0, 0)
    text = "\n".join(lines_of(result, [99]))
    assert "Audio Result" not in text
    assert "Time per Output Token" not in text


def test_nothing_succeeded():
    result = summary(Trial([record(**FAILED)], wall_s=1.0), setting())
    assert json.dumps(result, allow_nan=False)
    assert (result["mean_e2el_ms"], result["max_concurrent_requests"], result["request_throughput"]) == (None, None, 0)
    assert lines_of(result, [99])


def test_goodput_needs_every_goal():
    records = [record(0), record(1, text_times_s=[0.9], text_token_counts=[3]), record(2, **FAILED)]
    records.append(record(3, audio_times_s=[], audio_samples=[], audio_s=0.0))
    goals = Goals.read(["ttft:600 audio_rtf:2.5", "e2el_ms:5000"])
    assert goals.limits == {"ttft_ms": 600, "audio_rtf": 2.5, "e2el_ms": 5000}
    assert [goals.met(one) for one in records] == [True, False, False, False]
    result = summary(Trial(records, wall_s=4.0), setting(goals=goals))
    assert result["request_goodput"] == 0.25
    assert "Request goodput (req/s):                 0.25" in [line.rstrip() for line in lines_of(result, [99])]


@pytest.mark.parametrize("given", ["speed:3", "ttft_ms", "ttft_ms:x", "ttft_ms:-1", "ttft_ms:nan", "audio_s:3"])
def test_goals_that_cannot_be(given):
    with pytest.raises(BadInput, match="--goodput"):
        Goals.read([given])


def test_both_ways_to_count_an_underrun():
    """A second of audio each at 0, 2 and 3.5 s: it stalls for 1 s and again for 0.5 s."""
    late = record(audio_times_s=[0.0, 2.0, 3.5], audio_samples=[24_000] * 3, audio_s=3.0)
    assert compat.underrun_s(late) == pytest.approx(1.5)  # 0.30: 3.5 s gone, 2 s of audio were there
    result = summary(Trial([late, record(1, audio_times_s=[0.0, 0.5])], wall_s=4.0), setting())
    assert result["corrected"]["audio_underrun_s"]["p99"] == pytest.approx(1.485)
    assert result["audio_continuity_ok_rate"] == 0.5


def test_a_chunk_of_several_tokens():
    many = record(text_times_s=[0.5, 0.8], text_token_counts=[3, 2], output_tokens=5)
    assert compat.itls_s(many) == pytest.approx([0, 0, 0.15, 0.15])
    result = summary(Trial([many], wall_s=2.0), setting())
    assert result["mean_tpot_ms"] == pytest.approx(75)
    assert result["corrected"]["tpot_ms"]["mean"] == pytest.approx(150)  # the first event's tokens took no time
    assert result["corrected"]["event_gap_ms"]["median"] == pytest.approx(300)


def test_peaks_count_touched_seconds():
    records = [record(0, 0.0, end_s=0.9), record(1, 0.95, end_s=1.2)]
    assert compat.peak_concurrency(records) == 2  # one after the other, and yet 2
    assert compat.peak_tokens_a_second(records) == 3


def test_a_servers_numbers():
    told = [{"ttft_ms": 1.0, "stages": {"0": {"ms": 2}}, "kind": "text", "ok": True}, {"ttft_ms": 3.0}, {}]
    assert medians(told) == {"ttft_ms": 2.0, "stages.0.ms": 2.0}
