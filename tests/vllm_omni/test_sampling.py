"""A request's lengths and sampling, stage by stage."""

from __future__ import annotations

from omnilab.prompt import Sampling
from omnilab.vllm_omni.sampling import by_stage


def test_fixed_work_is_fixed_at_both_ends():
    thinker, talker = by_stage(
        Sampling(max_text_tokens=64, max_frames=199, ignore_eos=True, temperature=0.0, seed=2**63 + 5)
    )
    assert thinker == {"temperature": 0.0, "max_tokens": 64, "ignore_eos": True, "seed": 5}
    assert (talker["max_tokens"], talker["min_tokens"], talker["temperature"], talker["seed"]) == (200, 200, 0.0, 5)


def test_what_is_not_said_is_as_released_and_speech_may_end():
    thinker, talker = by_stage(Sampling(max_text_tokens=10))
    assert thinker == {"temperature": 0.0, "max_tokens": 10}
    assert (talker["temperature"], talker["top_k"], talker["stop_token_ids"]) == (0.9, 50, [2150])
    assert "min_tokens" not in talker
