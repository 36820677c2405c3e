"""`python -m omnilab.profile` without a pipeline: clocks brought together, what is refused, what py-spy may not do."""

from __future__ import annotations

import gzip
import json
import random
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from omnilab import recipes
from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.results import SCHEMA_VERSION
from omnilab.profile import __main__ as command
from omnilab.profile import sampling, subjects
from omnilab.profile.merge import merged_trace, read_torch, shift_of
from omnilab.profile.torch_trace import TorchTrace
from omnilab.record import SpanRow

BASE_NS = 1_790_000_000_000_000_000
AHEAD_NS = 1_790_001_000_000_000_123  # torch's clock, of the monotonic one
START_NS = 5_000_000_000


def mark(start_ns: int, length_ns: int, ahead_ns: int = AHEAD_NS) -> dict[str, Any]:
    """A mark as torch writes it."""
    return event("omnilab/clock", "user_annotation", 11, start_ns, length_ns, ahead_ns)


def event(
    name: str, category: str, tid: int, start_ns: int, length_ns: int, ahead_ns: int = AHEAD_NS, pid: int = 7
) -> dict[str, Any]:
    ts = (start_ns + ahead_ns - BASE_NS) / 1000
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": length_ns / 1000}


def torch_file(path: Path, events: list[dict[str, Any]], worker: str = "talker") -> Path:
    """A file as torch_trace writes it, with two marks whose times are known to the nanosecond."""
    marks = [(START_NS, START_NS + 1000), (START_NS + 900_000, START_NS + 901_000)]
    facts = {
        "worker": worker, "pid": 7, "steps": 1, "bytes": 1, "marks": marks,
        "threads": {"11": "talker/runner", "12": "talker/send"},
    }  # fmt: skip
    made = [mark(before, 1000) for before, _ in marks]
    trace = {"omnilab": facts, "baseTimeNanoseconds": BASE_NS, "traceEvents": [*events, *made]}
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


def test_a_clock_is_found_within_the_error_that_is_said():
    """Torch's clock and ours differ by a shift that drifts: the true one is never farther than what is said."""
    draw = random.Random(3)
    for tried in range(200):
        most = (300, 40_000)[tried % 2]  # ns around a mark: the drift outweighs it, or is outweighed
        drift = draw.randrange(-3000, 3000)
        known, marks = [], []
        for number in range(20):
            before = START_NS + number * 100_000 + (5_000_000 if number > 9 else 0)
            length, spare = draw.randrange(500, 900), [draw.randrange(most) for _ in range(2)]
            known.append((before, before + spare[0] + length + spare[1]))
            marks.append(mark(before + spare[0], length, AHEAD_NS + drift * (number > 9)))
        shift = shift_of(BASE_NS, marks, known)
        for truth in (AHEAD_NS, AHEAD_NS + drift):
            assert abs(shift.offset_ns - truth) <= shift.error_ns + 1
        assert shift.error_ns < most + 1500


