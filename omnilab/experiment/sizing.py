"""How many blocks a question needs: noise from an earlier run or a short pilot, and what that buys.

Only noise and times are looked at, never effects.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from omnilab.errors import BadInput
from omnilab.experiment.analysis.blocks import MOST_SIZED, BlockRule, Fixed, Looks, SizedByNoise
from omnilab.experiment.analysis.carries import FRAME_MS
from omnilab.experiment.analysis.effects import LEVEL
from omnilab.experiment.analysis.table import Array, Table
from omnilab.experiment.design import FACTORIALS
from omnilab.experiment.plan import Plan, warm_up
from omnilab.experiment.results import read_run
from omnilab.experiment.statistics import power
from omnilab.experiment.statistics.estimate import INTERVAL_BLOCKS, LEAST_BLOCKS
from omnilab.experiment.statistics.power import LOOKS

if TYPE_CHECKING:
    from omnilab.experiment.experiment import Experiment
    from omnilab.experiment.protocol import OpenBench

Row: TypeAlias = Mapping[str, Any]
PILOT_TRIALS = 3
ASSUMED = (0.01, 0.02, 0.05)  # sd of a trial, where nothing is known
AVERAGED = math.sqrt(1.5)  # sd of a variant over the mean of two baseline trials, in sds of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much a trial of the primary metric varies within its block (sd of its log), and how long things take."""

    sd: float
    df: int  # degrees of freedom of `sd`
    trial_s: float
    open_s: float
    source: str


def noise_of_run(path: str | Path, primary: str) -> Noise:
    """Return the noise of an earlier run; RunFolderError when it is none, BadInput when it has too few trials."""
    run, lines = read_run(Path(path))
    table = Table(run, lines)
    rest, df = residuals(table.logs(primary))
    if df < 2:
        raise BadInput(f"noise_from: {path} has too few trials of {primary} to say how much one varies")
    opened = [line["seconds"] for line in lines if line["kind"] == "open"]
    return Noise(
        sd=float(np.sqrt(np.nansum(rest**2) / df)),
        df=df,
        trial_s=float(np.mean([row["seconds"] for row in table.rows.values()])),
        open_s=float(np.mean(opened)) if opened else 0.0,
        source=f"run {Path(path).name}",
    )


def residuals(logs: Array) -> tuple[Array, int]:
    """Return what blocks and variants leave of log values [B, V], and its degrees of freedom; of whole variants."""
    whole = logs[:, ~np.isnan(logs).any(0)]
    rest = whole - whole.mean(0, keepdims=True)
    rest = rest - rest.mean(1, keepdims=True)
    return rest, max(0, (whole.shape[0] - 1) * (whole.shape[1] - 1))


def pilot(plan: Plan, open_pipeline: OpenBench) -> Noise:
    """Measure the baseline a few times on requests that no trial uses; nothing is kept but the noise and the times."""
    workload = plan.experiment.workload.with_seed(plan.experiment.seed + 2**40)
    began, base = time.monotonic(), plan.settings[plan.baseline]
    with open_pipeline(base) as pipe:
        pipe.run(warm_up(workload))
        open_s, values, took = time.monotonic() - began, [], []
        for _ in range(PILOT_TRIALS):
            began = time.monotonic()
            value = pipe.run(workload).metrics.get(plan.experiment.primary)
            took.append(time.monotonic() - began)
            values.append(math.nan if not value or value <= 0 else math.log(value))
    sd = float(np.std(values, ddof=1))
    if math.isnan(sd):
        raise BadInput(f"pilot: {plan.experiment.primary} is not defined for this workload; choose another primary")
    return Noise(sd=sd, df=PILOT_TRIALS - 1, trial_s=float(np.mean(took)), open_s=open_s, source="pilot")


def minutes(plan: Plan, noise: Noise, blocks: int) -> float:
    """Expected minutes of so many blocks, the gate included; every variant as slow as the noise's trials."""
    return (_gate_s(plan, noise) + blocks * _block_s(plan, noise)) / 60


def _block_s(plan: Plan, noise: Noise) -> float:
    starts = len(plan.orders[0]) if plan.own_processes else 1
    return starts * noise.open_s + len(plan.orders[0]) * noise.trial_s


