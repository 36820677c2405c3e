"""The command line: its statuses, what it refuses before anything is asked, what it prints and saves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from omnilab import bench
from tests.client.scripted import HEAD, answer, body, chunked, refusal, scripted, text

GOOD = body(*answer())
FEW = ["--input-len", "5", "--output-len", "2", "--num-prompts", "3", "--num-warmups", "0", "--model", "m"]


def test_a_server_is_measured_and_the_result_kept(tmp_path, capsys):
    out = tmp_path / "result.json"
    with scripted(lambda _: GOOD) as server:
        given = ["--url", server.url, *FEW, "--max-concurrency", "2", "--goodput", "audio_rtf:100,ttft_ms:60000"]
        given += ["--percentiles", "50,99.9", "--out", str(out), "--extra-body", '{"temperature": 0.7}']
        assert bench.main(given) == 0
        asked = server.requests
    printed = capsys.readouterr().out
    assert printed.startswith("============ Serving Benchmark Result ============\nSuccessful requests:")
    lines = [line.rstrip() for line in printed.splitlines()]
    assert "Successful requests:                     3" in lines
    assert "Total generated tokens:                  6" in lines
    assert any(line.startswith("P99.9 AUDIO_RTF:") for line in lines)
    result = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert (result["completed"], result["model_id"], result["max_concurrency"]) == (3, "m", 2)
    assert (result["request_rate"], result["num_prompts"]) == ("inf", 3)
    assert result["request_goodput"] == pytest.approx(3 / result["duration"])
    assert result["generated_texts"] == ["Hi you"] * 3
    assert len(result["requests"][0]["text_times_s"]) == 2
    assert "the time to the first packet is in it" in result["definitions"]["audio_rtf"]
    assert set(result["client_lag_ms"]) == {"p50", "p99", "max"}
    assert len({request["messages"][0]["content"][0]["text"] for request in asked}) == 3
    assert {request["temperature"] for request in asked} == {0.7}
    assert {request["max_tokens"] for request in asked} == {2}
    assert {request["ignore_eos"] for request in asked} == {True}


def test_warm_up_is_as_wide_as_the_run_and_asks_other_things():
    with scripted(lambda _: GOOD) as server:
        given = ["--url", server.url, *FEW[:6], "--model", "m", "--max-concurrency", "2", "--json"]
        assert bench.main(given) == 0
        texts = [request["messages"][0]["content"][0]["text"] for request in server.requests]
    assert len(texts) == 2 + 3
    assert not set(texts[:2]) & set(texts[2:])


def test_a_failed_request_is_status_1_and_is_told(capsys):
    with scripted(lambda number: refusal("429 No", "full") if number == 1 else GOOD) as server:
        assert bench.main(["--url", server.url, *FEW, "--max-concurrency", "1", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["completed"], result["failed"], result["errors_by_class"]) == (2, 1, {"refused": 1})
    assert result["errors"][1] == "refused: status 429: full"


BAD = {
    "no server": (["--url", "127.0.0.1:9"], "start the server"),
    "no url": (["--url", "ftp://x"], "give one such as"),
    "unknown goal": (["--goodput", "speed:1"], "known are ttft_ms"),
    "no percentile": (["--percentiles", "50,x"], "--percentiles"),
    "a percentile beyond": (["--percentiles", "101"], "0..100"),
    "no dataset": (["--dataset", "none.jsonl"], "neither a file nor"),
    "no prompts": (["--num-prompts", "0"], "--num-prompts"),
    "no input": (["--input-len", "0"], "--input-len"),
    "no output": (["--output-len", "0"], "--output-len"),
    "no frames": (["--frames", "0"], "max_frames"),
    "no concurrency": (["--max-concurrency", "0"], "max_concurrency"),
    "no rate": (["--request-rate", "fast"], "--request-rate"),
    "a rate of 0": (["--request-rate", "0"], "rate"),
    "half a ramp": (["--ramp", "3"], "--ramp"),
    "two arrivals": (["--ramp", "1:2", "--request-rate", "3"], "give one of"),
    "burstiness alone": (["--burstiness", "2"], "--burstiness goes with"),
    "no trace": (["--trace", "none.txt"], "--trace"),
    "no tokenizer": (["--tokenizer", "none"], "tokenizer"),
    "no modality": (["--url", "h", "--modalities", "video"], "--modalities"),
    "no JSON": (["--url", "h", "--extra-body", "{"], "--extra-body"),
    "no object": (["--url", "h", "--extra-body", "[1]"], "--extra-body"),
    "a server's option": (["--modalities", "text"], "give --url"),
    "no recipe": (["--recipe", "NONE", "--model", "tiny"], "no recipe"),
    "no time": (["--url", "h", "--timeout", "0"], "timeout_s"),
    "no place": (["--out", "no/such/folder/x.json"], "--out"),
    "a negative seed": (["--seed", "-1"], "--seed"),
    "no option": (["--speed", "3"], "No such option"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_status_2(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, said = BAD[name]
    assert bench.main(given) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "given, starts",
    [
        (["--trace", "times.txt"], [0.0, 0.05, 0.1]),
        (["--request-rate", "1000", "--burstiness", "3"], None),
        (["--ramp", "500:1000"], None),
    ],
)
def test_requests_start_when_they_are_due(given, starts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.txt").write_text("0\n0.05\n0.1\n")
    with scripted(lambda _: GOOD) as server:
        assert bench.main(["--url", server.url, *FEW, *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(at >= due for at, due in zip(found["start_times"], starts or [0.0] * 3, strict=True))
    assert found["max_concurrency"] is None


def test_an_interrupt_keeps_what_was_finished(tmp_path):
    out = tmp_path / "result.json"
    with scripted(lambda number: [HEAD, chunked(text("Hi", 1)), None] if number == 2 else GOOD) as server:
        command = [sys.executable, "-m", "omnilab.bench", "--url", server.url, *FEW, "--max-concurrency", "1"]
        process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while len(server.requests) < 3 and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, b"interrupted" in err) == (130, True)
    result = json.loads(out.read_text())
    assert (result["completed"], result["failed"], result["num_prompts"]) == (2, 0, 3)


def test_an_interrupt_in_the_warm_up_reports_nothing(tmp_path, capsys):
    out = tmp_path / "result.json"
    with scripted(lambda number: [HEAD, None] if number else GOOD) as server:
        pressed = threading.Thread(target=press_when, args=(lambda: len(server.requests) == 2,))
        pressed.start()
        given = ["--url", server.url, *FEW[:6], "--model", "m", "--num-warmups", "2", "--max-concurrency", "1"]
        assert bench.main([*given, "--out", str(out)]) == 130
        pressed.join()
    assert not out.exists()
    assert "Serving Benchmark" not in capsys.readouterr().out


def press_when(ready):
    """Send Ctrl-C to this process once it is time."""
    deadline = time.monotonic() + 60
    while not ready() and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.timeout(300)  # starts three processes of stages, which a busy machine takes its time for
def test_in_process(capsys):
    given = ["--model", "tiny", "--input-len", "30", "--output-len", "4", "--frames", "8", "--num-prompts", "2"]
    assert bench.main([*given, "--num-warmups", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["completed"], result["total_output_tokens"], result["total_input_tokens"]) == (2, 8, 60)
    assert result["client_lag_ms"] is None
    assert result["trial_metrics"]["frames"] == 16


def test_it_starts_without_torch():
    heavy = "{'torch', 'transformers', 'pandas', 'scipy'}"
    code = f"import omnilab.client.summary, omnilab.bench, sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "h11" else object())
    assert bench.main(["--url", "127.0.0.1:9"]) == 2
    assert "h11: not installed: pip install" in capsys.readouterr().err
