"""Arms that are servers: started, driven, compared, ended, whatever they do. Scripted servers, real all else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from omnilab import ablate
from omnilab.client import Server
from omnilab.errors import BadInput, Error
from omnilab.experiment import gate
from omnilab.experiment.arms import Arm, served
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.plan import warm_up
from omnilab.experiment.sweep import Sweep, at_concurrencies
from omnilab.installed import installed
from omnilab.launch import free_port, port_is_free
from omnilab.workload import Prompt, Sampling, Workload

SCRIPT = Path(__file__).with_name("served.py")
OURS = "OMNILAB_TEST_PROCESS"  # in the environment of all that a test of this process starts
PROMPTS = Workload.prompts([Prompt(text="How wide is the river?"), Prompt(text="And how deep?")], Sampling(seed=1))


TWO = ("--arm", "a=true {port}", "--arm", "b=true {port}")


def arm(*words: str, **changes: Any) -> Arm:
    return Arm(command=[sys.executable, str(SCRIPT), "{port}", *words], start_s=60, request_s=30, **changes)


def compared(**changes: Any) -> Experiment:
    given = {"name": "arms", "workload": PROMPTS, "blocks": 3, "gate_prompts": None}
    return Experiment(**{**given, **changes})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def servers_alive() -> list[int]:
    """Processes of the script, also those whose starters have died; not those of another test process."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(SCRIPT) in (process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                if process.environ().get(OURS) == str(os.getpid()):
                    found.append(process.pid)
    return found


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """Whatever a test does to servers, they end."""
    monkeypatch.setenv(OURS, str(os.getpid()))
    yield
    until = time.monotonic() + 30
    while servers_alive() and time.monotonic() < until:
        time.sleep(0.1)
    assert not servers_alive()


