"""Which spans a report's timeline shows, that the same come again from the rows, and what it says without them."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from omnilab.experiment.checks.bundle import opened, pack
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.reports.report import Report, write_reports
from omnilab.experiment.reports.timeline import KEPT, NONE, NOT_PACKED, section
from tests.board.scripted_run import BASELINE, FASTEST, make_run


@pytest.fixture
def run(kept, tmp_path):
    """A copy of a run with five variants whose spans are known."""
    if not kept.exists():
        make_run(kept)
    return shutil.copytree(kept, tmp_path / "run")


def labels(page: str) -> list[str]:
    """Return the labels of the panels that a page holds."""
    found = re.search(r'id="timeline-data">(.*?)</script>', page)
    return [panel["label"] for panel in json.loads(found[1])] if found else []


def test_baseline_and_fastest_variant_of_the_first_block(run):
    assert labels((run / "report.html").read_text()) == [f"{BASELINE}, block 0", f"{FASTEST}, block 0"]
    panels = Report.load(run).pictured.panels
    assert [panel["length_us"] for panel in panels] == [400_000.0, 200_000.0]
    assert [panel["total"] for panel in panels] == [8, 8]


def test_a_block_is_taken_in_which_both_succeeded(run):
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if (line["kind"], line["block"], line["variant"]) == ("trial", 0, BASELINE):
            line["error"] = "RuntimeError: planted"
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert labels(Report.load(run).html({})) == [f"{BASELINE}, block 1", f"{FASTEST}, block 1"]


def test_a_changed_time_in_the_page_is_found(run):
    assert not verify(run).differences
    page = (run / "report.html").read_text()
    (run / "report.html").write_text(page.replace('"length_us":400000.0', '"length_us":300000.0'))
    assert [found.where.split()[0] for found in verify(run).differences] == ["report.html"]


def test_a_run_packed_without_spans_verifies_and_still_shows_them(run, tmp_path):
    pack(run, tmp_path / "small.zip", spans=False)
    with opened(tmp_path / "small.zip") as folder:
        assert not verify(folder).differences
        assert labels(Report.load(folder).html({})) == [f"{BASELINE}, block 0", f"{FASTEST}, block 0"]


def test_without_spans_and_what_was_kept_of_them_it_says_so(run):
    shutil.rmtree(run / "spans.parquet")
    (run / KEPT).unlink()
    page = Report.load(run).html({})
    assert f"Not drawn: {NOT_PACKED}." in page
    assert "<script" not in page


def test_a_run_without_trials_says_so(run):
    lines = (run / "trials.jsonl").read_text().splitlines(keepends=True)
    (run / "trials.jsonl").write_text("".join(line for line in lines if json.loads(line)["kind"] == "gate"))
    assert Report.load(run).pictured.said == NONE


def test_labels_cannot_end_the_script(run):
    shown = Report.load(run).pictured
    shown.panels[0]["label"] = "</script><b>&"
    page = section(shown)
    assert page.count("</script") == 2
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page
    assert labels(page)[0] == "</script><b>&"


def test_writing_the_reports_again_changes_nothing(run):
    before = {name: (run / name).read_bytes() for name in ("report.html", KEPT)}
    write_reports(run)
    assert {name: (run / name).read_bytes() for name in before} == before
