"""The pipeline as its users hold it, on the real `tiny` network, inline: deterministic, one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnilab import errors, recipes
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt, Sampling
from omnilab.recipe import Recipe, recipe_with
from omnilab.speech import AudioChunk, Finished, Speech, TextDelta
from omnilab.toggles import THE_FOUR
from omnilab.toggles.shallow_merge import merge_shallow
from omnilab.workload import WorkItem, Workload, closed

TONE = (np.sin(np.arange(8000) / 9).astype(np.float32) * 0.3, 16_000)
PICTURE = (np.indices((56, 84)).sum(0)[..., None] * np.array([3, 5, 7]) % 256).astype(np.uint8)
PROMPTS = {
    "text": Prompt(text="Where do rivers begin?"),
    "turns": Prompt(
        messages=[
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello, you."},
            {"role": "user", "content": "¿Dónde nacen los ríos?"},
        ]
    ),
    "audio": Prompt(text="What do you hear?", audio=TONE),
    "image": Prompt(text="What is this?", image=PICTURE),
}
SUBSETS = list(chain.from_iterable(combinations(THE_FOUR, n) for n in range(len(THE_FOUR) + 1)))


def tiny(recipe: Recipe = recipes.AFTER_1378, **settings: Any) -> Pipeline:
    """Open `tiny` inline."""
    defaults = {"topology": "inline", "connector": "memory", "timeout_s": 20}
    return Pipeline.open("tiny", recipe=recipe, **defaults | settings)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """One pipeline for tests that leave it quiet."""
    with tiny() as pipeline:
        yield pipeline


def same(one: Speech, other: Speech) -> bool:
    """Are tokens, codes and samples equal?"""
    return (
        one.token_ids == other.token_ids
        and np.array_equal(one.codes, other.codes)
        and np.array_equal(one.audio, other.audio)
    )


def test_deltas_are_the_whole(pipe: Pipeline) -> None:
    """Streaming gives deltas only: joined, they are the answer, text and audio."""
    events = list(pipe.stream(PROMPTS["text"], max_text_tokens=20, max_frames=60, temperature=0))
    assert isinstance(events[-1], Finished)
    speech = events[-1].speech
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == speech.text
    assert [t for e in events if isinstance(e, TextDelta) for t in e.token_ids] == speech.token_ids
    chunks = [e.audio for e in events if isinstance(e, AudioChunk)]
    assert [len(c) for c in chunks] == [25 * 1920 - 555, 25 * 1920 - 555, 10 * 1920 - 555]
    assert np.array_equal(np.concatenate(chunks), speech.audio)
    assert speech.audio.std() > 0.005 and speech.sample_rate == 24_000


@pytest.mark.parametrize("kind", PROMPTS)
def test_a_prompt_is_heard_and_seen(pipe: Pipeline, kind: str) -> None:
    """Every kind of input reaches text and speech, and a seed gives one result."""
    sampling = {"max_text_tokens": 8, "max_frames": 8, "seed": 5, "ignore_eos": True}
    once, again = (pipe.speak(PROMPTS[kind], **sampling) for _ in range(2))
    assert same(once, again) and once.codes.shape == (8, 16) and len(once.token_ids) == 8
    assert not same(once, pipe.speak(PROMPTS[kind], **sampling | {"seed": 6}))


def test_neighbours_do_not_change_a_seeded_request(pipe: Pipeline) -> None:
    """A seeded request gives the same tokens and codes alone, in any slot, and with others arriving midway."""
    mine = Sampling(max_text_tokens=10, max_frames=12, seed=42, ignore_eos=True)
    alone = pipe.speak(PROMPTS["text"], max_text_tokens=10, max_frames=12, seed=42, ignore_eos=True)
    others = [Sampling(max_text_tokens=n, max_frames=n + 2) for n in (3, 9, 12, 5, 7)]
    for place in (0, 2, 5):
        items = [WorkItem(Prompt(text=f"Neighbour {n}"), sampling) for n, sampling in enumerate(others)]
        items.insert(place, WorkItem(PROMPTS["text"], mine))
        trial = pipe.run(Workload(tuple(items), closed(6)))
        record = trial.records[place]
        assert record.error is None
        assert record.token_ids == alone.token_ids and np.array_equal(record.codes, alone.codes)


@pytest.mark.parametrize("toggles", SUBSETS, ids=lambda s: "+".join(t.name for t in s) or "none")
def test_every_recipe_over_the_four_gives_the_same(toggles: tuple[Any, ...], baseline: dict[str, Speech]) -> None:
    """The side nobody tests breaks: all 16 recipes give the baseline's tokens, codes and samples, media prompts too."""
    with tiny(recipe_with(*toggles, base=recipes.BEFORE_1378), max_num_batched_tokens=16) as pipeline:
        for kind, expected in baseline.items():
            speech = pipeline.speak(PROMPTS[kind], max_text_tokens=7, max_frames=30, seed=3)
            assert same(speech, expected), kind


