"""What crosses is owned by who gets it: networks and callers may use their buffers again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.seams import LiveRequest, Save
from omnilab.speech import AudioChunk
from omnilab.toggles.async_save import BuildInBackground, PutInBackground
from omnilab.toggles.shallow_merge import merge_elementwise, merge_shallow
from tests.scripted import SAMPLES, Said, directly, heard, open_scripted


@pytest.mark.parametrize(
    ("save", "merge", "direct"),
    list(product([PutInBackground, BuildInBackground], [merge_elementwise, merge_shallow], [False, True])),
)
def test_rows_outlive_the_buffer_they_were_made_in(save: Any, merge: Any, direct: bool) -> None:
    """Kind: rows that wait for a slow saver are overwritten by the next steps: n times the last row arrives."""
    recipe = replace(AFTER_1378, save=save, merge=merge)
    recipe = directly(recipe) if direct else recipe
    with open_scripted(recipe, [Said(1, prompt=20, text=12, frames=20)], reuse_buffer=True) as pipeline:
        send = pipeline.topology.stages["thinker"].sender
        assert send is not None
        pipeline.topology._steps.remove(send.step)
        tracked = pipeline.start(1)
        pipeline.advance(80)
        assert tracked.text_ended and not pipeline.edges["thinker"].puts
        pipeline.topology._steps.append(send.step)
        pipeline.finish(tracked)
        assert pipeline.faults == []
        assert np.array_equal(heard(tracked), pipeline.script[1].audio)


def test_the_producers_buffer_may_change_as_soon_as_save_returns() -> None:
    """Kind: a snapshot that shares memory with the network."""
    networks: dict[str, Any] = {}

    def spoiling(make: Any) -> Callable[..., Save]:
        class Spoiling(make):
            def save(self, live: LiveRequest, rows: Any) -> None:
                super().save(live, rows)
                if networks:
                    for buffer in (networks["thinker"]._inputs, networks["thinker"]._accepted):
                        buffer._kept.fill_(-99)

        return Spoiling

    for base in (BEFORE_1378, AFTER_1378):
        recipe = directly(replace(base, save=spoiling(base.save)))
        with open_scripted(recipe, [Said(1, prompt=20, text=8, frames=20)], reuse_buffer=True) as pipeline:
            networks.update(pipeline.networks)
            pipeline.ask_all(1)
            assert pipeline.faults == []


@pytest.mark.parametrize("base", [BEFORE_1378, AFTER_1378], ids=["before", "after"])
def test_chunks_of_audio_are_copies(base: Any) -> None:
    """Kind: the samples of chunk 1 change when chunk 2 is decoded, or the whole window stays alive with them."""
    with open_scripted(directly(base), [Said(1, frames=60)], reuse_buffer=True) as pipeline:
        stream = pipeline.stream("1")
        first = next(event for event in stream if isinstance(event, AudioChunk)).audio
        kept = first.copy()
        rest = [event.audio for event in stream if isinstance(event, AudioChunk)]
        assert np.array_equal(first, kept)
        assert len(rest) == 2
        assert all(chunk.base is None or chunk.base.nbytes == chunk.nbytes for chunk in (first, *rest))


@pytest.mark.parametrize("left_context", [0, 1, 3, 24, 25, 72])
def test_windows_lie_on_frame_borders(left_context: int) -> None:
    """Kind: a short left context cuts the waveform between frames, or takes frames that are not there."""
    with open_scripted(AFTER_1378, [Said(1, frames=60)], left_context=left_context) as pipeline:
        (tracked,) = pipeline.ask_all(1)
        windows = [list(range(max(0, start - left_context), min(start + 25, 60))) for start in (0, 25, 50)]
        assert pipeline.networks["code2wav"].windows == windows
        assert np.array_equal(heard(tracked), pipeline.script[1].audio)


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("frames", [1, 25, 26, 60])
def test_a_window_loses_its_look_ahead_and_no_more(lost: int, frames: int) -> None:
    """Kind: a short last window is refused, or the loss at a border grows."""
    with open_scripted(AFTER_1378, [Said(1, frames=frames, speech_ends=False)], lost_samples=lost) as pipeline:
        audio = [event.audio for event in pipeline.stream("1") if isinstance(event, AudioChunk)]
        right = pipeline.script[1].audio
        starts = range(0, frames, 25)
        assert [len(chunk) for chunk in audio] == [(min(25, frames - start)) * SAMPLES - lost for start in starts]
        for chunk, start in zip(audio, starts, strict=True):
            assert np.array_equal(chunk, right[start * SAMPLES :][: len(chunk)])
