"""Toggle: attach a payload to the step that first needs it, not to every step.

Seam `attach`: whether a Talker step takes what the receiver holds along to the runner. Release 0.16 attached it to
every step, after the text had ended too (`attach_always`); before vllm-omni#1378 that stopped with the finished chunk
(`attach_until_finished`), and while each step takes a chunk of its own that is the same as attaching once.
"""

from __future__ import annotations

from omnilab.seams import Attach, Payload
from omnilab.toggle import Toggle


def attach_always(held: Payload, fresh: bool, finished: bool) -> Payload | None:
    """Baseline: everything held, on every step."""
    return held


def attach_once(held: Payload, fresh: bool, finished: bool) -> Payload | None:
    """Optimized: only when a chunk has come since the last step."""
    return held if fresh else None


def attach_until_finished(held: Payload, fresh: bool, finished: bool) -> Payload | None:
    """On every step until the one that takes the finished chunk: as before vllm-omni#1378."""
    return held if fresh or not finished else None


TOGGLE: Toggle[Attach] = Toggle(
    name="attach_once",
    seam="attach",
    baseline=attach_always,
    optimized=attach_once,
    claim="steps after the end of the text, two thirds of all, pickle nothing but themselves",
)