@pytest.fixture(scope="module")
def baseline() -> dict[str, Speech]:
    """BEFORE_1378, prompts prefilled in one part."""
    with tiny(recipes.BEFORE_1378) as pipeline:
        return {kind: pipeline.speak(p, max_text_tokens=7, max_frames=30, seed=3) for kind, p in PROMPTS.items()}


@pytest.mark.parametrize("frames", [1, 24, 25, 26, 49, 50, 60])
def test_any_number_of_frames(pipe: Pipeline, frames: int) -> None:
    """The tail is flushed: frames in are frames out, 555 samples lost a chunk, and the reason says it was cut."""
    speech = pipe.speak("Go on.", max_text_tokens=4, max_frames=frames, ignore_eos=True, temperature=0)
    assert len(speech.codes) == frames and speech.finish_reason == "length"
    assert len(speech.audio) == frames * 1920 - 555 * -(-frames // 25)


def test_an_answer_without_speech_ends(pipe: Pipeline) -> None:
    """A stage with nothing to send ends the request: one text token leaves nothing to speak."""
    speech = pipe.speak("Hm.", max_text_tokens=1, temperature=0)
    assert len(speech.token_ids) == 1 and speech.codes.shape == (0, 16) and speech.audio.shape == (0,)


def test_apply_rewires_and_keeps_the_weights() -> None:
    """A recipe applied later is in force in every stage, gives the same output, and its counters say so."""
    with tiny(recipes.BEFORE_1378) as pipeline:
        workload = Workload.prompts([PROMPTS["text"]], sampling=Sampling(max_text_tokens=9, max_frames=9, seed=1))
        before = pipeline.run(workload)
        pipeline.apply(recipes.AFTER_1378)
        after = pipeline.run(workload)
        assert pipeline.occupants() == dict.fromkeys(("thinker", "talker", "code2wav"), recipes.AFTER_1378.occupants())
        assert np.array_equal(before.records[0].codes, after.records[0].codes)
        counted = [{row[:3]: row.value for row in trial.counter_rows} for trial in (before, after)]
        assert ("thinker", "engine", "chunks_built") in counted[0] and ("thinker", "send", "chunks_built") in counted[1]
        assert ("thinker", "send", "ids_in_later_chunks") not in counted[1]
        assert ("talker", "runner", "elements_visited") not in counted[1]
        assert ("code2wav", "runner", "updates_while_idle") not in counted[1]


def test_leaving_a_stream_aborts_the_request(pipe: Pipeline) -> None:
    """A caller who goes leaves nothing behind, whenever it goes."""
    for taken in (0, 1, 3, 9):
        events = pipe.stream(PROMPTS["text"], max_text_tokens=20, max_frames=40, temperature=0)
        for _ in range(taken):
            next(events)
        if taken % 2:
            del events
        else:
            events.close()
        pipe._settle()
        assert set(pipe.tables().values()) == {0}


def test_async_and_plain_calls_in_a_running_loop(pipe: Pipeline) -> None:
    """Both kinds of call work inside a running event loop, as in a notebook."""

    async def cell() -> list[Speech]:
        plain = pipe.speak("One.", max_text_tokens=4, max_frames=4, seed=1)
        waited = await pipe.aspeak("One.", max_text_tokens=4, max_frames=4, seed=1)
        streamed = [e async for e in pipe.astream("One.", max_text_tokens=4, max_frames=4, seed=1)][-1]
        assert isinstance(streamed, Finished)
        return [plain, waited, streamed.speech]

    plain, waited, streamed = asyncio.run(cell())
    assert same(plain, waited) and same(plain, streamed)


BAD_OPENINGS = [
    ({"model": "no-such-size"}, errors.ModelNotFound, "tiny"),
    ({"topology": "threads"}, errors.BadInput, "inline"),
    ({"connector": "carrier pigeon"}, errors.BadInput, "shared_memory"),
    ({"topology": "processes", "connector": "memory"}, errors.BadInput, "memory"),
    ({"max_num_seqs": 0}, errors.BadInput, "max_num_seqs"),
    ({"max_model_len": 10**9}, errors.BadInput, "max_model_len"),
    ({"device": "quantum"}, errors.BadInput, "quantum"),
    ({"device": {"vocoder": "cpu"}}, errors.BadInput, "vocoder"),
]


@pytest.mark.parametrize(("settings", "kind", "named"), BAD_OPENINGS, ids=lambda v: str(v)[:30])
def test_bad_openings(settings: dict[str, Any], kind: type[Exception], named: str) -> None:
    """What cannot be opened is refused before a stage starts, and the message says what can be."""
    with pytest.raises(kind, match=named):
        Pipeline.open(**{"model": "tiny", "topology": "inline", "connector": "memory"} | settings)


def test_bad_requests(pipe: Pipeline, tmp_path: Path) -> None:
    """A bad request is refused with what to do, and the pipeline goes on."""
    noise = tmp_path / "noise.wav"
    noise.write_bytes(b"this is no audio")
    with pytest.raises(errors.PromptTooLong, match=r"4096.*max_model_len|max_model_len = 4096"):
        pipe.speak(Prompt(random_tokens=4090), max_text_tokens=50)
    with pytest.raises(errors.BadInput, match="empty"):
        pipe.speak("  ")
    with pytest.raises(errors.BadInput, match="ethan"):
        pipe.speak("Hi", speaker="nobody")
    with pytest.raises(errors.BadInput, match="max_text_tokens"):
        pipe.speak("Hi", max_text_tokens=-1)
    with pytest.raises(errors.BadInput, match="noise"):
        pipe.speak(Prompt(text="Hear this", audio=noise))
    for prompt, named in ((None, "Prompt"), (5, "Prompt"), ("\ud83d", "surrogate")):
        with pytest.raises(errors.BadInput, match=named):
            pipe.speak(prompt)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.BadInput, match="belong into a Prompt"):
        pipe.speak("Hi", audio=TONE)
    with pytest.raises(errors.BadInput, match="Recipe"):
        pipe.apply("BEST")  # pyright: ignore[reportArgumentType]
    assert pipe.speak("Hi", max_text_tokens=2, max_frames=2).codes.shape == (2, 16)


