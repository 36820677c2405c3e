"""Seam `engine_wait`: what an engine does when nothing could be scheduled."""

from __future__ import annotations

import time

from omnilab.seams import Bell


def step_each_ms(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Baseline: while requests wait step again after a millisecond, as vLLM's loop does; without requests, sleep."""
    if worked:
        return
    if pending:
        time.sleep(0.001)
    else:
        doorbell.wait(deadline)
