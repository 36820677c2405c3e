"""vLLM as the Thinker, without vLLM: what is refused and how, and a scripted engine in vLLM's place."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch

from omnilab import errors, recipes
from omnilab.engine import messages as m
from omnilab.engine.spec import network_runner
from omnilab.engine.vllm_runner import VllmThinkerRunner
from omnilab.intake import Intake
from omnilab.model.embedding import TokenRows
from omnilab.model.folder import resolve
from omnilab.model.weights import RANDOM_WEIGHTS_FILE
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt, Sampling
from omnilab.seams import Phase
from omnilab.thinkers import THINKERS
from omnilab.toggles.graphed_step import graphed_step

TEXT = "Where do rivers begin?"
TONE = (np.sin(np.arange(8000) / 9).astype(np.float32) * 0.3, 16_000)
PICTURE = (np.indices((56, 84)).sum(0)[..., None] * np.array([3, 5, 7]) % 256).astype(np.uint8)
TTS_IDS, IM_END = [259, 260, 258], 257  # of `tiny`; bos, eos, pad
SAID = {"max_text_tokens": 9, "max_frames": 12, "temperature": 0.0, "ignore_eos": True}


class ScriptedEngine:
    """Gives every request its tokens in the portions of `portions`, an empty one being a step without any."""

    def __init__(self, tokens, portions=(1,)):
        self.tokens, self.portions, self.held, self.aborted, self.closed = tokens, portions, {}, [], False

    def submit(self, request_id, prompt_ids, max_tokens):
        self.held[request_id] = (deque(self.tokens(prompt_ids)[:max_tokens]), deque(self.portions))

    def step(self):
        for request_id, (left, portions) in list(self.held.items()):
            portions.rotate(-1)
            given = [left.popleft() for _ in range(min(portions[-1], len(left)))]
            if not left:
                del self.held[request_id]
            yield request_id, given, not left

    def abort(self, request_id):
        del self.held[request_id]
        self.aborted.append(request_id)

    def entries(self):
        return len(self.held)

    def close(self):
        self.closed = True


def rows_of_tiny():
    return TokenRows(resolve("tiny"), torch.device("cpu"), torch.float32, torch.bfloat16, 0)


def runner_of(engine, timeout_s=5.0):
    return VllmThinkerRunner(engine, recipes.BEST, lookup=rows_of_tiny(), tts_ids=TTS_IDS, timeout_s=timeout_s)


def asked(request_id, prompt_ids, max_outputs=3):
    sampling = m.StageSampling(max_outputs, 0.0, 0, 1.0, 1.0, 0, True)
    return m.StageRequest(request_id, len(prompt_ids), prompt_ids, None, sampling)


def prefill(request_id, end):
    return m.Item(request_id, Phase.PREFILL, 0, end, True)


def decode(request_id):
    return m.Item(request_id, Phase.DECODE)


def step(runner, items, new=(), finished=()):
    return runner.call(m.Work(list(new), list(items), list(finished))).outputs


@pytest.fixture
def with_vllm(monkeypatch):
    """A module by that name: enough for what is checked before anything starts."""
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.fixture(scope="module")
def intake():
    return Intake.of("tiny", None)


def test_without_vllm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(errors.BadInput, match=r"pip install 'omnilab\[vllm\]'"):
        Pipeline.open("tiny", thinker="vllm")


def test_an_unknown_thinker_is_refused():
    with pytest.raises(errors.BadInput, match="transformers, vllm"):
        Pipeline.open("tiny", thinker="llama")


@pytest.mark.parametrize("topology", ["inline", "interleaved"])
def test_vllm_wants_a_process_of_its_own(with_vllm, topology):
    with pytest.raises(errors.BadInput, match="topology='processes'"):
        Pipeline.open("tiny", thinker="vllm", topology=topology)


def test_a_recipe_is_refused_before_a_stage_starts(with_vllm):
    with pytest.raises(errors.BadInput, match="PrefillOnly sends rows"):
        Pipeline.open("tiny", thinker="vllm", recipe=recipes.AFTER_1378)


def test_weights_that_are_drawn_at_the_start_are_refused(with_vllm, tmp_path):
    (tmp_path / RANDOM_WEIGHTS_FILE).touch()
    with pytest.raises(errors.BadInput, match=r"omnilab\.models parity --out DIR"):
        THINKERS["vllm"].check_pipeline(tmp_path, "processes", "cpu")


def test_only_the_first_gpu_is_taken(with_vllm, tmp_path):
    vllm = THINKERS["vllm"]
    vllm.check_pipeline(tmp_path, "processes", "cuda:0")
    with pytest.raises(errors.BadInput, match="CUDA_VISIBLE_DEVICES"):
        vllm.check_pipeline(tmp_path, "processes", "cuda:1")


@pytest.mark.parametrize("name", sorted(set(recipes.NAMED) - {"BEST"}))
def test_recipes_that_need_rows_are_refused(name):
    with pytest.raises(errors.BadInput, match=r"recipes\.BEST"):
        THINKERS["vllm"].check_recipe(recipes.NAMED[name])


def test_a_decode_step_of_ours_is_refused():
    THINKERS["vllm"].check_recipe(recipes.BEST)
    with pytest.raises(errors.BadInput, match="graphed_step"):
        THINKERS["vllm"].check_recipe(replace(recipes.BEST, decode_step=graphed_step))


@pytest.mark.parametrize(
    ("prompt", "sampling", "says"),
    [
        (Prompt(text=TEXT, audio=TONE), Sampling(), "hidden states"),
        (Prompt(text=TEXT, image=PICTURE), Sampling(), "hidden states"),
        (Prompt(text=TEXT), Sampling(temperature=0.7), "temperature=0"),
    ],
)
def test_requests_that_vllm_cannot_answer_are_refused(intake, prompt, sampling, says):
    requests, _ = intake.stage_requests("one", prompt, sampling, 0, "")
    with pytest.raises(errors.BadInput, match=says):
        THINKERS["vllm"].check_request(requests["thinker"])
    THINKERS["transformers"].check_request(requests["thinker"])


def test_released_sampling_is_greedy_text(intake):
    requests, _ = intake.stage_requests("one", Prompt(text=TEXT), Sampling(), 0, "")
    THINKERS["vllm"].check_request(requests["thinker"])


@pytest.mark.parametrize("portions", [(1,), (0, 0, 1), (3,), (2, 0)], ids=str)
def test_each_step_of_ours_takes_one_token_however_they_come(portions):
    runner = runner_of(ScriptedEngine(lambda ids: [10, 11, 12], portions))
    outputs = step(runner, [prefill("a", 4)], new=[asked("a", [5, 6, 7, 8])])
    outputs += step(runner, [decode("a")]) + step(runner, [decode("a")])
    assert [output.token for output in outputs] == [10, 11, 12]
    table = rows_of_tiny()
    for output, read in zip(outputs, ([5, 6, 7, 8], [10], [11]), strict=True):
        assert torch.equal(output.rows.embeddings, torch.stack([table(i) for i in read]))
        assert output.rows.hidden_states.shape == (0, output.rows.embeddings.shape[1])
    step(runner, [], finished=["a"])
    assert runner.entries() == 0


def test_a_prompt_in_parts_has_its_token_with_the_last():
    runner = runner_of(ScriptedEngine(lambda ids: [10]))
    first = step(runner, [m.Item("a", Phase.PREFILL, 0, 2)], new=[asked("a", [5, 6, 7])])[0]
    last = step(runner, [m.Item("a", Phase.PREFILL, 2, 3, True)])[0]
    assert (first.token, last.token) == (None, 10)
    assert (len(first.rows.embeddings), len(last.rows.embeddings)) == (2, 1)


def test_two_requests_do_not_take_each_others_tokens():
    engine = ScriptedEngine(lambda ids: [ids[0], ids[0] + 1, ids[0] + 2])
    runner = runner_of(engine)
    assert step(runner, [prefill("a", 1)], new=[asked("a", [20])])[0].token == 20
    outputs = step(runner, [decode("a"), prefill("b", 1)], new=[asked("b", [40])])
    assert [(o.request_id, o.token) for o in outputs] == [("a", 21), ("b", 40)]
    outputs = step(runner, [decode("b")])  # our engine leaves one out: its token is kept
    assert [o.token for o in outputs] == [41]
    assert [o.token for o in step(runner, [decode("b"), decode("a")])] == [42, 22]


def test_what_has_ended_for_us_is_aborted_there():
    engine = ScriptedEngine(lambda ids: list(range(50)))
    runner = runner_of(engine)
    step(runner, [prefill("a", 1), prefill("b", 1)], new=[asked("a", [1], 50), asked("b", [1], 1)])
    step(runner, [], finished=["a", "b"])
    assert engine.aborted == ["a"] and runner.entries() == 0  # of b all was written
    runner.close()
    assert engine.closed


def test_a_token_that_does_not_come_fails_its_request_alone():
    runner = runner_of(ScriptedEngine(lambda ids: [7], (1,)), timeout_s=0.05)
    silent = ScriptedEngine(lambda ids: [7], (0,))
    assert "no token within 0.05 s" in step(runner_of(silent, 0.05), [prefill("a", 1)], new=[asked("a", [1])])[0].error
    step(runner, [prefill("a", 1)], new=[asked("a", [1])])
    outputs = step(runner, [decode("a"), prefill("b", 1)], new=[asked("b", [1])])
    assert [output.token for output in outputs] == [None, 7]
    assert "too early" in outputs[0].error


def opened_with(engine, **settings):
    """`tiny` inline, with a scripted engine in vLLM's place."""

    def make_runner(spec, recipe):
        return runner_of(engine) if spec.stage == "thinker" else network_runner(spec, recipe)

    return Pipeline.open("tiny", topology="inline", connector="memory", make_runner=make_runner, **settings)


def test_the_talker_hears_no_difference():
    with Pipeline.open("tiny", topology="inline", connector="memory") as pipe:
        ours = pipe.speak(TEXT, **SAID)
    engine = ScriptedEngine(lambda ids: list(ours.token_ids), (0, 2))
    for budget in (32768, 5):
        with opened_with(engine, max_num_batched_tokens=budget) as pipe:
            theirs = pipe.speak(TEXT, **SAID)
            assert set(pipe.tables().values()) == {0}
        assert theirs.token_ids == ours.token_ids and theirs.text == ours.text
        assert np.array_equal(theirs.codes, ours.codes) and np.array_equal(theirs.audio, ours.audio)


def test_our_engine_decides_where_an_answer_ends():
    engine = ScriptedEngine(lambda ids: [10, 11, IM_END, 12, 13, 14, 15, 16, 17])
    with opened_with(engine) as pipe:
        speech = pipe.speak(TEXT, **SAID | {"ignore_eos": False})
        assert set(pipe.tables().values()) == {0}
    assert list(speech.token_ids) == [10, 11, IM_END] and len(engine.aborted) == 1
