"""A real vLLM as the Thinker, where OMNILAB_VLLM_OMNI_PYTHON names an environment's Python that has it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from omnilab.model.folder import write_folder

PYTHON = os.environ.get("OMNILAB_VLLM_OMNI_PYTHON")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="set OMNILAB_VLLM_OMNI_PYTHON, or `make test-vllm-omni`"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both Thinkers gave, in float32."""
    assert PYTHON is not None
    folder = write_folder("parity", tmp_path_factory.mktemp("thinker") / "parity")
    command = [PYTHON, str(Path(__file__).with_name("asked.py")), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tokens_codes_and_audio_are_those_of_transformers(found):
    assert [len(one["tokens"]) for one in found["vllm"]] == [16, 16]
    assert all(one["audio"] for one in found["vllm"])
    assert found["vllm"] == found["transformers"]


def test_two_at_once_answer_as_one_by_one(found):
    assert found["together"] == found["transformers"]


def test_an_abort_leaves_nothing_and_the_next_is_answered(found):
    assert found["first"]
    assert set(found["tables"].values()) == {0} and "thinker/runner" in found["tables"]
    assert found["after_abort"] == found["transformers"][0]


def test_what_it_cannot_do_is_refused(found):
    assert "hidden states" in found["audio"]
    assert "temperature=0" in found["sampled"]
    assert "recipes.BEST" in found["recipe"]


def test_another_recipe_rewires_it(found):
    assert found["applied"]["codes"] == found["transformers"][0]["codes"]


def test_its_processes_end_with_the_pipeline(found):
    assert found["processes"] >= 3 and found["left"] == []
