"""The pipeline on a GPU, in bfloat16. Skipped, and said so, where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omnilab import recipes
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt
from omnilab.recipe import recipe_with
from omnilab.toggles import THE_FOUR

SAY: dict[str, Any] = {"max_text_tokens": 8, "max_frames": 30, "seed": 4, "ignore_eos": True}
PICTURE = (np.indices((56, 84)).sum(0)[..., None] * np.array([3, 5, 7]) % 256).astype(np.uint8)


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["tiny", "thin"])
def test_the_four_change_nothing_on_cuda(size: str) -> None:
    """A copy that the CPU hides: with all four on, tokens, codes and samples are the baseline's on the device too."""
    prompt = Prompt(text="What is this?", image=PICTURE)
    with Pipeline.open(size, device="cuda", recipe=recipes.BEFORE_1378) as pipe:
        before = pipe.speak(prompt, **SAY)
        pipe.apply(recipe_with(*THE_FOUR, base=recipes.BEFORE_1378))
        after = pipe.speak(prompt, **SAY)
    assert before.token_ids == after.token_ids and np.array_equal(before.codes, after.codes)
    assert np.array_equal(before.audio, after.audio) and before.audio.std() > 0.001


@pytest.mark.gpu
def test_a_device_per_stage() -> None:
    """Stages may live on different devices: rows cross on the CPU."""
    last = f"cuda:{torch.cuda.device_count() - 1}"
    with Pipeline.open("tiny", device={"thinker": "cuda:0", "talker": last, "code2wav": "cpu"}) as pipe:
        assert pipe.speak("Hello.", **SAY).codes.shape == (30, 16)
