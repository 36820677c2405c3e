"""The same question at several workloads: an experiment a point, one table over all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.protocol import Progress
from omnilab.experiment.results import check_folder
from omnilab.experiment.sweep_report import SweepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Experiments by the name of their point. Each gets a run folder of its own below the sweep's."""

    name: str
    experiments: Mapping[str, Experiment]

    def changed(self, **changes: Any) -> Sweep:
        """Return the sweep with fields of every experiment changed."""
        return Sweep(name=self.name, experiments={n: replace(e, **changes) for n, e in self.experiments.items()})

    def run(self, out: str | Path | None = None, progress: Progress | None = None, **how: Any) -> SweepReport:
        """Measure every point; BadInput, for any point, comes before the first is started."""
        for experiment in self.experiments.values():
            experiment.plan()
        path = Path(out) if out is not None else Path("runs") / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        check_folder(path)
        reports = {}
        for point, experiment in self.experiments.items():
            reports[point] = experiment.run(path / point, progress, **how)
            (path / "report.md").write_text(SweepReport(self.name, path, reports).markdown(), encoding="utf-8")
        return SweepReport(self.name, path, reports)


def refuse_lengths(given: Mapping[str, int | None]) -> None:
    """Raise BadInput for lengths on the command line: a sweep's points are its lengths."""
    if named := [name for name, value in given.items() if value is not None]:
        raise BadInput(f"{', '.join(named)}: a sweep sets these itself; change them in its file")