def test_torch_operations_stand_below_their_loop_on_the_clock_of_the_spans(tmp_path: Path):
    spans = [
        SpanRow("talker", "runner", "forward", "r0", -1, START_NS + 10_000, START_NS + 30_000),
        SpanRow("talker", "send", "put", "r0", 0, START_NS + 40_000, START_NS + 45_000),
    ]
    path = torch_file(
        tmp_path / "talker.1.pt.trace.json.gz",
        [
            event("aten::mm", "cpu_op", 11, START_NS + 12_000, 5_000),
            event("aten::copy_", "cpu_op", 12, START_NS + 41_000, 1_000),
            event("a kernel", "kernel", 20, START_NS + 13_000, 2_000, pid=0),
            event("some python", "python_function", 11, START_NS + 12_000, 5_000),
            event("too early", "cpu_op", 11, START_NS + 1_000, 100),
        ],
    )
    trace = merged_trace(spans, [path], ahead={"talker": 1_000})
    named = [e for e in trace["traceEvents"] if e["name"] == "thread_name"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in named}
    order = {
        names[e["pid"], e["tid"]]: e["args"]["sort_index"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_sort_index"
    }
    assert sorted(order, key=order.__getitem__) == [
        "talker/runner", "talker/runner torch", "talker/send", "talker/send torch", "talker/GPU 0 stream 20",
    ]  # fmt: skip
    slices = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {name: names[e["pid"], e["tid"]] for name, e in slices.items()} == {
        "forward": "talker/runner", "put": "talker/send", "aten::mm": "talker/runner torch",
        "aten::copy_": "talker/send torch", "a kernel": "talker/GPU 0 stream 20",
    }  # fmt: skip
    # spans begin at START + 10 us, and this process's monotonic clock is 1 us ahead of theirs
    assert slices["aten::mm"]["ts"] == pytest.approx(1.0, abs=0.3) and slices["aten::mm"]["dur"] == 5.0
    assert trace["metadata"]["torch"]["talker"]["events"] == 3
    assert trace["metadata"]["torch"]["talker"]["clock_error_ns"] < 500


@pytest.mark.parametrize(
    "content", [b"", b"{}", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"omnilab": 1}', mtime=0)]
)
def test_a_file_of_another_tool_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "talker.1.pt.trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"talker\.1\.pt\.trace.*damaged"):
        read_torch(path)


def watch(wanted: TorchTrace, steps: int, worker: str = "code2wav") -> Any:
    """Profile `steps` steps of a small product, on a thread as an engine does; the steps make ever the same events."""
    kept: list[Any] = []

    def engine() -> None:
        profiler = wanted(worker)
        profiler.start()
        for _ in range(steps):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
        kept.append(profiler.stop())

    wanted(worker).prepare()
    thread = threading.Thread(target=engine, name=f"{worker}/engine")
    thread.start()
    thread.join()
    return kept[0]


@pytest.mark.parametrize(("worker", "made", "recorded"), [("code2wav", 9, 5), ("code2wav", 4, 3), ("talker", 4, 2)])
def test_a_few_steps_are_recorded_after_those_that_warm_up(tmp_path: Path, worker: str, made: int, recorded: int):
    kept = watch(TorchTrace(folder=str(tmp_path), steps=5), made, worker)
    assert kept.steps == recorded
    assert [note for note in kept.notes if "made no more" in note] == kept.notes and bool(kept.notes) == (recorded < 5)
    [(name, num_bytes)] = kept.files.items()
    text = gzip.decompress(Path(name).read_bytes())
    trace = json.loads(text)
    steps = [e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in range(recorded)]
    assert num_bytes < len(text) < num_bytes + 5000  # what is said is what the file weighs


def test_a_trace_that_would_pass_the_limit_stops_early_and_says_so(tmp_path: Path):
    wide = watch(TorchTrace(folder=str(tmp_path / "wide"), steps=40), 60)
    [weight] = wide.files.values()
    narrow = watch(TorchTrace(folder=str(tmp_path / "narrow"), steps=40, limit_bytes=weight), 60)
    assert wide.steps == 40 and not wide.notes
    assert 1 <= narrow.steps < 40
    assert f"stopped after {narrow.steps} of 40 steps" in narrow.notes[0]
    [less] = narrow.files.values()
    assert less <= weight


@pytest.mark.parametrize("made", [0, 1])
def test_nothing_recorded_is_said_and_is_no_file(tmp_path: Path, made: int):
    kept = watch(TorchTrace(folder=str(tmp_path)), made)
    assert (kept.steps, kept.files) == (0, {})
    assert "no steps recorded" in kept.notes[0] and not list(tmp_path.iterdir())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command; it must end with 2 and one line, which is returned."""
    assert command.main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--recipe", "BEST,NOPE"], "no recipe is named 'NOPE'; there are BEFORE_1378"),
        (["--passes", "torch,flame"], "no pass 'flame'; there are torch, memory, pyspy"),
        (["--passes", ","], "no pass is named"),
        (["--steps", "0"], "between 1 and 1000"),
        (["--native", "--passes", "torch"], "add pyspy"),
        (["experiments/quick.py", "--variant", "none such"], "no variant 'none such'; there are 'BEFORE_1378'"),
        (["experiments/quick.py", "--recipe", "BEST"], "give one of them"),
        (["--variant", "BEST"], "recipes are named by --recipe"),
        (["none.py"], "no such experiment file"),
        (["experiments/length.py"], "is a sweep"),
        (["--run", "docs"], "is not a run folder"),
        (["--run", "docs", "--out", "x"], "leave --out away"),
        (["--out", "docs"], "is not empty"),
        (["--model", "tiny", "--input-len", "99999999"], "do not fit"),
        (["--model", "none-such"], "no model"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str], arguments, says, monkeypatch):
    if arguments[0].startswith("experiments") or "docs" in arguments:
        monkeypatch.chdir(Path(__file__).resolve().parents[2])
    if "--passes" not in arguments:
        arguments = [*arguments, "--passes", "torch"]
    assert says in refused(capsys, *arguments)


def fake_py_spy(folder: Path, says: str, status: int) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_py_spy_without_permission_names_the_capability(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    denied = fake_py_spy(tmp_path, "Error: Permission Denied: Try running again with elevated permissions", 1)
    monkeypatch.setattr(sampling, "program", lambda: denied)
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    monkeypatch.setattr(sampling, "YAMA", scope)
    said = refused(capsys, "--passes", "pyspy", "--model", "tiny", "--out", str(tmp_path / "out"))
    for word in ("CAP_SYS_PTRACE", "--cap-add SYS_PTRACE", "kernel.yama.ptrace_scope", "it is 1 here"):
        assert word in said
    assert not (tmp_path / "out").exists()
    assert list(command._unavailable(("torch", "pyspy"))) == ["pyspy"]


def test_py_spy_that_is_not_there_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"pip install 'omnilab\[trace\]'"):
        sampling.program()


def test_a_run_is_profiled_with_the_recipes_that_its_stages_reported(tmp_path: Path):
    def run(**occupants: str) -> Path:
        filled = recipes.AFTER_1378.occupants() | occupants
        variants = [{"name": "a", "occupants": filled}]
        manifest = {"schema_version": SCHEMA_VERSION, "model": "tiny", "device": "cpu", "variants": variants}
        (tmp_path / "run.json").write_text(json.dumps(manifest))
        (tmp_path / "trials.jsonl").write_text("")
        return tmp_path

    subject = subjects.of_run(run())
    assert subject.recipes == {"a": recipes.AFTER_1378} and (subject.model, subject.device) == ("tiny", "cpu")
    with pytest.raises(BadInput, match=r"save in 'a' \(mine 123\) is not in this version"):
        subjects.of_run(run(save="mine 123"))
