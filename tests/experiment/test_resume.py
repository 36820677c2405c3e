"""Nothing is lost: a run killed at any moment goes on where it stopped, and only that very run."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from omnilab.errors import RunFolderError
from omnilab.experiment.reports.report import Report
from omnilab.experiment.results import RunFolder


def lines_of(path):
    return [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def measured(path):
    return [(x["kind"], x["block"], x["variant"]) for x in lines_of(path) if x["kind"] in ("gate", "trial")
            and not str(x["error"]).startswith("aborted")]  # fmt: skip


@pytest.fixture
def stopped_at(small, script, tmp_path):
    """Run a small experiment into tmp_path/run and interrupt it at its n-th request for work."""

    def stop(number, **changes):
        def explode(on, trials):
            if trials == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            small(**changes).run(tmp_path / "run", open_pipeline=script(explode=explode).open)
        return tmp_path / "run"

    return stop


@pytest.mark.parametrize("number", [3, 7, 8, 9, 13, 17, 30, 36])
def test_resumed_runs_hold_every_trial_once_in_the_planned_order(stopped_at, small, script, number):
    path = stopped_at(number)
    before = lines_of(path)
    bench = script()
    report = small().run(path, open_pipeline=bench.open, resume=True)
    assert lines_of(path)[: len(before)] == before  # nothing finished was touched
    done = measured(path)
    assert len(done) == len(set(done)) or number <= 7  # a gate that was cut off is done anew, as a whole
    trials = [(block, name) for kind, block, name in done if kind == "trial"]
    assert trials == [(block, name) for block, order in enumerate(small().plan().orders) for name in order]
    assert not report.findings.unfinished
    assert report.findings.trials == 30


def test_what_was_aborted_is_a_row_and_is_measured_again(stopped_at, small, script):
    path = stopped_at(12)
    last = lines_of(path)[-1]
    assert last["error"] == "aborted: interrupted"
    assert Report.load(path).findings.unfinished
    assert (path / "report.md").exists()
    report = small().run(path, open_pipeline=script().open, resume=True)
    assert not any(variant.errors for variant in report.findings.variants)  # an interrupt is no failure
    assert not report.failed


def test_a_half_written_last_line_is_taken_away(stopped_at, small, script):
    path = stopped_at(20)
    with open(path / "trials.jsonl", "a") as lines:
        lines.write('{"kind": "trial", "block": 2, "vari')
    report = small().run(path, open_pipeline=script().open, resume=True)
    assert not report.findings.unfinished


def test_outputs_of_a_resumed_block_are_compared_with_a_baseline_of_their_own(stopped_at, small, script):
    def spoil(on, record):
        if on == {"shallow_merge"} and record.output_tokens == 6:
            record.codes = record.codes + 1

    def first_of(seed):  # where the baseline was last tried in the first block
        order = small(seed=seed).plan().orders[0]
        return order, max(order.index("BEFORE_1378"), order.index("BEFORE_1378 (A/A)"))

    seed = next(seed for seed in range(99) if "shallow_merge" in first_of(seed)[0][first_of(seed)[1] + 1 :])
    at = first_of(seed)[1] + 2
    path = stopped_at(at + 1, gate_prompts=None, seed=seed)
    report = small(gate_prompts=None, seed=seed).run(path, open_pipeline=script(spoil=spoil).open, resume=True)
    assert report.result("shallow_merge").verdict == "failed the gate"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"toggles": ["idle_skip"]}, "variants"),
        ({"margin": 0.05}, "margin: 0.02 there, 0.05 here"),
        ({"primary": "cpu_s"}, "primary"),
        ({"blocks": 6}, "asked"),
        ({"model": "other"}, "model"),
    ],
)
def test_another_experiment_is_refused_with_the_difference(stopped_at, small, script, changes, said):
    path = stopped_at(20)
    before = (path / "trials.jsonl").read_bytes()
    bench = script()
    with pytest.raises(RunFolderError, match=f"holds another run.*{said}"):
        small(**changes).run(path, open_pipeline=bench.open, resume=True)
    assert bench.opened == 0
    assert (path / "trials.jsonl").read_bytes() == before


def test_another_machine_or_commit_is_refused(stopped_at, small, script):
    path = stopped_at(20)
    run = json.loads((path / "run.json").read_text())
    for key, value in (("machine", {**run["machine"], "cpu": "another"}), ("commit", "abc"), ("versions", {})):
        (path / "run.json").write_text(json.dumps({**run, key: value}))
        with pytest.raises(RunFolderError, match=key):
            small().run(path, open_pipeline=script().open, resume=True)


def test_two_at_once_are_one_too_many(stopped_at, small, script):
    path = stopped_at(20)
    first = RunFolder.resume(path)
    with pytest.raises(RunFolderError, match="another process is writing it"):
        small().run(path, open_pipeline=script().open, resume=True)
    first.close()
    assert not small().run(path, open_pipeline=script().open, resume=True).findings.unfinished


def test_damaged_folders_are_refused(stopped_at, small, script, tmp_path):
    path = stopped_at(20)
    text = (path / "trials.jsonl").read_text()
    for bad, said in ((text.replace('"kind"', '"kin', 1), "line 1: is damaged"), ("[1]\n", "line 1")):
        (path / "trials.jsonl").write_text(bad)
        with pytest.raises(RunFolderError, match=said):
            small().run(path, open_pipeline=script().open, resume=True)
    (path / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="schema version"):
        small().run(path, open_pipeline=script().open, resume=True)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        small().run(tmp_path / "nowhere", open_pipeline=script().open, resume=True)


def test_a_full_disk_says_what_is_kept(small, script, tmp_path, monkeypatch):
    real, left = os.fsync, [15]

    def fsync(file):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunFolderError, match=r"No space left on device; its \d+ finished rows are kept.*--resume"):
        small().run(tmp_path / "run", open_pipeline=script().open)
    monkeypatch.undo()
    kept = lines_of(tmp_path / "run")
    assert len(kept) >= 10
    report = small().run(tmp_path / "run", open_pipeline=script().open, resume=True)
    assert not report.findings.unfinished
    assert lines_of(tmp_path / "run")[: len(kept)] == kept


def _run_until_killed(experiment, path, bench):
    experiment.run(path, open_pipeline=bench.open)


@pytest.mark.parametrize("after", [2, 9, 14])
def test_kill_9_loses_at_most_the_trial_in_flight(small, script, tmp_path, after):
    """The process ends without a word; every finished trial is on the disk."""

    def explode(on, trials):
        if trials == after:
            os.kill(os.getpid(), signal.SIGKILL)

    path: Path = tmp_path / "run"
    process = multiprocessing.get_context("fork").Process(
        target=_run_until_killed, args=(small(), path, script(explode=explode))
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(measured(path)) == max(0, after - 2)  # one call was the warm-up, one was in flight
    report = small().run(path, open_pipeline=script().open, resume=True)
    assert not report.findings.unfinished
    assert report.findings.trials == 30
