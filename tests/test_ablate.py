"""The command line: bad input ends with status 2 and one line, before a stage starts and with nothing written."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from omnilab import ablate, cli
from omnilab.experiment.given import resized
from omnilab.experiment.plan import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]
HEAD = "from omnilab.experiment.experiment import Experiment\nfrom omnilab.workload import Workload\n"


@pytest.fixture
def no_stage(monkeypatch, tmp_path):
    """No stage may start, and the current folder is an empty one."""
    from omnilab.pipeline import Pipeline

    def refuse(*_, **__):
        raise AssertionError("a stage was started")

    monkeypatch.setattr(Pipeline, "open", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, argv):
    status = ablate.main(argv)
    said = capsys.readouterr()
    assert status == 2, said.err
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    return said.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "huge"], "huge"),
        (["--model", "tiny", "--toggles", "async_save,fast"], "no toggle is named 'fast'; there are async_save"),
        (["--model", "tiny", "--toggles", "async_save,async_save"], "both fill the seam save"),
        (["--model", "tiny", "--toggles", ","], "toggles: none given"),
        (["--model", "tiny", "--design", "latin"], "one-at-a-time"),
        (["--model", "tiny", "--base", "BEFORE"], "BEFORE_1378"),
        (["--model", "tiny", "--input-len", "-5"], "input_len"),
        (["--model", "tiny", "--output-len", "0"], "output_len"),
        (["--model", "tiny", "--frames", "-1"], "frames"),
        (["--model", "tiny", "--num-prompts", "0"], "num_prompts"),
        (["--model", "tiny", "--max-concurrency", "0"], "max_concurrency"),
        (["--model", "tiny", "--blocks", "0"], "blocks"),
        (["--model", "tiny", "--seed", "-1"], "seed"),
        (["--model", "tiny", "--blocks", "many"], "integer"),
        (["--model", "tiny", "--input-len", "10000000"], "prompt of 10000000 tokens and 70 text tokens do not fit"),
        (["--model", "tiny", "--budget", "soon"], "budget: must be like 90s, 5m or 2h"),
        (["--model", "tiny", "--budget", "5m", "--blocks", "5"], "blocks and budget: give only one of them"),
        (["--model", "tiny", "--detect", "much"], "detect: must be like 3%"),
        (["--model", "tiny", "--detect", "0"], "detect: must lie between"),
        (["--model", "tiny", "--margin", "80%"], "margin: must lie between"),
        (["--model", "tiny", "--primary", "speed"], "primary: no metric 'speed'; there are wall_s"),
        (["--model", "tiny", "--blocks", "2"], "blocks: must be 3 or more"),
        (["--model", "tiny", "--noise-from", "nowhere"], "nowhere: is not a run folder"),
        (["--model", "tiny", "--looks", "--design", "factorial"], "looks:"),
        (["--model", "tiny", "--resume"], "resume: name the run to go on with"),
        (["--model", "tiny", "--resume", "--out", "nowhere"], "nowhere: is not a run folder"),
        (["none.py"], "no such experiment file; in"),
        (["--model", "tiny", "--device", "cuda"], "cuda"),
    ],
)  # fmt: skip
def test_bad_arguments(no_stage, capsys, argv, said):
    assert said in refused(capsys, argv)
    assert list(no_stage.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n\nraise KeyError('lost')\n", "line 3: KeyError: 'lost'"),
        ("def broken(:\n", "line 1: SyntaxError"),
        ("x = 1\n", "must define EXPERIMENT"),
        ("EXPERIMENT = 3\n", "has int"),
        (HEAD + "EXPERIMENT = Experiment(workload=Workload.random(input_len=-3))\n", "line 3: BadInput: input_len"),
        (
            HEAD + "from omnilab.toggle import Toggle\nMINE = Toggle(name='mine', seam='merge', baseline=len, "
            "optimized=max, claim='', needs='cuda')\nEXPERIMENT = Experiment(toggles=[MINE], device='cpu')\n",
            "mine needs cuda",
        ),
        (
            HEAD + "from omnilab.toggle import Toggle\nMINE = Toggle(name='mine', seam='merge', baseline=len, "
            "optimized=max, claim='')\nEXPERIMENT = Experiment(toggles=[MINE, 'shallow_merge'])\n",
            "mine and shallow_merge both fill the seam merge",
        ),
    ],
)
def test_bad_experiment_files(no_stage, capsys, monkeypatch, text, said):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (no_stage / "mine.py").write_text(text)
    assert said in refused(capsys, ["mine.py"])
    assert [path.name for path in no_stage.iterdir()] == ["mine.py"]


def test_an_experiment_edited_within_a_second_is_read_anew(no_stage, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    mine = no_stage / "mine.py"
    for number in (3, 4):
        mine.write_text(f"raise ValueError('number {number}')\n")
        os.utime(mine, (1_000_000_000, 1_000_000_000))
        assert f"number {number}" in refused(capsys, ["mine.py"])


def test_folders_that_are_not_empty_or_not_writable(no_stage, capsys):
    (no_stage / "full").mkdir()
    (no_stage / "full" / "kept").touch()
    assert "is not empty" in refused(capsys, ["--model", "tiny", "--out", "full"])
    assert "cannot be written" in refused(capsys, ["--model", "tiny", "--out", "/proc/runs/mine"])
    assert [path.name for path in (no_stage / "full").iterdir()] == ["kept"]


def test_dry_run_shows_the_plan_and_writes_nothing(no_stage, capsys):
    assert ablate.main(["--dry-run", "--toggles", "idle_skip,shallow_merge", "--design", "factorial"]) == 0
    said = capsys.readouterr().out
    assert "idle_skip + shallow_merge" in said
    assert "25 trials in 5 blocks" in said
    assert ablate.main(["--dry-run", "--json", "--output-len", "10", "--seed", "4"]) == 0
    plan = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    sampling = plan["workload"]["requests"][0]["sampling"]
    assert (plan["seed"], sampling["max_text_tokens"], sampling["max_frames"]) == (4, 10, 29)
    assert list(no_stage.iterdir()) == []


def test_arguments_replace_only_what_they_name():
    quick = ablate.load_experiment(EXPERIMENTS / "quick.py").workload
    lengths = {"num_prompts": None, "input_len": 64, "output_len": None, "frames": None, "max_concurrency": None}
    first = resized(quick, lengths).requests[0]
    assert (first.prompt.random_tokens, first.sampling.max_text_tokens, first.sampling.max_frames) == (64, 70, 70)


def test_omnilab_name(capsys):
    assert cli.main(["ablate", "--help"]) == 0
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    assert "ablate" in capsys.readouterr().out
    assert cli.main(["abblate"]) == 2
    assert "there are ablate" in capsys.readouterr().err


@pytest.mark.parametrize("start", [["omnilab.ablate"], ["omnilab", "ablate"]])
def test_both_ways_in_give_the_status(start, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", *start, "--model", "tiny", "--output-len", "-3", "--out", str(tmp_path / "run")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip() == "omnilab ablate: output_len: must be 1 or more, not -3"
    assert not (tmp_path / "run").exists()


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests share few cores
SMALL = """from omnilab import Experiment, Toggle, Workload
from omnilab.toggles.shallow_merge import merge_elementwise


