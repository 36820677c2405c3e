"""Board and panel: a switch reaches every process at once, and each counts into a file of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnilab.errors import BadInput, ToggleUnavailable
from omnilab.vllm_omni.board import AS_SHIPPED, BASELINE, OPTIMIZED, STAGES, WRONG, Board, since
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.toggles import INSTALLS, TOGGLES

ANOTHER = """
import sys
from pathlib import Path
from omnilab.vllm_omni.panel import Panel
panel = Panel(Path(sys.argv[1]), "0.30.0")
for line in sys.stdin:
    panel.count(1, "runner", "merges", 10)
    print(panel.side("shallow_merge"), flush=True)
"""


@pytest.fixture
def board(tmp_path):
    """A board, as shipped."""
    return Board.create(tmp_path / "board")


def test_a_board_starts_as_shipped_and_switches_one_at_a_time(board):
    assert board.sides == AS_SHIPPED
    board.switch({"shallow_merge": OPTIMIZED, "prefill_only_hidden_states": WRONG})
    assert board.sides == {**AS_SHIPPED, "shallow_merge": OPTIMIZED, "prefill_only_hidden_states": WRONG}


@pytest.mark.parametrize("sides, says", [({"shallow": 1}, "shallow_merge"), ({"idle_skip": 3}, "idle_skip: a side is")])
def test_what_cannot_be_switched_is_refused_and_nothing_moves(board, sides, says):
    with pytest.raises(BadInput, match=says):
        board.switch(sides)
    assert board.sides == AS_SHIPPED


def test_processes_that_speak_at_once_are_all_heard(board, monkeypatch):
    """One process' words put in another's place, or lost, while both are being written."""
    panel, replace, speaking = Panel(board.folder, "0.30.0"), Path.replace, 1
    monkeypatch.setattr(os, "getpid", lambda: speaking)

    def replaced(path, target):
        nonlocal speaking
        assert [said["pid"] for said in board.processes()] == []
        if speaking == 1:
            speaking = 2
            Panel(board.folder, "0.30.0").say("async_save")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    panel.say("idle_skip")
    assert [(said["pid"], said["installed"]) for said in board.processes()] == [(1, ["idle_skip"]), (2, ["async_save"])]


def test_another_process_sees_a_switch_at_once_and_counts_beside_ours(board):
    ours = Panel(board.folder, "0.30.0")
    ours.count(1, "runner", "merges", 1)
    words = [sys.executable, "-c", ANOTHER, str(board.folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        seen = []
        for side in (OPTIMIZED, BASELINE, OPTIMIZED):
            board.switch({"shallow_merge": side})
            other.stdin.write("\n")
            other.stdin.flush()
            seen.append(int(other.stdout.readline()))
        other.stdin.close()
        assert other.wait(10) == 0
    assert seen == [OPTIMIZED, BASELINE, OPTIMIZED]
    assert board.counts().total("merges") == 31


def _count_in_a_fork(panel):
    panel.count(0, "send", "ids_resent", 5)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_counts_into_its_own_file(board):
    panel = Panel(board.folder, "0.30.0")
    panel.count(0, "send", "ids_resent", 2)
    child = multiprocessing.get_context("fork").Process(target=_count_in_a_fork, args=(panel,))
    child.start()
    child.join(10)
    assert {path.name for path in board.folder.glob("counts.*")} == {f"counts.{os.getpid()}", f"counts.{child.pid}"}
    assert board.counts().total("ids_resent") == 7


def test_no_count_is_lost_between_threads(board):
    panel = Panel(board.folder, "0.30.0")
    threads = [
        threading.Thread(target=lambda: [panel.count(1, "runner", "steps") for _ in range(2000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.counts().total("steps") == 8000


def test_counts_since_are_told_apart_by_stage_and_thread_and_times_by_name(board):
    panel = Panel(board.folder, "0.30.0")
    panel.count(0, "engine", "chunks_built", 4)
    panel.time(1, "runner", "merge", 700)
    before = board.counts()
    panel.count(0, "send", "chunks_built", 3)
    panel.count(1, "send", "chunks_built", 2)
    panel.time(1, "runner", "merge", 50)
    panel.count(len(STAGES), "send", "chunks_built", 9)  # a stage that no switch is about
    trial = since(before, board.counts())
    assert trial.total("chunks_built", thread="engine") == 0
    assert trial.total("chunks_built", stage="talker") == 2
    assert trial.total("chunks_built") == 5
    assert [(row.stage, row.number, row.ns) for row in trial.times if row.number] == [("talker", 1, 50)]


def test_check_names_what_no_process_installed(board):
    with pytest.raises(ToggleUnavailable, match="pip install --no-deps omnilab"):
        board.check()
    panel = Panel(board.folder, "0.30.0")
    panel.say("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")
    with pytest.raises(ToggleUnavailable, match="not installed in any process: greedy_codes, sent_codes"):
        board.check()
    panel.say("greedy_codes", "sent_codes")
    board.check()


def test_every_toggle_has_a_switch_and_a_place():
    installed = {name for named in INSTALLS.values() for name in named}
    assert {toggle.name for toggle in TOGGLES} | {"greedy_codes", "sent_codes"} == set(AS_SHIPPED)
    assert set(AS_SHIPPED) <= installed
