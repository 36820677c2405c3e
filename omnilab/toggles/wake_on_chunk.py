"""Seam `receive_wait`: what the receiver does between two passes over the chunks it waits for."""

from __future__ import annotations

import time

from omnilab.seams import Bell


def sleep_1ms(worked: bool, pending: bool, doorbell: Bell, deadline: float) -> None:
    """Baseline: one millisecond after each pass, whatever it found."""
    time.sleep(0.001)
