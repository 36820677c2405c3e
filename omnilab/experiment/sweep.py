"""The same question at several workloads: an experiment a point, one table over all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.experiment.experiment import Experiment, run_together
from omnilab.experiment.protocol import Progress
from omnilab.experiment.reports.report import Report
from omnilab.experiment.reports.sweep_report import Axes, SweepReport
from omnilab.experiment.results import check_folder
from omnilab.workload import Workload, closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Experiments by the name of their point. Each gets a run folder of its own below the sweep's.

    `axes`: title of an axis -> point -> where it stands on it; effects are drawn against each.
    """

    name: str
    experiments: Mapping[str, Experiment]
    axes: Axes = field(default_factory=dict)

    def changed(self, **changes: Any) -> Sweep:
        """Return the sweep with fields of every experiment changed."""
        return replace(self, experiments={n: replace(e, **changes) for n, e in self.experiments.items()})

    def run(
        self, out: str | Path | None = None, progress: Progress | None = None, resume: bool = False, **how: Any
    ) -> SweepReport:
        """Measure every point; BadInput, for any point, comes before the first is started.

        `resume` goes on with an interrupted sweep in `out`: points that have a run folder are resumed.
        """
        for experiment in self.experiments.values():
            experiment.plan()
        path = Path(out) if out is not None else Path("runs") / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if not resume:
            check_folder(path)
        if self.shares_servers:
            return self._together(path, progress, resume)
        reports: dict[str, Report] = {}
        for point, experiment in self.experiments.items():
            begun = resume and (path / point / "run.json").exists()
            reports[point] = experiment.run(path / point, progress, resume=begun, **how)
            SweepReport(self.name, path, reports, self.axes).write()
        return SweepReport(self.name, path, reports, self.axes)

    @property
    def shares_servers(self) -> bool:
        """Do all points compare the same arms? Then one start of a server serves all of them."""
        first, *others = self.experiments.values()
        return first.arms is not None and all(other.arms == first.arms for other in others)

    def _together(self, path: Path, progress: Progress | None, resume: bool) -> SweepReport:
        folders = {path / point: experiment for point, experiment in self.experiments.items()}
        begun = {folder for folder in folders if resume and (folder / "run.json").exists()}
        found = run_together(folders, progress, resumed=begun)
        report = SweepReport(self.name, path, {folder.name: one for folder, one in found.items()}, self.axes)
        report.write()
        return report


def at_concurrencies(experiment: Experiment, several: Sequence[int]) -> Sweep:
    """Return the experiment at each number of requests in flight; BadInput where arrivals say when requests start."""
    points = {f"c{count}": count for count in several}
    if len(points) != len(several):
        raise BadInput("max_concurrency: give each number once")
    workloads = {point: replace(in_flight(experiment.workload, count), seed=count) for point, count in points.items()}
    axes = {"requests in flight": {point: float(count) for point, count in points.items()}}
    return at_workloads(experiment, workloads, axes)


def at_workloads(experiment: Experiment, workloads: Mapping[str, Workload], axes: Axes) -> Sweep:
    """Return the experiment with each of several workloads, by the name of its point."""
    if experiment.arms is not None and (experiment.budget is not None or experiment.pilot):
        raise BadInput("budget and pilot: with several workloads for the same servers give blocks")
    experiments = {
        point: replace(experiment, name=f"{experiment.name}-{point}", workload=workload)
        for point, workload in workloads.items()
    }
    return Sweep(name=experiment.name, experiments=experiments, axes=axes)


def in_flight(workload: Workload, count: int) -> Workload:
    """Return a workload with so many of its requests in flight; BadInput where that cannot be."""
    if workload.arrivals.kind != "closed":
        raise BadInput("max_concurrency: the experiment's requests start at times of their own")
    if count > (number := len(workload.requests)):
        raise BadInput(f"max_concurrency: {count} of {number} requests: give --num-prompts {count} or more")
    return replace(workload, arrivals=closed(count))


def refuse_lengths(given: Mapping[str, int | None]) -> None:
    """Raise BadInput for lengths on the command line: a sweep's points are its lengths."""
    if named := [name for name, value in given.items() if value is not None]:
        raise BadInput(f"{', '.join(named)}: a sweep sets these itself; change them in its file")
