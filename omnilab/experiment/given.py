"""What a command line says of an experiment, as values: sizes, lengths, arms, an engine. Raises BadInput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnilab.client.values import read_object
from omnilab.errors import BadInput
from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.sweep import Sweep, at_concurrencies, in_flight, refuse_lengths
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.vllm_omni.engine import VllmOmni


def chosen(toggles: str | None, design: str | None, gate_prompts: str | None) -> dict[str, Any]:
    """Return what says which variants there are, and what they must answer alike, instead of what the file says."""
    changes: dict[str, Any] = {}
    if gate_prompts is not None:
        changes["gate_prompts"] = None if gate_prompts == "none" else gate_prompts
    if toggles is not None:
        changes["toggles"] = tuple(name.strip() for name in toggles.split(",") if name.strip())
    if toggles is not None or design is not None:
        changes["variants"] = None
    return changes


def changed(
    ours: Experiment | Sweep, changes: Mapping[str, Any], lengths: Mapping[str, int | None], together: Sequence[int]
) -> Experiment | Sweep:
    """Return what is measured, with all changes; several numbers of requests `together` make a sweep of it."""
    in_all = {**lengths, "max_concurrency": together[0] if together else None}
    if isinstance(ours, Sweep):
        refuse_lengths(in_all)
        return ours.changed(**changes)
    workload = ours.workload
    if any(value is not None for value in lengths.values()):
        workload = resized(workload, in_all)
    if together:
        workload = in_flight(workload, together[0])
    ours = replace(ours, **changes, workload=workload)
    return at_concurrencies(ours, together) if len(together) > 1 else ours


def sized(blocks: int | None, budget: str | None, detect: str | None, looks: bool) -> dict[str, Any]:
    """Return what says how many blocks there are, instead of what the file says; nothing when nothing is given."""
    if blocks is None and budget is None and detect is None and not looks:
        return {}
    share = None if detect is None else share_of("detect", detect)
    return {"blocks": blocks, "budget": budget, "detect": share, "looks": looks}


def arms_asked(
    given: Sequence[str] | None, exact: str | None, settings: Mapping[str, Any], ours: Experiment | Sweep
) -> dict[str, Any]:
    """Return what `--arm` and its companions change; nothing when none is given. BadInput says what is wrong."""
    if given is None:
        has_arms = isinstance(ours, Experiment) and ours.arms is not None
        alone = [name for name in ("tokenizer", "extra_body", "start_s") if settings[name] is not None]
        if alone or (exact is not None and not has_arms):
            raise BadInput(f"{(alone or ['exact'])[0]}: is for arms: give --arm NAME=COMMAND, twice or more")
        if has_arms and settings["model"] is not None:
            raise BadInput("model: the file's arms name their own")
        return {} if exact is None else {"exact": exact_of(exact)}
    fields = {name: value for name, value in settings.items() if value is not None}
    if "extra_body" in fields:
        fields["extra_body"] = read_object("extra_body", fields["extra_body"])
    arms = dict[str, Arm]()
    for text in given:
        name, equals, command = text.partition("=")
        if not equals or not command.strip():
            raise BadInput(f"arm: must be NAME=COMMAND, not {text!r}")
        if name.strip() in arms:
            raise BadInput(f"arm: {name.strip()} is there twice")
        arms[name.strip()] = Arm(command=command, **fields)
    return {"arms": arms, **({} if exact is None else {"exact": exact_of(exact)})}


def engine_asked(
    subject: str | None,
    python: Path | None,
    deploy: Path | None,
    model: str | None,
    start_s: float | None,
    ours: Experiment | Sweep,
) -> VllmOmni | None:
    """Return the engine in place of the lab's pipeline, None for the lab; BadInput for any other name.

    Where the file's own subject is the engine, what is given is changed in that one.
    """
    if subject not in (None, "lab", "vllm-omni"):
        raise BadInput(f"subject: must be lab or vllm-omni, not {subject!r}")
    from omnilab.vllm_omni.engine import VllmOmni

    theirs = ours.subject if isinstance(ours, Experiment) and isinstance(ours.subject, VllmOmni) else None
    if subject == "lab" or (subject is None and theirs is None):
        if python is not None or deploy is not None:
            raise BadInput("vllm_omni_python and deploy are for --subject vllm-omni")
        return None
    given = {
        "python": python, "deploy": deploy, "folder": model, "on_cpu": False if deploy else None, "start_s": start_s,
    }  # fmt: skip
    return replace(theirs or VllmOmni(), **{name: value for name, value in given.items() if value is not None})


def exact_of(text: str) -> frozenset[str]:
    """Return what must stay equal; "work" is nothing but the work."""
    names = {name.strip() for name in text.split(",")} - {""}
    return frozenset() if names == {"work"} else frozenset(names)


def counts_of(name: str, text: str) -> list[int]:
    """Return "1,4,16" as numbers; BadInput for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name}: must be a number, or several with commas between, not {text!r}") from None


def share_of(name: str, text: str) -> float:
    """Return "3%" or "0.03" as 0.03; BadInput for anything else."""
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise BadInput(f"{name}: must be like 3%, not {text!r}") from None


def resized(workload: Workload, lengths: Mapping[str, int | None]) -> Workload:
    """Return a random workload of the given lengths, the rest as the first request's; BadInput where there are none."""
    first = workload.requests[0]
    if first.prompt.random_tokens is None:
        raise BadInput("the experiment's requests are not random: change their lengths in its file")
    frames = lengths["frames"]
    if frames is None and lengths["output_len"] is None:
        frames = first.sampling.max_frames
    given = {name: value for name, value in lengths.items() if value is not None and name != "frames"}
    kept = {
        "num_prompts": len(workload.requests),
        "input_len": first.prompt.random_tokens,
        "output_len": first.sampling.max_text_tokens,
        "max_concurrency": workload.arrivals.max_concurrency or len(workload.requests),
        "temperature": first.sampling.temperature,
        "seed": workload.seed,
    }
    return Workload.random(**{**kept, **given}, frames=frames)