def test_a_slower_server_is_found_and_every_trial_has_a_server_of_its_own(tmp_path: Path) -> None:
    """Arms that share a server, or a verdict that is not the clock's."""
    report = compared(arms={"main": arm(), "slow": arm("--delay", "0.4")}, blocks=5).run(tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["installed"]["main"] == run["installed"]["slow"] == installed(Path(sys.executable))
    assert f"torch {version('torch')}" in (tmp_path / "run" / "report.md").read_text()
    slow = report.result("slow")
    assert slow.verdict == "slower" and slow.output == "same output"
    lines = lines_of(tmp_path / "run")
    assert [line["kind"] for line in lines].count("open") == 5 * 3  # main, main again, slow
    assert not report.failed and report.run["arms"]["slow"]["command"].endswith("--delay 0.4")
    found = verify(tmp_path / "run")
    assert not found.differences
    text = report.markdown()
    assert "had no effect" not in text and "each arm on fresh servers" in text and "host ms a Talker step" not in text


def test_the_gate_stops_another_text_and_another_sound(tmp_path: Path) -> None:
    """A speed of an arm that says something else."""
    arms = {"main": arm(), "other words": arm("--text", "four five six"), "other voice": arm("--voice", "hers")}
    report = compared(arms=arms).run(tmp_path / "run")
    assert report.failed
    for name, what in (("other words", "tokens"), ("other voice", "samples")):
        assert report.result(name).verdict == "failed the gate" and what in str(report.result(name).difference)
    fewer = compared(arms={"main": arm(), "short": arm("--text", "one")}, exact=()).run(tmp_path / "short")
    assert fewer.result("short").output == "other work"


def test_the_gates_three_kinds_of_prompt_go_through_the_protocol(tmp_path: Path) -> None:
    """A picture or a sound that a server is not asked about, or that no check of the run survives."""
    run = compared(arms={"main": arm(), "mine": arm()}, gate_prompts="prompts.jsonl").run(tmp_path / "run")
    assert run.result("mine").output == "same output" and run.result("mine").trials == 3
    gate = [row for row in lines_of(tmp_path / "run") if row["kind"] == "gate" and row["variant"] == "main"]
    assert len(gate[0]["outputs"]) == 3  # text, audio, image
    assert not verify(tmp_path / "run").differences


def test_what_is_not_promised_may_differ(tmp_path: Path) -> None:
    """`exact` of tokens only: another sound of the same length is the same work."""
    report = compared(arms={"main": arm(), "other": arm("--voice", "hers")}, exact=("tokens",)).run(tmp_path / "run")
    assert report.result("other").output == "same work, other samples" and not report.failed
    assert not verify(tmp_path / "run").differences


def test_an_engine_that_does_not_repeat_is_compared_per_audio_second(tmp_path: Path) -> None:
    """Longer audio called slower, or an engine thrown out because its baseline differs from itself."""
    arms = {"main": arm("--free"), "mine": arm("--free", "--delay", "0.3")}
    report = compared(arms=arms, blocks=5).run(tmp_path / "run")
    mine = report.result("mine")
    assert mine.output == "other audio lengths"
    assert mine.verdict.startswith("slower") and mine.verdict.endswith("per audio second")
    assert "wall time an audio second" in report.markdown() and report.findings.per_audio == (
        "wall_s",
        "e2el_ms",
        "cpu_s",
    )
    one, *_ = (line for line in lines_of(tmp_path / "run") if line["kind"] == "trial" and line["variant"] == "mine")
    seconds = sum(one["per_request"]["audio_s"])
    assert mine.effects["wall_s"].after == pytest.approx(one["metrics"]["wall_s"] / seconds, rel=0.5)
    assert not verify(tmp_path / "run").differences


def test_several_concurrencies_share_the_starts(tmp_path: Path) -> None:
    """A start of minutes for every point."""
    sweep = at_concurrencies(compared(arms={"main": arm(), "slow": arm("--delay", "0.1")}), [1, 2])
    report = sweep.run(tmp_path / "run")
    assert set(report.reports) == {"c1", "c2"}
    starts = [line for line in lines_of(tmp_path / "run" / "c1") if line["kind"] == "open"]
    assert len(starts) == 9 and starts == [line for line in lines_of(tmp_path / "run" / "c2") if line["kind"] == "open"]
    log = (tmp_path / "run" / "c1" / "logs" / "slow.log").exists()
    assert log and all(not verify(tmp_path / "run" / point).differences for point in ("c1", "c2"))
    assert "| c2 | slow |" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--die-at", "3"), "out of memory, says the script"),
        (("--refuse",), "this server takes nothing"),
        (("--nonsense",), "unrecognized arguments: --nonsense"),
    ],
)
def test_an_arm_that_fails_says_why_and_the_others_go_on(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """A run of hours lost to one arm, or a failure without the server's own words."""
    arms = {"main": arm(), "bad": arm(*words), "good": arm()}
    report = compared(arms=arms).run(tmp_path / "run")
    assert report.failed and report.result("good").trials == 3
    assert any(said in error for error in report.result("bad").errors)
    assert report.result("bad").verdict in ("not measured", "failed the gate")


def test_a_server_that_is_never_ready_meets_its_deadline() -> None:
    """A wait for ever."""
    one = Arm(command=[sys.executable, str(SCRIPT), "{port}", "--never-ready"], start_s=3)
    with pytest.raises(Error, match="not ready within 3 s"), served(one, Path(os.devnull)):
        pass


def test_what_a_server_leaves_to_itself_is_ended_with_it(tmp_path: Path) -> None:
    """A worker that lives on holds the GPU's memory in the next arm's trial."""
    with served(arm("--orphan"), tmp_path / "log") as bench:
        assert len(bench.process.processes()) == 2
        assert not bench.run(PROMPTS).records[0].error
        port = bench.process.command.port
    assert port_is_free(port or 0)


def test_shared_memory_left_behind_is_an_error(tmp_path: Path) -> None:
    """The next arm runs out of shared memory, and nobody knows why."""
    shared = Path("/dev/shm") / f"omnilab-test-{os.getpid()}"
    try:
        with (
            pytest.raises(Error, match=f"left behind {shared}"),
            served(arm("--shared", str(shared)), tmp_path / "log"),
        ):
            pass
    finally:
        shared.unlink(missing_ok=True)


def test_servers_end_with_their_starter_even_when_it_is_killed(tmp_path: Path) -> None:
    """kill -9 of ablate leaves a server on the GPU."""
    code = (
        "import sys, time; from pathlib import Path; from omnilab.experiment.arms import Arm, served\n"
        f"with served(Arm(command=[sys.executable, {str(SCRIPT)!r}, '{{port}}']), Path({str(tmp_path / 'log')!r})):\n"
        "    print('up', flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=SCRIPT.parents[2])
    assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
    assert servers_alive()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()  # the fixture waits for the server to end


def test_a_stranger_on_the_port_is_not_measured(tmp_path: Path) -> None:
    """A server left over from before is benchmarked in the place of the new one."""
    port = free_port()
    stranger = subprocess.Popen([sys.executable, str(SCRIPT), str(port)])
    try:
        until = time.monotonic() + 30
        while port_is_free(port) and time.monotonic() < until:
            time.sleep(0.05)
        fixed = Arm(command=[sys.executable, str(SCRIPT), str(port)], url=f"http://127.0.0.1:{port}")
        with pytest.raises(BadInput, match=f"arm main: port {port} is taken"):
            compared(arms={"main": fixed, "mine": fixed}).run(tmp_path / "run")
    finally:
        stranger.kill()
        stranger.wait()
    assert not (tmp_path / "run").exists()


def test_secrets_are_not_kept() -> None:
    """A run folder that is packed and shared with a token in it."""
    one = Arm(
        command=["serve", "--api-key", "sk-secret", "--max-tokens=4096", "--password=a'b\"c\\d", "PROXY_AUTH=nobody"],
        environment={"HF_TOKEN": "hf_abcdef", "OMP_NUM_THREADS": "1", "HTTP_PROXY": "http://me:hunter2@host:1"},
        extra_body={"max_tokens": 5, "deep": {"user_key": "deep-secret"}},
        api_key="sk-other",
    )
    kept, shown = json.dumps(one.to_dict()), one.line
    for secret in ("hf_abcdef", "sk-secret", "hunter2", "deep-secret", "nobody", "sk-other", "c\\\\d", "a'b"):
        assert secret not in kept and secret not in shown
    assert '"OMP_NUM_THREADS": "1"' in kept and "--max-tokens=4096" in kept and '"max_tokens": 5' in kept


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night's trials measured again, or a server left running by Ctrl-C."""
    from omnilab.experiment import arms

    ours, calls, run = compared(arms={"main": arm(), "mine": arm()}), [], arms.Served.run

    def stops(self: Any, workload: Workload) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return run(self, workload)

    monkeypatch.setattr(arms.Served, "run", stops)
    with pytest.raises(KeyboardInterrupt):
        ours.run(tmp_path / "run")
    before = lines_of(tmp_path / "run")
    assert not servers_alive()
    report = ours.run(tmp_path / "run", resume=True)
    after = lines_of(tmp_path / "run")
    assert after[: len(before)] == before and report.findings.trials == 9 and not report.failed
    assert not verify(tmp_path / "run").differences


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--arm", "main"], "arm: must be NAME=COMMAND"),
        (["--arm", "main=true {port}"], "arms: give two or more"),
        (["--arm", "a=true {port}", "--arm", "a=true {port}"], "arm: a is there twice"),
        (["--arm", "a=true {port}", "--arm", "b=no-such-program {port}"], "arm b: no-such-program: no such program"),
        (["--arm", "a=true", "--arm", "b=true"], "arm a: the command says no port"),
        (["--arm", "a=true '{port}", "--arm", "b=true {port}"], "No closing quotation"),
        (["--arm", "a=true {port}", "--arm", "b=true {port}", "--exact", "codes"], "exact: codes"),
        (
            ["--arm", "a=true {port}", "--arm", "b=true {port}", "--extra-body", "[1]"],
            "extra_body: must be a JSON object",
        ),
        (["--arm", "a=true {port}", "--arm", "b=true {port}", "--toggles", "async_save"], "arms or toggles, not both"),
        (["--arm", "a=true {port}", "--arm", "b=true {port}", "--tokenizer", "none"], "tokenizer: no folder none"),
        (["--exact", "tokens"], "exact: is for arms"),
        (["--extra-body", "{}"], "extra_body: is for arms"),
        (["--start-s", "60"], "start_s: is for arms"),
        ([*TWO, "--start-s", "0"], "start_s: must be a number of seconds above 0"),
        (["--max-concurrency", "1,two"], "max_concurrency: must be a number, or several"),
        (["--num-prompts", "2", "--max-concurrency", "2,2"], "max_concurrency: give each number once"),
        ([*TWO, "--max-concurrency", "16"], "max_concurrency: 16 of 4 requests: give --num-prompts 16 or more"),
        (
            [*TWO, "--max-concurrency", "1,2", "--budget", "2h"],
            "with several workloads for the same servers give blocks",
        ),
        ([*TWO, "--budget", "2h", "--dry-run"], "a dry run of arms starts nothing"),
    ],
)
def test_bad_arms_are_refused_before_anything_starts(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of a first arm before the second one's typing error is seen."""
    monkeypatch.chdir(tmp_path)
    assert ablate.main(["--model", "tiny", *argv] if "--arm" not in argv else argv) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_plan_of_arms_says_starts_and_hours_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    """A day of servers begun without a word."""
    command = f"{sys.executable} {SCRIPT} {{port}}"
    assert ablate.main(["--arm", f"main={command}", "--arm", f"mine={command} --delay 1", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "15 server starts, one after another" in said and "expected 0.3 to 1.3 h" in said
    assert "mine: " in said and "--delay 1" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--subject", "sglang"], "subject: must be lab or vllm-omni"),
        (["--deploy", "mine.yaml"], "are for --subject vllm-omni"),
        (["--subject", "vllm-omni", "--vllm-omni-python", "nowhere"], "nowhere: no such program"),
        ([str(ablate.EXPERIMENTS / "vllm_omni.py"), "--vllm-omni-python", "nowhere"], "nowhere: no such program"),
        ([str(ablate.EXPERIMENTS / "vllm_omni.py"), "--subject", "lab", "--deploy", "x.yaml"], "are for --subject"),
        (["--subject", "vllm-omni", "--toggles", "override_rows"], "no toggle of parity on vLLM-Omni is named"),
    ],
)
def test_a_bad_engine_is_refused_before_anything_starts(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes of a start before a typing error is seen."""
    monkeypatch.chdir(tmp_path)
    assert ablate.main(argv) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_errors_of_a_server_show_no_secret(tmp_path: Path) -> None:
    """A key in the log's tail, and so in trials.jsonl."""
    one = Arm(command=[sys.executable, str(SCRIPT), "{port}", "--api-key", "sk-verysecret"], start_s=60)
    with pytest.raises(Error, match="unrecognized arguments: --api-key") as raised, served(one, tmp_path / "log"):
        pass
    assert "sk-verysecret" not in str(raised.value)


def test_a_warm_up_and_other_points_ask_other_prompts(tmp_path: Path) -> None:
    """A prefix cache that knows the measured prompts: times of nothing."""
    workload = Workload.random(num_prompts=2, input_len=12, output_len=4, frames=4)
    ours = compared(arms={"main": arm(), "mine": arm()}, workload=workload)
    server = Server("http://127.0.0.1:1", "m")

    def texts(asked: Workload) -> set[str]:
        return {json.dumps(json.loads(body)["messages"]) for body in server.bodies(asked)}

    points = [experiment.plan() for experiment in at_concurrencies(ours, [1, 2]).experiments.values()]
    seen = [texts(plan.workloads[block]) for plan in points for block in range(3)]
    seen += [texts(warm_up(plan.workloads[block], served=True)) for plan in points for block in range(3)]
    assert sum(map(len, seen)) == len(set().union(*seen))
    assert points[0].orders == points[1].orders
    said = Workload.prompts([Prompt(text="How wide is the river?")], Sampling(seed=1, max_text_tokens=40))
    (warm,) = warm_up(said, served=True).requests
    assert warm.prompt.text != "How wide is the river?" and warm.sampling.max_frames is None


def test_lost_audio_is_other_work_even_where_nothing_repeats() -> None:
    """An arm that drops its last chunk on an engine whose samples differ from run to run."""

    def line(variant: str, **changes: Any) -> dict[str, Any]:
        equal = {"tokens": True, "codes": True, "samples": False}
        given = {"difference": "samples", "same_work": True, "same_length": True, "equal": equal, "differing": 1}
        return {"kind": "comparison", "block": 0, "variant": variant, "requests": 1, "error": None, **given, **changes}

    again, shorter = line("main (A/A)"), line("mine", same_length=False)
    assert gate.output_class([again, shorter], "main", "mine")[0] == "other work"
    assert gate.output_class([again, line("mine")], "main", "mine")[0] == "same work, other samples"
    free = line("main (A/A)", same_length=False)
    assert gate.output_class([free, shorter], "main", "mine")[0] == "other audio lengths"
    words = {"tokens": False, "codes": True, "samples": False}
    both = [line("main (A/A)", equal=words), line("mine", equal=words)]
    assert gate.output_class(both, "main", "mine")[0] == "same work, other text"


def test_a_baseline_that_fails_the_gate_ends_the_run_before_its_block_is_over(tmp_path: Path) -> None:
    """Hours of arms that can be compared with nothing."""
    prompts = Workload.prompts([Prompt(text="Hello")], Sampling(seed=1))
    arms = {"main": arm("--die-at", "2"), "mine": arm(), "other": arm()}
    with pytest.raises(Error, match=r"baseline itself failed on the gate prompts.*--gate-prompts"):
        compared(arms=arms, gate_prompts=prompts).run(tmp_path / "run")
    rows = lines_of(tmp_path / "run")
    assert (rows[-1]["kind"], rows[-1]["variant"].removesuffix(" (A/A)")) == ("gate", "main")


def test_an_arm_that_does_not_start_is_tried_once_a_block(tmp_path: Path) -> None:
    """A deadline of fifteen minutes waited for again and again."""
    bad = Arm(command=[sys.executable, str(SCRIPT), "{port}", "--never-ready"], start_s=2)
    sweep = at_concurrencies(compared(arms={"main": arm(), "bad": bad}), [1, 2])
    report = sweep.run(tmp_path / "run")
    errors = [error for one in report.reports.values() for error in one.result("bad").errors]
    assert len(errors) == 6 and sum("not ready within 2 s" in error for error in errors) == 3


def test_points_of_a_file_that_build_equal_arms_share_them(tmp_path: Path) -> None:
    """Every trial of the second point refused, because its arms are equal and not the same."""
    points = {
        name: compared(name=name, arms={"main": arm(), "mine": arm()}, workload=replace(PROMPTS, seed=seed))
        for seed, name in enumerate(("short", "long"))
    }
    report = Sweep(name="both", experiments=points).run(tmp_path / "run")
    assert not report.failed and report.reports["long"].findings.trials == 9


def test_points_may_have_different_numbers_of_blocks(tmp_path: Path) -> None:
    """A crash at the block that only one point has."""
    arms = {"main": arm(), "mine": arm()}
    points = {"three": compared(name="three", arms=arms), "four": compared(name="four", arms=arms, blocks=4)}
    report = Sweep(name="both", experiments=points).run(tmp_path / "run")
    assert [one.findings.blocks for one in report.reports.values()] == [3, 4]
