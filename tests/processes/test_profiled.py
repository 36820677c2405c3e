"""A profile of `tiny` in processes: every thread in one trace, readable by the tools, and failures that stay small."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from omnilab import recipes
from omnilab.engine.profiling import Kept
from omnilab.profile import sampling
from omnilab.profile.passes import Profile, Profiling
from omnilab.profile.torch_trace import TorchTrace
from omnilab.profile.watched import STOP_WITHIN_S, ProfiledPipeline
from omnilab.workload import Workload

pytestmark = pytest.mark.timeout(300)  # three passes, each of six processes and once more without a profiler
STAGES = ("thinker", "talker", "code2wav")
FRAMES = 100  # four chunks: Code2Wav has no fewer steps than are recorded
SAY = Workload.random(num_prompts=1, input_len=40, output_len=12, frames=FRAMES)
STEPS = 3
NAME = "AFTER_1378"
MAY_SAMPLE = sampling.refused() is None


def tiny(name: str = NAME) -> ProfiledPipeline:
    pipeline = ProfiledPipeline.open("tiny", recipe=recipes.recipe_named(name), timeout_s=30)
    assert isinstance(pipeline, ProfiledPipeline)
    return pipeline


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profiling, Profile, list[str]]:
    """All passes over one variant whose runners have processes of their own."""
    passes = ("torch", "memory", "pyspy") if MAY_SAMPLE else ("torch", "memory")
    asked = Profiling(root=tmp_path_factory.mktemp("profile"), workload=SAY, steps=STEPS, passes=passes)
    said: list[str] = []
    return asked, asked.profile(NAME, tiny, said.append), said


@pytest.fixture(scope="module")
def pipe() -> Iterator[ProfiledPipeline]:
    """Stages for tests that leave them usable."""
    with tiny() as pipeline:
        yield pipeline


def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


class Merged:
    """A merged trace by its tracks' names."""

    def __init__(self, path: Path) -> None:
        self.trace = read(path)
        self.events = self.trace["traceEvents"]
        self.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"}
        self.places = {name: place for place, name in self.names.items()}

    def slices(self, track: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["ph"] == "X" and (e["pid"], e["tid"]) == self.places[track]]


@pytest.fixture(scope="module")
def merged(profile: tuple[Profiling, Profile, list[str]]) -> Merged:
    return Merged(profile[0].folder(NAME) / "merged.json.gz")


def test_every_pass_says_what_it_cost_and_where_it_is(profile: tuple[Profiling, Profile, list[str]]):
    asked, done, said = profile
    assert not done.missing
    for one in done.passes:
        assert one.wall_s and one.plain_s and one.cost == one.wall_s / one.plain_s and one.took_s > one.wall_s
        [line] = [line for line in said if line.startswith(f"{NAME}, {one.name}")]
        assert f"{one.wall_s:.1f} s, {one.plain_s:.1f} s without" in line
        assert one.files
        for file in one.files:
            path = asked.root / file["path"]
            assert path.stat().st_size == file["bytes"] > 0
            assert any(str(path) in line for line in said)
    kept = json.loads((asked.folder(NAME) / "profile.json").read_text())
    assert [one["name"] for one in kept["passes"]] == list(asked.passes)
    assert all(record.error is None for trial in done.trials.values() for record in trial.records)
    assert sum(file.get("unpacked_bytes", 0) for one in done.passes for file in one.files) < 50_000_000


def test_a_profiled_trial_is_marked(profile: tuple[Profiling, Profile, list[str]]):
    """A trial under torch's profiler cannot pass for a measurement: its counters say so."""
    trials = profile[1].trials
    marked = {row[:2] for row in trials["torch"].counter_rows if row.counter == "profiled_steps"}
    assert marked == {(stage, loop) for stage in STAGES for loop in ("engine", "runner")}
    assert not [row for row in trials["plain"].counter_rows if row.counter == "profiled_steps"]


def test_every_stage_and_thread_has_its_track(merged: Merged):
    for stage in STAGES:
        assert merged.slices(f"{stage}/runner") and merged.slices(f"{stage}/runner torch")
        assert merged.slices(f"{stage}/engine")
    assert len({pid for pid, _ in merged.names}) == 3
    assert len({tid for _, tid in merged.names}) == len(merged.names)
    used = {(e["pid"], e["tid"]) for e in merged.events if e["ph"] != "M"}
    assert used <= set(merged.names)
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in merged.events if e["name"] == "thread_sort_index"}
    tracks = [merged.names[place] for place in sorted(order, key=order.__getitem__)]
    for stage in STAGES:
        assert tracks.index(f"{stage}/runner torch") == tracks.index(f"{stage}/runner") + 1


