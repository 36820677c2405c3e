"""An experiment as a value: what is compared, on which workload, how often. `run` measures it and reports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment import machine
from omnilab.experiment.analysis.blocks import Fixed, rule_from
from omnilab.experiment.design import Variant
from omnilab.experiment.plan import Plan, make_plan, uses_cuda
from omnilab.experiment.protocol import Bench, OpenPipeline, Progress, Silent, measure
from omnilab.experiment.reports.report import Report, write_reports
from omnilab.experiment.results import RunFolder, check_folder, read_run, refuse_another
from omnilab.experiment.sizing import PILOT_TRIALS, Noise, noise_of_run, pilot, plan_lines, rule_of
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS
from omnilab.toggle import Toggle
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A question and how it is measured. Nothing is resolved or started before `plan` or `run`.

    `toggles` (names or Toggle; None: the four) go through `design`; `variants` says instead, by name, which toggles
    are on. `gate_prompts`: a file of prompts (its first with audio, with an image, of text are used), a workload, or
    None for no gate. How many blocks: `blocks` (None: 5), or as many as fit into `budget` ("5m"), or as `detect`
    needs to see an effect of that size (0.03: 3 %), or `looks` after 5, 7 and 10 blocks; only one of them. `noise_from`
    is an earlier run's folder whose noise and times plan this one, `pilot` measures them first.
    Verdicts are on `primary`, the rest is exploratory; a difference within `margin` is no difference.
    """

    name: str = "experiment"
    question: str = ""
    model: str = "thin"
    base: str | Recipe = "BEFORE_1378"
    toggles: Sequence[str | Toggle[Any]] | None = None
    variants: Mapping[str, Sequence[str | Toggle[Any]]] | Sequence[Variant] | None = None
    design: str = "one-at-a-time"
    workload: Workload = field(default_factory=Workload.random)
    blocks: int | None = None
    budget: str | None = None
    detect: float | None = None
    looks: bool = False
    noise_from: str | Path | None = None
    pilot: bool = False
    primary: str = "wall_s"
    margin: float = 0.02
    seed: int = 0
    gate_prompts: str | Path | Workload | None = "prompts.jsonl"
    device: str | Mapping[str, str] = "auto"
    topology: str = "processes"
    timeout_s: float = 120.0

    def plan(self, noise: Noise | None = None) -> Plan:
        """Resolve and check everything that needs no stage; BadInput says what is wrong.

        `noise` (else that of `noise_from`) sizes it. A budget without either is only sized by `run`, after a pilot.
        """
        draft = make_plan(self, Fixed(LEAST_BLOCKS + 1))
        noise = noise or self.noise()
        rule = rule_of(self, draft, noise)
        return make_plan(self, rule)

    def planned(self) -> tuple[Plan, Noise | None]:
        """Return the plan and its noise without a trial; a budget without `noise_from` needs a pilot for it."""
        noise = self.noise()
        plan = self.plan(noise)
        refuse_what_cannot_run(plan)
        if self._needs_pilot(noise):
            noise = pilot(plan, lab_pipeline(plan))
            plan = self.plan(noise)
        return plan, noise

    def noise(self) -> Noise | None:
        """Return the noise of `noise_from`; None without one."""
        return None if self.noise_from is None else noise_of_run(self.noise_from, self.primary)

    def run(
        self,
        out: str | Path | None = None,
        progress: Progress | None = None,
        open_pipeline: OpenPipeline | None = None,
        resume: bool = False,
    ) -> Report:
        """Measure and report into `out` (None: runs/NAME-TIME). BadInput comes before a stage starts or a file is made.

        `resume` goes on with a run in `out` that was interrupted; RunFolderError when it is of another experiment.
        `open_pipeline(recipe)` gives the stages of a block; the default starts the lab's pipeline.
        """
        progress = progress or Silent()
        path = Path(out) if out is not None else Path("runs") / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        noise = self.noise()
        plan = make_plan(self, rule_from(read_run(path)[0]["rule"])) if resume else self.plan(noise)
        if not resume:
            check_folder(path)
        facts = machine.facts()
        if open_pipeline is None:
            facts |= refuse_what_cannot_run(plan)
            open_pipeline = lab_pipeline(plan)
        if self._needs_pilot(noise) and not resume:
            progress.note(
                f"a pilot of {PILOT_TRIALS} baseline trials comes first: how long one takes, and how it varies"
            )
            noise = pilot(plan, open_pipeline)
            plan = self.plan(noise)
        folder = self._folder(path, {**plan.to_dict(), "plan_hash": plan.hash, **facts}, noise, resume)
        for line in plan_lines(plan, noise):
            progress.note(line)
        try:
            measure(plan, folder, open_pipeline, progress)
        except BaseException:
            if folder.lines:
                with suppress(OSError, RunFolderError):  # what stopped the run matters more
                    write_reports(path)  # of what was finished
            raise
        finally:
            folder.close()
        return write_reports(path)

    def _needs_pilot(self, noise: Noise | None) -> bool:
        return noise is None and (self.pilot or self.budget is not None)

    def _folder(self, path: Path, run: dict[str, Any], noise: Noise | None, resume: bool) -> RunFolder:
        if resume:
            refuse_another(path, run)
            return RunFolder.resume(path)
        return RunFolder.create(path, {**run, "noise": noise, "started": time.strftime("%Y-%m-%dT%H:%M:%S%z")})


def refuse_what_cannot_run(plan: Plan) -> dict[str, Any]:
    """Raise ModelNotFound, PromptTooLong or another BadInput for what the lab's stages would refuse later.

    Return what only the model's folder says: `row_bytes`, the size of one Thinker row on an edge.
    """
    import torch

    from omnilab.intake import Intake

    if uses_cuda(plan.experiment.device) and not torch.cuda.is_available():
        raise BadInput(f"device {plan.experiment.device}: torch sees no GPU here; give --device cpu")
    intake = Intake.of(plan.experiment.model, None)
    for workload in filter(None, (plan.workloads[0], plan.gate)):
        for item in workload.requests:
            intake.stage_requests("check", item.prompt, item.sampling, item.sampling.seed or 0, "")
    return {"row_bytes": 2 * intake.hidden_size}  # bfloat16


def lab_pipeline(plan: Plan) -> OpenPipeline:
    """Return how to open the lab's stages for a plan."""
    from omnilab.pipeline import Pipeline

    ours = plan.experiment

    def open_pipeline(recipe: Recipe) -> AbstractContextManager[Bench]:
        return Pipeline.open(
            ours.model,
            recipe=recipe,
            device=ours.device,
            topology=ours.topology,
            timeout_s=ours.timeout_s,
            seed=ours.seed,
        )

    return open_pipeline
