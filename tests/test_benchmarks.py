"""The GPU check, as far as a CPU can run it: on `tiny`, at a twentieth of the lengths."""

from __future__ import annotations

import sys

import pytest

from benchmarks import gpu_check


def test_gpu_check_prints_every_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that is first run when a GPU is lent: each of its lines is printed here already."""
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--topology", "inline"])
    gpu_check.main()
    printed = capsys.readouterr().out
    for line in ("built and started", "BEST, 2,500", "published 13.3", "BEFORE_1378, 300", "shallow_merge alone"):
        assert line in printed
    assert "stopped at the limit" not in printed and "audio_rtf -" not in printed


def test_gpu_check_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that is killed at its limit loses what it has: this one stops by itself and says so."""
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--topology", "inline", "--limit", "70"])
    gpu_check.main()
    printed = capsys.readouterr().out
    assert "built and started" in printed and "stopped at the limit of 70 s" in printed
