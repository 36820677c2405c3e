"""Every occupant of every seam gives what it claims: a pairwise array over all seams, on the real `tiny`, inline."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from omnilab import recipes
from omnilab.model.code2wav import Code2Wav
from omnilab.model.folder import resolve
from omnilab.model.weights import load_config, load_stage
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt
from omnilab.recipe import Recipe
from omnilab.speech import Speech
from omnilab.toggles import (
    TOGGLES,
    async_save,
    attach_once,
    direct_worker,
    fused_predictor,
    idle_skip,
    override_rows,
    prefill_only_hidden_states,
    shallow_merge,
    small_first_chunk,
    stateful_vocode,
)
from tests.test_pipeline import PROMPTS

SEAMS: dict[str, tuple[Any, ...]] = {
    "save": (async_save.PutInBackground, async_save.BuildInBackground, async_save.SaveInline),
    "thinker_payload": (
        prefill_only_hidden_states.EveryChunk,
        prefill_only_hidden_states.PrefillOnly,
        prefill_only_hidden_states.TokenIdsOnly,
    ),
    "idle_step": (idle_skip.update_always, idle_skip.update_when_scheduled),
    "merge": (shallow_merge.merge_elementwise, shallow_merge.merge_shallow),
    "accumulate": (override_rows.concatenate, override_rows.override),
    "worker_link": (direct_worker.PickledWorker, direct_worker.DirectWorker),
    "attach": (attach_once.attach_until_finished, attach_once.attach_always, attach_once.attach_once),
    "first_chunk": (small_first_chunk.full_first_chunk, small_first_chunk.small_first_chunk),
    "vocode": (stateful_vocode.WindowedVocode, stateful_vocode.StatefulVocode),
    "predict_codes": (fused_predictor.predict_in_loop, fused_predictor.FusedPredictor),
}
SAY: dict[str, Any] = {"max_text_tokens": 8, "max_frames": 33, "seed": 3, "ignore_eos": True}
ASKED: dict[str, Prompt] = {kind: PROMPTS[kind] for kind in ("turns", "audio")}


def pairwise(seams: dict[str, tuple[Any, ...]], seed: int = 0) -> list[dict[str, Any]]:
    """Return recipes' occupants such that every pair of occupants of two seams occurs together; greedy, seeded."""
    rng = random.Random(seed)
    missing = {
        ((one, a), (other, b))
        for one, other in combinations(seams, 2)
        for a in range(len(seams[one]))
        for b in range(len(seams[other]))
    }
    rows: list[dict[str, int]] = []
    while missing:
        tries = [{seam: rng.randrange(len(occupants)) for seam, occupants in seams.items()} for _ in range(50)]
        (one, a), (other, b) = min(missing)
        for row in tries:
            row[one], row[other] = a, b
        best = max(tries, key=lambda row: len(missing & set(combinations(row.items(), 2))))
        missing -= set(combinations(best.items(), 2))
        rows.append(best)
    return [{seam: seams[seam][index] for seam, index in row.items()} for row in rows]


ROWS = pairwise(SEAMS)


@pytest.fixture(scope="module")
def baseline() -> dict[str, Speech]:
    """What BEFORE_1378 says."""
    return spoken(recipes.BEFORE_1378)


@pytest.fixture(scope="module")
def one_shot(baseline: dict[str, Speech]) -> dict[str, np.ndarray[Any, Any]]:
    """The baseline's codes decoded in one go."""
    folder = resolve("tiny")
    module = load_stage(folder, "code2wav", device="cpu", dtype=torch.float32)
    network = Code2Wav(module, load_config(folder))
    return {k: network.decode_window(torch.tensor(s.codes.T[None]))[0].numpy() for k, s in baseline.items()}


def spoken(recipe: Recipe, **settings: Any) -> dict[str, Speech]:
    """Ask every prompt of one pipeline."""
    with Pipeline.open("tiny", recipe=recipe, topology="inline", connector="memory", **settings) as pipe:
        return {kind: pipe.speak(prompt, **SAY) for kind, prompt in ASKED.items()}


def decibels(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Return the ratio of signal to difference in dB."""
    noise = float(np.square(found.astype(np.float64) - wanted).sum())
    return float("inf") if noise == 0 else 10 * np.log10(float(np.square(wanted.astype(np.float64)).sum()) / noise)


def test_the_array_is_pairwise() -> None:
    """An array that leaves pairs out proves less than it says."""
    for one, other in combinations(SEAMS, 2):
        seen = {(row[one], row[other]) for row in ROWS}
        assert len(seen) == len(SEAMS[one]) * len(SEAMS[other]), (one, other)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(SEAMS[s].index(o)) for s, o in row.items()))
def test_occupants_keep_their_claims(
    row: dict[str, Any], baseline: dict[str, Speech], one_shot: dict[str, np.ndarray[Any, Any]]
) -> None:
    """Two occupants that break each other: tokens and codes are always the baseline's, samples as far as claimed."""
    recipe = replace(recipes.BEFORE_1378, **row)
    for kind, speech in spoken(recipe, max_num_batched_tokens=16).items():
        wanted = baseline[kind]
        assert speech.token_ids == wanted.token_ids and np.array_equal(speech.codes, wanted.codes), kind
        if recipe.vocode is stateful_vocode.StatefulVocode:
            assert speech.audio.shape == one_shot[kind].shape and decibels(speech.audio, one_shot[kind]) > 90
        elif recipe.first_chunk is small_first_chunk.full_first_chunk:
            assert np.array_equal(speech.audio, wanted.audio)
        else:  # windows moved: chunks of 4, 25 and 4 frames
            assert len(speech.audio) == 33 * 1920 - 3 * 555


def test_every_listed_toggle_can_be_named() -> None:
    """A toggle that is listed but cannot be turned on by name: each fills its seam, and no two share a name."""
    assert len({toggle.name for toggle in TOGGLES}) == len(TOGGLES) == 13
    for toggle in TOGGLES:
        recipe = recipes.recipe_with(toggle.name)
        assert getattr(recipe, toggle.seam) is toggle.optimized
        if toggle.name != "attach_once":  # its baseline is what 0.16 shipped, not what was before
            assert getattr(Recipe(), toggle.seam) is toggle.baseline


@pytest.mark.parametrize("frames", [1, 4, 5, 24, 25, 26, 29, 30, 54])
def test_best_for_any_number_of_frames(frames: int) -> None:
    """A first chunk of four and a decode that keeps state: frames in are frames out, 555 samples wanting once."""
    with Pipeline.open("tiny", recipe=recipes.BEST, topology="inline", connector="memory") as pipe:
        speech = pipe.speak("Go on.", max_text_tokens=4, max_frames=frames, ignore_eos=True, temperature=0)
        assert len(speech.codes) == frames and len(speech.audio) == frames * 1920 - 555
        assert pipe.speak("Hm.", max_text_tokens=1).audio.shape == (0,)
        assert set(pipe.tables().values()) == {0}
