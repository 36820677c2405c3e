"""The real vLLM-Omni, where OMNILAB_VLLM_OMNI_PYTHON names an environment's Python that has it: `make test-vllm-omni`.

One server serves all: the four toggles and the wrong side switch live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.gate import compare
from omnilab.prompt import Prompt
from omnilab.toggle import EXACT_ALL
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, WRONG
from omnilab.vllm_omni.engine import VllmOmni
from omnilab.vllm_omni.server import Served
from omnilab.vllm_omni.subject import OmniServer, Sides, Subject
from omnilab.vllm_omni.toggles import TOGGLES, UNSAFE
from omnilab.workload import Workload
from tests.vllm_omni.conftest import FOUR, OFF, ON, PYTHON, REAL, SAMPLING, WORDS, output

pytestmark = REAL
T = SAMPLING.max_text_tokens
# Counters that only this toggle moves: in the baseline, then optimized. Chunk 0 takes the first two tokens.
MOVED = {
    "async_save": {("thinker", "engine", "chunks_built"): (T - 1, 0), ("thinker", "send", "chunks_built"): (0, T - 1)},
    "prefill_only_hidden_states": {
        ("thinker", "send", "hidden_rows_resent"): (T - 2, 0),
        ("thinker", "send", "ids_resent"): (sum(range(3, T + 1)), 0),
    },
}  # fmt: skip


def counted(counts):
    """Counters that do not depend on how long a stage waited."""
    return Counter({row[:3]: row.value for row in counts.counters if "idle" not in row.counter})


@pytest.fixture(scope="module")
def off(ask):
    """The request with all four off."""
    return ask(OFF)


@pytest.fixture(scope="module")
def on(ask):
    """The request with all four on."""
    return ask(ON)


def test_a_request_gets_its_text_and_all_its_frames(off):
    ((record,), _) = off
    assert record.output_tokens == T
    assert record.text
    assert len(record.audio_times_s) == 4  # chunks of 4, 25, 25 and 5 frames
    assert 58 * 1920 < sum(record.audio_samples) <= 59 * 1920  # a window's edge is cut


def test_all_on_is_all_off(off, on):
    assert output(on[0][0]) == output(off[0][0])


def test_another_prompt_is_another_answer(ask, off):
    (record,), _ = ask(OFF, prompt=WORDS + "Why?")
    assert output(record)[0] != output(off[0][0])[0]
    assert output(record)[1] != output(off[0][0])[1]


@pytest.mark.parametrize("name", FOUR)
def test_each_toggle_alone_keeps_the_output_and_moves_its_own_counters(ask, off, name):
    (record,), counts = ask({**OFF, name: OPTIMIZED})
    assert output(record) == output(off[0][0])
    before, now = counted(off[1]), counted(counts)
    changed = {key for key in before.keys() | now.keys() if before[key] != now[key]}
    own = {
        "async_save": {"chunks_built"},
        "prefill_only_hidden_states": {
            "hidden_rows_resent", "ids_resent", "hidden_rows_accumulated", "ids_accumulated", "elements_visited",
        },
        "idle_skip": set(),
        "shallow_merge": {"elements_visited"},
    }  # fmt: skip
    assert {counter for _, _, counter in changed} == own[name]
    for key, (baseline, optimized) in MOVED.get(name, {}).items():
        assert (before[key], now[key]) == (baseline, optimized)
    updates = counts.total("updates_while_idle")
    assert updates == 0 if name == "idle_skip" else updates == counts.total("idle_steps") > 0


def test_with_all_on_nothing_of_the_baselines_is_done(on):
    _, counts = on
    for counter in ("hidden_rows_resent", "ids_accumulated", "elements_visited", "updates_while_idle"):
        assert counts.total(counter) == 0
    assert counts.total("merges") > 0


def test_requests_side_by_side_get_what_they_get_alone(ask, off):
    records, _ = ask({**ON, "prefill_only_hidden_states": BASELINE}, times=3)
    assert {output(record) for record in records} == {output(off[0][0])}


def test_a_side_that_is_wrong_on_purpose_is_seen_in_the_output(ask, off):
    (record,), counts = ask({**OFF, "prefill_only_hidden_states": WRONG})
    assert counts.total("rows_dropped") == 1
    assert output(record)[0] == output(off[0][0])[0]
    assert output(record)[1] != output(off[0][0])[1]


def test_as_a_subject_it_gives_trials_like_the_labs(served):
    subject = Subject(served, served.board, OmniServer(served.url, served.name))
    subject.apply(Sides((TOGGLES[1],)))
    trial = subject.run(Workload.random(num_prompts=2, input_len=40, output_len=8, frames=12, max_concurrency=2))
    assert trial.metrics["completed"] == 2
    assert trial.metrics["output_tokens"] == 16
    assert trial.metrics["ttft_ms"] is not None
    assert min(trial.cpu_s.values()) > 0
    assert set(trial.cpu_s) == {"server", "thinker", "talker", "code2wav"}
    counted = {(row.stage, row.thread, row.counter): row.value for row in trial.counter_rows}
    assert trial.occupants["server"] == Sides((TOGGLES[1],)).occupants()
    assert ("thinker", "send", "hidden_rows_resent") not in counted
    assert counted["thinker", "engine", "chunks_built"] == 2 * 7


def test_the_gate_lets_the_optimized_sides_through_and_stops_the_wrong_one(served):
    subject = Subject(served, served.board, OmniServer(served.url, served.name))
    work = Workload.prompts([Prompt(text=WORDS)], SAMPLING)
    trials = {}
    for name, sides in (("off", Sides()), ("on", Sides(TOGGLES)), ("wrong", Sides((UNSAFE,)))):
        subject.apply(sides)
        trials[name] = subject.run(work)
    through, stopped = (compare(trials[name], trials["off"], EXACT_ALL, 90.0) for name in ("on", "wrong"))
    assert through.difference is None
    assert stopped.difference is not None
    assert stopped.difference.what == "codes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(VllmOmni):
    """The server that this room has running, in place of one a block."""

    served: Served

    @contextmanager
    def open(self, setting: Sides, folder: Path) -> Iterator[Subject]:
        """Set the sides."""
        assert self.served.board is not None
        client = OmniServer(self.served.url, self.served.name, tokenizer=Path(str(self.folder)))
        one = Subject(self.served, self.served.board, client)
        one.apply(setting)
        yield one


def test_a_toggle_whose_counters_do_not_move_had_no_effect(served, parity, tmp_path):
    """Two tokens of text are chunk 0, so that no decode chunk is there for prefill-only to make smaller."""
    assert PYTHON is not None
    report = Experiment(
        name="nothing to do",
        subject=Running(python=Path(PYTHON), folder=parity, served=served),
        variants={"all off": (), "nothing": ("prefill_only_hidden_states",), "something": ("async_save",)},
        workload=Workload.random(num_prompts=1, input_len=30, output_len=2, frames=6),
        gate_prompts=Workload.prompts([Prompt(text=WORDS)], SAMPLING),
        blocks=5,
    ).run(tmp_path / "run")
    assert report.result("nothing").output == report.result("something").output == "same output"
    assert report.result("nothing").verdict == "had no effect"
    assert report.result("something").verdict != "had no effect"
    assert {one.what for one in report.result("something").counters} >= {"thinker/engine/chunks_built"}
