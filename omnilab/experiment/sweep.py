"""The same question at several workloads: an experiment a point, one table over all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.protocol import Progress
from omnilab.experiment.reports.report import Report
from omnilab.experiment.reports.sweep_report import Axes, SweepReport
from omnilab.experiment.results import check_folder


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
        reports: dict[str, Report] = {}
        for point, experiment in self.experiments.items():
            begun = resume and (path / point / "run.json").exists()
            reports[point] = experiment.run(path / point, progress, resume=begun, **how)
            SweepReport(self.name, path, reports, self.axes).write()
        return SweepReport(self.name, path, reports, self.axes)


def refuse_lengths(given: Mapping[str, int | None]) -> None:
    """Raise BadInput for lengths on the command line: a sweep's points are its lengths."""
    if named := [name for name, value in given.items() if value is not None]:
        raise BadInput(f"{', '.join(named)}: a sweep sets these itself; change them in its file")
