"""vLLM-Omni as a subject, as far as no server is needed: what it refuses, and what run.json says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from omnilab.errors import BadInput
from omnilab.experiment.analysis.carries import carries, in_short
from omnilab.experiment.experiment import Experiment
from omnilab.prompt import Prompt
from omnilab.toggles import THE_FOUR
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


def test_what_carries_over_is_said_as_of_the_labs_own_four() -> None:
    """A toggle that moves work between threads passes for one that removes it."""
    run = {"arms": None, "cuda": False}
    ours = Experiment(model="tiny", toggles=THE_FOUR, gate_prompts=None).plan().to_dict()["variants"]
    theirs = Experiment(subject=VllmOmni(python=HERE), gate_prompts=None).plan().to_dict()["variants"]
    said = [
        {one["name"]: (carries(run, one["seams"], None), in_short(run, one["seams"])) for one in variants[1:]}
        for variants in (ours, theirs)
    ]
    assert said[0] == said[1]
    assert "between threads" in said[1]["async_save"][0] and "between threads" not in said[1]["shallow_merge"][0]


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_cpus_figures_are_not_sold_as_a_gpus(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without a GPU, on a machine that has one."""
    monkeypatch.setattr("omnilab.experiment.plan.gpus", lambda: {"gpus": ["H100"], "driver": "1"})
    plan = Experiment(subject=VllmOmni(python=HERE, on_cpu=on_cpu), gate_prompts=None).plan()
    assert plan.cuda is plan.to_dict()["cuda"] is not on_cpu


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
