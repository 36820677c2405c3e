"""Goodput: the requests a second that meet every goal that was set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omnilab.errors import BadInput
from omnilab.metrics import PER_REQUEST
from omnilab.trial import RequestRecord

KNOWN = tuple(name for name in PER_REQUEST if name != "audio_s")  # a length is no goal


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that each metric may be, all at once."""

    limits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Sequence[str]) -> Goals:
        """Read METRIC:MOST, several in one text with spaces or commas between; BadInput names what is known."""
        limits: dict[str, float] = {}
        for part in " ".join(given).replace(",", " ").split():
            name, _, most = part.partition(":")
            name = f"{name}_ms" if f"{name}_ms" in KNOWN else name
            if name not in KNOWN:
                raise BadInput(f"--goodput {part}: unknown metric {name!r}; known are {', '.join(KNOWN)}")
            try:
                limits[name] = float(most)
            except ValueError:
                raise BadInput(f"--goodput {part}: give METRIC:MOST, such as {name}:500") from None
            if not (math.isfinite(limits[name]) and limits[name] >= 0):
                raise BadInput(f"--goodput {part}: the most must be 0 or more")
        return cls(limits)

    def met(self, record: RequestRecord) -> bool:
        """Does a request meet all? What was not measured is not met."""
        values = {name: PER_REQUEST[name](record) for name in self.limits}
        return record.error is None and all(
            value is not None and value <= self.limits[name] for name, value in values.items()
        )

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.limits)
