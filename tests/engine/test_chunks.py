"""What must be true of the chunks of one pipeline and of what its caller hears, whatever fills the seams."""

from __future__ import annotations

import numpy as np
import pytest

from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.seams import EMBEDDINGS, FIRST_ROW, NEW_FRAMES
from omnilab.speech import AudioChunk, Finished
from tests.races.lab import all_recipes
from tests.scripted import SAMPLES, Said, ScriptedPipeline, directly, heard, open_scripted

RECIPES = all_recipes()
BOTH = pytest.mark.parametrize("recipe", [BEFORE_1378, AFTER_1378], ids=["before", "after"])
SHORT = [Said(1, prompt=1, text=2, frames=1), Said(2, prompt=3, text=3, frames=2), Said(3, prompt=2, text=2, frames=4)]
LONG = [Said(1, 33, 12, 60, speech_ends=False), Said(2, 17, 9, 49), Said(3, 32, 5, 26, text_ends=False)]


def chunk_sizes(pipeline: ScriptedPipeline, request_id: str) -> list[tuple[int, bool]]:
    """Frames and finished mark of each chunk to Code2Wav."""
    return [(c.payload[NEW_FRAMES], c.finished) for c in pipeline.edges["talker"].put_of(request_id)]


def test_all_16_recipes_give_the_same() -> None:
    """Kind: the side of a toggle that nobody tries."""
    for script in (SHORT, LONG):
        for numbers in ((1,), (1, 2, 3)):
            for name, recipe in RECIPES.items():
                with open_scripted(recipe, script) as pipeline:
                    for tracked, number in zip(pipeline.ask_all(*numbers), numbers, strict=True):
                        said, record = pipeline.script[number], tracked.record
                        assert record.error is None, name
                        assert record.token_ids == said.token_ids, name
                        assert record.codes is not None and record.codes.tolist() == said.codes, name
                        assert np.array_equal(heard(tracked), said.audio), name
                        assert record.finish_reason == said.finish_reason, name
                    assert not pipeline.faults, name


@BOTH
@pytest.mark.parametrize("by_code", [True, False], ids=["end code", "length"])
@pytest.mark.parametrize("frames", [1, 24, 25, 26, 49, 50, 60])
def test_the_tail_leaves_with_the_end(recipe: Recipe, frames: int, by_code: bool) -> None:
    """Kind: the mark of the end leaves and what had gathered does not, or the mark comes twice."""
    with open_scripted(recipe, [Said(1, frames=frames, speech_ends=by_code)]) as pipeline:
        (tracked,) = pipeline.ask_all(1)
        full, rest = divmod(frames, 25)
        if rest == 0 and not by_code:
            full, rest = full - 1, 25
        assert chunk_sizes(pipeline, "request-0") == [(25, False)] * full + [(rest, True)]
        assert np.array_equal(heard(tracked), pipeline.script[1].audio)


@BOTH
def test_the_chunk_that_says_finished_is_heard(recipe: Recipe) -> None:
    """Kind: the last chunk ends the request before its data has been decoded."""
    script = [Said(1, text=6, frames=60, speech_ends=False)]  # 25, 25, 10 and finished
    for seed in range(25):
        with open_scripted(recipe, script, topology="interleaved", seed=seed) as pipeline:
            events = list(pipeline.stream("1"))
            chunks = [len(event.audio) // SAMPLES for event in events if isinstance(event, AudioChunk)]
            assert chunks == [25, 25, 10]
            assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
            assert pipeline.faults == []


@BOTH
@pytest.mark.parametrize(
    "said",
    [Said(1, frames=0), Said(1, text=1), Said(1, text=1, text_ends=False), Said(1, prompt=1, text=1, frames=0)],
    ids=["end code first", "end token first", "one token", "nothing"],
)
def test_nothing_to_say_ends_at_once(recipe: Recipe, said: Said) -> None:
    """Kind: a stage with nothing to send drops the request, and its consumer waits for ever."""
    with open_scripted(recipe, [said], timeout_s=5) as pipeline:
        speech = pipeline.speak("1")
        assert speech.token_ids == said.token_ids
        assert len(speech.codes) == len(speech.audio) == 0
        assert speech.finish_reason == said.finish_reason
        assert chunk_sizes(pipeline, "request-0") == [(0, True)]
        assert not any(isinstance(event, AudioChunk) for event in pipeline.stream("1"))


@BOTH
@pytest.mark.parametrize(("prompt", "text"), [(1, 1), (1, 2), (5, 2), (5, 3), (33, 12)])
def test_rows_of_the_thinker_arrive_once_each(recipe: Recipe, prompt: int, text: int) -> None:
    """Kind: a row lost or sent twice where the prefill meets the first decode step."""
    with open_scripted(recipe, [Said(1, prompt=prompt, text=text, frames=20)]) as pipeline:
        pipeline.ask_all(1)
        chunks = pipeline.edges["thinker"].put_of("request-0")
        rows = [int(row[1]) for chunk in chunks for row in chunk.payload[EMBEDDINGS].tolist()]
        assert rows == list(range(prompt + text - 1))
        assert len(chunks) == max(text - 1, 1)
        assert [chunk.payload[FIRST_ROW] for chunk in chunks] == [0, *range(prompt + 1, prompt + text - 1)]
        assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@BOTH
def test_speech_without_an_end_is_cut_and_says_so(recipe: Recipe) -> None:
    """Kind: a missing end code returned as success."""
    with open_scripted(recipe, [Said(1, frames=64, speech_ends=False), Said(2, frames=64)]) as pipeline:
        cut, whole = pipeline.ask_all(1, 2)
        assert (cut.record.finish_reason, whole.record.finish_reason) == ("length", "stop")
        assert cut.record.audio_samples == whole.record.audio_samples[:3] == [100, 100, 56]


@BOTH
def test_streams_are_deltas(recipe: Recipe) -> None:
    """Kind: speech that repeats from its start, or whose whole differs from its parts."""
    with open_scripted(recipe, [Said(1, frames=80)]) as pipeline:
        events = list(pipeline.stream("1"))
        parts = [event.audio for event in events if isinstance(event, AudioChunk)]
        whole = pipeline.speak("1")
        assert [len(part) for part in parts] == [25 * SAMPLES] * 3 + [5 * SAMPLES]
        assert np.array_equal(np.concatenate(parts), whole.audio)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_short_answers_are_never_silent(max_num_seqs: int) -> None:
    """Kind: answers shorter than a chunk give no audio."""
    script = [Said(number, frames=1 + number % 3) for number in range(1, 6)]
    with open_scripted(directly(AFTER_1378), script, max_num_seqs=max_num_seqs) as pipeline:
        for _ in range(20):
            for tracked, said in zip(pipeline.ask_all(1, 2, 3, 4, 5), script, strict=True):
                assert np.array_equal(heard(tracked), said.audio)


def test_requests_are_numbered_by_the_pipeline() -> None:
    """Kind: an id given by a caller, empty or repeated, mixes requests up."""
    with open_scripted(AFTER_1378, [Said(1, frames=26)]) as pipeline:
        four = pipeline.ask_all(1, 1, 1, 1)  # the same question four times at once
        assert len({tracked.request_id for tracked in four}) == 4
        assert all(np.array_equal(heard(tracked), pipeline.script[1].audio) for tracked in four)
