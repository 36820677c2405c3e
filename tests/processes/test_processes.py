"""Stages in processes of their own: toggles in force there, failures, aborts, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from omnilab import errors, recipes
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt, Sampling
from omnilab.recipe import Recipe, recipe_with
from omnilab.seams import Payload
from omnilab.speech import Speech
from omnilab.toggle import Toggle
from omnilab.toggles import TOGGLES
from omnilab.toggles.shallow_merge import merge_elementwise
from omnilab.workload import WorkItem, Workload, closed
from tests.conftest import left_since, leftovers

STAGES = ("thinker", "talker", "code2wav")
SAY: dict[str, Any] = {"max_text_tokens": 6, "max_frames": 30, "seed": 9, "ignore_eos": True}
TONE = (np.sin(np.arange(8000) / 9).astype(np.float32) * 0.3, 16_000)
HEAR = Prompt(text="What do you hear?", audio=TONE)
HEARD = Workload((WorkItem(HEAR, Sampling(**SAY)),), closed(1))


def tiny(**settings: Any) -> Pipeline:
    """Open `tiny` in processes."""
    return Pipeline.open("tiny", **{"recipe": recipes.BEFORE_1378, "timeout_s": 30} | settings)


def parts(speech: Speech) -> list[Any]:
    """Everything two equal answers share, as plain values."""
    return [speech.token_ids, speech.codes.tolist(), speech.audio.tolist(), speech.finish_reason]


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """One set of processes for tests that leave it quiet; when it closes nothing is left."""
    before = leftovers()
    with tiny() as pipeline:
        yield pipeline
    assert not left_since(before)


@pytest.fixture(scope="module")
def inline_answer() -> Speech:
    """What the same network says inline, under the baseline."""
    with tiny(topology="inline", connector="memory") as pipeline:
        return pipeline.speak(HEAR, **SAY)


def counted(trial: Any) -> dict[tuple[str, str, str], int]:
    """Counters by stage, thread and name."""
    return {row[:3]: row.value for row in trial.counter_rows}


def fell(stage: str, thread: str, counter: str) -> Callable[[dict[Any, int], dict[Any, int]], bool]:
    """The toggle brings a counter down, to nothing or at least well below."""
    return lambda off, on: off[stage, thread, counter] > 1.1 * on.get((stage, thread, counter), 0)


def gone(stage: str, thread: str, counter: str) -> Callable[[dict[Any, int], dict[Any, int]], bool]:
    """The toggle leaves nothing of a counter."""
    return lambda off, on: off[stage, thread, counter] > 0 and (stage, thread, counter) not in on


MOVES = {
    "async_save": [gone("thinker", "engine", "chunks_built"), gone("talker", "engine", "chunks_built")],
    "prefill_only_hidden_states": [
        gone("thinker", "send", "hidden_rows_in_later_chunks"),
        gone("thinker", "send", "ids_in_later_chunks"),
    ],
    "idle_skip": [gone("code2wav", "runner", "updates_while_idle")],
    "shallow_merge": [gone("talker", "runner", "elements_visited")],
    "override_rows": [gone("talker", "receive", "bytes_accumulated")],
    "wake_on_chunk": [fell("code2wav", "receive", "empty_passes")],
    "wake_engine": [fell("code2wav", "engine", "idle_steps")],
    "attach_once": [fell("talker", "engine", "payloads_attached")],
    "direct_worker": [gone("talker", "engine", "bytes_to_worker")],
    "small_first_chunk": [fell("talker", "send", "ids_in_chunk_0")],
    "stateful_vocode": [fell("talker", "send", "ids_in_later_chunks")],
    "fused_predictor": [gone("talker", "runner", "predictor_forwards")],
}


@pytest.fixture(scope="module")
def counts_of(pipe: Pipeline, inline_answer: Speech) -> Callable[[Recipe, frozenset[str]], dict[Any, int]]:
    """Put a recipe in force everywhere, hold its output to the inline answer's, return its counters; once a recipe."""
    measured: dict[str, dict[Any, int]] = {}

    def of(recipe: Recipe, exact: frozenset[str]) -> dict[Any, int]:
        if (key := str((recipe.occupants(), sorted(exact)))) not in measured:
            pipe.apply(recipe)
            assert pipe.occupants() == dict.fromkeys(STAGES, recipe.occupants())
            tokens, codes, audio, _ = parts(pipe.speak(HEAR, **SAY))
            assert [tokens, codes] == parts(inline_answer)[:2]
            assert "samples" not in exact or audio == parts(inline_answer)[2]
            measured[key] = counted(pipe.run(HEARD))
        return measured[key]

    return of


