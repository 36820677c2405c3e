"""Prefill in parts: the phase of a step is said, never guessed from how many rows it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.seams import HIDDEN_STATES
from omnilab.toggles.async_save import BuildInBackground
from tests.scripted import Said, ScriptedPipeline, directly, heard, open_scripted

PROMPTS = (1, 15, 16, 17, 32, 33)


def hidden_rows(pipeline: ScriptedPipeline) -> list[int]:
    """Layer-24 rows in each chunk to the Talker."""
    chunks = pipeline.edges["thinker"].put_of("request-0")
    return [len(chunk.payload.get(HIDDEN_STATES, ())) for chunk in chunks]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_hidden_rows_are_those_of_the_prompt(prompt: int) -> None:
    """Kind: the last part of a prefill has one row and is taken for a decode step."""
    script = [Said(1, prompt=prompt, text=6, frames=9)]
    for async_save in (False, True):
        save = BuildInBackground if async_save else BEFORE_1378.save
        with open_scripted(replace(AFTER_1378, save=save), script, budget=16) as pipeline:
            pipeline.ask_all(1)
            assert hidden_rows(pipeline) == [prompt, 0, 0, 0, 0]
            assert pipeline.faults == []
        with open_scripted(replace(BEFORE_1378, save=save), script, budget=16) as pipeline:
            pipeline.ask_all(1)
            assert hidden_rows(pipeline) == [prompt + 1, 1, 1, 1, 1]
            assert pipeline.faults == []


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_slow_saver_sees_the_phase_of_its_step(prompt: int) -> None:
    """Kind: the phase is read when the chunk is built, and the request has reached its decode steps by then."""
    with open_scripted(AFTER_1378, [Said(1, prompt=prompt, text=6, frames=9)], budget=16) as pipeline:
        send = pipeline.topology.stages["thinker"].sender
        assert send is not None
        pipeline.topology._steps.remove(send.step)
        tracked = pipeline.start(1)
        pipeline.advance(60)
        assert tracked.text_ended and not pipeline.edges["thinker"].puts
        pipeline.topology._steps.append(send.step)
        pipeline.finish(tracked)
        assert hidden_rows(pipeline) == [prompt, 0, 0, 0, 0]
        assert pipeline.faults == []


@pytest.mark.parametrize("recipe", [BEFORE_1378, AFTER_1378, directly(AFTER_1378)], ids=["before", "after", "direct"])
@pytest.mark.parametrize("prompt", [1, 16, 33])
def test_the_talkers_prompt_may_come_in_parts(recipe: Recipe, prompt: int) -> None:
    """Kind: a Talker prefilled in parts says something else than one prefilled at once."""
    said = Said(1, prompt=prompt, text=5, frames=30)
    for budget in sorted({1, 7, said.talker_prompt - 1, said.talker_prompt, said.talker_prompt + 1}):
        with open_scripted(recipe, [said], budget=budget) as pipeline:
            (tracked,) = pipeline.ask_all(1)
            assert np.array_equal(heard(tracked), said.audio), budget
            assert pipeline.faults == [], budget


def test_a_budget_is_shared_and_nobody_starves() -> None:
    """Kind: a long prompt takes the whole budget of every step, or a part of it is skipped."""
    script = [Said(number, prompt=33, text=4, frames=6) for number in (1, 2, 3)]
    for budget in (1, 2, 3, 5, 34, 100):
        with open_scripted(AFTER_1378, script, budget=budget) as pipeline:
            for tracked, said in zip(pipeline.ask_all(1, 2, 3), script, strict=True):
                assert np.array_equal(heard(tracked), said.audio)
            assert pipeline.faults == []