def _gate_s(plan: Plan, noise: Noise) -> float:
    share = 0.0 if plan.gate is None else min(1.0, _tokens(plan.gate) / max(1, _tokens(plan.workloads[0])))
    return share * len(plan.orders[0]) * noise.trial_s


def _tokens(workload: Any) -> int:
    return sum(item.sampling.max_text_tokens + item.sampling.frame_limit for item in workload.requests)


def blocks_in(budget: str, plan: Plan, noise: Noise) -> int:
    """Return how many blocks fit into a budget ("90s", "5m", "2h"); BadInput says what would."""
    seconds = seconds_of(budget)
    fit = math.floor((seconds - _gate_s(plan, noise)) / _block_s(plan, noise))
    fit -= fit % plan.cycle
    if fit < INTERVAL_BLOCKS:
        least = (_whole(plan, INTERVAL_BLOCKS), _whole(plan, LEAST_BLOCKS))
        wanted = ", ".join(f"{blocks} blocks take about {minutes(plan, noise, blocks):.1f} min" for blocks in least)
        raise BadInput(f"budget: {budget} is too short for {len(plan.orders[0])} trials a block: {wanted}")
    return fit


def seconds_of(budget: str) -> float:
    """Return the seconds of "90s", "5m" or "2h"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", budget)
    if found is None or float(found[1]) == 0:
        raise BadInput(f"budget: must be like 90s, 5m or 2h, not {budget!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def detectable(plan: Plan, sd: float, df: float, blocks: int) -> float:
    """Return the least effect (0.03: 3 %) that so many blocks find, at the level that Holm starts from."""
    level = LEVEL / num_verdicts(plan)
    return math.expm1(power.mde(sd * contrast_sd(plan), blocks, level, df, variants=len(plan.orders[0])))


def blocks_to_detect(effect: float, plan: Plan, noise: Noise, most: int) -> int:
    """Return how many blocks find an effect; BadInput says what `most` blocks find."""
    level, variants = LEVEL / num_verdicts(plan), len(plan.orders[0])
    try:
        wanted = power.blocks_for(
            math.log1p(effect), noise.sd * contrast_sd(plan), level, noise.df, most, variants=variants
        )
    except ValueError:
        can = detectable(plan, noise.sd, noise.df, most)
        raise BadInput(
            f"detect: {100 * effect:.3g} % needs more than {most} blocks where a trial varies by "
            f"{100 * noise.sd:.1f} %; {most} find {100 * can:.1f} %"
        ) from None
    return max(LEAST_BLOCKS, wanted)


def num_verdicts(plan: Plan) -> int:
    """How many verdicts share the error rate."""
    toggles = {toggle.name for variant in plan.variants for toggle in variant.toggles}
    return max(1, len(toggles) if plan.design in FACTORIALS else len(plan.variants) - 1)


def contrast_sd(plan: Plan) -> float:
    """Return the sd of a verdict's contrast in sds of a trial: what the design makes of noise."""
    if plan.design in FACTORIALS:
        return 2 / math.sqrt(len(plan.variants) / plan.cycle)
    against_base = all(variant.against in (None, plan.baseline) for variant in plan.variants)
    return AVERAGED if against_base else math.sqrt(2)


def _measured(plan: Plan) -> str:
    if plan.own_processes:
        return f"{len(plan.variants)} arms"
    ours = plan.experiment
    return str(ours.model) if ours.subject is None else ours.subject.model


