"""Our own server on `tiny`: over HTTP the same tokens, frames and audio as in process."""

from collections.abc import Iterator

import numpy as np
import pytest

from omnilab import Pipeline, Prompt, Sampling, Workload
from omnilab.client import Server, served_models, wait_ready
from omnilab.client.datasets import noise
from omnilab.workload import closed
from tests.serve.served import Running, serving, tiny_pipe


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    with tiny_pipe() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(pipe) -> Iterator[Running]:
    with serving(pipe) as running:
        yield running


def asked(together=4, **sampling):
    lengths = Sampling(**{"max_text_tokens": 12, "max_frames": 30, "ignore_eos": True, "temperature": 0.0} | sampling)
    questions = ["Tell me about rivers.", "And about hills?", Prompt(text="Hear", audio=(noise(8000, 1), 16_000)), "Go"]
    return Workload.prompts(questions, lengths, arrivals=closed(together), seed=5)


def test_served_is_as_in_process(pipe, server):
    wait_ready(server.url, timeout_s=10)
    assert served_models(server.url) == ["tiny"]
    here, there = pipe.run(asked()), Server(server.url, "tiny").run(asked())
    for mine, heard in zip(here.records, there.records, strict=True):
        assert heard.error is None
        assert (heard.input_tokens, heard.output_tokens) == (mine.input_tokens, mine.output_tokens)
        assert heard.finish_reason == mine.finish_reason == "length"
        stream = pipe.intake.text_stream()
        assert heard.text == stream.push(mine.token_ids) + stream.flush()
        assert sum(heard.audio_samples) == sum(mine.audio_samples)
        assert heard.audio_s == mine.audio_s
        assert mine.audio is not None and heard.audio is not None
        assert np.abs(mine.audio - heard.audio).max() < 2 / 32767  # 16-bit on the wire
        assert sum(heard.text_token_counts) == 12
        assert heard.start_s <= heard.text_times_s[0] <= heard.audio_times_s[-1] <= heard.end_s
    assert there.metrics["output_tokens"] == here.metrics["output_tokens"]
    assert there.server_metrics[0]["num_tokens_out"] == 12
    assert not any(pipe.tables().values())


def test_how_many_run_together_changes_nothing(pipe, server):
    there, again = (Server(server.url, "tiny").run(asked(together)) for together in (4, 1))
    assert [r.error for r in again.records] == [None] * 4
    assert [r.text_sha for r in again.records] == [r.text_sha for r in there.records]
    assert [r.audio_sha for r in again.records] == [r.audio_sha for r in there.records]
    assert not any(pipe.tables().values())


@pytest.mark.parametrize("modality", ["text", "audio"])
def test_one_modality(pipe, server, modality):
    trial = Server(server.url, "tiny", modalities=[modality]).run(asked())
    assert [record.error for record in trial.records] == [None] * 4
    for record in trial.records:
        assert (record.audio is None) == (modality == "text")
        assert bool(record.text_times_s) == (modality == "text")
        assert record.output_tokens == 12


def test_bare_samples_and_another_voice(pipe, server):
    bare = Server(server.url, "tiny", extra_body={"audio": {"format": "pcm16"}}).run(asked())
    whole = Server(server.url, "tiny").run(asked())
    assert [r.audio_sha for r in bare.records] == [r.audio_sha for r in whole.records]
    voice = next(name for name in pipe.intake.speakers if name != "ethan")
    other = Server(server.url, "tiny").run(asked(speaker=voice))
    assert [r.error for r in other.records] == [None] * 4
    assert other.records[0].audio_sha != whole.records[0].audio_sha


def test_random_tokens_and_a_refusal(pipe, server):
    random = Workload.random(num_prompts=2, input_len=30, output_len=4, frames=8)
    trial = Server(server.url, "tiny", tokenizer=pipe.intake.folder).run(random)
    assert [(r.error, r.output_tokens) for r in trial.records] == [(None, 4)] * 2
    assert all(0 < r.input_tokens - 30 < 30 for r in trial.records)  # the server's chat template comes to the 30
    missing = Server(server.url, "other").run(random)
    assert str(missing.records[0].error).startswith("http: status 404: The model `other` does not exist")
