"""What is asked of a pipeline: prompts, lengths, seeds and the times at which requests arrive.

Light on purpose: needs numpy, neither torch nor transformers. Everything is frozen; `Workload.with_seed` makes the
fresh list of the same shape that the next block of an experiment uses.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from omnilab.errors import BadInput
from omnilab.prompt import FRAMES_PER_TOKEN, Prompt, Sampling, at_least

__all__ = [
    "Arrivals", "Prompt", "Sampling", "WorkItem", "Workload", "closed", "derive_seed", "gamma", "poisson", "ramp",
    "trace",
]  # fmt: skip

LINE_KEYS = frozenset({"text", "messages", "system", "audio", "image", "max_text_tokens", "max_frames", "seed"})


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request of a workload."""

    prompt: Prompt
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests start: not before their time (seconds), and at most `max_concurrency` together (None: no limit)."""

    kind: str
    max_concurrency: int | None = None
    rate: float | None = None
    times: tuple[float, ...] | None = None
    burstiness: float | None = None  # shape of the gamma distribution of the gaps; None: exponential
    ramp_to: float | None = None  # the rate of the last request, reached in equal steps

    def start_times(self, count: int, seed: int) -> list[float]:
        """Return the earliest start of each of `count` requests, in seconds from the trial's start."""
        if self.times is not None:
            return list(self.times)
        if self.rate is None:
            return [0.0] * count
        mean = 1 / np.linspace(self.rate, self.rate if self.ramp_to is None else self.ramp_to, count)
        rng = np.random.Generator(np.random.PCG64(derive_seed(seed, count, 2)))
        if self.burstiness is None:
            return np.cumsum(rng.exponential(mean, count)).tolist()
        return np.cumsum(rng.gamma(self.burstiness, mean / self.burstiness, count)).tolist()


def closed(max_concurrency: int = 1) -> Arrivals:
    """As many requests in flight as said, the next as soon as one has ended."""
    return Arrivals(kind="closed", max_concurrency=at_least("max_concurrency", max_concurrency, 1))


def poisson(rate: float, *, max_concurrency: int | None = None) -> Arrivals:
    """Requests at random, `rate` a second on average; with `max_concurrency`, one that finds it reached waits."""
    return Arrivals(kind="poisson", rate=_positive("rate", rate), max_concurrency=_most(max_concurrency))


def gamma(rate: float, burstiness: float = 1.0, *, max_concurrency: int | None = None) -> Arrivals:
    """`poisson` with gaps of a gamma distribution of mean 1 / rate and shape `burstiness`.

    Shape 1 is Poisson, less comes in bursts, more is steadier. Nothing is rescaled: the times of n requests end at
    n / rate on average only.
    """
    rate, burstiness = _positive("rate", rate), _positive("burstiness", burstiness)
    return Arrivals(kind="gamma", rate=rate, burstiness=burstiness, max_concurrency=_most(max_concurrency))


def ramp(start: float, end: float, burstiness: float = 1.0, *, max_concurrency: int | None = None) -> Arrivals:
    """`gamma` whose rate goes from `start` at the first request to `end` at the last, in equal steps."""
    start, end, burstiness = _positive("ramp", start), _positive("ramp", end), _positive("burstiness", burstiness)
    most = _most(max_concurrency)
    return Arrivals(kind="ramp", rate=start, ramp_to=end, burstiness=burstiness, max_concurrency=most)


def trace(times: Sequence[float], *, max_concurrency: int | None = None) -> Arrivals:
    """Requests at the given times in seconds, in rising order."""
    if any(not math.isfinite(t) or t < 0 for t in times) or sorted(times) != list(times):
        raise BadInput("times: must be seconds from 0 on, in rising order")
    return Arrivals(kind="trace", times=tuple(times), max_concurrency=_most(max_concurrency))


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        unit = "" if name == "burstiness" else " requests a second"
        raise BadInput(f"{name}: must be more than 0{unit}, not {value}")
    return float(value)


