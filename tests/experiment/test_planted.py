"""Truths planted in the real pipeline: too slow, wrong, of no effect, and a loss that only audio and images show."""

import time

import pytest
import torch

from omnilab.experiment.experiment import Experiment
from omnilab.prompt import Sampling
from omnilab.seams import HIDDEN_STATES
from omnilab.toggle import Toggle
from omnilab.toggles.fused_predictor import predict_in_loop
from omnilab.toggles.prefill_only_hidden_states import EveryChunk
from omnilab.toggles.shallow_merge import merge_elementwise, merge_shallow
from omnilab.workload import Workload

SLEEP_S = 0.003
FRAMES = 40


def sleeps(state, payload):
    """Merge as shallow merge does, 3 ms late."""
    time.sleep(SLEEP_S)
    return merge_shallow(state, payload)


def does_nothing_else(state, payload):
    """The baseline under another name."""
    return merge_elementwise(state, payload)


def changes_a_code(predictor, max_batch):
    """The last residual code of each frame is another one."""
    predict = predict_in_loop(predictor, max_batch)

    def wrong(hidden, code0, draws):
        codes, embedded = predict(hidden, code0, draws)
        codes[:, -1] = (codes[:, -1] + 1) % 8
        return codes, embedded

    return wrong


class DropsHiddenStates(EveryChunk):
    """Layer-24 rows are all zero: what a text prompt never reads."""

    def build(self, state, snapshot):
        """As the baseline, with zeros."""
        payload = super().build(state, snapshot)
        if payload is not None and HIDDEN_STATES in payload:
            payload[HIDDEN_STATES] = torch.zeros_like(payload[HIDDEN_STATES])
        return payload


def planted(name, seam, baseline, optimized):
    return Toggle(name=name, seam=seam, baseline=baseline, optimized=optimized, claim="planted")


def run(toggle, path, blocks=3, **changes):
    workload = Workload.random(num_prompts=1, input_len=24, output_len=FRAMES, frames=FRAMES)
    given = {"model": "tiny", "topology": "inline", "device": "cpu", "workload": workload, "toggles": [toggle]}
    return Experiment(blocks=blocks, **{**given, **changes}).run(path)


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share few cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(300)
def test_a_side_that_sleeps_is_slower_by_what_it_sleeps(tmp_path):
    report = run(planted("sleeps", "merge", merge_elementwise, sleeps), tmp_path / "run", blocks=5, gate_prompts=None)
    result = report.result("sleeps")
    effect = result.effects["wall_s"]
    merges = next(m for m in report.trials("sleeps")[0]["counters"].items() if m[0].endswith("/merges"))[1]
    assert result.verdict == "slower"
    assert effect.after - effect.before == pytest.approx(merges * SLEEP_S, rel=0.5)
    span = next(moved for moved in result.spans if moved.what == "talker/runner/merge")
    assert span.after - span.before == pytest.approx(merges * SLEEP_S * 1e3, rel=0.15)


def test_a_side_that_does_nothing_had_no_effect(tmp_path):
    report = run(planted("nothing", "merge", merge_elementwise, does_nothing_else), tmp_path / "run")
    assert report.result("nothing").verdict == "had no effect"
    assert report.result("nothing").output == "same output"
    assert not report.failed


def test_a_changed_code_is_stopped_by_the_gate(tmp_path):
    report = run(planted("changes", "predict_codes", predict_in_loop, changes_a_code), tmp_path / "run")
    result = report.result("changes")
    assert result.verdict == "failed the gate"
    assert "codes at" in result.difference
    assert report.trials("changes") == []  # no speed was taken
    assert report.failed


def test_lost_layer_24_rows_are_stopped_by_prompts_with_audio_or_image_only(tmp_path):
    drops = planted("drops", "thinker_payload", EveryChunk, DropsHiddenStates)
    report = run(drops, tmp_path / "run")
    assert report.result("drops").verdict == "failed the gate"
    assert "request 1" in report.result("drops").difference  # the first is text and passes
    text_only = Workload.prompts(["Tell me about rivers."], Sampling(max_text_tokens=6, max_frames=8))
    blind = run(drops, tmp_path / "blind", gate_prompts=text_only)
    assert blind.result("drops").output == "same output"  # which is why a gate of text alone is no gate
