"""An engine with toggles of its own in place of the lab's pipeline: named, planned, measured, verified as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omnilab import recipes
from omnilab.errors import BadInput, ToggleUnavailable
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.sizing import plan_lines
from omnilab.toggle import Toggle
from omnilab.toggles import async_save, shallow_merge
from omnilab.workload import Workload


@dataclass(frozen=True)
class Engine:
    """A subject with two toggles, on the scripted bench."""

    script: Any
    refuses: str = ""
    model: str = "an engine"
    on_cpu: bool = True
    baseline: str = "all off"
    toggles: tuple[Toggle[Any], ...] = (async_save.TOGGLE, shallow_merge.TOGGLE)

    def setting(self, toggles: Sequence[Toggle[Any]]) -> Any:
        return recipes.recipe_with(*toggles, base=recipes.BEFORE_1378)

    def check(self, workloads: Iterable[Workload]) -> None:
        if self.refuses:
            raise BadInput(self.refuses)

    def open(self, setting: Any, folder: Path) -> AbstractContextManager[Any]:
        assert setting == self.setting(()) and folder.name == "logs"
        return self.script.open(setting)

    def to_dict(self) -> dict[str, Any]:
        return {"engine": "scripted", "versions": {"scripted": "1.2"}}


def test_toggles_of_an_engine_go_through_the_protocol(small: Any, script: Any, tmp_path: Path) -> None:
    """The lab's toggles measured under the engine's name, or one start a trial."""
    bench = script(factors={"shallow_merge": 0.6})
    report = small(subject=Engine(bench), toggles=["shallow_merge"]).run(tmp_path / "run")
    assert bench.opened == 5
    assert report.result("shallow_merge").verdict == "faster"
    assert report.run["baseline"] == "all off" and report.run["subject"]["engine"] == "scripted"
    said = report.markdown()
    assert "model an engine" in said and "- an engine: scripted 1.2; " in said and "no critical path" in said
    assert not verify(tmp_path / "run").differences


def test_without_names_a_design_takes_all_that_the_engine_has(small: Any, script: Any) -> None:
    """The lab's four asked of an engine that has two."""
    ours = small(subject=Engine(script()), design="factorial")
    plan = ours.plan()
    assert " on an engine, base all off" in plan_lines(plan, None)[0]
    assert [variant.name for variant in plan.variants] == [
        "all off", "async_save", "shallow_merge", "async_save + shallow_merge"
    ]  # fmt: skip


def test_what_the_engine_has_not_or_refuses_is_said_before_it_starts(small: Any, script: Any, tmp_path: Path) -> None:
    """A toggle of the lab's looked for in the engine, or minutes of a start before bad input is seen."""
    bench = script()
    with pytest.raises(ToggleUnavailable, match="no toggle of an engine is named 'idle_skip'; there are async_save"):
        small(subject=Engine(bench), toggles=["idle_skip"]).plan()
    with pytest.raises(BadInput, match="no such model"):
        small(subject=Engine(bench, refuses="no such model")).run(tmp_path / "run")
    assert bench.opened == 0 and not (tmp_path / "run").exists()


def test_arms_and_a_subject_exclude_each_other(small: Any, script: Any) -> None:
    """Arms quietly measured in place of the engine."""
    from omnilab.experiment.arms import Arm

    arms = {name: Arm(command="true {port}") for name in ("a", "b")}
    with pytest.raises(BadInput, match="arms or a subject, not both"):
        Experiment(subject=Engine(script()), arms=arms).plan()