def _most(max_concurrency: int | None) -> int | None:
    return None if max_concurrency is None else at_least("max_concurrency", max_concurrency, 1)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and their arrivals. All variants of a block get the same one."""

    requests: tuple[WorkItem, ...]
    arrivals: Arrivals
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.requests:
            raise BadInput("workload: no requests")
        if self.arrivals.times is not None and len(self.arrivals.times) != len(self.requests):
            raise BadInput(f"times: {len(self.arrivals.times)} for {len(self.requests)} requests")

    @classmethod
    def random(
        cls,
        num_prompts: int = 4,
        input_len: int = 2500,
        output_len: int = 900,
        *,
        frames: int | None = None,
        max_concurrency: int = 1,
        seed: int = 0,
        temperature: float | None = 0.0,
    ) -> Workload:
        """Random token ids; text and audio both of fixed length, so that every variant does the same work.

        `frames` None: 2.94 a text token, as in the public run. Raises BadInput that names the argument.
        """
        at_least("num_prompts", num_prompts, 1)
        at_least("input_len", input_len, 1)
        at_least("output_len", output_len, 1)
        if frames is None:
            frames = max(1, round(FRAMES_PER_TOKEN * output_len))
        at_least("frames", frames, 1)
        sampling = Sampling(
            max_text_tokens=output_len, max_frames=frames, ignore_eos=True, temperature=temperature, seed=0
        )
        item = WorkItem(Prompt(random_tokens=input_len), sampling)
        return cls((item,) * num_prompts, closed(max_concurrency)).with_seed(seed)

    @classmethod
    def prompts(
        cls,
        prompts: Sequence[Prompt | str],
        sampling: Sampling | None = None,
        *,
        arrivals: Arrivals | None = None,
        seed: int = 0,
    ) -> Workload:
        """Prompts of one's own, all with the same sampling; each gets its own seed unless `sampling` has one."""
        sampling = sampling or Sampling()
        items = [WorkItem(Prompt(text=p) if isinstance(p, str) else p, sampling) for p in prompts]
        if sampling.seed is None:
            items = [_seeded(item, seed, index) for index, item in enumerate(items)]
        return cls(tuple(items), arrivals or closed(1), seed)

    @classmethod
    def from_jsonl(
        cls,
        path: str | Path,
        sampling: Sampling | None = None,
        *,
        arrivals: Arrivals | None = None,
        seed: int = 0,
    ) -> Workload:
        """Read a prompt a line: text or messages, system, audio, image (paths beside the file), lengths, seed.

        What a line does not say comes from `sampling`. Raises BadInput with the file and the line number.
        """
        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read: {error}") from error
        items = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                item = _read_line(line, path.parent, sampling or Sampling())
            except (BadInput, ValueError, TypeError) as error:
                raise BadInput(f"{path}, line {number}: {error}") from error
            items.append(item if item.sampling.seed is not None else _seeded(item, seed, len(items)))
        if not items:
            raise BadInput(f"{path}: no prompts in it")
        return cls(tuple(items), arrivals or closed(1), seed)

    def with_seed(self, seed: int) -> Workload:
        """Return a fresh list of the same shape: other random ids, other sampling seeds, other random arrivals."""
        at_least("seed", seed, 0)
        requests = tuple(_seeded(item, seed, index) for index, item in enumerate(self.requests))
        return replace(self, requests=requests, seed=seed)

    def start_times(self) -> list[float]:
        """Return the earliest start of each request, in seconds from the trial's start."""
        return self.arrivals.start_times(len(self.requests), self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, arrays by their hash."""
        requests = [{"prompt": _plain(item.prompt), "sampling": _plain(item.sampling)} for item in self.requests]
        return {"seed": self.seed, "arrivals": _plain(self.arrivals), "requests": requests}


def derive_seed(*parts: int) -> int:
    """Return a seed of 63 bits that depends on all parts; other parts give other seeds."""
    high, low = np.random.SeedSequence(parts).generate_state(2).tolist()
    return ((high << 32) | low) & (2**63 - 1)


def _seeded(item: WorkItem, seed: int, index: int) -> WorkItem:
    prompt, sampling = item.prompt, replace(item.sampling, seed=derive_seed(seed, index, 0))
    if prompt.random_tokens is not None:
        prompt = replace(prompt, random_seed=derive_seed(seed, index, 1))
    return WorkItem(prompt, sampling)


def _read_line(line: str, folder: Path, sampling: Sampling) -> WorkItem:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise BadInput("must be a JSON object")
    if unknown := sorted(set(row) - LINE_KEYS):
        raise BadInput(f"unknown {', '.join(unknown)}; known are {', '.join(sorted(LINE_KEYS))}")
    for media in ("audio", "image"):
        if media in row:
            row[media] = folder / row[media]
            if not row[media].is_file():
                raise BadInput(f"{media}: no file {row[media]}")
    lengths = {name: row.pop(name) for name in ("max_text_tokens", "max_frames", "seed") if name in row}
    return WorkItem(Prompt(**row), replace(sampling, **lengths))


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: _plain(inner) for name, inner in named.items() if inner is not None}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    array = np.ascontiguousarray(value)  # samples, or the pixels of an image
    return {"shape": list(array.shape), "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
