"""`python -m omnilab.serve` as a process, and a server one of whose stages dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from omnilab.engine.topology import ProcessStages
from omnilab.serve.__main__ import main
from tests.conftest import left_since, leftovers
from tests.serve.served import serving, tiny_pipe

WRONG = {
    "an unknown model": ["--model", "no-such"],
    "an unknown recipe": ["--recipe", "FASTEST"],
    "an unknown toggle": ["--toggles", "warp"],
    "no places": ["--max-num-seqs", "0"],
    "less than no places": ["--max-waiting", "-1"],
    "a port that is none": ["--port", "70000"],
    "a number that is none": ["--port", "http"],
    "a host that is none": ["--host", "no such host"],
    "no such device": ["--device", "tpu"],
    "a URL for a host": ["--allow-url", "https://example.org/"],
    "no such folder": ["--allow-files", "/no/such"],
    "an empty key": ["--api-key", ""],
    "a key of two lines": ["--api-key", "a\nb"],
    "no size": ["--max-image-mp", "inf"],
    "an unknown option": ["--fast"],
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_values_end_before_anything_loads(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names what is wrong; status 2; no stage was started."""
    before = leftovers()
    arguments = WRONG[case] if "--port" in WRONG[case] else [*WRONG[case], "--port", "0"]
    model = [] if "--model" in arguments else ["--model", "tiny"]
    assert main([*arguments, *model]) == 2
    said = capsys.readouterr().err
    assert said.startswith("omnilab serve: ") and said.count("\n") == 1
    assert not left_since(before)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Said before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--model", "tiny", "--port", port]) == 2
    said = capsys.readouterr().err
    assert port in said and "--port" in said


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own process, which listens."""
    arguments = ["--model", "tiny", "--port", "0", "--recipe", "BEFORE_1378", "--toggles", "async_save,direct_worker"]
    started = subprocess.Popen(
        [sys.executable, "-m", "omnilab.serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        first = started.stdout.readline()
        url = next(word for word in first.split() if word.startswith("http://127.0.0.1:"))
        for _ in range(100):
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield started, url
    finally:
        started.kill()
        started.wait()
        for pipe in (started.stdout, started.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(process: tuple[subprocess.Popen[str], str], told: int) -> None:
    """What runs is answered, then all of it ends: status 0, no traceback, no process and no shared memory left."""
    started, url = process
    [model] = httpx.get(f"{url}/v1/models").json()["data"]
    assert model["recipe"]["name"] == "BEFORE_1378 + async_save + direct_worker"
    children = psutil.Process(started.pid).children(recursive=True)
    held = [os.readlink(link) for link in Path(f"/proc/{started.pid}/fd").iterdir()]
    shared = [path for path in held if "/omnilab-" in path]
    assert len(children) >= 3 and shared and all(map(os.path.exists, shared))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 60, "modalities": ["text"]}
            asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body | {"ignore_eos": True}))
            while 'num_requests_running{model_name="tiny"} 1.0' not in (await client.get(f"{url}/metrics")).text:
                assert not asking.done()
            started.send_signal(told)
            return await asking

    assert asyncio.run(ask()).json()["usage"]["completion_tokens"] == 60
    assert started.wait(30) == 0
    assert started.stderr is not None
    said = started.stderr.read()
    assert said == "omnilab serve: ended\n"
    assert not any(child.is_running() for child in children) and not any(map(os.path.exists, shared))


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
def test_a_stage_that_dies(stage: str) -> None:
    """Requests that run end with an error that names it; health tells the truth; later ones get 503 at once."""
    chat = "/v1/chat/completions"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 900, "ignore_eos": True}

    async def scene(url: str, pid: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            whole = asyncio.create_task(client.post(chat, json=body))
            async with client.stream("POST", chat, json=body | {"stream": True}) as reply:
                lines = reply.aiter_lines()
                await anext(lines)
                os.kill(pid, signal.SIGKILL)
                rest = [line async for line in lines if line]
            assert stage in rest[-2] and '"code":503' in rest[-2] and rest[-1] == "data: [DONE]"
            failed = await whole
            assert failed.status_code == 503 and stage in failed.json()["error"]["message"]
            health, later = await client.get("/health"), await client.post(chat, json=body)
            assert health.status_code == later.status_code == 503
            assert stage in health.json()["error"]["message"]

    with tiny_pipe() as pipe, serving(pipe) as running:
        assert isinstance(pipe._topology, ProcessStages)
        asyncio.run(scene(running.url, pipe._topology.pids()[stage]))


def test_a_profile_of_a_served_pipeline(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Begun and ended by requests; its files are there, and who asks twice is told."""
    from omnilab.pipeline import Pipeline
    from omnilab.profile.watched import ProfiledPipeline

    opened: Pipeline = ProfiledPipeline.open("tiny", timeout_s=60)
    with opened as pipe, serving(pipe, profile_dir=str(tmp_path)) as running:
        with httpx.Client(base_url=running.url, timeout=100) as client:
            assert client.post("/stop_profile").status_code == 400
            assert client.post("/start_profile", json={"model": "tiny"}).status_code == 200
            assert "runs already" in client.post("/start_profile").json()["error"]["message"]
            body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 30, "ignore_eos": True}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            ended = client.post("/stop_profile").json()
        assert not ended["missing"] and len(ended["files"]) == 3
        assert all(name.startswith(str(tmp_path)) for name in ended["files"])
