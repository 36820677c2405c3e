"""A server is waited for, told apart from one that does not start, and nothing of it is left: against scripted ones."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from omnilab.errors import BadInput, Error, ToggleUnavailable
from omnilab.launch import port_is_free
from omnilab.vllm_omni.board import AS_SHIPPED, Board
from omnilab.vllm_omni.deploy import Deploy
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.server import ServerSpec, serving

SCRIPTED = """
import http.server, os, signal, subprocess, sys, time
if os.environ["DOES"] == "end":
    print("no such model"); sys.exit(3)
if os.environ["DOES"] == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.environ["DOES"] == "hang" else 200)
        self.end_headers()
        self.wfile.write(repr((sys.argv, os.environ.get("OMNILAB_VLLM_OMNI_BOARD"))).encode())
    def log_message(self, *_): pass
open(os.environ["LEAVES"], "w").close()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


@pytest.fixture
def spec(tmp_path):
    """Makes the spec of a scripted server that does as told."""
    program = tmp_path / "site" / "vllm_omni" / "entrypoints" / "cli" / "main.py"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPTED)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    request = f"chatcmpl-[{tmp_path.name}]-0123abcd"
    left = Path(f"/dev/shm/shm_{request}_0_7_lockfile.lock")

    def make(does="serve", **more):
        environment = {"PYTHONPATH": str(tmp_path / "site"), "DOES": does, "LEAVES": str(left)}
        return ServerSpec(
            python=Path(sys.executable), model=model, deploy=Deploy().write(tmp_path / "deploy.yaml"),
            folder=tmp_path, environment=environment, **more,
        )  # fmt: skip

    make.request = request  # pyright: ignore[reportFunctionMemberAccess]
    make.left = left  # pyright: ignore[reportFunctionMemberAccess]
    yield make
    left.unlink(missing_ok=True)


def test_a_server_is_reached_and_leaves_nothing(spec, tmp_path, nothing_left):
    board = Board.create(tmp_path / "board")
    panel = Panel(board.folder, "0.30.0")
    panel.say(*AS_SHIPPED)
    panel.saw(spec.request)
    with serving(spec(board=board)) as served:
        below = served.process.processes()
        with urllib.request.urlopen(f"{served.url}/any", timeout=5) as answer:
            said = answer.read().decode()
        assert len(below) == 2
        assert spec.left.exists()
    assert "--omni" in said
    assert str(board.folder) in said
    assert not any(psutil.pid_exists(process.pid) for process in below)
    assert port_is_free(int(served.url.rsplit(":", 1)[1]))
    assert not spec.left.exists()  # what 0.30.0 itself leaves in shared memory


KILLED = """
import sys, time
from pathlib import Path
from omnilab.vllm_omni.board import AS_SHIPPED, Board
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.server import ServerSpec, serving

folder, model, request, site, left = sys.argv[1:]
board = Board.create(Path(folder) / "board")
panel = Panel(board.folder, "0.30.0")
panel.say(*AS_SHIPPED)
panel.saw(request)
environment = {"PYTHONPATH": site, "DOES": "serve", "LEAVES": left}
spec = ServerSpec(
    python=Path(sys.executable), model=Path(model), deploy=Path(model) / "config.json", folder=Path(folder),
    board=board, environment=environment,
)
with serving(spec) as served:
    print(*(process.pid for process in served.process.processes()), flush=True)
    time.sleep(60)
"""


def test_one_whose_starter_is_killed_leaves_nothing_in_shared_memory(spec, tmp_path):
    good = spec()
    words = [sys.executable, "-c", KILLED, tmp_path, good.model, spec.request, tmp_path / "site", spec.left]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        below = [int(pid) for pid in starter.stdout.readline().split()]
        assert spec.left.exists()
        starter.kill()
    until = time.monotonic() + 20
    while time.monotonic() < until and (spec.left.exists() or any(psutil.pid_exists(pid) for pid in below)):
        time.sleep(0.1)
    assert len(below) == 2
    assert not any(psutil.pid_exists(pid) for pid in below)
    assert not spec.left.exists()


def test_one_that_does_not_end_when_asked_is_killed_with_what_it_started(spec, monkeypatch, nothing_left):
    monkeypatch.setattr("omnilab.vllm_omni.server.STOP_S", 0.5)
    with serving(spec("ignore")) as served:
        below = served.process.processes()
    assert len(below) == 2
    assert not any(psutil.pid_exists(process.pid) for process in below)


def test_one_that_ends_is_not_waited_for_and_its_last_words_are_shown(spec, nothing_left):
    with pytest.raises(Error, match=r"(?s)status 3.*no such model"), serving(spec("end", start_s=60)):
        pytest.fail("it never served")


def test_one_that_never_answers_is_given_up_in_time(spec, nothing_left):
    with pytest.raises(Error, match=r"(?s)not ready within 1 s.*start_s"), serving(spec("hang", start_s=1)):
        pytest.fail("it never served")


def test_one_without_our_toggles_is_not_measured(spec, tmp_path, nothing_left):
    board = Board.create(tmp_path / "board")
    with pytest.raises(ToggleUnavailable, match="not installed"), serving(spec(board=board)):
        pytest.fail("its switches would do nothing")


def test_what_is_not_there_is_refused_before_anything_starts(spec, tmp_path):
    good = spec()
    for name, missing in (("python", tmp_path / "python"), ("model", tmp_path), ("deploy", tmp_path / "none.yaml")):
        about = {"python": good.python, "model": good.model, "deploy": good.deploy, "folder": tmp_path}
        with pytest.raises(BadInput, match=str(missing)), serving(ServerSpec(**{**about, name: missing})):
            pytest.fail("it was started")