def plan_lines(plan: Plan, noise: Noise | None, starts: bool = True) -> list[str]:
    """Say what will be done, how long it will take and what it can show, before anything is measured.

    `starts`: it starts servers itself; else it shares those of a plan before it.
    """
    ours, blocks = plan.experiment, plan.rule.first
    counts = plan.counts(blocks)
    started = "starts of the stage processes" if not plan.own_processes else "server starts, one after another"
    starting = f"{counts['open']} {started}" if starts else "on the same server starts"
    lines = [
        f"{ours.name} on {_measured(plan)}, base {plan.baseline}: {plan.rule}",
        f"{counts['trial']} trials in {blocks} blocks, {counts['gate']} gate trials before them; {starting}; "
        f"plan {plan.hash[:12]}",
        f"verdict on {ours.primary}, margin {100 * ours.margin:.3g} %, error rate {LEVEL:g} over "
        f"{num_verdicts(plan)} verdicts (Holm)",
    ]
    if plan.own_processes and noise is None:
        lines.append(_guessed(plan, counts["open"] if starts else 0, counts["trial"]))
    if noise is not None:
        least = detectable(plan, noise.sd, noise.df, blocks)
        lines.append(
            f"a trial varies by {100 * noise.sd:.1f} % ({noise.source}, {noise.df} degrees of freedom): "
            f"{blocks} blocks take about {minutes(plan, noise, blocks):.0f} min and can show "
            f"{100 * least:.1f} % (80 % power)"
        )
    else:
        shown = ", ".join(
            f"{100 * detectable(plan, sd, math.inf, blocks):.1f} % if a trial varies by {100 * sd:.0f} %"
            for sd in ASSUMED
        )
        lines.append(
            f"can show an effect of {shown}; how much one varies here is measured as it runs (or --noise-from RUN)"
        )
    return lines


def _guessed(plan: Plan, starts: int, trials: int) -> str:
    """Say how long servers may take that nobody has measured yet: speech at real time, a start of 1 to 5 minutes."""
    items = plan.workloads[0].requests
    together = min(len(items), plan.workloads[0].arrivals.max_concurrency or len(items))
    trial_s = sum(item.sampling.frame_limit for item in items) * FRAME_MS / 1e3 / together
    low, high = ((starts * minute * 60 + trials * trial_s) / 3600 for minute in (1, 5))
    return (
        f"expected {low:.1f} to {high:.1f} h, if a start takes 1 to 5 min and audio comes at real time "
        f"({trial_s:.0f} s a trial); after the first block the time left is measured (or --noise-from RUN)"
    )


def rule_of(experiment: Experiment, draft: Plan, noise: Noise | None) -> BlockRule:
    """Return the rule an experiment asks for; BadInput says what is wrong with it."""
    asked = [name for name in ("blocks", "budget", "detect") if getattr(experiment, name) is not None]
    asked += ["looks"] if experiment.looks else []
    if len(asked) > 1:
        raise BadInput(f"{' and '.join(asked)}: give only one of them")
    if experiment.detect is not None:
        return _to_detect(experiment.detect, draft, noise)
    if experiment.budget is not None:
        seconds_of(experiment.budget)
        return Fixed(blocks_in(experiment.budget, draft, noise)) if noise else draft.rule
    if experiment.looks:
        return _looks(draft)
    return Fixed(_counted(draft, _whole(draft, LEAST_BLOCKS) if experiment.blocks is None else experiment.blocks))


def _counted(draft: Plan, blocks: int) -> int:
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < INTERVAL_BLOCKS:
        raise BadInput(
            f"blocks: must be {INTERVAL_BLOCKS} or more ({LEAST_BLOCKS} or more for a verdict), not {blocks}"
        )
    if blocks % draft.cycle:
        raise BadInput(f"blocks: half fractions alternate, so their number must be even, not {blocks}")
    return blocks


def _whole(plan: Plan, blocks: int) -> int:
    """Return the number of blocks, or one more, in which every variant is tried equally often."""
    return blocks + -blocks % plan.cycle


def _to_detect(effect: float, draft: Plan, noise: Noise | None) -> BlockRule:
    if not 0 < effect < 1:
        raise BadInput(f"detect: must lie between 0 and 100 %, not {100 * effect:.3g} %")
    if noise is not None:
        wanted = blocks_to_detect(effect, draft, noise, MOST_SIZED)
        return Fixed(_whole(draft, wanted))
    if draft.design in FACTORIALS:
        raise BadInput(f"detect: a {draft.design} is sized from an earlier run's noise: give noise_from, or blocks")
    return SizedByNoise(effect)


def _looks(draft: Plan) -> Looks:
    most = max(len(levels) for levels in LOOKS.values())
    if draft.design in FACTORIALS or num_verdicts(draft) > most:
        raise BadInput(f"looks: take a design of single comparisons, {most} at most; give blocks or detect instead")
    return Looks()
