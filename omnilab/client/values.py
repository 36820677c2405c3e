"""What the values of a command line mean; BadInput names the option."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.workload import Arrivals, closed, gamma, poisson, ramp, trace


def read_arrivals(
    rate: str, burstiness: float, ramped: str | None, times: Path | None, max_concurrency: int | None, count: int
) -> Arrivals:
    """Return when `count` requests start: a rate, a ramp "FROM:TO" or a file of times; else all at once. BadInput."""
    asked = {"--request-rate": rate != "inf", "--ramp": ramped is not None, "--trace": times is not None}
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise BadInput(f"give one of {', '.join(given)}")
    if burstiness != 1.0 and given not in (["--request-rate"], ["--ramp"]):
        raise BadInput("--burstiness goes with --request-rate or --ramp")
    if times is not None:
        return trace(_times(times, count), max_concurrency=max_concurrency)
    if ramped is not None:
        start, _, end = ramped.partition(":")
        return ramp(_number("--ramp", start), _number("--ramp", end), burstiness, max_concurrency=max_concurrency)
    per_second = _number("--request-rate", rate)
    if math.isinf(per_second) and per_second > 0:
        return closed(count if max_concurrency is None else max_concurrency)
    if burstiness == 1.0:
        return poisson(per_second, max_concurrency=max_concurrency)
    return gamma(per_second, burstiness, max_concurrency=max_concurrency)


def read_percentiles(text: str) -> list[float]:
    """Return the numbers of "p,q,r", each in 0..100."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--percentiles {text!r}: give numbers with commas between, such as 50,90,99") from None
    if not all(math.isfinite(p) and 0 <= p <= 100 for p in found):
        raise BadInput(f"--percentiles {text!r}: each lies in 0..100")
    return found


def read_modalities(text: str) -> list[str]:
    """Return text, audio or both."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or set(found) - {"text", "audio"} or len(set(found)) < len(found):
        raise BadInput(f"--modalities {text!r}: give text, audio or text,audio")
    return found


def read_object(name: str, text: str | None) -> dict[str, Any]:
    """Return a JSON object; {} for None. BadInput begins with the name."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(f"{name}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{name}: must be a JSON object, such as '{{\"top_p\": 0.9}}'")
    return found


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name} {text!r}: give a number of requests a second") from None


def _times(path: Path, count: int) -> list[float]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("[") else text.split()
        times = [float(time_s) for time_s in found]
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"--trace {path}: no list of seconds: {error}") from None
    if len(times) != count:
        raise BadInput(f"--trace {path}: {len(times)} times for {count} requests: let --num-prompts say as many")
    return times
