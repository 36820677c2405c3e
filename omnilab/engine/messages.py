"""What crosses between pipeline, engine and runner: commands, events, work and answers. Plain data, picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnilab.record import Recording
from omnilab.seams import Payload, Phase


@dataclass(frozen=True, slots=True)
class StageSampling:
    """How one stage draws for one request. A temperature of 0 is greedy; `max_outputs` counts tokens or frames."""

    max_outputs: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A request as one stage is asked to run it.

    `num_prompt_tokens` is what this stage has to prefill (0 for Code2Wav); `prompt` is for its runner alone;
    `noise_key` names the request where random numbers are drawn, so that equal requests draw equally.
    """

    request_id: str
    num_prompt_tokens: int
    prompt_ids: list[int]
    prompt: Any
    sampling: StageSampling
    eos_ids: frozenset[int] = frozenset()
    noise_key: str = ""


# commands: pipeline -> engine --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Admit:
    """Start a request."""

    request: StageRequest


@dataclass(frozen=True, slots=True)
class Release:
    """Forget a request: it has ended, failed or been aborted. Nothing of it may stay behind."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Hand over what was recorded since the last collection; from now on record spans, or counters alone."""

    spans: bool = True


@dataclass(frozen=True, slots=True)
class ReadClock:
    """Say what `time.monotonic_ns` is in the runner, and on the way back in the engine."""


@dataclass(frozen=True, slots=True)
class Configure:
    """Rewire with another recipe (bytes by cloudpickle). Only when no request is live."""

    recipe: bytes


@dataclass(frozen=True, slots=True)
class Describe:
    """Say which occupants are in force and how many entries each per-request table has."""


@dataclass(frozen=True, slots=True)
class StartProfile:
    """Start a profiler in each process of the stage, made by `make` (cloudpickle). Only when no request is live."""

    make: bytes


@dataclass(frozen=True, slots=True)
class StopProfile:
    """End the profilers and say what they kept. Only when no request is live."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the stage."""


# events: engine -> pipeline ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Tokens:
    """Text tokens of a request; `finish_reason` with the last."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Spoken:
    """The Talker has ended a request: its codes [frames, G]."""

    request_id: str
    codes: NDArray[np.int64]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Audio:
    """New samples [n] in float32; `finished` with the last, which may be empty."""

    request_id: str
    samples: NDArray[np.float32]
    finished: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """A request cannot go on in this stage, or (without a request) the stage itself cannot."""

    request_id: str | None
    error: Exception


@dataclass(frozen=True, slots=True)
class Released:
    """Everything of a request is gone from this stage."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a command other than Admit, Release and Close; also says once that a stage is ready."""

    value: Any


# engine -> runner and back -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Item:
    """One request's part in a step: prompt tokens start..end-1, or one decode step, or one chunk."""

    request_id: str
    phase: Phase
    start: int = 0
    end: int = 0
    last_part: bool = False
    payload: Payload | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One step. Without items it is an idle step, which may still carry ids that have ended."""

    new: list[StageRequest]
    items: list[Item]
    finished: list[str]


@dataclass(slots=True)
class Output:
    """What a step gave one request. `error` ends that request alone."""

    request_id: str
    token: int | None = None  # text token or first code
    codes: tuple[int, ...] = ()
    rows: Any = None
    samples: NDArray[np.float32] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """Answer to Work."""

    outputs: list[Output]


@dataclass(frozen=True, slots=True)
class Description:
    """Answer to Describe."""

    occupants: dict[str, str]
    tables: dict[str, int] = field(default_factory=dict)
    recordings: list[Recording] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Profiled:
    """Answer of one process to StartProfile and StopProfile.

    `worker` is the stage's name for the process of its runner, and "STAGE.engine" for an engine apart from it. Of the
    `seen` steps that did work `steps` were recorded. `error` says why there is nothing.
    """

    worker: str
    pid: int
    seen: int
    steps: int
    files: dict[str, int] = field(default_factory=dict)  # bytes unpacked, by path
    notes: list[str] = field(default_factory=list)
    error: str | None = None
