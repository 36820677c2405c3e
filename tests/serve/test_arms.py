"""Our own server as an arm: two recipes answer the gate's prompts of text, sound and a picture alike."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from omnilab.experiment.arms import EXACT, Arm, served
from omnilab.experiment.gate import first_difference
from omnilab.experiment.plan import gate_workload
from omnilab.trial import Trial
from omnilab.workload import Workload


def answers(recipe: str, asked: Workload, folder: Path) -> Trial:
    """What a server of its own answers."""
    command = [sys.executable, "-m", "omnilab.serve", "--model", "tiny", "--port", "{port}", "--recipe", recipe]
    arm = Arm(command=command, environment={"OMP_NUM_THREADS": "1"}, start_s=120)
    with served(arm, folder / f"{recipe}.log") as server:
        return server.run(asked)


@pytest.mark.timeout(300)
def test_two_recipes_of_our_server_pass_the_gate(tmp_path: Path) -> None:
    """Served outputs that differ between recipes that promise the same."""
    asked = gate_workload("prompts.jsonl", seed=0)
    assert asked is not None and len(asked.requests) == 3  # text, audio, image
    before, after = (answers(recipe, asked, tmp_path) for recipe in ("BEFORE_1378", "AFTER_1378"))
    assert not any(record.error for record in before.records) and all(record.text for record in before.records)
    assert first_difference(after, before, EXACT, math.inf) is None
    assert first_difference(after, Trial(records=before.records[::-1]), EXACT, math.inf) is not None
    assert after.occupants == {"server": {"model": "tiny"}} and after.cpu_s["server"] > 0
