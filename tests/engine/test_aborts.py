"""Aborted requests leave nothing: no entry in a table, no chunk on an edge, no tensor."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from omnilab.engine.request import Live
from omnilab.errors import Aborted
from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.seams import LiveRequest, Outbox, Snapshot
from omnilab.speech import AudioChunk
from omnilab.transfer.receiver import Inlet
from tests.races.lab import check_tables
from tests.scripted import Said, ScriptedPipeline, directly, heard, open_scripted

BOTH = pytest.mark.parametrize(
    "recipe", [BEFORE_1378, AFTER_1378, directly(AFTER_1378, 3)], ids=["before", "after", "late"]
)


def remembering(recipe: Recipe, seen: list[weakref.ref[Any]]) -> Recipe:
    """Return the recipe with a save that keeps weak references to what it is given."""
    made: Any = recipe.save

    class Remembering(made):
        def save(self, live: LiveRequest, rows: Any) -> None:
            seen.extend(weakref.ref(tensor) for tensor in vars_of(rows) if isinstance(tensor, Tensor))
            super().save(live, rows)

    return replace(recipe, save=Remembering)


def vars_of(rows: Any) -> list[Any]:
    """What rows are made of; tts rows are the runner's own."""
    return [getattr(rows, field.name) for field in fields(rows) if field.name != "tts_rows"]


def settle(pipeline: ScriptedPipeline) -> None:
    """Wait until the stages are quiet; a few steps more take what only the next step drops."""
    pipeline.settle()
    pipeline.advance(200)


@pytest.mark.parametrize(
    ("recipe", "connector"),
    [(BEFORE_1378, "memory"), (AFTER_1378, "shared_memory"), (directly(AFTER_1378, 3), "memory")],
    ids=["before", "after", "late"],
)
def test_200_aborts_leave_nothing(recipe: Recipe, connector: str) -> None:
    """Kind: state of an aborted request is released at the consumer and not at the producer."""
    seen: list[weakref.ref[Any]] = []
    script = [Said(number, text=10, frames=40) for number in (1, 2, 3, 4)]
    with open_scripted(remembering(recipe, seen), script, connector=connector, chunk_frames=2) as pipeline:
        for _ in range(50):
            started = [pipeline.start(said.number) for said in script]
            last = started[-1].request_id
            while len(pipeline.edges["talker"].got_of(last)) < 2:
                pipeline.advance()
            for tracked in started:
                assert not tracked.done
                pipeline.abort(tracked)
            started.clear()
            for log in pipeline.edges.values():
                log.puts.clear()
                log.gets.clear()
            pipeline.settle()
        assert not any(pipeline.tables().values())
        settle(pipeline)
        assert pipeline.left() == {}
        gc.collect()
        assert len(seen) > 1000 and not [reference for reference in seen if reference() is not None]
        assert not [thing for thing in gc.get_objects() if type(thing) in (Live, Outbox, Inlet, Snapshot)]
        assert np.array_equal(pipeline.speak("1").audio, script[0].audio)


@BOTH
def test_an_abort_may_come_at_any_moment(recipe: Recipe) -> None:
    """Kind: an abort in the queue, in a part of the prefill, in a step, or after the end."""
    script = [Said(1, prompt=33, text=8, frames=12), Said(2, prompt=5, text=3, frames=7)]
    with open_scripted(recipe, script, max_num_seqs=1, budget=8, chunk_frames=3) as pipeline:
        for moment in range(0, 100, 7):
            first, second = pipeline.start(1), pipeline.start(2)
            pipeline.advance(moment)
            given_up, other = (second, first) if moment % 2 else (first, second)
            pipeline.abort(given_up)
            pipeline.finish(other)
            assert isinstance(given_up.error, Aborted) or given_up.error is None
            assert other.error is None
            said = script[0] if other is first else script[1]
            assert np.array_equal(heard(other), said.audio), moment
            pipeline.settle()
            check_tables(pipeline)
        assert pipeline.faults == []


@BOTH
def test_tables_are_empty_right_after_an_abort(recipe: Recipe) -> None:
    """Kind: the runner is asked what it holds before it has been told what has ended."""
    with open_scripted(recipe, [Said(1, frames=60)], chunk_frames=5) as pipeline:
        for moment in (4, 21):
            tracked = pipeline.start(1)
            pipeline.advance(moment)
            pipeline.abort(tracked)
            pipeline.settle()
            assert not any(pipeline.tables().values()), moment


@BOTH
@pytest.mark.parametrize("connector", ["memory", "shared_memory"])
@pytest.mark.parametrize(("producer", "consumer"), [("thinker", "talker"), ("talker", "code2wav")])
def test_the_consumer_lets_go_before_the_first_put(
    recipe: Recipe, producer: str, consumer: str, connector: str
) -> None:
    """Kind: a chunk is put for a request that only its consumer knows to have ended, and stays for ever."""
    with open_scripted(recipe, [Said(1, text=9, frames=60)], connector=connector, chunk_frames=2) as pipeline:
        stages, log = pipeline.topology.stages, pipeline.edges[producer]
        sender = stages[producer].sender
        assert sender is not None
        pipeline.topology._steps.remove(sender.step)
        tracked = pipeline.start(1)
        pipeline.advance(60)
        pipeline.abort(tracked)
        stages[consumer].engine.step()
        assert log.closed == [tracked.request_id]
        while not log.puts:
            assert sender.step()
        pipeline.topology._steps.append(sender.step)
        pipeline.settle()
        check_tables(pipeline)


@BOTH
def test_leaving_a_stream_aborts(recipe: Recipe) -> None:
    """Kind: a caller who has gone is served to the end."""
    with open_scripted(recipe, [Said(1, frames=150, speech_ends=False)]) as pipeline:
        for event in pipeline.stream("1"):  # no name holds the generator: it ends with the loop
            if isinstance(event, AudioChunk):
                break
        settle(pipeline)
        assert pipeline.left() == {}
        assert len(pipeline.edges["talker"].put_of("request-0")) < 6


@BOTH
def test_close_gives_running_requests_up(recipe: Recipe) -> None:
    """Kind: chunks in shared memory outlive the pipeline."""
    pipeline = open_scripted(recipe, [Said(1, frames=150)], connector="shared_memory", chunk_frames=5)
    folder = pipeline.topology._folder
    assert folder is not None
    pipeline.start(1)
    pipeline.advance(60)
    assert any(folder.path.rglob("*"))
    pipeline.close()
    assert not folder.path.exists()


@pytest.mark.parametrize("polls", [0, 1, 5])
@pytest.mark.parametrize("moment", [4, 20])
def test_another_recipe_right_after_an_abort(polls: int, moment: int) -> None:
    """Kind: rewired in the middle of a step: its answer is taken for another's, or the runner misses the end."""
    before, after = (directly(r, polls) if polls else r for r in (BEFORE_1378, AFTER_1378))
    with open_scripted(before, [Said(1, frames=60)], chunk_frames=5) as pipeline:
        for recipe in (after, before):
            tracked = pipeline.start(1)
            pipeline.advance(moment)
            pipeline.abort(tracked)
            pipeline.apply(recipe)
            assert np.array_equal(pipeline.speak("1").audio, pipeline.script[1].audio)
            pipeline.settle()
            check_tables(pipeline)
        assert pipeline.faults == []