@pytest.mark.parametrize("toggle", [t for t in TOGGLES if t.needs is None], ids=lambda t: t.name)
def test_each_toggle_on_processes(
    pipe: Pipeline, counts_of: Callable[[Recipe, frozenset[str]], dict[Any, int]], toggle: Toggle[Any]
) -> None:
    """A toggle without effect: each is in force everywhere, gives the baseline's output, and moves its counters."""
    off = counts_of(replace(recipes.BEFORE_1378, **{toggle.seam: toggle.baseline}), toggle.exact)
    on = counts_of(recipe_with(toggle, base=recipes.BEFORE_1378), toggle.exact)
    assert all(moved(off, on) for moved in MOVES[toggle.name])
    assert set(pipe.tables().values()) == {0}


@pytest.mark.parametrize("name", recipes.NAMED)
def test_each_named_recipe_on_processes(pipe: Pipeline, inline_answer: Speech, name: str) -> None:
    """A recipe that is not what its name says: every process reports its occupants, and the answer is the same."""
    recipe = recipes.recipe_named(name)
    pipe.apply(recipe)
    assert pipe.occupants() == dict.fromkeys(STAGES, recipe.occupants())
    assert parts(pipe.speak(HEAR, **SAY))[:2] == parts(inline_answer)[:2]
    assert set(pipe.tables().values()) == {0}


def test_a_toggle_of_ones_own_reaches_every_process(pipe: Pipeline, inline_answer: Speech) -> None:
    """A toggle typed into a notebook cell is in force in processes that never saw the cell."""
    cell = textwrap.dedent(
        """
        class MergeByUpdate:
            skipped = frozenset()

            def __call__(self, state, payload):
                wanted = [key for key in payload if key not in {"none", "of", "these"}]
                return {**(state or {}), **{key: payload[key] for key in wanted}}
        """
    )
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, scope)
    occupant = scope["MergeByUpdate"]()
    mine: Toggle[Any] = Toggle(
        name="by_update", seam="merge", baseline=merge_elementwise, optimized=occupant, claim="none"
    )
    recipe = recipe_with(mine, "idle_skip", base=recipes.BEFORE_1378)
    pipe.apply(recipe)
    in_force = pipe.occupants()
    assert in_force == dict.fromkeys(STAGES, recipe.occupants())
    assert in_force["talker"]["merge"].startswith("MergeByUpdate ")
    assert parts(pipe.speak(HEAR, **SAY)) == parts(inline_answer)


def test_processes_of_this_host_read_one_clock(pipe: Pipeline) -> None:
    """Clocks of stages are ours, chunks carry their sizes, and a trial without spans still counts."""
    pipe.apply(recipes.BEFORE_1378)
    work = Workload.random(num_prompts=1, input_len=24, output_len=4, frames=30)
    trial, bare = pipe.run(work), pipe.run(work, spans=False)
    assert set(trial.clocks) == {f"{stage}/{process}" for stage in STAGES for process in ("engine", "runner")}
    assert all(clock.ahead_ns == 0 and clock.error_ns < 10**9 for clock in trial.clocks.values())
    assert bare.span_rows == [] and bare.counter_rows and bare.metrics["host_ms_per_step"] is None
    sent = [row.num_bytes for row in trial.span_rows if row.name == "put" and row.stage == "thinker"]
    got = [row.num_bytes for row in trial.span_rows if row.name == "get" and row.stage == "talker"]
    assert sent == got and min(sent) > 0
    assert sum(sent) == sum(r.value for r in trial.counter_rows if (r.stage, r.counter) == ("thinker", "bytes_put"))


def test_fifty_requests_and_fifty_aborts_leave_nothing(pipe: Pipeline) -> None:
    """Leaks: normal requests and aborts at any moment leave no entry, no chunk, no file and no process."""
    before = leftovers()
    threads = threading.active_count()
    edges = pipe._topology._folder.path  # pyright: ignore[reportAttributeAccessIssue]
    items = tuple(WorkItem(Prompt(text=f"Say {n}."), Sampling(max_text_tokens=2, max_frames=2)) for n in range(50))
    trial = pipe.run(Workload(items, closed(8)))
    assert [record.error for record in trial.records] == [None] * 50
    for n in range(50):
        events = pipe.stream(f"Stop {n}.", max_text_tokens=40, max_frames=80, temperature=0)
        for _ in range(n % 6):
            next(events)
        events.close()
    pipe._settle()
    assert set(pipe.tables().values()) == {0}
    assert not left_since(before) and threading.active_count() == threads
    assert len(list(edges.glob("*"))) == 2 and not list(edges.glob("*/*"))


def broken_merge(state: Payload | None, payload: Payload) -> Payload:
    """Fail for prompts that hold the byte for "!"."""
    if ord("!") in payload.get("prompt_ids", ()):
        raise ValueError("planted")
    return merge_elementwise(state, payload)


