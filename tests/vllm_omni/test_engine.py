"""vLLM-Omni as a subject, as far as no server is needed: what it refuses, and what run.json says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from omnilab.errors import BadInput
from omnilab.experiment.experiment import Experiment
from omnilab.prompt import Prompt
from omnilab.vllm_omni.deploy import Deploy
from omnilab.vllm_omni.engine import VllmOmni
from omnilab.workload import Workload

HERE = Path(sys.executable)


def test_the_plan_names_the_four_and_says_what_serves_them() -> None:
    """A run that does not say which engine, settings and versions it is of."""
    plan = Experiment(subject=VllmOmni(python=HERE), gate_prompts=None).plan().to_dict()
    assert [variant["name"] for variant in plan["variants"]] == [
        "all off", "async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge"
    ]  # fmt: skip
    said = json.loads(json.dumps(plan["subject"]))
    assert said["deploy"] == Deploy().as_dict() and said["versions"]["torch"]
    assert plan["model"] == "parity on vLLM-Omni"


def test_bad_input_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    """Minutes of a start before a wrong path is seen."""
    words = [Workload.prompts(["Hello"])]
    with pytest.raises(BadInput, match="no such program; `make vllm-omni` builds"):
        VllmOmni(python=tmp_path / "python", folder="tiny").check(words)
    with pytest.raises(BadInput, match="deploy: no file"):
        VllmOmni(python=HERE, folder="tiny", deploy=tmp_path / "none.yaml").check(words)
    with pytest.raises(BadInput, match="prompts with images"):
        VllmOmni(python=HERE, folder="tiny").check([Workload.prompts([Prompt(image=tmp_path / "picture.png")])])
    VllmOmni(python=HERE, folder="tiny").check(words)
