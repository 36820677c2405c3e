"""Truths planted in the real pipeline: too slow, wrong, of no effect, and a loss that only audio and images show."""

import time
from contextlib import nullcontext

import pytest
import torch

from omnilab.experiment.experiment import Experiment
from omnilab.pipeline import Pipeline
from omnilab.prompt import Sampling
from omnilab.seams import HIDDEN_STATES
from omnilab.toggle import Toggle
from omnilab.toggles.fused_predictor import predict_in_loop
from omnilab.toggles.prefill_only_hidden_states import EveryChunk
from omnilab.toggles.shallow_merge import merge_elementwise, merge_shallow
from omnilab.workload import Workload

SLEEP_S = 0.003
FRAMES = 8
TEXT = Workload.prompts(["Tell me about rivers."], Sampling(max_text_tokens=6, max_frames=8))


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


@pytest.fixture(scope="module")
def pipe():
    """One real pipeline for every block: here it is outputs, counters and a planted time that matter."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tests share few cores
    with Pipeline.open("tiny", topology="inline", connector="memory") as opened:
        yield opened
    torch.set_num_threads(before)


@pytest.fixture
def run(pipe, tmp_path):
    """Take one toggle through the whole protocol."""

    def opened(recipe):
        pipe.apply(recipe)
        return nullcontext(pipe)

    def go(toggle, name="run", **changes):
        workload = Workload.random(num_prompts=1, input_len=24, output_len=FRAMES, frames=FRAMES)
        given = {"model": "tiny", "topology": "inline", "device": "cpu", "workload": workload, "toggles": [toggle]}
        return Experiment(**{**given, "blocks": 3, **changes}).run(tmp_path / name, open_pipeline=opened)

    return go


def test_a_side_that_sleeps_is_slower_by_what_it_sleeps(run):
    sleepy = planted("sleeps", "merge", merge_elementwise, sleeps)
    report = run(sleepy, blocks=5, gate_prompts=None, primary="host_ms_per_step")
    result, trial = report.result("sleeps"), report.trials("sleeps")[0]
    merges, steps = (trial["counters"][f"talker/{where}"] for where in ("runner/merges", "engine/steps"))
    effect = result.effects["host_ms_per_step"]
    assert result.verdict == "slower"
    assert effect.after - effect.before > 0.5e3 * SLEEP_S * merges / steps  # means: other programs add to either
    least = {
        name: min(line["spans_ms"]["talker/runner/merge"] for line in report.trials(name))
        for name in ("sleeps", report.run["baseline"])
    }  # what runs beside this test only adds
    assert least["sleeps"] - least[report.run["baseline"]] == pytest.approx(1e3 * SLEEP_S * merges, rel=0.2)


def test_a_side_that_does_nothing_had_no_effect(run):
    report = run(planted("nothing", "merge", merge_elementwise, does_nothing_else), gate_prompts=None)
    assert report.result("nothing").verdict == "had no effect"
    assert report.result("nothing").output == "same output"
    assert not report.failed


def test_a_changed_code_is_stopped_by_the_gate(run):
    report = run(planted("changes", "predict_codes", predict_in_loop, changes_a_code), gate_prompts=TEXT)
    result = report.result("changes")
    assert result.verdict == "failed the gate"
    assert "codes at" in result.difference
    assert report.trials("changes") == []  # no speed was taken
    assert report.failed


def test_lost_layer_24_rows_are_stopped_by_prompts_with_audio_or_image_only(run):
    drops = planted("drops", "thinker_payload", EveryChunk, DropsHiddenStates)
    report = run(drops)
    assert report.result("drops").verdict == "failed the gate"
    assert "request 1" in report.result("drops").difference  # the first is text and passes
    blind = run(drops, "blind", gate_prompts=TEXT)
    assert blind.result("drops").output == "same output"  # which is why a gate of text alone is no gate
