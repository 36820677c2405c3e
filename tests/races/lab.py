"""The race lab: draw requests, aborts and an order of the loops from a seed, run them, and check all that must hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from omnilab.engine.tracker import Tracked
from omnilab.errors import Error, RequestFailed
from omnilab.recipe import Recipe, recipe_with
from omnilab.seams import NEW_FRAMES
from omnilab.speech import AudioChunk, Event, Finished, TextDelta
from omnilab.toggles import THE_FOUR
from tests.scripted import Crossing, Said, ScriptedPipeline, directly, open_scripted

NUMBERS = (1, 2, 3)
GROUP = 10  # cases that share a pipeline: its tables must be empty after each
MOST_STEPS = 50_000  # of one case; a usual one takes a thousand


def all_recipes() -> dict[str, Recipe]:
    """Return the 16 recipes over the toggles of the mission, by the names of what is on."""
    sets = [chosen for size in range(len(THE_FOUR) + 1) for chosen in combinations(THE_FOUR, size)]
    return {"+".join(toggle.name for toggle in chosen) or "before": recipe_with(*chosen) for chosen in sets}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a pipeline is opened with."""

    max_num_seqs: int
    budget: int
    chunk_frames: int
    left_context: int
    polls: int  # until a runner answers; 0: a pickled link
    connector: str

    @classmethod
    def drawn(cls, seed: int) -> Setting:
        """Draw one."""
        rng = random.Random(f"setting {seed}")
        chunk_frames = rng.choice((25, 5, 5, 5, 5))
        return cls(
            max_num_seqs=rng.choice((1, 2, 4)),
            budget=rng.choice((2, 7, 16, 16, 64)),
            chunk_frames=chunk_frames,
            left_context=rng.choice((chunk_frames, chunk_frames, 3, 0)),
            polls=rng.choice((0, 1, 3)),
            connector=rng.choice(("memory", "memory", "memory", "shared_memory")),
        )

    def open(self, recipe: Recipe, timeout_s: float = 30.0) -> ScriptedPipeline:
        """Open a pipeline whose loops are stepped in a random order."""
        return open_scripted(
            directly(recipe, self.polls) if self.polls else recipe,
            [Said(number) for number in NUMBERS],
            topology="interleaved",
            connector=self.connector,
            max_num_seqs=self.max_num_seqs,
            budget=self.budget,
            chunk_frames=self.chunk_frames,
            left_context=self.left_context,
            timeout_s=timeout_s,
        )


@dataclass(slots=True)
class Asked:
    """One request of a case, as its caller sees it."""

    said: Said
    tracked: Tracked
    stream: Iterator[Event]
    abort_after: int | None  # steps of loops
    steps: int = 0
    aborted: bool = False
    events: list[Event] = field(default_factory=list)
    error: RequestFailed | None = None

    def look(self, pipeline: ScriptedPipeline) -> bool:
        """Take the news; return whether the request has ended."""
        self.steps += 1
        if self.abort_after is not None and self.steps > self.abort_after and not self.tracked.done:
            pipeline.abort(self.tracked)
            self.aborted = True
        while self.tracked.news and not self.tracked.done:
            self.events.append(next(self.stream))
        if self.tracked.done:
            try:
                self.events.extend(self.stream)
            except RequestFailed as error:
                self.error = error
        return self.tracked.done

    @property
    def audio(self) -> list[float]:
        """Samples that have been streamed."""
        return [sample for event in self.events if isinstance(event, AudioChunk) for sample in event.audio.tolist()]


