"""A workload file in the form of vLLM-Omni's nightly runs (`tests/dfx/perf/tests/*.json`) as what an experiment asks.

Written against vllm-project/vllm-omni: what fields mean as its `run_benchmark.py` of commit 01280df has it, files as of
779c9e2 and ec18c92. A field is honoured, or named with what holds instead, or refused by name; none is passed over.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.sweep import Sweep, at_workloads
from omnilab.prompt import Prompt, Sampling, at_least
from omnilab.workload import Arrivals, Workload, closed, gamma, poisson

FLIGHT, RATE = "requests in flight", "requests a second"
ONLY = {"dataset_name": "random", "backend": "openai-chat-omni", "endpoint": "/v1/chat/completions"}
NEUTRAL = {"enabled": True, "ignore_eos": True, "random_range_ratio": 0, "random_prefix_len": 0}
HONOURED = {
    *ONLY, *NEUTRAL, "num_prompts", "max_concurrency", "request_rate", "burstiness", "random_input_len",
    "random_output_len", "temperature", "top_k", "extra_body",
}  # fmt: skip
INSTEAD = {
    "mark": "this machine is what is measured",
    "baseline": "the first arm or variant is the baseline",
    "percentile_metrics": "the report has every metric",
    "metric_percentiles": "the report has every metric",
    "num_warmups": "as many requests as run together warm up",
    "server_params": "the arms' commands, or --deploy, say how servers are started",
}
DO = {
    "dataset_name": "random alone is asked here; for sounds: python -m omnilab.bench --dataset random-audio",
    "backend": "our client speaks openai-chat-omni alone",
    "endpoint": "our client asks /v1/chat/completions alone",
    "enabled": "the file has switched it off: choose another, or take the field out",
    "ignore_eos": "random prompts are answered to their full length, as vLLM's are: take it out",
    "random_range_ratio": "all lengths are equal here: set it to 0",
    "random_prefix_len": "prompts share no beginning here: set it to 0",
    "model": "take it out and give --model",
    "tokenizer": "take it out and give --tokenizer DIR",
    "seed": "each block draws its own: take it out and give --seed",
    **dict.fromkeys(("top_p", "min_p", "repetition_penalty"), "write it into extra_body"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One point: how many requests, and so many in flight or a second (`inf`: all at once)."""

    num_prompts: int
    axis: str
    at: float

    @property
    def name(self) -> str:
        """Its point's name: c4, r0.5."""
        return f"{'c' if self.axis == FLIGHT else 'r'}{self.at:g}"

    def arrivals(self, burstiness: float) -> Arrivals:
        """Return when its requests start."""
        if self.axis == FLIGHT:
            return closed(int(self.at))
        if math.isinf(self.at):
            return closed(self.num_prompts)
        return poisson(self.at) if burstiness == 1 else gamma(self.at, burstiness)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one set of a file's parameters asks. `name` is TEST_NAME:N, sets counted from 1 in each test."""

    name: str
    params: Mapping[str, Any]
    steps: tuple[Step, ...]
    instead: tuple[str, ...]

    def applied(self, ours: Experiment | Sweep, frames: int | None) -> Experiment | Sweep:
        """Return the experiment with this workload, a sweep where it has several points.

        `frames` fixes the audio's length, which the file leaves to the server. BadInput for what cannot be asked so.
        """
        if isinstance(ours, Sweep):
            raise BadInput("workload: the experiment is a sweep with workloads of its own; take one that is none")
        body = dict(self.params.get("extra_body") or {})
        if body and ours.arms is None:
            raise BadInput(
                f"{self.name}: extra_body: goes into requests to arms: give --arm NAME=COMMAND, or take it out"
            )
        if frames is not None and "audio" not in body.get("modalities", ("audio",)):
            raise BadInput(f"frames: {self.name} asks for text alone")
        arms = None if ours.arms is None else {name: _asked(arm, name, body) for name, arm in ours.arms.items()}
        ours, workloads = replace(ours, arms=arms), self.workloads(frames)
        if len(workloads) == 1:
            return replace(ours, workload=next(iter(workloads.values())))
        axis = self.steps[0].axis
        places = {point: step.at for point, step in zip(workloads, self.steps, strict=True) if math.isfinite(step.at)}
        return at_workloads(ours, workloads, {axis: places})

    def workloads(self, frames: int | None) -> dict[str, Workload]:
        """Return each point's requests by the point's name; other prompts at each."""
        sampling = Sampling(
            max_text_tokens=_whole(self.params, "random_output_len"), max_frames=frames, ignore_eos=True,
            temperature=_number(self.params, "temperature", 0.0), top_k=self.params.get("top_k"),
        )  # fmt: skip
        prompt = Prompt(random_tokens=_whole(self.params, "random_input_len"))
        bursts = _number(self.params, "burstiness", 1.0)
        twice = [name for name, count in Counter(step.name for step in self.steps).items() if count > 1]
        found = {
            f"{step.name}-n{step.num_prompts}" if step.name in twice else step.name: Workload.prompts(
                [prompt] * step.num_prompts, sampling, arrivals=step.arrivals(bursts), seed=number
            )
            for number, step in enumerate(self.steps, 1)
        }
        if len(found) != len(self.steps):
            raise BadInput(f"{self.name}: one point is there twice")
        return found


