"""Toggle: let an engine that could schedule nothing sleep until something comes, not step again each millisecond.

Seam `engine_wait`. The empty steps of the baseline are what idle_skip saves on.
"""

from __future__ import annotations

import time

from omnilab.seams import Bell, Pause
from omnilab.toggle import Toggle


def step_each_ms(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Baseline: while requests wait step again after a millisecond, as vLLM's loop does; without requests, sleep."""
    if worked:
        return
    if pending:
        time.sleep(0.001)
    else:
        doorbell.wait(deadline)


def wait_for_doorbell(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Optimized: until a chunk, a command or a failure has come."""
    if not worked:
        doorbell.wait(deadline)


TOGGLE: Toggle[Pause] = Toggle(
    name="wake_engine",
    seam="engine_wait",
    baseline=step_each_ms,
    optimized=wait_for_doorbell,
    claim="a stage that waits uses next to no processor time, and wakes as soon as its chunk has come",
)
