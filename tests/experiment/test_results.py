"""The runs that are kept in the repository: small, without sound, and every number still what their rows give."""

import zipfile
from pathlib import Path

import pytest

from omnilab import verify
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.reports.report import Report

KEPT = sorted((Path(__file__).resolve().parents[2] / "experiments" / "results").glob("*.zip"))


def test_the_seed_experiment_is_kept():
    assert "seed" in {path.stem for path in KEPT}


@pytest.mark.drawn
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_run_verifies_and_is_small(path, capsys):
    assert verify.main([str(path)]) == 0, capsys.readouterr().out
    assert path.stat().st_size < 1_500_000
    assert not [name for name in zipfile.ZipFile(path).namelist() if name.startswith("audio")]
    with opened(path) as folder:
        report = Report.load(folder)
    assert not report.failed
    assert not report.findings.unfinished
    assert report.findings.blocks >= 5