def entry_asked(path: Path | None, name: str | None, lengths: Mapping[str, Any]) -> Entry | None:
    """Return what `--workload FILE --entry NAME` asks, None without; `lengths` are options that the file replaces."""
    if path is None:
        if name is not None:
            raise BadInput("entry: is of a workload file: give --workload FILE.json")
        return None
    if given := [option for option, value in lengths.items() if value is not None]:
        raise BadInput(f"{', '.join(given)}: the workload file says it; leave it out, or leave --workload out")
    return read_entry(path, name)


def read_entry(path: Path, name: str | None = None) -> Entry:
    """Return the entry TEST_NAME:N of a file, or TEST_NAME where it has one; None: the file's only one. BadInput."""
    sets = _sets(path)
    found = {key: one for key, one in sets.items() if name in (None, key, key.rpartition(":")[0])}
    if len(found) != 1:
        said = f"{path}: no entry {name}" if name and not found else f"{path}: several entries"
        there = ", ".join(f"{key} ({_outline(params)})" for key, (_, params) in sets.items())
        raise BadInput(f"{said}; choose with --entry: {there or 'the file has none'}")
    ((key, (test, params)),) = found.items()
    try:
        return _entry(key, test, params)
    except BadInput as error:
        raise BadInput(f"{path}, {key}: {error}") from None


