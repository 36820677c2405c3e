"""Our own server as arms: two recipes through the whole protocol, the gate's audio and image prompts included."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from omnilab.experiment.arms import Arm
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload


def served(*words: str) -> Arm:
    command = [sys.executable, "-m", "omnilab.serve", "--model", "tiny", "--port", "{port}", *words]
    return Arm(command=command, environment={"OMP_NUM_THREADS": "1"}, start_s=120)


@pytest.mark.timeout(600)
def test_two_recipes_of_our_server_pass_the_gate(tmp_path: Path) -> None:
    """Served outputs that differ between recipes that promise the same."""
    workload = Workload.random(num_prompts=2, input_len=40, output_len=8, frames=60, max_concurrency=2)
    arms = {
        "before": served("--recipe", "BEFORE_1378"),
        "after": served("--recipe", "AFTER_1378"),
    }
    report = Experiment(name="served", arms=arms, workload=workload, blocks=3).run(tmp_path / "run")
    assert report.result("after").output == "same output" and report.result("after").trials == 3
    rows = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    assert {row["occupants"]["server"]["model"] for row in rows if "occupants" in row} == {"tiny"}
    gate = [row for row in rows if row["kind"] == "gate" and row["variant"] == "before"]
    assert len(gate[0]["outputs"]) == 3  # text, audio, image
    assert all(row["cpu_s"]["server"] > 0 for row in rows if row["kind"] == "trial")
    assert not verify(tmp_path / "run").differences
