"""One request's failure ends that request alone, with a message that names the stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from omnilab.engine.tracker import Tracked
from omnilab.errors import StageFailed, Timeout
from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.seams import Payload, Snapshot, ThinkerPayload
from omnilab.transfer.connector import Connector, EdgeFull
from tests.races.lab import check_tables
from tests.scripted import EdgeLog, Said, ScriptedPipeline, Watched, directly, heard, open_scripted

BOTH = pytest.mark.parametrize(
    "recipe", [BEFORE_1378, AFTER_1378, directly(AFTER_1378, 2)], ids=["before", "after", "late"]
)
FOUR = [Said(number, text=6, frames=20) for number in (1, 2, 3, 4)]


def faulty(
    producer: str, put: Callable[[str, int], None] | None = None, get: Callable[[str, int], bool] | None = None
) -> Callable[[Connector, str, EdgeLog], Connector]:
    """Return a `wrap` that has a fault on one edge."""

    def wrap(inner: Connector, at: str, log: EdgeLog) -> Connector:
        return Watched(inner, log, put, get) if at == producer else Watched(inner, log)

    return wrap


def check_failed(tracked: Tracked, stage: str, kind: type[Exception], what: str) -> None:
    """The error names the stage and the request."""
    error = tracked.error
    assert error is not None and type(error) is kind and what in str(error)
    assert str(error).startswith(f"{stage}: ") and tracked.request_id in str(error)
    assert (error.stage, error.request) == (stage, tracked.request_id)
    assert tracked.record.finish_reason == "error" and tracked.record.error == str(error)


def check_others(pipeline: ScriptedPipeline, others: list[Tracked], numbers: list[int]) -> None:
    """They have all of their answer, and nothing is left of anyone."""
    for tracked, number in zip(others, numbers, strict=True):
        assert tracked.error is None
        assert np.array_equal(heard(tracked), pipeline.script[number].audio)
    check_tables(pipeline)
    assert pipeline.faults == []


@BOTH
@pytest.mark.parametrize("which", [0, 3])
@pytest.mark.parametrize(("raises", "stage"), [("embed", "thinker"), ("text_row", "talker"), ("window", "code2wav")])
def test_an_exception_ends_its_request_alone(recipe: Recipe, raises: str, stage: str, which: int) -> None:
    """Kind: one request of a batch raises and takes the others with it."""
    script = [replace(said, raises=raises if said is FOUR[which] else "") for said in FOUR]
    with open_scripted(recipe, script, chunk_frames=5) as pipeline:
        for _ in range(2):
            started = pipeline.ask_all(1, 2, 3, 4)
            check_failed(started.pop(which), stage, StageFailed, "ValueError: scripted")
            check_others(pipeline, started, [number for number in (1, 2, 3, 4) if number != which + 1])


@BOTH
@pytest.mark.parametrize("producer", ["thinker", "talker"])
def test_a_transport_that_fails_for_good(recipe: Recipe, producer: str) -> None:
    """Kind: a lost send is an entry in a log, and the consumer waits for ever."""

    def put(request_id: str, chunk_id: int) -> None:
        if request_id == "request-1" and chunk_id >= 2:
            raise EdgeFull("no room")

    with open_scripted(recipe, FOUR, wrap=faulty(producer, put), chunk_frames=5) as pipeline:
        started = pipeline.ask_all(1, 2, 3)
        check_failed(started.pop(1), producer, StageFailed, "could not put chunk 2")
        check_others(pipeline, started, [1, 3])
        assert [c.chunk_id for c in pipeline.edges[producer].put_of("request-1")] == [0, 1]


@BOTH
@pytest.mark.parametrize("producer", ["thinker", "talker"])
@pytest.mark.parametrize("chunk_id", [0, 1, 3])
def test_a_transport_that_fails_once(recipe: Recipe, producer: str, chunk_id: int) -> None:
    """Kind: a put that failed leaves a gap or gives its id to the next chunk; the loop that sent it dies."""
    failed: list[int] = []

    def put(request_id: str, at: int) -> None:
        if at == chunk_id and not failed:
            failed.append(at)
            raise OSError("once")

    with open_scripted(recipe, FOUR, wrap=faulty(producer, put), chunk_frames=5) as pipeline:
        (tracked,) = pipeline.ask_all(1)
        check_failed(tracked, producer, StageFailed, f"could not put chunk {chunk_id}")
        assert [c.chunk_id for c in pipeline.edges[producer].puts] == list(range(chunk_id))
        check_others(pipeline, pipeline.ask_all(1, 2), [1, 2])


@BOTH
@pytest.mark.parametrize("producer", ["thinker", "talker"])
def test_a_poll_that_raises_is_tried_again(recipe: Recipe, producer: str) -> None:
    """Kind: the polling loop dies of the first transient error."""
    polls: list[int] = []

    def get(request_id: str, chunk_id: int) -> bool:
        polls.append(chunk_id)
        if len(polls) % 3 == 1:
            raise OSError("for a moment")
        return True

    with open_scripted(recipe, FOUR, wrap=faulty(producer, get=get), chunk_frames=5) as pipeline:
        check_others(pipeline, pipeline.ask_all(1, 2, 3), [1, 2, 3])
        assert len(polls) > 10


@BOTH
@pytest.mark.parametrize(("producer", "stage", "waited"), [("thinker", "talker", "1"), ("talker", "code2wav", "1.25")])
@pytest.mark.parametrize("chunk_id", [0, 2])
def test_a_chunk_that_never_comes(recipe: Recipe, producer: str, stage: str, waited: str, chunk_id: int) -> None:
    """Kind: a wait without a deadline, or one that blames the stage behind the one whose chunk is lost."""

    def get(request_id: str, at: int) -> bool:
        return request_id != "request-0" or at < chunk_id

    with open_scripted(recipe, FOUR, wrap=faulty(producer, get=get), chunk_frames=5, timeout_s=1.0) as pipeline:
        (tracked,) = pipeline.ask_all(1)
        check_failed(tracked, stage, Timeout, f"waited {waited} s for chunk {chunk_id} of the {producer}")
        check_others(pipeline, pipeline.ask_all(2, 3), [2, 3])


def test_the_last_error_is_in_the_message_of_a_deadline() -> None:
    """Kind: a transport that fails all the time reads as a slow stage."""

    def get(request_id: str, chunk_id: int) -> bool:
        raise OSError("stale handle")

    with open_scripted(AFTER_1378, FOUR, wrap=faulty("thinker", get=get), timeout_s=1.0) as pipeline:
        (tracked,) = pipeline.ask_all(1)
        check_failed(tracked, "talker", Timeout, "stale handle")
        check_others(pipeline, [], [])


def wrong_payload(base: Any, when: int, what: Callable[[], Any]) -> type[ThinkerPayload]:
    """Return a thinker_payload whose build goes wrong for the request with prompt 9 at its chunk `when`."""

    class Wrong(base):
        def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
            payload = super().build(state, snapshot)
            if len(snapshot.prompt_ids) == 9 and snapshot.num_outputs >= when:
                return what()
            return payload

    return Wrong


@pytest.mark.parametrize(("base", "when"), list(product([BEFORE_1378, AFTER_1378], [1, 4])))
def test_a_build_that_raises(base: Recipe, when: int) -> None:
    """Kind: an exception on the sender thread is a task lost, and the consumer waits for ever."""

    def fail() -> None:
        raise ArithmeticError("scripted")

    script = [*FOUR[:2], Said(3, prompt=9, text=6, frames=20)]
    recipe = replace(base, thinker_payload=wrong_payload(base.thinker_payload, when, fail))
    with open_scripted(recipe, script) as pipeline:
        *others, tracked = pipeline.ask_all(1, 2, 3)
        check_failed(tracked, "thinker", StageFailed, "could not build chunk")
        check_others(pipeline, others, [1, 2])


@pytest.mark.parametrize("base", [BEFORE_1378, AFTER_1378], ids=["before", "after"])
def test_a_payload_that_cannot_be_sent(base: Recipe) -> None:
    """Kind: a payload of another shape kills the loop that encodes it."""
    script = [*FOUR[:2], Said(3, prompt=9, text=6, frames=20)]
    recipe = replace(base, thinker_payload=wrong_payload(base.thinker_payload, 3, lambda: {"row": object()}))
    with open_scripted(recipe, script) as pipeline:
        *others, tracked = pipeline.ask_all(1, 2, 3)
        check_failed(tracked, "thinker", StageFailed, "could not put chunk 1")
        check_others(pipeline, others, [1, 2])


@pytest.mark.parametrize("base", [BEFORE_1378, AFTER_1378], ids=["before", "after"])
def test_a_chunk_that_cannot_be_taken_in(base: Recipe) -> None:
    """Kind: an exception on the receiver thread is a request forgotten."""

    def accumulate(held: Payload | None, chunk: Payload) -> Payload:
        if held is not None and len(held.get("prompt_ids", ())) == 9:
            raise ArithmeticError("scripted")
        return base.accumulate(held, chunk)

    script = [*FOUR[:2], Said(3, prompt=9, text=6, frames=20)]
    with open_scripted(replace(base, accumulate=accumulate), script) as pipeline:
        *others, tracked = pipeline.ask_all(1, 2, 3)
        check_failed(tracked, "talker", StageFailed, "could not take chunk 1 in")
        check_others(pipeline, others, [1, 2])


def test_a_runner_that_cannot_go_on_ends_the_pipeline_and_says_so() -> None:
    """Kind: a stage that has failed as a whole leaves its requests waiting."""

    def idle_step(batch: Any, scheduled: Any, finished: Any) -> None:
        if scheduled:
            raise MemoryError("scripted")

    with open_scripted(replace(AFTER_1378, idle_step=idle_step), FOUR, timeout_s=5) as pipeline:
        started = [pipeline.start(number) for number in (1, 2)]
        pipeline.finish(*started)
        for tracked in started:
            assert isinstance(tracked.error, StageFailed)
            assert tracked.error.stage == "code2wav" and "MemoryError" in str(tracked.error)
        with pytest.raises(StageFailed, match="code2wav"):
            pipeline.start(3)