def _sets(path: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return tests and their sets of parameters, by TEST_NAME:N."""
    try:
        tests = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    counts = Counter[str]()
    shape = 'must be a list of {"test_name": ..., "benchmark_params": [{...}, ...]}'
    if not isinstance(tests, list):
        raise BadInput(f"{path}: {shape}")
    for test in tests:
        if not isinstance(test, dict) or not isinstance(test.get("test_name"), str):
            raise BadInput(f"{path}: {shape}")
        for params in test.get("benchmark_params") or ():
            if not isinstance(params, dict):
                raise BadInput(f"{path}: {shape}")
            counts[test["test_name"]] += 1
            # an option may be written with dashes, as on the command line that it becomes
            found[f"{test['test_name']}:{counts[test['test_name']]}"] = (
                test, {key.replace("-", "_"): value for key, value in params.items() if value is not None},
            )  # fmt: skip
    return found


def _entry(name: str, test: Mapping[str, Any], params: Mapping[str, Any]) -> Entry:
    own = {key: value for key, value in test.items() if key not in ("test_name", "benchmark_params")}
    for key, value in {**own, **params}.items():
        wrong = (key in ONLY and value != ONLY[key]) or (key in NEUTRAL and value != NEUTRAL[key])
        if wrong or (key not in HONOURED and key not in INSTEAD) or (key in own and key not in INSTEAD):
            raise BadInput(f"{key} = {json.dumps(value)}: {DO.get(key, 'is not known here: take it out')}")
    if not isinstance(params.get("extra_body", {}), dict):
        raise BadInput("extra_body: must be a JSON object")
    if params.get("burstiness", 1) != 1 and "request_rate" not in params:
        raise BadInput("burstiness: goes with request_rate")
    instead = [
        f"{key}: {INSTEAD[key]}" + (f"; it says {json.dumps(own[key])}" if key == "server_params" else "")
        for key in (*own, *params) if key in INSTEAD
    ]  # fmt: skip
    entry = Entry(name, dict(params), tuple(_steps(params)), tuple(instead))
    entry.workloads(None)
    return entry


def _steps(params: Mapping[str, Any]) -> list[Step]:
    """Pair the lists as the runner does: one number of prompts serves all points, one point all numbers."""
    given = [key for key in ("max_concurrency", "request_rate") if key in params]
    if len(given) != 1:
        raise BadInput("give max_concurrency or request_rate" + (", not both" if given else ""))
    counts, places = _listed(params, "num_prompts"), _listed(params, given[0])
    most = max(len(counts), len(places))
    counts, places = (found * most if len(found) == 1 else found for found in (counts, places))
    if len(counts) != len(places):
        raise BadInput(f"num_prompts: {len(counts)} numbers for {len(places)} of {given[0]}")
    axis = FLIGHT if given[0] == "max_concurrency" else RATE
    return [
        Step(at_least("num_prompts", n, 1), axis, _place(given[0], p, n)) for n, p in zip(counts, places, strict=True)
    ]


def _place(key: str, value: Any, count: int) -> float:
    if key == "max_concurrency":
        if at_least(key, value, 1) > count:
            raise BadInput(f"max_concurrency: {value} of {count} requests: more num_prompts, or fewer in flight")
        return float(value)
    rate = float("inf") if value == "inf" else value
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
        raise BadInput(f'request_rate: must be more than 0 requests a second, or "inf", not {value!r}')
    return float(rate)


def _listed(params: Mapping[str, Any], key: str) -> list[Any]:
    value = params.get(key)
    found = list(value) if isinstance(value, list) else [value]
    if value is None or not found:
        raise BadInput(f"{key}: is missing")
    return found


def _whole(params: Mapping[str, Any], key: str) -> int:
    if key not in params:
        raise BadInput(f"{key}: is missing")
    return at_least(key, params[key], 1)


def _number(params: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = params.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{key}: must be a number, not {value!r}")
    return float(value)


def _asked(arm: Arm, name: str, body: Mapping[str, Any]) -> Arm:
    """Return an arm whose requests carry what the file says too."""
    if clash := sorted(key for key in body if key in arm.extra_body and arm.extra_body[key] != body[key]):
        raise BadInput(f"arm {name}: its extra_body and the workload file's differ in {', '.join(clash)}")
    modalities: Sequence[str] = body.get("modalities", arm.modalities)
    if not isinstance(modalities, (list, tuple)):
        raise BadInput(f"extra_body: modalities must be a list, not {modalities!r}")
    return replace(arm, extra_body={**arm.extra_body, **body}, modalities=tuple(modalities))


def _outline(params: Mapping[str, Any]) -> str:
    lengths = f"{params.get('random_input_len', '?')} in, {params.get('random_output_len', '?')} out"
    body = params.get("extra_body")
    only = " text alone," if isinstance(body, dict) and body.get("modalities") == ["text"] else ""
    key = next((key for key in ("max_concurrency", "request_rate") if key in params), "num_prompts")
    return f"{params.get('dataset_name')},{only} {lengths}, {key} {json.dumps(params.get(key))}"
