"""Seam `attach`: whether a Talker step takes the accumulated payload along to the runner."""

from __future__ import annotations

from omnilab.seams import Payload


def attach_until_finished(held: Payload, fresh: bool, finished: bool) -> Payload | None:
    """Attach what is held on every step, until the step after the finished chunk's. As before vllm-omni#1378."""
    return held if fresh or not finished else None