def merge_mine(state, payload):
    return {{**(state or {{}}), **payload}}


MINE = Toggle(name="mine", seam="merge", baseline=merge_elementwise, optimized=merge_mine, claim="")
EXPERIMENT = Experiment(
    model="tiny", toggles=[MINE], topology={topology!r}, gate_prompts={gate!r},
    workload=Workload.random(num_prompts=1, input_len=24, output_len=4, frames=6),
)
"""


@pytest.mark.timeout(300)
def test_a_real_run_end_to_end(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(SMALL.format(topology="inline", gate="prompts.jsonl"))
    argv = [
        sys.executable,
        "-m",
        "omnilab.ablate",
        str(file),
        "--blocks",
        "3",
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    done = subprocess.run(argv, cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)["findings"]
    merge = found["variants"][1]
    assert (merge["name"], merge["difference"], merge["output"]) == ("mine", None, "same output")
    assert "talker/runner/elements_visited" in [moved["what"] for moved in merge["counters"]]
    assert "min left" in done.stderr
    assert (tmp_path / "run" / "report.md").is_file()


def group(leader):
    """What still runs of a process group; the dead that nobody has asked for do not."""
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["cmdline"])
    return found


@pytest.mark.timeout(300)
def test_an_interrupt_keeps_what_is_finished(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(SMALL.format(topology="processes", gate=None))
    argv = [sys.executable, "-m", "omnilab.ablate", str(file), "--blocks", "50", "--out", str(tmp_path / "run")]
    running = subprocess.Popen(
        argv, cwd=ROOT, env=ONE_THREAD, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    rows = tmp_path / "run" / "trials.jsonl"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and running.poll() is None:
        if rows.exists() and "merge_mine" in rows.read_text():
            break  # a toggle of that file's own is in force in the stage processes
        time.sleep(0.2)
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the stages get it too
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "interrupted" in said
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    mine = next(line for line in lines if line["variant"] == "mine")
    talkers = [seams["merge"] for stage, seams in mine["occupants"].items() if stage.startswith("talker")]
    assert talkers
    assert all(name.startswith("merge_mine ") for name in talkers)
    deadline = time.monotonic() + 10
    while (left := group(running.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
