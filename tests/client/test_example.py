"""The worked example of the protocol's page: 8 tokens 20 ms apart, then three WAVs of half a second."""

import numpy as np
import pytest

from omnilab import Sampling, Workload
from omnilab.client import Server, compat
from omnilab.client.reading import read
from omnilab.client.server import MODALITIES, record_of
from omnilab.client.summary import Setting, summary
from tests.client.scripted import DONE, audio, body, reply, scripted, text, usage

WORDS = [" w"] * 8


def example(first_ms, last_ms):
    """Pieces: the opener comes in one read with the first token, as vLLM-Omni sends it."""
    at = np.linspace(first_ms, last_ms, 8).tolist()
    tokens = [text(word, number + 1) for number, word in enumerate(WORDS)]
    tokens[-1] = text(WORDS[-1], 8, reason="length", metrics={"num_tokens_in": 17, "num_tokens_out": 8, "stage_id": 0})
    tokens[0] = text("", 0) + tokens[0]
    sounds = [audio(12_000), audio(12_000), audio(12_000, "stop")]
    return [*zip(at, tokens, strict=True), *zip((367.5, 468.6, 569.85), sounds, strict=True), (569.9, usage(8) + DONE)]


def test_by_the_definitions_of_0_30():
    record, reading, rate = record_of(reply(example(102.6, 246.3), 1000), index=0, name="r", began_ns=0)
    assert (record.error, rate, record.text) == (None, 24_000, " w" * 8)
    assert record.start_s == pytest.approx(1.0)
    assert (record.input_tokens, record.output_tokens, record.finish_reason) == (17, 8, "length")
    gaps = compat.itls_s(record)
    assert np.asarray(gaps) * 1e3 == pytest.approx([20.53] * 7, abs=0.01)
    found = {name: values for name, values in compat.samples([record]).items() if name != "itl_ms"}
    assert {name: values[0] for name, values in found.items()} == {
        "ttft_ms": pytest.approx(102.6), "tpot_ms": pytest.approx(20.53, abs=0.005), "e2el_ms": pytest.approx(569.9),
        "audio_ttfp_ms": pytest.approx(367.5), "audio_rtf": pytest.approx(0.3799), "audio_duration_s": 1.5,
        "audio_underrun_s": 0.0,
    }  # fmt: skip
    assert sum(record.audio_samples) == 36_000
    assert compat.peak_tokens_a_second([record]) == 8
    assert not reading.packets  # base64 is not kept beside the samples


def test_by_the_definitions_of_0_16():
    played = reply(example(102.6, 250.1), 1000)
    old = compat.by_0_16(read(played), played.start_ns, prompt_len=5)
    assert len(old.itls_ms) == 8
    assert old.itls_ms[0] == 0.0
    assert np.mean(old.itls_ms) == pytest.approx(18.44, abs=0.005)
    assert old.tpot_ms == pytest.approx(21.07, abs=0.005)
    assert (old.input_tokens, old.output_tokens, old.peak_tokens_a_second) == (5, 8, 9)
    assert old.ttft_ms == pytest.approx(102.6)


def test_over_a_socket():
    pieces = [data for _, data in example(0, 0)]
    head, *rest = body(*pieces)
    played = [0.1, head, *[part for piece in rest[:8] for part in (piece, 0.02)], 0.1, *rest[8:]]
    with scripted(lambda _: played) as server:
        workload = Workload.prompts(["Hello there"], Sampling(max_text_tokens=8, temperature=0.0))
        trial = Server(server.url, "m").run(workload)
        (record,) = trial.records
        result = summary(trial, Setting(backend="b", model="m", num_prompts=1))
        assert record.error is None
        assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (1, 17, 8)
        assert (result["total_audio_frames"], result["total_audio_duration_s"]) == (36_000, 1.5)
        assert (len(result["itls"][0]), result["num_itl_samples"]) == (7, 7)
        # a sleep may be longer than asked, not shorter
        assert result["mean_ttft_ms"] >= 100
        assert result["mean_tpot_ms"] >= 19
        assert result["mean_audio_ttfp_ms"] >= 340
        last = record.audio_times_s[-1] - record.start_s
        assert result["mean_audio_rtf"] == pytest.approx(last / 1.5)
        assert trial.client_lag_ms["max"] is not None
        assert server.requests[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert MODALITIES == ("text", "audio")
