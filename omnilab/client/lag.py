"""How late the client itself is: a task that wants to wake every 5 ms, and sees when it does."""

from __future__ import annotations

import asyncio
from array import array

import numpy as np

TICK_S = 0.005


class LagTicker:
    """Lateness of the event loop while it runs. What the loop is late, a stamp may be."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lags = array("d")

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags.append(max(0.0, loop.time() - due))

    def ms(self) -> dict[str, float | None]:
        """Return `p50`, `p99` and `max` in milliseconds; None before the first tick."""
        if not self._lags:
            return {"p50": None, "p99": None, "max": None}
        values = np.asarray(self._lags) * 1e3
        return {"p50": float(np.median(values)), "p99": float(np.percentile(values, 99)), "max": float(values.max())}