def test_one_requests_failure_ends_that_request_alone(pipe: Pipeline) -> None:
    """One request takes the others with it: here it ends alone, with a message that names the stage and the request."""
    broken: Toggle[Any] = Toggle(
        name="broken", seam="merge", baseline=merge_elementwise, optimized=broken_merge, claim="none"
    )
    pipe.apply(recipe_with(broken, base=recipes.BEFORE_1378))
    texts = ["One.", "Two!", "Three.", "Four."]
    items = tuple(WorkItem(Prompt(text=text), Sampling(max_text_tokens=3, max_frames=3)) for text in texts)
    trial = pipe.run(Workload(items, closed(4)))
    assert [record.error is None for record in trial.records] == [True, False, True, True]
    error = trial.records[1].error or ""
    assert "talker" in error and "planted" in error and trial.records[1].request_id in error
    with pytest.raises(errors.StageFailed, match="planted"):
        pipe.speak("Again!")
    assert set(pipe.tables().values()) == {0}
    pipe.apply(recipes.BEFORE_1378)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("victim", ["stage", "worker"])
def test_a_killed_process_ends_its_requests_and_the_pipeline(victim: str) -> None:
    """Killed in the middle: running requests end within seconds naming the stage, later ones at once."""
    with tiny(recipe=recipes.AFTER_1378) as pipeline:
        events = pipeline.stream("Go on and on.", max_text_tokens=400, max_frames=900, ignore_eos=True)
        next(events)
        stage = psutil.Process(pipeline._topology.pids()["talker"])  # pyright: ignore[reportAttributeAccessIssue]
        process = stage if victim == "stage" else stage.children()[0]
        process.kill()
        killed = time.monotonic()
        with pytest.raises(errors.StageFailed, match="talker"):
            list(events)
        assert time.monotonic() - killed < 10
        with pytest.raises(errors.StageFailed, match="open the pipeline again"):
            pipeline.speak("Hello?")


@pytest.mark.usefixtures("nothing_left")
def test_a_stage_that_cannot_start_says_why() -> None:
    """A stage that fails while it starts: its reason reaches the caller, and nothing is left."""
    with pytest.raises(errors.StageFailed, match="no weights today"):
        tiny(make_runner=no_runner)


def no_runner(spec: Any, recipe: Any) -> Any:
    """Fail as a broken checkpoint would."""
    raise RuntimeError("no weights today")


def owner_of(tmp_path: Path, source: str) -> dict[str, Any]:
    """Return how a Python that runs `source` is started, as subprocess takes it."""
    script = tmp_path / "owner.py"
    script.write_text(source)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return {"args": [sys.executable, script], "env": environment, "text": True}


@pytest.mark.parametrize("after_ms", [0, 2, 20])
def test_an_owner_killed_while_it_closes(after_ms: int, tmp_path: Path) -> None:
    """The stages have been told to end, as its owner has not yet cleaned up: who does?"""
    owned = owner_of(
        tmp_path,
        "import os, signal, threading, time\n"
        "from omnilab import Pipeline\n"
        "from omnilab.engine.topology import m\n"
        "def kill():\n"
        f"    time.sleep({after_ms} / 1000); os.kill(os.getpid(), signal.SIGKILL)\n"
        "pipe = Pipeline.open('tiny')\n"
        "send = pipe._topology.send\n"
        "def sent(stage, command):\n"
        "    send(stage, command)\n"
        "    if isinstance(command, m.Close) and stage == 'code2wav':\n"
        "        threading.Thread(target=kill).start()\n"
        "pipe._topology.send = sent\n"
        "events = pipe.stream('Go on.', max_text_tokens=2000, max_frames=2000, ignore_eos=True)\n"
        "next(events)\n"
        "pipe.close()\n",
    )
    before = leftovers()
    owner = subprocess.run(**owned, timeout=120, capture_output=True)
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    deadline = time.monotonic() + 15
    while left_since(before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_since(before)


@pytest.mark.parametrize("how", ["ctrl-c", "killed", "killed with its stages"])
def test_a_pipeline_whose_owner_goes(how: str, tmp_path: Path) -> None:
    """Every stage process ends by itself and nothing is left; where all were killed, the next pipeline sweeps it."""
    owned = owner_of(
        tmp_path,
        "from omnilab import Pipeline, recipes\n"
        "with Pipeline.open('tiny', recipe=recipes.AFTER_1378) as pipe:\n"
        "    events = pipe.stream('Go on.', max_text_tokens=2000, max_frames=2000, ignore_eos=True)\n"
        "    next(events); print('speaking', flush=True)\n"
        "    list(events)\n",
    )
    before = leftovers()
    owner = subprocess.Popen(**owned, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdout.readline() == "speaking\n"
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) == 6
    owner.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
    if how == "killed with its stages":
        for process in family:
            process.kill()
    owner.communicate(timeout=30)
    gone, alive = psutil.wait_procs(family, timeout=15)
    assert not alive and len(gone) == 6
    if how == "killed with its stages":
        assert left_since(before)
        with tiny() as pipeline:
            assert pipeline.speak("Still here.", max_text_tokens=2, max_frames=2).codes.shape == (2, 16)
    assert not left_since(before)
