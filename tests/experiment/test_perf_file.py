"""Workload files in the form of vLLM-Omni's nightly runs: what they ask is asked, or named, or refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from omnilab import ablate
from omnilab.errors import BadInput
from omnilab.experiment.perf_file import Entry, read_entry
from omnilab.experiment.sweep import Sweep

SCRIPT = Path(__file__).with_name("served.py")
TWO = ("--arm", "main=true {port}", "--arm", "mine=true {port}")
SPOKEN: dict[str, Any] = {
    "dataset_name": "random",
    "backend": "openai-chat-omni",
    "endpoint": "/v1/chat/completions",
    "num_prompts": [2, 6],
    "max_concurrency": [1, 3],
    "random_input_len": 30,
    "random_output_len": 7,
    "ignore_eos": True,
    "percentile-metrics": "ttft,e2el",
    "baseline": {"mean_e2el_ms": [10, 20]},
}
READ = {**SPOKEN, "extra_body": {"modalities": ["text"]}, "num_prompts": 2, "max_concurrency": [1, 2]}
SERVER = {"model": "none/there", "extra_cli_args": ["--async-chunk"]}


def written(folder: Path, *sets: dict[str, Any], **more: Any) -> Path:
    """A file of one test, `ours`, with these sets of parameters."""
    path = folder / "perf.json"
    path.write_text(json.dumps([{"test_name": "ours", "server_params": SERVER, "benchmark_params": sets, **more}]))
    return path


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in SPOKEN.items() if key != name}


def requests(entry: Entry) -> dict[str, tuple[int, int | None, float | None]]:
    """Points: how many requests, in flight, a second."""
    found = entry.workloads(None).items()
    return {name: (len(one.requests), one.arrivals.max_concurrency, one.arrivals.rate) for name, one in found}


def test_lists_are_paired_and_lengths_are_asked(tmp_path: Path) -> None:
    """A point that asks another's number of requests, or a length that is the default's."""
    entry = read_entry(written(tmp_path, SPOKEN))
    assert requests(entry) == {"c1": (2, 1, None), "c3": (6, 3, None)}
    one, other = (work.requests[0] for work in entry.workloads(50).values())
    assert (one.prompt.random_tokens, one.sampling.max_text_tokens, one.sampling.ignore_eos) == (30, 7, True)
    assert one.sampling.max_frames == 50 and one.prompt.random_seed != other.prompt.random_seed


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        ({"num_prompts": 4}, {"c1": (4, 1, None), "c3": (4, 3, None)}),
        ({"max_concurrency": 2}, {"c2-n2": (2, 2, None), "c2-n6": (6, 2, None)}),
        ({"max_concurrency": None, "request_rate": [0.5, "inf"]}, {"r0.5": (2, None, 0.5), "rinf": (6, 6, None)}),
    ],
)
def test_one_value_serves_all_points(tmp_path: Path, changes: dict[str, Any], points: dict[str, Any]) -> None:
    """A scalar that is read as one point."""
    assert requests(read_entry(written(tmp_path, {**SPOKEN, **changes}))) == points


def test_of_several_entries_one_is_chosen_by_name(tmp_path: Path) -> None:
    """The first that is there, measured for another."""
    path = written(tmp_path, SPOKEN, READ)
    assert read_entry(path, "ours:2").params["extra_body"] == {"modalities": ["text"]}
    with pytest.raises(
        BadInput, match=r"several entries; choose with --entry: ours:1 \(random, 30 in, 7 out.*text alone"
    ):
        read_entry(path)
    with pytest.raises(BadInput, match="no entry yours; choose with --entry: ours:1"):
        read_entry(path, "yours")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({**SPOKEN, "dataset_name": "random-mm"}, 'dataset_name = "random-mm": random alone'),
        ({**SPOKEN, "random_mm_base_items_per_request": 1}, "random_mm_base_items_per_request = 1: is not known"),
        ({**SPOKEN, "endpoint": "/v1/completions"}, "our client asks /v1/chat/completions alone"),
        ({**SPOKEN, "random_range_ratio": 0.5}, "set it to 0"),
        ({**SPOKEN, "ignore_eos": False}, "ignore_eos = false"),
        ({**SPOKEN, "enabled": False}, "switched it off"),
        ({**SPOKEN, "top-p": 0.9}, "top_p = 0.9: write it into extra_body"),
        ({**SPOKEN, "seed": 42}, "give --seed"),
        ({**SPOKEN, "request_rate": [1, 2]}, "give max_concurrency or request_rate, not both"),
        ({**SPOKEN, "num_prompts": [4, 4, 4]}, "num_prompts: 3 numbers for 2 of max_concurrency"),
        ({**SPOKEN, "num_prompts": [0, 4]}, "num_prompts: must be 1 or more"),
        ({**SPOKEN, "max_concurrency": [1, 9]}, "max_concurrency: 9 of 6 requests"),
        ({**SPOKEN, "max_concurrency": [1, 1], "num_prompts": 2}, "one point is there twice"),
        ({**without("max_concurrency"), "request_rate": -1}, "request_rate: must be more than 0"),
        (without("random_input_len"), "random_input_len: is missing"),
        (without("max_concurrency"), "give max_concurrency or request_rate"),
        ({**SPOKEN, "extra_body": 3}, "extra_body: must be a JSON object"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(tmp_path: Path, params: dict[str, Any], said: str) -> None:
    """A field that is passed over: what was measured is then not what the file says."""
    with pytest.raises(BadInput) as refused:
        read_entry(written(tmp_path, params))
    assert said in str(refused.value) and "perf.json, ours:1: " in str(refused.value)


def test_a_field_of_a_test_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """As those of its sets."""
    with pytest.raises(BadInput, match="needs = "):
        read_entry(written(tmp_path, SPOKEN, needs="a cluster"))


@pytest.mark.parametrize("text", ["", "{}", "[3]", '[{"test_name": "a", "benchmark_params": [3]}]', "[]"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    """A traceback instead."""
    (tmp_path / "perf.json").write_text(text)
    with pytest.raises(BadInput, match=r"perf.json: (cannot be read|must be a list|several entries; .*has none)"):
        read_entry(tmp_path / "perf.json")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--workload", "perf.json"], "ours:1: extra_body: goes into requests to arms"),
        (["--workload", "perf.json", "--output-len", "9"], "output_len: the workload file says it"),
        ([*TWO, "--workload", "perf.json", "--max-concurrency", "4"], "max_concurrency: the workload file says it"),
        ([*TWO, "--workload", "perf.json", "--frames", "9"], "frames: ours:1 asks for text alone"),
        ([*TWO, "--workload", "perf.json", "--extra-body", '{"modalities": ["audio"]}'], "differ in modalities"),
        (["--entry", "ours"], "entry: is of a workload file"),
        ([*TWO, "--workload", "none.json"], "none.json: cannot be read"),
    ],
)
def test_the_command_line_refuses_what_does_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    """An option that wins, or loses, without a word."""
    written(tmp_path, READ)
    monkeypatch.chdir(tmp_path)
    assert ablate.main([*argv, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_toggles_take_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's own lengths instead; and fields of it that hold no longer, unsaid."""
    path = written(tmp_path, SPOKEN)
    assert ablate.main(["--model", "tiny", "--workload", str(path), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "quick-c1 on tiny" in said.out and "quick-c3 on tiny" in said.out
    assert "ours:1: not taken from the file: baseline: the first arm or variant is the baseline" in said.err
    assert '"extra_cli_args": ["--async-chunk"]' in said.err


def test_arms_are_asked_what_the_file_says(tmp_path: Path) -> None:
    """Text alone: an answer without sound is no fault; both points on the same starts of the servers."""
    arm = f"{sys.executable} {SCRIPT} {{port}}"
    asked = [
        "--arm",
        f"main={arm}",
        "--arm",
        f"mine={arm}",
        "--workload",
        str(written(tmp_path, READ)),
        "--blocks",
        "3",
    ]
    assert ablate.main([*asked, "--gate-prompts", "none", "--out", str(tmp_path / "run")]) == 0
    for point in ("c1", "c2"):
        run = json.loads((tmp_path / "run" / point / "run.json").read_text())
        assert run["arms"]["mine"]["extra_body"] == {"modalities": ["text"]}
        assert [len(run["workload"]["requests"]), run["workload"]["arrivals"]["max_concurrency"]] == [2, int(point[1])]
    assert "requests in flight" in (tmp_path / "run" / "figures" / "against-1.svg").read_text()


def test_a_sweep_of_its_own_takes_no_file(tmp_path: Path) -> None:
    """Its points would be overwritten."""
    with pytest.raises(BadInput, match="is a sweep"):
        read_entry(written(tmp_path, SPOKEN)).applied(Sweep(name="several", experiments={}), None)