def draw_script(rng: random.Random, chunk_frames: int) -> list[Said]:
    """Draw one to three requests; their frames lie around the borders of chunks."""
    c = chunk_frames
    return [
        Said(
            number,
            prompt=rng.choice((1, 2, 5, 15, 16, 17, 32, 33)),
            text=rng.choice((1, 2, 2, 3, 4, 7, 12)),
            frames=rng.choice((0, 1, 1, c - 1, c, c + 1, 2 * c - 1, 2 * c, 2 * c + 2 * c // 5)),
            text_ends=rng.random() < 0.5,
            speech_ends=True,
            temperature=rng.choice((0.0, 0.0, 0.0, 0.8)),
        )
        for number in NUMBERS[: rng.choice((1, 1, 2, 2, 3))]
    ]


def run_case(pipeline: ScriptedPipeline, setting: Setting, seed: int) -> None:
    """Run one case over an idle pipeline; AssertionError says what does not hold."""
    rng = random.Random(f"case {seed}")
    script = draw_script(rng, setting.chunk_frames)
    script = [replace(said, speech_ends=said.frames == 0 or rng.random() < 0.5) for said in script]
    with_aborts = rng.random() < 0.3
    pipeline.play(script, seed)
    waiting, running, ended = list(script), list[Asked](), list[Asked]()
    steps = 0
    while waiting or running:
        steps += 1
        assert steps < MOST_STEPS, f"hangs: {[asked.said for asked in running]}"
        if waiting and (not running or rng.random() < 0.02):
            tracked = pipeline.start(waiting[0].number)
            abort_after = rng.randrange(rng.choice((30, 300, 1500))) if with_aborts and rng.random() < 0.6 else None
            running.append(Asked(waiting.pop(0), tracked, pipeline.events(tracked), abort_after))
        pipeline.advance()
        for asked in list(running):
            if asked.look(pipeline):
                running.remove(asked)
                ended.append(asked)
    pipeline.settle()
    assert not pipeline.faults, f"{len(pipeline.faults)} faults: {pipeline.faults[0]}"
    check_tables(pipeline)
    for asked in ended:
        check_request(pipeline, setting, asked)


def check_tables(pipeline: ScriptedPipeline) -> None:
    """No per-request table has an entry, no network a slot taken, once the runners have heard of the end."""
    for _ in range(500):
        if not pipeline.left():
            return
        pipeline.advance()
    raise AssertionError(f"left behind: {pipeline.left()}")


def check_request(pipeline: ScriptedPipeline, setting: Setting, asked: Asked) -> None:
    """What its caller got, and what crossed the edges."""
    said = asked.said
    for producer in ("thinker", "talker"):
        log = pipeline.edges[producer]
        check_ids(producer, log.put_of(asked.tracked.request_id), log.got_of(asked.tracked.request_id))
    if asked.aborted:
        right = said.audio[: len(asked.audio)].tolist()
        assert asked.audio == right, f"{said}: aborted, and until then {asked.audio} instead of {right}"
        return
    assert asked.error is None, f"{said}: {asked.error}"
    check_answer(asked)
    text = pipeline.edges["thinker"].put_of(asked.tracked.request_id)
    speech = pipeline.edges["talker"].put_of(asked.tracked.request_id)
    right_counts = list(range(2, said.text + 1)) if said.text > 1 else [1]
    counts = [crossing.num_outputs for crossing in text]
    if said.text_is_heard_out:
        assert text[-1].finished, f"{said}: the text has no end"
        assert counts == right_counts, f"{said}: chunks after {counts} tokens"
    else:  # the Talker may end before the Thinker's last chunks have left
        assert counts == right_counts[: len(counts)], f"{said}: chunks after {counts} tokens"
    assert speech[-1].finished, f"{said}: the speech has no end"
    sizes = [crossing.payload.get(NEW_FRAMES, 0) for crossing in speech]
    assert sizes == chunk_sizes(said, setting.chunk_frames), f"{said}: chunks of {sizes} frames"


def chunk_sizes(said: Said, chunk_frames: int) -> list[int]:
    """Frames of each chunk: full ones, and the rest with the end; an end code right after a full one has none."""
    full, rest = divmod(said.spoken, chunk_frames)
    if said.spoken and not rest and not said.speech_ends:
        return [chunk_frames] * full
    return [chunk_frames] * full + [rest]


def check_ids(producer: str, puts: list[Crossing], gets: list[Crossing]) -> None:
    """No gap, no repeat, in order; the mark of the end on the last chunk alone."""
    put, got = [crossing.chunk_id for crossing in puts], [crossing.chunk_id for crossing in gets]
    assert put == list(range(len(put))), f"{producer}: chunk ids {put} were put"
    assert got == put[: len(got)], f"{producer}: chunk ids {got} were got of {put}"
    ends = [crossing.chunk_id for crossing in puts if crossing.finished]
    assert ends in ([], put[-1:]), f"{producer}: chunks {ends} of {put} say that they are the last"


def check_answer(asked: Asked) -> None:
    """Tokens, codes and samples, streamed and as a whole."""
    said = asked.said
    last = asked.events[-1]
    assert isinstance(last, Finished), f"{said}: the stream ends with {last}"
    speech = last.speech
    assert speech.token_ids == said.token_ids, f"{said}: tokens {speech.token_ids}"
    assert speech.codes.tolist() == said.codes, f"{said}: codes {speech.codes.tolist()}"
    assert np.array_equal(speech.audio, said.audio), f"{said}: samples {speech.audio.tolist()}"
    assert speech.finish_reason == said.finish_reason, f"{said}: {speech.finish_reason}"
    deltas = [token for event in asked.events if isinstance(event, TextDelta) for token in event.token_ids]
    assert deltas == said.token_ids, f"{said}: streamed tokens {deltas}"
    assert asked.audio == said.audio.tolist(), f"{said}: streamed samples {asked.audio}"
    assert all(len(event.audio) for event in asked.events if isinstance(event, AudioChunk)), "an empty audio event"


def race(recipe: Recipe, seeds: range, **opened: Any) -> None:
    """Run a case a seed; AssertionError names the seed that shows what does not hold."""
    for start in range(seeds.start, seeds.stop, GROUP):
        setting = Setting.drawn(start)
        with setting.open(recipe, **opened) as pipeline:
            for seed in range(start, min(start + GROUP, seeds.stop)):
                try:
                    run_case(pipeline, setting, seed)
                except (AssertionError, Error) as error:
                    raise AssertionError(f"seed {seed}, {setting}: {error}") from error
