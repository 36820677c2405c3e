"""Confirmed, refuted, inconclusive: what a claim's parts say of scripted runs whose effects are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnilab.errors import BadInput
from omnilab.experiment.analysis.findings import WITHHELD
from omnilab.experiment.reports.claims import Counts, Falls, Stays, StopsGrowing, judged

VISITED = "talker/runner/elements_visited"


@pytest.fixture
def ran(script, small, tmp_path):
    """Run shallow_merge over the baseline on a bench whose wall time it multiplies."""

    def run(factor: float, *, blocks: int = 8, margin: float = 0.02, **scripted):
        bench = script(factors={"shallow_merge": factor}, **scripted)
        experiment = small(toggles=["shallow_merge"], blocks=blocks, margin=margin, gate_prompts=None)
        return experiment.run(out=tmp_path / "run", open_pipeline=bench.open)

    return run


def outcome(report, *parts) -> tuple[str, list[str]]:
    found = judged(report, "shallow_merge", "it is so", parts)
    return found.outcome, [one for _, one, _ in found.parts]


def test_a_claim_that_holds_is_confirmed_part_by_part(ran) -> None:
    report = ran(0.4)
    assert outcome(report, Counts(VISITED, to=10), Falls("wall_s"), Falls("wall_s", at_most=0.5)) == (
        "confirmed", ["confirmed"] * 3,
    )  # fmt: skip
    said = str(judged(report, "shallow_merge", "it is so", [Counts(VISITED)]))
    assert "CONFIRMED" in said
    assert "1,000 -> 10" in said
    assert "it is so" in said


def test_one_refuted_part_refutes_the_claim(ran) -> None:
    """Faster, but not by half; fewer visits, but not none."""
    report = ran(0.8)
    assert outcome(report, Falls("wall_s"), Falls("wall_s", at_most=0.5)) == ("refuted", ["confirmed", "refuted"])
    assert outcome(report, Counts(VISITED, to=0))[0] == "refuted"
    assert outcome(report, Counts("talker/engine/steps"))[0] == "refuted"
    assert outcome(report, Stays("wall_s"))[0] == "refuted"


def test_what_differs_by_chance_alone_settles_nothing(ran) -> None:
    """How often an idle engine steps is the clock's business."""
    assert outcome(ran(0.4), Counts("code2wav/engine/idle_steps"))[0] == "inconclusive"


def test_a_null_is_confirmed_only_where_it_was_shown(ran, tmp_path) -> None:
    assert outcome(ran(1.0, margin=0.1), Stays("wall_s"), Falls("wall_s")) == ("refuted", ["confirmed", "refuted"])
    (tmp_path / "run").rename(tmp_path / "first")
    noisy = ran(1.0, margin=0.02, noise=0.2)
    assert outcome(noisy, Stays("wall_s"), Falls("wall_s")) == ("inconclusive", ["inconclusive"] * 2)


def test_below_five_blocks_only_counts_settle_anything(ran) -> None:
    report = ran(0.4, blocks=3)
    assert outcome(report, Counts(VISITED), Falls("wall_s"), Stays("wall_s"), StopsGrowing()) == (
        "inconclusive", ["confirmed", "inconclusive", "inconclusive", "inconclusive"],
    )  # fmt: skip


def test_what_differs_from_itself_settles_no_time(ran) -> None:
    """As the report gives no verdict then, whatever the intervals are."""
    report = ran(0.4)
    base, variant = report.findings.variants
    withheld = replace(report.findings, variants=(base, replace(variant, verdict=WITHHELD)))
    report = replace(report, findings=withheld)
    assert outcome(report, Falls("wall_s"), Counts(VISITED)) == ("inconclusive", ["inconclusive", "confirmed"])


def test_other_output_and_no_effect_refute_whatever_the_clock_says(ran, tmp_path) -> None:
    def spoil(on, record) -> None:
        record.token_ids = record.token_ids[::-1] if on else record.token_ids

    assert outcome(ran(0.4, spoil=spoil), Falls("wall_s")) == ("refuted", ["refuted"])
    (tmp_path / "run").rename(tmp_path / "first")
    assert outcome(ran(0.4, silent=frozenset({"shallow_merge"})), Falls("wall_s")) == ("refuted", ["refuted"])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(3.0, 1.0, "confirmed"), (3.0, 2.0, "refuted"), (1.0, 1.0, "inconclusive"), (3.0, 1.25, "inconclusive")],
)
def test_growth_stops_only_where_there_was_some(ran, before: float, after: float, expected: str) -> None:
    report = ran(0.4)
    growth = {"shallow_merge": after, report.findings.baseline_name: before}

    def grown(line: dict) -> dict:
        shaken = 1.0 + 0.02 * (line["block"] % 3 - 1)
        return {**line, "host_growth": growth.get(line["variant"], 1.0) * shaken} if line["kind"] == "trial" else line

    report = replace(report, lines=tuple(grown(line) for line in report.lines))
    assert outcome(report, StopsGrowing(within=1.25)) == (expected, [expected])


def test_a_claim_without_parts_and_an_unknown_variant_are_refused(ran) -> None:
    report = ran(0.4)
    with pytest.raises(BadInput, match="no parts"):
        judged(report, "shallow_merge", "it is so", [])
    with pytest.raises(BadInput, match="no variant 'merge' in the run; there are shallow_merge"):
        judged(report, "merge", "it is so", [Falls("wall_s")])
    with pytest.raises(BadInput, match="no trial counted 'talker/runner/visits'"):
        judged(report, "shallow_merge", "it is so", [Counts("talker/runner/visits")])


def test_what_a_claim_says_is_escaped_in_a_notebook(ran) -> None:
    shown = judged(ran(0.4), "shallow_merge", "<script>x</script>", [Falls("wall_s")])._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
