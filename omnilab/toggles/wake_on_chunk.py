"""Toggle: let the receiver sleep until a chunk has come, instead of polling each millisecond.

Seam `receive_wait`: what the receiver does between two passes over the chunks it waits for.
"""

from __future__ import annotations

import time

from omnilab.seams import Bell, Pause
from omnilab.toggle import Toggle


def sleep_1ms(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Baseline: one millisecond after each pass, whatever it found."""
    time.sleep(0.001)


def wait_for_doorbell(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Optimized: after a pass that found nothing, until a chunk is published or wanted."""
    if not worked:
        doorbell.wait(deadline)


def spin(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """What vllm-omni#1378 shipped by accident: no pause at all while a chunk is waited for."""
    if not pending:
        time.sleep(0.001)


def condition(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Releases from 0.18: a millisecond while chunks are waited for, else until one is wanted.

    A condition variable does not cross processes: the producer's ring must not cut the millisecond short.
    """
    if worked:
        return
    if pending:
        time.sleep(0.001)
    else:
        doorbell.wait(deadline)


TOGGLE: Toggle[Pause] = Toggle(
    name="wake_on_chunk",
    seam="receive_wait",
    baseline=sleep_1ms,
    optimized=wait_for_doorbell,
    claim="a chunk is taken as soon as it is published, and waiting for it costs no processor time",
)
