"""The plan of an experiment: variants with their recipes, orders and request lists, fixed before the first trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from omnilab.client.datasets import warm_up as client_warm_up
from omnilab.errors import BadInput, ToggleUnavailable
from omnilab.experiment import arms, design
from omnilab.experiment.analysis.blocks import BlockRule
from omnilab.experiment.analysis.carries import SERVERS
from omnilab.experiment.design import AGAIN, Variant
from omnilab.experiment.machine import gpus
from omnilab.experiment.results import plan_hash
from omnilab.experiment.subject import Subject, toggle_of
from omnilab.metrics import VERDICT_METRICS
from omnilab.prompt import Prompt, Sampling, at_least
from omnilab.toggle import Toggle
from omnilab.workload import WorkItem, Workload, closed, derive_seed

if TYPE_CHECKING:
    from omnilab.experiment.arms import Arm
    from omnilab.experiment.experiment import Experiment
    from omnilab.experiment.subject import Setting

GATE_TOKENS, GATE_FRAMES = 12, 30  # more than one chunk of 25 frames, so that a window has left context
WARM_TOKENS, WARM_FRAMES = 4, 4
EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be done. `orders` and `workloads` have an entry a block; `settings` is by variant, A/A included."""

    experiment: Experiment
    rule: BlockRule
    variants: tuple[Variant, ...]  # the baseline first
    settings: Mapping[str, Setting]
    orders: tuple[tuple[str, ...], ...]
    workloads: tuple[Workload, ...]
    gate: Workload | None

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.variants[0].name

    def variant(self, name: str) -> Variant:
        """Return the variant that a trial's name stands for; A/A is the baseline."""
        return next(v for v in self.variants if v.name == name.removesuffix(AGAIN))

    @property
    def hash(self) -> str:
        """Hash of everything that decides what is measured, and in which order."""
        return plan_hash(self.to_dict())

    @property
    def cuda(self) -> bool:
        """Is anything measured on a GPU, as far as it can be told?"""
        return _on_a_gpu(self.experiment)

    @property
    def own_processes(self) -> bool:
        """Has each variant processes of its own, started for every trial? Else those of a block serve all of it."""
        return self.experiment.arms is not None

    def counts(self, blocks: int) -> dict[str, int]:
        """Return how many steps of each kind there are: open, gate, trial."""
        trials = sum(len(order) for order in self.orders[:blocks])
        opened = trials if self.own_processes else blocks
        return {"open": opened, "gate": len(self.settings) if self.gate else 0, "trial": trials}

    @property
    def design(self) -> str:
        """Name of the design; "variants" where they were listed by hand."""
        return _design_of(self.experiment)

    @property
    def cycle(self) -> int:
        """Blocks after which every variant was tried equally often."""
        return 2 if self.design == "half-fraction" else 1

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        ours = self.experiment
        return {
            "experiment": ours.name, "question": ours.question, **_subject(ours), "seed": ours.seed,
            "rule": self.rule.to_dict(),
            "asked": {"blocks": ours.blocks, "budget": ours.budget, "detect": ours.detect, "looks": ours.looks},
            "primary": ours.primary, "margin": ours.margin,
            "design": self.design, "baseline": self.baseline,
            "variants": [
                {"name": v.name, "toggles": [t.name for t in v.toggles], "against": v.against, "exact": v.exact,
                 "seams": [t.seam for t in v.toggles], "claims": [t.claim for t in v.toggles],
                 "occupants": self.settings[v.name].occupants()}
                for v in self.variants
            ],
            "orders": self.orders,
            "workload": ours.workload.to_dict(),
            "workload_seeds": [workload.seed for workload in self.workloads],
            "gate": None if self.gate is None else self.gate.to_dict(),
        }  # fmt: skip


