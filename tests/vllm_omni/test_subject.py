"""A server as what an experiment measures: its switches, its requests, whose time its processes took."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from omnilab.errors import BadInput, ToggleConflict
from omnilab.prompt import Sampling
from omnilab.toggles import async_save as of_the_lab
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, WRONG
from omnilab.vllm_omni.subject import OmniServer, Sides, cpu_by_stage
from omnilab.vllm_omni.toggles import TOGGLES, UNSAFE, prefill_only_hidden_states, shallow_merge
from omnilab.workload import Workload


def test_sides_put_every_toggle_somewhere_and_say_what_fills_its_seam():
    sides = Sides((shallow_merge.TOGGLE,))
    assert sides.switches() == {
        toggle.name: OPTIMIZED if toggle is shallow_merge.TOGGLE else BASELINE for toggle in TOGGLES
    }
    assert sides.occupants()["vllm_omni.merge"].split()[0] == "adopt_values"
    assert sides.occupants()["vllm_omni.save"].split()[0] == "build_on_engine"


def test_the_wrong_side_is_never_told_as_the_optimized_one_and_stands_alone_in_its_seam():
    sides = Sides((UNSAFE,))
    assert sides.switches()["prefill_only_hidden_states"] == WRONG
    assert sides.occupants()["vllm_omni.thinker_payload"].split()[0] == "drop_a_row"
    with pytest.raises(ToggleConflict, match="dropped_row"):
        Sides((UNSAFE, prefill_only_hidden_states.TOGGLE))


def test_a_toggle_of_the_lab_is_none_of_the_engine():
    with pytest.raises(BadInput, match="async_save: no toggle of vLLM-Omni"):
        Sides((of_the_lab.TOGGLE,))


def test_each_request_has_its_own_seed_in_every_stage():
    workload = Workload.prompts(["a", "b"], Sampling(max_text_tokens=4, max_frames=9), seed=3)
    bodies = [msgspec.json.decode(body) for body in OmniServer("http://127.0.0.1:1", "omni").bodies(workload)]
    seeds = [[stage["seed"] for stage in body["sampling_params_list"]] for body in bodies]
    assert [len(set(of_request)) for of_request in seeds] == [1, 1]
    assert seeds[0] != seeds[1]
    assert bodies[0]["sampling_params_list"][1]["max_tokens"] == 10


def test_a_worker_counts_to_the_stage_of_its_engine():
    def process(pid, above, title, seconds):
        times = (seconds, 1.0, 0.0, 0.0)
        return SimpleNamespace(pid=pid, ppid=lambda: above, cmdline=lambda: [title], cpu_times=lambda: times)

    below = [
        process(1, 0, "python -m vllm_omni", 5), process(2, 1, "VLLM::StageEngineCoreProc_stage1_replica0_DP0", 10),
        process(3, 2, "VLLM::Worker", 20), process(4, 1, "resource_tracker", 0),
    ]  # fmt: skip
    assert cpu_by_stage(below) == {"server": 7.0, "thinker": 0.0, "talker": 32.0, "code2wav": 0.0}  # pyright: ignore
