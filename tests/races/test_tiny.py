"""Seeded random orders of the loops around the real network: 50 in all, over the 16 recipes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omnilab.engine.topology import SteppedStages
from omnilab.pipeline import Pipeline
from omnilab.recipes import BEFORE_1378
from omnilab.speech import Finished, Speech
from tests.races.lab import all_recipes, check_ids
from tests.scripted import Crossing, EdgeLog, Watched

RECIPES = all_recipes()
RACES = int(os.environ.get("OMNILAB_TINY_RACES", "50"))
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("One.", {"max_text_tokens": 5, "max_frames": 9, "ignore_eos": True, "seed": 1}),
    ("And two of them, which is a little longer.", {"max_text_tokens": 8, "max_frames": 5, "temperature": 0.0}),
    ("Three", {"max_text_tokens": 1, "max_frames": 4, "seed": 3}),
)


@pytest.fixture(scope="module")
def edges() -> list[EdgeLog]:
    return [EdgeLog(), EdgeLog()]


@pytest.fixture(scope="module")
def pipeline(edges: list[EdgeLog]) -> Iterator[Pipeline]:
    with pytest.MonkeyPatch.context() as patch:
        made: list[int] = []

        def stepped(*given: Any, **more: Any) -> SteppedStages:
            def wrap(inner: Any) -> Any:
                made.append(0)
                return Watched(inner, edges[(len(made) - 1) // 2])

            return SteppedStages(*given, **more, wrap=wrap)

        patch.setattr("omnilab.pipeline.SteppedStages", stepped)
        opened = Pipeline.open(
            "tiny", device="cpu", topology="interleaved", connector="memory", max_num_batched_tokens=24,
            codec_chunk_frames=3, codec_left_context_frames=3, recipe=BEFORE_1378,
        )  # fmt: skip
    with opened as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def alone(pipeline: Pipeline) -> list[Speech]:
    """Each answer on its own."""
    return [pipeline.speak(text, **sampling) for text, sampling in ASKED]


def check_edge(log: EdgeLog) -> None:
    """Check the chunk ids of every request; forget them."""
    for request_id in {crossing.request_id for crossing in log.puts}:
        puts: list[Crossing] = log.put_of(request_id)
        check_ids("edge", puts, log.got_of(request_id))
    log.puts.clear()
    log.gets.clear()


@pytest.mark.parametrize("seed", range(RACES))
def test_the_network_says_the_same_in_any_order(
    seed: int, pipeline: Pipeline, alone: list[Speech], edges: list[EdgeLog]
) -> None:
    """Kind: neighbours, the order of the loops or a toggle change what is said; something is left behind."""
    rng, stages = random.Random(seed), pipeline._topology
    assert isinstance(stages, SteppedStages) and stages._random is not None
    for log in edges:
        log.puts.clear()
        log.gets.clear()
    pipeline.apply(list(RECIPES.values())[seed % len(RECIPES)])
    stages._random.seed(seed)
    chosen = rng.sample(range(len(ASKED)), rng.choice((1, 2, 3)))
    streams = {number: pipeline.stream(ASKED[number][0], **ASKED[number][1]) for number in chosen}
    given_up = chosen.pop() if len(chosen) > 1 and rng.random() < 0.5 else None
    if given_up is not None:
        stream: Any = streams.pop(given_up)
        for _ in range(rng.choice((1, 1, 2, 4))):
            next(stream, None)
        stream.close()
    for number, stream in streams.items():
        last = list(stream)[-1]
        assert isinstance(last, Finished)
        assert last.speech.token_ids == alone[number].token_ids
        assert np.array_equal(last.speech.codes, alone[number].codes)
        # a batch of another shape rounds otherwise
        assert np.allclose(last.speech.audio, alone[number].audio, atol=1e-5)
    pipeline._settle()
    for log in edges:
        check_edge(log)
    assert not any(pipeline.tables().values())
