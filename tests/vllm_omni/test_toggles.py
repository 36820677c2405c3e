"""Both sides of each toggle, on scripted parts of vLLM-Omni: what they do, and that they count by what happened."""

from __future__ import annotations

import pytest
import torch

from omnilab.vllm_omni import latches
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, Board
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.toggles import async_save, idle_skip, prefill_only_hidden_states, shallow_merge
from tests.vllm_omni.scripted import adapter_module, request, runner_module


@pytest.fixture
def board(tmp_path):
    """A board, as shipped."""
    return Board.create(tmp_path)


@pytest.fixture
def panel(board):
    """What this process sees of it."""
    return Panel(board.folder, "0.30.0")


@pytest.fixture
def adapter(panel):
    """An adapter with latches and async save."""
    module = adapter_module()
    latches.install(module, panel)
    async_save.install(module, panel)
    return module.OmniChunkTransferAdapter()


def save(adapter, *outputs, **about):
    """Save outputs of one request, then let the sender run."""
    for output in outputs:
        adapter.save_async(output, request(**about))
    adapter.drain()


@pytest.mark.parametrize("side, thread", [(BASELINE, "engine"), (OPTIMIZED, "send")])
def test_async_save_builds_on_the_thread_of_its_side_and_the_chunks_are_the_same(board, adapter, side, thread):
    board.switch({"async_save": side})
    save(adapter, "held back", "a", "b", "c")
    assert [payload.output for payload in adapter.put] == ["a", "b", "c"]
    assert adapter.processor.chunk_ids == [0, 0, 1, 2]  # no id for what is held back
    counts = board.counts()
    assert counts.total("chunks_built", thread=thread) == counts.total("chunks_built") == 3


def test_a_switch_in_the_middle_of_a_request_does_not_split_it(board, adapter):
    board.switch({"async_save": BASELINE})
    adapter.save_async("a", request())
    board.switch({"async_save": OPTIMIZED})
    save(adapter, "b")
    assert board.counts().total("chunks_built", thread="engine") == 2
    adapter._clear_sender_state_locked("r")  # the request has ended: the next of its name is another
    save(adapter, "c")
    assert board.counts().total("chunks_built", thread="send") == 1
    assert board.requests() == {"r"}


def test_on_the_engine_thread_flat_outputs_are_unfolded_first_as_the_sender_does(board, adapter):
    board.switch({"async_save": BASELINE})
    save(adapter, {"hidden": 1})
    assert adapter.put[0].output == {"unflattened": {"hidden": 1}}


def test_a_payload_that_cannot_be_built_is_logged_and_the_engine_goes_on(board, adapter, caplog):
    board.switch({"async_save": BASELINE})
    save(adapter, "fails", "a")
    assert [payload.output for payload in adapter.put] == ["a"]
    assert "no such layer" in caplog.text


def test_a_step_replayed_after_preemption_is_not_built_twice(board, adapter):
    board.switch({"async_save": BASELINE})
    adapter.requests_num_chunks_sent["r"] = 9
    adapter.save_async("again", request(computed=3))
    assert adapter.processor.chunk_ids == []


def test_hidden_rows_and_ids_are_joined_from_chunk_to_chunk_and_begin_anew_with_a_first_chunk():
    received = {}

    def chunk(number, rows, ids):
        payload = {"hidden_states": {"output": torch.full((rows, 2), float(number))}, "ids": {"all": ids}}
        return payload, prefill_only_hidden_states.accumulate(received, "r", number, payload)

    assert chunk(0, 3, [7, 8])[1] == (0, 0)
    assert chunk(1, 1, [9])[1] == (4, 3)
    payload, lengths = chunk(2, 1, [9, 10])
    assert lengths == (5, 5)
    assert payload["ids"]["all"] == [7, 8, 9, 9, 10]
    assert payload["hidden_states"]["output"][:, 0].tolist() == [0, 0, 0, 1, 2]
    assert prefill_only_hidden_states.accumulate(received, "r", 3, {"embed": {}}) == (0, 0)
    assert chunk(0, 2, [])[1] == (0, 0)
    assert chunk(1, 1, [])[1] == (3, 0)


PAYLOAD = {"embed": {"decode": torch.ones(1, 2)}, "ids": {"all": [1, 2, 3], "prompt": [1]}, "speaker": "ethan"}


@pytest.mark.parametrize("side, visited", [(BASELINE, 4), (OPTIMIZED, 0)])
def test_both_merges_leave_the_same_buffer(board, panel, side, visited):
    module = runner_module()
    shallow_merge.install(module, panel)
    board.switch({"shallow_merge": side})
    runner = module.OmniGPUModelRunner()
    runner.model_intermediate_buffer["r"] = {"embed": {"prefill": 5}, "hidden_states": {"last": 6}}
    runner._update_additional_information(scheduled(payloads={"r": PAYLOAD, "gone": PAYLOAD}))
    assert runner.model_intermediate_buffer == {
        "r": {
            "embed": {"prefill": 5, "decode": PAYLOAD["embed"]["decode"]}, "hidden_states": {"last": 6},
            "ids": {"all": [1, 2, 3], "prompt": [1]}, "speaker": "ethan",
        }
    }  # fmt: skip
    assert runner.requests["r"].additional_information_cpu is runner.model_intermediate_buffer["r"]
    counts = board.counts()
    assert (counts.total("merges"), counts.total("elements_visited"), counts.total("steps")) == (1, visited, 1)
    assert counts.total("merges", stage="talker") == 1


def test_what_the_model_itself_stores_is_merged_natively_and_not_counted(board, panel):
    module = runner_module()
    shallow_merge.install(module, panel)
    board.switch({"shallow_merge": OPTIMIZED})
    runner, kept = module.OmniGPUModelRunner(), [1]
    runner._update_intermediate_buffer("r", {"own": kept})
    assert runner.model_intermediate_buffer["r"]["own"] is not kept
    assert board.counts().total("merges") == 0


@pytest.mark.parametrize("side, updates", [(BASELINE, 2), (OPTIMIZED, 0)])
def test_idle_steps_alone_are_updated_or_skipped(board, panel, side, updates):
    module = runner_module()
    idle_skip.install(module, panel)
    board.switch({"idle_skip": side})
    runner = module.GPUGenerationModelRunner(stage=2)
    for tokens in (0, 5, 0):
        assert runner._update_states(scheduled(total_num_scheduled_tokens=tokens)) == "deferred"
    assert (runner.updates, runner.states) == (updates, 3)
    counts = board.counts()
    assert (counts.total("idle_steps"), counts.total("updates_while_idle", stage="code2wav")) == (2, updates)


def scheduled(**about):
    """What a scheduler says of a step."""
    from types import SimpleNamespace

    return SimpleNamespace(**about)
