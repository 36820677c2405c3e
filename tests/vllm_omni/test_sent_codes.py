"""The codes that a Talker sends are kept as they were sent, while somebody wants them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omnilab.vllm_omni import sent_codes
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, Board
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.sent_codes import joined, keeping, windows, written

CODES = np.arange(7 * 16).reshape(7, 16)


@pytest.fixture
def board(tmp_path):
    """A board that keeps codes."""
    board = Board.create(tmp_path)
    board.switch({"sent_codes": OPTIMIZED})
    return board


def send(board, request, *pieces):
    """Send windows (context, first, end) of CODES as vLLM-Omni's processor builds them: group after group."""
    for context, first, end in pieces:
        flat = torch.tensor(CODES[first - context : end]).T.reshape(-1)
        payload = SimpleNamespace(
            codes=SimpleNamespace(audio=flat), meta=SimpleNamespace(left_context_size=context or None)
        )
        run = keeping(lambda payload=payload, **_: payload, Panel(board.folder, "0.30.0"))
        assert run(None, None, SimpleNamespace(external_req_id=request)) is payload


def test_windows_come_back_as_sent_and_join_to_each_frame_once(board):
    send(board, "a", (0, 0, 2), (2, 2, 5), (1, 5, 7))
    send(board, "b", (0, 0, 1))
    sent = windows(board.folder)
    assert sent.keys() == {"a", "b"}
    assert [window.context for window in sent["a"]] == [0, 2, 1]
    assert np.array_equal(sent["a"][1].codes, CODES[:5])
    assert np.array_equal(joined(sent["a"]), CODES)
    assert np.array_equal(joined(sent["b"]), CODES[:1])


def test_a_trial_reads_its_own_alone(board):
    send(board, "a", (0, 0, 2))
    before = written(board.folder)
    send(board, "b", (0, 0, 3))
    assert windows(board.folder, before).keys() == {"b"}
    assert windows(board.folder).keys() == {"a", "b"}


def test_nothing_is_kept_unless_asked_for(board):
    board.switch({"sent_codes": BASELINE})
    send(board, "a", (0, 0, 2))
    assert windows(board.folder) == {}


def test_payloads_without_codes_are_let_through(board):
    for payload in (None, SimpleNamespace(codes=None), SimpleNamespace(codes=SimpleNamespace(audio=None))):
        run = keeping(lambda payload=payload, **_: payload, Panel(board.folder, "0.30.0"))
        assert run(None, None, SimpleNamespace(external_req_id="a")) is payload
    assert windows(board.folder) == {}


def test_a_record_finds_its_codes_by_the_id_that_was_sent(board):
    from omnilab.vllm_omni.subject import _codes_of

    send(board, "chatcmpl-bench-1-10-ffff", (0, 0, 3))
    send(board, "chatcmpl-bench-1-1-eeee", (0, 0, 2))
    sent = windows(board.folder)
    found = _codes_of("bench-1-1", sent)
    assert found is not None
    assert len(found) == 2
    assert _codes_of("bench-1", {"chatcmpl-bench-12-1-e": []}) is None


def test_an_adapter_that_sends_nothing_is_left_as_it_is(board):
    class Adapter:
        custom_process_next_stage_input_func = None

    module = SimpleNamespace(OmniChunkTransferAdapter=Adapter)
    sent_codes.install(module, Panel(board.folder, "0.30.0"))  # pyright: ignore[reportArgumentType]
    assert Adapter().custom_process_next_stage_input_func is None