def test_as_many_steps_are_recorded_as_asked(merged: Merged, profile: tuple[Profiling, Profile, list[str]]):
    for stage in STAGES:
        names = Counter(e["name"] for e in merged.slices(f"{stage}/runner torch") if e["cat"] == "user_annotation")
        assert {name: n for name, n in names.items() if name.startswith("Profiler")} == {
            f"ProfilerStep#{number}": 1 for number in range(STEPS)
        }
    counters = profile[1].trials["torch"].counter_rows
    steps = {row.stage: row.value for row in counters if row.counter == "steps"}
    forwards = {"thinker": "forward", "talker": "forward", "code2wav": "vocode"}
    for stage, name in forwards.items():
        assert sum(e["name"] == name for e in merged.slices(f"{stage}/runner")) >= steps[stage]


def test_the_background_saver_has_a_track_with_its_torch_operations(merged: Merged):
    """Worker threads are missing from a torch trace unless all threads are recorded: here they are."""
    assert {"build", "put"} <= {e["name"] for e in merged.slices("thinker/send")}
    assert [e for e in merged.slices("thinker/send torch") if e["cat"] == "cpu_op"]


def test_every_chunk_has_one_arrow(merged: Merged, profile: tuple[Profiling, Profile, list[str]]):
    spans = profile[1].trials["torch"].span_rows
    puts = sum(row.name == "put" and row.thread in ("send", "engine") for row in spans)
    for phase in "sf":
        assert len([e for e in merged.events if e["ph"] == phase and e["cat"] == "chunk"]) == puts > 0
    assert merged.trace["metadata"]["unmatched"] == merged.trace["metadata"]["crossed"] == 0


def test_torch_operations_of_a_forward_lie_within_our_forward_span(merged: Merged):
    """Two clocks that were not brought together would put them beside it."""
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in merged.slices("thinker/runner") if e["name"] == "forward"]
    products = [e for e in merged.slices("thinker/runner torch") if e["name"] == "aten::mm"]
    assert len(products) > 10 * STEPS
    error_us = merged.trace["metadata"]["torch"]["thinker"]["clock_error_ns"] / 1000
    for e in products:
        start, end = e["ts"], e["ts"] + e["dur"]
        assert any(a - error_us <= start and end <= b + error_us for a, b in spans)
    assert error_us < 100


def test_the_trace_is_what_perfetto_opens(merged: Merged):
    for e in merged.events:
        assert e["ph"] in "XMsf" and isinstance(e["pid"], int) and isinstance(e["tid"], int)
        if e["ph"] != "M":
            assert isinstance(e["ts"], (int, float)) and e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["name"]


READ_BY_TENSORBOARD = """
import json, sys, time
from tensorboard.backend.event_processing import plugin_event_multiplexer as multiplexer
from tensorboard.plugins import base_plugin
from torch_tb_profiler.plugin import TorchProfilerPlugin
from werkzeug.test import Client

context = base_plugin.TBContext(logdir=sys.argv[1], multiplexer=multiplexer.EventMultiplexer())
apps = {path: Client(app) for path, app in TorchProfilerPlugin(context).get_plugin_apps().items()}
def ask(path, **query):
    return apps["/" + path].get("/", query_string=query).get_json()
deadline = time.monotonic() + 90
while (found := ask("runs"))["loading"] or len(found["runs"]) < 2:
    assert time.monotonic() < deadline, found
    time.sleep(0.2)
said = {}
for run in found["runs"]:
    views = ask("views", run=run)
    workers = {view: ask("workers", run=run, view=view) for view in views}
    spans = {w: ask("spans", run=run, worker=w) for w in workers["Overview"]}
    rows = {w: len(ask("operation/table", run=run, worker=w, span=s[0], group_by="Operation")["data"])
            for w, s in spans.items()}
    said[run] = {"views": views, "workers": workers["Overview"], "rows": rows}
print(json.dumps(said))
"""