def make_plan(experiment: Experiment, rule: BlockRule) -> Plan:
    """Resolve names, check all that can be checked without a stage, draw orders and seeds. Raises BadInput."""
    at_least("seed", experiment.seed, 0)
    if experiment.primary not in VERDICT_METRICS:
        raise BadInput(f"primary: no metric {experiment.primary!r}; there are {', '.join(VERDICT_METRICS)}")
    if not 0 < experiment.margin < 0.5:
        raise BadInput(f"margin: must lie between 0 and 50 %, not {experiment.margin:.3g}")
    variants, settings = _toggled(experiment) if experiment.arms is None else _arms(experiment, experiment.arms)
    settings[variants[0].name + AGAIN] = settings[variants[0].name]
    seeds = [derive_seed(experiment.seed, block) for block in range(rule.most)]
    return Plan(
        experiment=experiment,
        rule=rule,
        variants=tuple(variants),
        settings=settings,
        orders=tuple(_shuffled(_tried(experiment, variants, block), seed) for block, seed in enumerate(seeds)),
        workloads=tuple(experiment.workload.with_seed(_seed_of_requests(experiment, seed)) for seed in seeds),
        gate=gate_workload(experiment.gate_prompts, experiment.seed),
    )


def _seed_of_requests(experiment: Experiment, seed: int) -> int:
    """Return the seed of a block's requests: points that share a server's start must not ask each other's prompts."""
    return seed if experiment.arms is None else derive_seed(seed, experiment.workload.seed)


def _toggled(experiment: Experiment) -> tuple[list[Variant], dict[str, Setting]]:
    """Return the variants, the baseline first, and the setting of each."""
    base_name, made = _base(experiment) if experiment.subject is None else _base_of(experiment.subject)
    variants = design.named_after(_variants(experiment), base_name)
    settings = {variant.name: made(variant.toggles) for variant in variants}
    for variant in variants:
        if variant.toggles and settings[variant.name] == settings[base_name]:
            raise BadInput(f"{variant.name}: is on in {base_name} already; choose another --base")
    variants.sort(key=lambda variant: bool(variant.toggles))  # stable: the baseline first
    return variants, settings


def _arms(experiment: Experiment, given: Mapping[str, Arm]) -> tuple[list[Variant], dict[str, Setting]]:
    if experiment.subject is not None:
        raise BadInput("subject: give arms or a subject, not both")
    if experiment.toggles is not None or experiment.variants is not None:
        raise BadInput("toggles: a server of another's has none; give arms or toggles, not both")
    return arms.variants_of(given, frozenset(experiment.exact)), {**given}


def _subject(experiment: Experiment) -> dict[str, Any]:
    """Return what is measured, for run.json: the lab's pipeline on a device, or arms."""
    if experiment.subject is not None:
        return {
            "model": experiment.subject.model, "device": "the engine's own", "cuda": _on_a_gpu(experiment),
            "topology": "processes", "subject": experiment.subject.to_dict(),
        }  # fmt: skip
    if experiment.arms is None:
        device = experiment.device
        return {
            "model": str(experiment.model), "device": str(device), "cuda": _on_a_gpu(experiment),
            "topology": experiment.topology,
        }  # fmt: skip
    models = sorted({arm.model or "the first that its server names" for arm in experiment.arms.values()})
    return {
        "model": ", ".join(models), "device": "the servers' own", "cuda": _on_a_gpu(experiment), "topology": SERVERS,
        "arms": {name: arm.to_dict() for name, arm in experiment.arms.items()},
    }  # fmt: skip


def _on_a_gpu(experiment: Experiment) -> bool:
    """Other processes are taken to use a GPU where the machine has one, but for an engine that was told not to."""
    if experiment.arms is None and experiment.subject is None:
        return uses_cuda(experiment.device)
    on_cpu = experiment.subject is not None and experiment.subject.on_cpu
    return not on_cpu and bool(gpus())


def gate_workload(prompts: str | Path | Workload | None, seed: int) -> Workload | None:
    """Return short requests: a file's first prompt of text, with audio and with an image; or a given workload.

    Without audio and image a gate sees no layer-24 row. A relative path is looked up here, then in `experiments`.
    """
    if prompts is None or isinstance(prompts, Workload):
        return prompts
    path = Path(prompts)
    if not path.exists() and (EXPERIMENTS / path).exists():
        path = EXPERIMENTS / path
    kinds: dict[str, WorkItem] = {}
    for item in Workload.from_jsonl(path, seed=seed).requests:
        kinds.setdefault("audio" if item.prompt.audio else "image" if item.prompt.image else "text", item)
    lengths = {"max_text_tokens": GATE_TOKENS, "max_frames": GATE_FRAMES, "ignore_eos": True}
    short = [replace(item, sampling=replace(item.sampling, **lengths)) for item in kinds.values()]
    return Workload(tuple(short), closed(1), seed)


