"""Sweeps: a point an experiment, one table; and the laws that counts are held against."""

from __future__ import annotations

from typing import Any

import pytest

from omnilab import recipes
from omnilab.errors import BadInput
from omnilab.experiment.analysis import laws
from omnilab.experiment.sweep import Sweep, refuse_lengths
from omnilab.pipeline import Pipeline
from omnilab.workload import Workload


def test_every_point_has_its_run_and_one_table_has_all(small: Any, script: Any, tmp_path: Any) -> None:
    """A sweep that keeps one point's numbers, or shows them under another's name."""
    bench = script(factors={"shallow_merge": 0.5})
    points = {"short": small(toggles=["shallow_merge"]), "long": small(toggles=["async_save"])}
    report = Sweep(name="two", experiments=points).run(tmp_path / "two", open_pipeline=bench.open)
    assert [(row[0], row[1]) for row in report.rows()] == [
        ("short", "BEFORE_1378"),
        ("short", "shallow_merge"),
        ("long", "BEFORE_1378"),
        ("long", "async_save"),
    ]
    rows = [dict(zip(report.header(), row, strict=True)) for row in report.rows()]
    assert rows[1]["wall time"].startswith("0.5") and rows[1]["verdict"] == "faster"
    assert rows[0]["wall time"].endswith(" s") and rows[0]["first audio"].endswith(" ms")
    assert '<a href="long/report.html">' in (tmp_path / "two" / "report.html").read_text()
    assert "| short | shallow_merge |" in (tmp_path / "two" / "report.md").read_text()
    assert (tmp_path / "two" / "long" / "report.md").exists() and not report.failed


def test_a_bad_point_stops_the_sweep_before_it_starts(small: Any, script: Any, tmp_path: Any) -> None:
    """An hour of points is lost to a bad last one."""
    bench = script()
    sweep = Sweep(name="two", experiments={"good": small(), "bad": small(blocks=0)})
    with pytest.raises(BadInput, match="blocks"):
        sweep.run(tmp_path / "two", open_pipeline=bench.open)
    assert bench.opened == 0 and not (tmp_path / "two").exists()
    with pytest.raises(BadInput, match="input_len"):
        refuse_lengths({"input_len": 5, "frames": None})


@pytest.mark.parametrize("names", [(), ("prefill_only_hidden_states",), ("shallow_merge",), ("override_rows",)])
def test_the_network_counts_what_the_laws_say(names: tuple[str, ...]) -> None:
    """A baseline that is not what it is said to be: its counts, at the size, are the closed formulas'."""
    recipe = recipes.recipe_with(*names, base=recipes.BEFORE_1378)
    with Pipeline.open("tiny", recipe=recipe, topology="inline", connector="memory") as pipe:
        trial = pipe.run(Workload.random(num_prompts=1, input_len=40, output_len=12, frames=14))
    counted = dict.fromkeys(laws.EXPLAINED, 0)
    for row in trial.counter_rows:
        if (
            row.counter in counted
            and (row.stage, row.counter) != ("thinker", laws.ATTACHED)
            and row.stage != "code2wav"
        ):
            counted[row.counter] += row.value
    expected = laws.counts(40, 12, 2 * 64, names)
    rows, attached = expected.pop(laws.ATTACHED), counted.pop(laws.ATTACHED)
    assert counted == expected
    assert (
        1 < attached / rows < 3
    )  # the law counts rows; lists and the pickle's own words come on top, much at this size