def test_torch_tb_profiler_reads_it(profile: tuple[Profiling, Profile, list[str]]):
    """Run is the variant, worker the stage. Asked on its endpoints: in a browser it needs a network."""
    pytest.importorskip("torch_tb_profiler", reason="pip install 'omnilab[trace]'")
    command = [sys.executable, "-W", "ignore", "-c", READ_BY_TENSORBOARD, str(profile[0].root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said) == {NAME, f"{NAME}/memory"}
    workers = {*STAGES, *(f"{stage}.engine" for stage in STAGES)}
    assert set(said[NAME]["workers"]) == set(said[f"{NAME}/memory"]["workers"]) == workers
    assert {"Overview", "Operator", "Trace"} <= set(said[NAME]["views"])
    assert "Memory" in said[f"{NAME}/memory"]["views"] and "Memory" not in said[NAME]["views"]
    assert all(said[NAME]["rows"][stage] > 5 for stage in STAGES)


@pytest.mark.skipif(not MAY_SAMPLE, reason="py-spy is not permitted here")
def test_py_spy_names_every_thread(profile: tuple[Profiling, Profile, list[str]]):
    files = {file["worker"]: profile[0].root / file["path"] for file in profile[1].passes[-1].files}
    assert set(files) == {*STAGES, *(f"{stage}.engine" for stage in STAGES)}
    for worker, path in files.items():
        stage = worker.partition(".")[0]
        flame = json.loads(path.read_text())
        assert flame["$schema"].endswith("speedscope.app/file-format-schema.json")
        names = [one["name"] for one in flame["profiles"]]
        assert names and all(f'"{stage}/' in name for name in names), names
        if worker == stage:
            [runner] = flame["profiles"]
            frames = {flame["shared"]["frames"][index]["name"] for stack in runner["samples"] for index in stack}
            assert f'"{stage}/runner"' in runner["name"] and frames


def test_a_runner_within_its_engine_is_one_worker(tmp_path: Path):
    """Under direct_worker a stage is one process: one file, and the network's operations below the engine."""
    asked = Profiling(root=tmp_path, workload=SAY, steps=2, passes=("torch",))
    done = asked.profile("BEST", lambda: tiny("BEST"), lambda line: None)
    assert not done.missing
    workers = {file["worker"] for file in done.passes[0].files if "worker" in file}
    assert workers == set(STAGES)
    trace = Merged(asked.folder("BEST") / "merged.json.gz")
    forwards = [(e["ts"], e["ts"] + e["dur"]) for e in trace.slices("thinker/runner") if e["name"] == "forward"]
    products = [e for e in trace.slices("thinker/engine torch") if e["name"] == "aten::mm"]
    assert products
    for e in products:
        assert any(a - 100 <= e["ts"] <= b for a, b in forwards)


def failing_in(worker: str, at: str) -> Any:
    """Make profilers of which that of one process raises; by value, for no stage can import a test."""

    class Failing:
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self) -> None:
            self.reach("prepare")

        def start(self) -> None:
            self.reach("start")

        def step(self) -> None:
            self.reach("step")

        def stop(self) -> Any:
            self.reach("stop")
            return Kept(1, {}, ["all well"])

        def reach(self, what: str) -> None:
            if (self.name, what) == (worker, at):
                raise RuntimeError("planted")

    return Failing


@pytest.mark.parametrize("at", ["prepare", "start", "step", "stop"])
@pytest.mark.parametrize("worker", ["talker", "talker.engine"])
def test_a_profiler_that_fails_leaves_the_trial(pipe: ProfiledPipeline, worker: str, at: str):
    """The trial's result is kept, the other processes' too, and the message says which is missing."""
    with pipe.profiled(failing_in(worker, at)) as answers:
        trial = pipe.run(SAY)
    assert [record.error for record in trial.records] == [None] and trial.metrics["frames"] == FRAMES
    errors = {answer.worker: answer.error for answer in answers}
    assert len(errors) == 6 and [name for name, error in errors.items() if error] == [worker]
    assert f"failed at its {at}" in (errors[worker] or "") and "planted" in (errors[worker] or "")
    assert all(answer.notes == ["all well"] for answer in answers if answer.worker != worker)


def test_a_pass_that_fails_is_missing_and_the_next_one_is_not(tmp_path: Path):
    asked = Profiling(
        root=tmp_path, workload=SAY, steps=2, passes=("torch", "pyspy", "memory"),
        unavailable={"pyspy": "not permitted: CAP_SYS_PTRACE"},
        make=lambda wanted: wanted if wanted.memory else failing_in("code2wav", "step"),
    )  # fmt: skip
    said: list[str] = []
    done = asked.profile("BEST", lambda: tiny("BEST"), said.append)  # three processes start sooner than six
    assert done.missing and done.trials["torch"].metrics["completed"] == 1
    broken, pyspy, memory = done.passes
    [what] = broken.missing
    assert what.startswith("code2wav: ") and "planted" in what and f"  MISSING {what}" in said
    assert pyspy.missing == ["not permitted: CAP_SYS_PTRACE"]
    assert not memory.missing and len(memory.files) == 3
    assert Merged(asked.folder("BEST") / "merged.json.gz").slices("code2wav/runner")


def test_nothing_recorded_is_said(pipe: ProfiledPipeline, tmp_path: Path):
    """Start and stop without work between them: a warning, not an empty success."""
    with pipe.profiled(TorchTrace(folder=str(tmp_path))) as answers:
        pass
    assert [(answer.seen, answer.steps, answer.files) for answer in answers] == [(0, 0, {})] * 6
    assert all("no steps recorded" in answer.notes[0] for answer in answers)
    assert pipe.run(SAY).metrics["completed"] == 1


def test_a_stage_that_dies_leaves_the_others_traces(tmp_path: Path):
    """Ending a profile waits for no dead stage, and what the others recorded is there."""
    with tiny("BEST") as pipeline, pipeline.profiled(TorchTrace(folder=str(tmp_path), steps=1)) as answers:
        pipeline.run(SAY)
        psutil.Process(pipeline.processes()["code2wav"]).kill()
        while not pipeline.ended:
            time.sleep(0.01)
        ended = time.monotonic()
    assert time.monotonic() - ended < STOP_WITHIN_S / 2
    by_worker = {answer.worker: answer for answer in answers}
    assert "code2wav" in (by_worker["code2wav"].error or "")
    for worker in ("thinker", "talker"):
        assert by_worker[worker].steps == 1 and list(tmp_path.glob(f"{worker}.*.pt.trace.json.gz"))