def test_a_closed_pipeline_refuses() -> None:
    """A call after close hangs: here it is refused at once, whatever it is, and closing twice is nothing."""
    pipeline = tiny()
    stream = pipeline.stream("Go on.", max_text_tokens=9)
    next(stream)
    pipeline.close()
    pipeline.close()
    calls = (lambda: list(stream), lambda: pipeline.speak("Hi"), lambda: pipeline.apply(recipes.BEST), pipeline.tables)
    for call in calls:
        with pytest.raises(errors.Aborted, match="closed"):
            call()


def test_a_pipeline_that_ends_in_a_trial_leaves_rows() -> None:
    """A trial lost with the stage that died in it: its requests are rows with the error, not an exception."""
    opened: list[Pipeline] = []

    def ends(state: Any, payload: Any) -> Any:
        opened[0]._tracker.fail(errors.StageFailed("talker: gone"))
        return merge_shallow(state, payload)

    with tiny(replace(recipes.AFTER_1378, merge=ends)) as pipeline:
        opened.append(pipeline)
        trial = pipeline.run(Workload.prompts(["One.", "Two."], sampling=Sampling(max_text_tokens=5)))
        assert [record.error is not None and "gone" in record.error for record in trial.records] == [True, True]
        with pytest.raises(errors.StageFailed, match="gone"):
            pipeline.apply(recipes.AFTER_1378)


def test_the_page_on_using_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A page whose code no longer runs; inline here, for speed."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "using.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    inline = code.replace('Pipeline.open("tiny")', 'Pipeline.open("tiny", topology="inline", connector="memory")')
    assert inline != code
    monkeypatch.chdir(root)
    exec(inline, {})
    assert "samples]" in capsys.readouterr().out
