"""An experiment as a value: what is compared, on which workload, how often. `run` measures it and reports."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment import machine
from omnilab.experiment.analysis.blocks import Fixed, rule_from
from omnilab.experiment.arms import EXACT, Arm, servers
from omnilab.experiment.design import Variant
from omnilab.experiment.plan import Plan, make_plan, uses_cuda
from omnilab.experiment.protocol import Bench, OpenBench, Point, Progress, Silent, measure
from omnilab.experiment.reports.report import Report, write_reports
from omnilab.experiment.results import RunFolder, check_folder, read_run, refuse_another
from omnilab.experiment.sizing import PILOT_TRIALS, Noise, noise_of_run, pilot, plan_lines, rule_of
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS
from omnilab.experiment.subject import Subject
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

    `arms` are servers to compare instead of toggles on the lab's pipeline, the first is the baseline: `model`, `base`,
    `device` and `topology` are then their own. `exact`: what of their outputs must stay equal, of tokens and samples.
    `subject` is an engine with toggles of its own in place of the lab's pipeline.
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
    arms: Mapping[str, Arm] | None = None
    exact: Collection[str] = EXACT
    subject: Subject | None = None

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
        if self.needs_pilot(noise) and self.arms is not None:
            raise BadInput("a dry run of arms starts nothing: give --noise-from in place of a pilot, or --blocks")
        if self.needs_pilot(noise):
            with scratch_bench(plan) as bench:
                noise = pilot(plan, bench)
            plan = self.plan(noise)
        return plan, noise

    def noise(self) -> Noise | None:
        """Return the noise of `noise_from`; None without one."""
        return None if self.noise_from is None else noise_of_run(self.noise_from, self.primary)

    def run(
        self,
        out: str | Path | None = None,
        progress: Progress | None = None,
        open_pipeline: OpenBench | None = None,
        resume: bool = False,
    ) -> Report:
        """Measure and report into `out` (None: runs/NAME-TIME). BadInput comes before a stage starts or a file is made.

        `resume` goes on with a run in `out` that was interrupted; RunFolderError when it is of another experiment.
        `open_pipeline(recipe)` gives the stages of a block; the default starts the lab's pipeline, or an arm's server.
        """
        path = Path(out) if out is not None else Path("runs") / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        return run_together({path: self}, progress, open_pipeline, {path} if resume else set())[path]

    def needs_pilot(self, noise: Noise | None) -> bool:
        """Must noise be measured before the plan can be made?"""
        return noise is None and (self.pilot or self.budget is not None)


def run_together(
    experiments: Mapping[Path, Experiment],
    progress: Progress | None = None,
    open_bench: OpenBench | None = None,
    resumed: Set[Path] = frozenset(),
) -> dict[Path, Report]:
    """Measure and report experiments by their run folders; several share the arms' servers, and differ in the workload.

    `resumed` are those of the folders that were begun before.
    """
    progress = progress or Silent()
    begun = {path: _begin(path, one, path in resumed, progress, open_bench) for path, one in experiments.items()}
    plan = next(iter(begun.values())).plan
    folders = _folders(begun, resumed)
    for number, one in enumerate(begun.values()):
        for line in plan_lines(one.plan, one.noise, starts=number == 0):
            progress.note(line)
    try:
        points = [Point(one.plan, folder) for one, folder in zip(begun.values(), folders, strict=True)]
        measure(points, open_bench or bench_of(plan, folders[0].path), progress)
    except BaseException:
        for folder in folders:
            if folder.lines:
                with suppress(OSError, RunFolderError):  # what stopped the run matters more
                    write_reports(folder.path)  # of what was finished
        raise
    finally:
        for folder in folders:
            folder.close()
    return {path: write_reports(path) for path in experiments}


def _folders(begun: Mapping[Path, _Begun], resumed: Set[Path]) -> list[RunFolder]:
    """Open or make them all; where one cannot be, those that were made are taken back."""
    folders = list[RunFolder]()
    try:
        for path, one in begun.items():
            folders.append(RunFolder.resume(path) if path in resumed else one.create(path))
    except BaseException:
        for folder in folders:
            folder.close() if folder.path in resumed else folder.discard()
        raise
    return folders


@dataclass(frozen=True, slots=True)
class _Begun:
    """A plan, and what its run.json says beside it."""

    plan: Plan
    facts: Mapping[str, Any]
    noise: Noise | None

    def create(self, path: Path) -> RunFolder:
        """Make its run folder."""
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return RunFolder.create(path, {**self.facts, "noise": self.noise, "started": started})


def _begin(
    path: Path, experiment: Experiment, resume: bool, progress: Progress, open_bench: OpenBench | None
) -> _Begun:
    """Plan and check an experiment, after a pilot if need be."""
    noise = experiment.noise()
    plan = make_plan(experiment, rule_from(read_run(path)[0]["rule"])) if resume else experiment.plan(noise)
    if not resume:
        check_folder(path)
    facts = machine.facts()
    if experiment.arms is not None:
        facts["installed"] = {name: arm.installed() for name, arm in experiment.arms.items()}
    if open_bench is None:
        facts |= refuse_what_cannot_run(plan)
    if experiment.needs_pilot(noise) and not resume:
        progress.note(f"a pilot of {PILOT_TRIALS} baseline trials comes first: how long one takes, and how it varies")
        with scratch_bench(plan, open_bench) as bench:
            noise = pilot(plan, bench)
        plan = experiment.plan(noise)
    facts = {**plan.to_dict(), "plan_hash": plan.hash, **facts}
    if resume:
        refuse_another(path, facts)
    return _Begun(plan, facts, noise)


@contextmanager
def scratch_bench(plan: Plan, open_bench: OpenBench | None = None) -> Iterator[OpenBench]:
    """Give how to open a bench before there is a run folder: what a server writes is thrown away."""
    with TemporaryDirectory(prefix="omnilab-pilot-") as folder:
        yield open_bench or bench_of(plan, Path(folder))


def bench_of(plan: Plan, folder: Path) -> OpenBench:
    """Return how to open what a plan measures; what servers write goes to `folder`/logs."""
    ours = plan.experiment
    if ours.subject is not None:
        return partial(ours.subject.open, folder=folder / "logs")
    return lab_pipeline(plan) if ours.arms is None else servers(ours.arms, folder / "logs")


def refuse_what_cannot_run(plan: Plan) -> dict[str, Any]:
    """Raise ModelNotFound, PromptTooLong or another BadInput for what the lab's stages would refuse later.

    Return what only the model's folder says: `row_bytes`, the size of one Thinker row on an edge. Nothing of an arm's.
    """
    if plan.own_processes:
        return {}
    if plan.experiment.subject is not None:
        plan.experiment.subject.check([plan.workloads[0], *([plan.gate] if plan.gate else [])])
        return {}
    import torch

    from omnilab.intake import Intake

    if uses_cuda(plan.experiment.device) and not torch.cuda.is_available():
        raise BadInput(f"device {plan.experiment.device}: torch sees no GPU here; give --device cpu")
    intake = Intake.of(plan.experiment.model, None)
    for workload in filter(None, (plan.workloads[0], plan.gate)):
        for item in workload.requests:
            intake.stage_requests("check", item.prompt, item.sampling, item.sampling.seed or 0, "")
    return {"row_bytes": 2 * intake.hidden_size}  # bfloat16


def lab_pipeline(plan: Plan) -> OpenBench:
    """Return how to open the lab's stages for a plan."""
    from omnilab.pipeline import Pipeline

    ours = plan.experiment

    def open_pipeline(recipe: Any) -> AbstractContextManager[Bench]:
        return Pipeline.open(
            ours.model,
            recipe=recipe,
            device=ours.device,
            topology=ours.topology,
            timeout_s=ours.timeout_s,
            seed=ours.seed,
        )

    return open_pipeline