def warm_up(workload: Workload, served: bool = False) -> Workload:
    """Return short unmeasured requests, as many as run together, with prompts as long as the measured ones'.

    `served`: other texts and sounds than the measured ones, which a server's prefix cache would then know.
    """
    count = min(len(workload.requests), workload.arrivals.max_concurrency or len(workload.requests))
    if served:
        fresh = client_warm_up(workload, count)
        few = [replace(item, sampling=_short(item.sampling)) for item in fresh.requests]
        return Workload(tuple(few), closed(count), fresh.seed)
    short = []
    for index, item in enumerate(workload.requests[:count]):
        prompt = item.prompt
        if prompt.random_tokens is not None:
            prompt = Prompt(random_tokens=prompt.random_tokens, random_seed=derive_seed(workload.seed, index, 3))
        short.append(WorkItem(prompt, replace(_short(item.sampling), max_frames=WARM_FRAMES)))
    return Workload(tuple(short), closed(count), workload.seed)


def _short(sampling: Sampling) -> Sampling:
    frames = None if sampling.max_frames is None else WARM_FRAMES
    return replace(sampling, max_text_tokens=WARM_TOKENS, max_frames=frames)


MakeSetting: TypeAlias = Callable[[Sequence[Toggle[Any]]], "Setting"]


def _base(experiment: Experiment) -> tuple[str, MakeSetting]:
    """Return the name of the base recipe, and how toggles are put on it."""
    from omnilab import recipes
    from omnilab.recipe import recipe_with  # brings torch

    if isinstance(experiment.base, str):
        name, base = experiment.base, recipes.recipe_named(experiment.base)
    else:
        names = [name for name, recipe in recipes.NAMED.items() if recipe == experiment.base]
        name, base = (names[0] if names else "base"), experiment.base
    return name, lambda toggles: recipe_with(*toggles, base=base)


def _base_of(subject: Subject) -> tuple[str, MakeSetting]:
    return subject.baseline, subject.setting


def _variants(experiment: Experiment) -> list[Variant]:
    given = experiment.variants
    if given is None:
        toggles = _resolved(experiment, _default(experiment) if experiment.toggles is None else experiment.toggles)
        if not toggles:
            raise BadInput("toggles: none given")
        design.refuse_conflicts(toggles)
        return design.design_named(experiment.design)(toggles)
    if isinstance(given, Mapping):
        baseline = next((name for name, toggles in given.items() if not toggles), None)
        return [Variant(name, _resolved(experiment, ts), baseline if ts else None) for name, ts in given.items()]
    return list(given)


def _default(experiment: Experiment) -> tuple[Toggle[Any], ...]:
    """Return the toggles of an experiment that names none: the four, or all that its subject has."""
    from omnilab.toggles import THE_FOUR

    return THE_FOUR if experiment.subject is None else experiment.subject.toggles


def _resolved(experiment: Experiment, toggles: Sequence[str | Toggle[Any]]) -> tuple[Toggle[Any], ...]:
    from omnilab.toggles import toggle_named

    subject = experiment.subject
    named = toggle_named if subject is None else partial(toggle_of, subject)
    found = tuple(named(toggle) if isinstance(toggle, str) else toggle for toggle in toggles)
    needy = [toggle for toggle in found if toggle.needs == "cuda"]
    if needy and subject is None and not uses_cuda(experiment.device):
        raise ToggleUnavailable(f"{needy[0].name} needs cuda, and the device is a CPU: leave it out")
    return found


def uses_cuda(device: str | Mapping[str, str]) -> bool:
    """Does any stage run on cuda? "auto" asks torch."""
    devices = list(device.values()) if isinstance(device, Mapping) else [device]
    if "auto" in devices:
        import torch

        return torch.cuda.is_available()
    return any(str(name).startswith("cuda") for name in devices)


def _tried(experiment: Experiment, variants: Sequence[Variant], block: int) -> list[str]:
    """Return what a block tries, in the order in which it was drawn up: A/A last."""
    tried = [v.name for v in variants if design.in_block(_design_of(experiment), v, block)]
    return [*tried, variants[0].name + AGAIN]


def _design_of(experiment: Experiment) -> str:
    if experiment.arms is not None:
        return "arms"
    return "variants" if experiment.variants is not None else experiment.design


def _shuffled(names: list[str], seed: int) -> tuple[str, ...]:
    return tuple(names[i] for i in np.random.Generator(np.random.PCG64(seed)).permutation(len(names)))
