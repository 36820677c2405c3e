"""The deploy file: what vLLM-Omni needs to serve `parity` on a CPU, and what is refused."""

from __future__ import annotations

import json

import pytest

from omnilab.errors import BadInput
from omnilab.vllm_omni.deploy import Deploy


def test_every_stage_is_fed_by_the_one_before_and_told_its_executor(tmp_path):
    written = json.loads(Deploy(executor="uni", max_model_len=2048).write(tmp_path / "d.yaml").read_text())
    stages = written["stages"]
    assert written["async_chunk"] is True
    assert [stage.get("input_connectors") for stage in stages] == [
        None, {"from_stage_0": "shared_memory"}, {"from_stage_1": "shared_memory"},
    ]  # fmt: skip
    assert list(written["connectors"]) == ["shared_memory"]
    assert {stage["distributed_executor_backend"] for stage in stages} == {"uni"}
    assert {stage["moe_backend"] for stage in stages} == {"auto"}
    assert [stage["max_model_len"] for stage in stages] == [2048, 2048, 8192]
    assert stages[2]["enable_chunked_prefill"] is False


@pytest.mark.parametrize("wrong", [{"executor": "ray"}, {"max_model_len": 0}, {"codec_chunk_frames": 0}])
def test_what_no_stage_could_run_with_is_refused(wrong):
    with pytest.raises(BadInput):
        Deploy(**wrong)
