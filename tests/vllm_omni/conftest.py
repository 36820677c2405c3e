"""One server of `parity` for all of this room that asks the real engine, and requests to it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from omnilab.launch import SHARED, port_is_free
from omnilab.model.folder import write_folder
from omnilab.prompt import Prompt, Sampling
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, Board, since
from omnilab.vllm_omni.deploy import Deploy
from omnilab.vllm_omni.server import ServerSpec, serving
from omnilab.vllm_omni.subject import OmniServer, Subject
from omnilab.vllm_omni.toggles import TOGGLES
from omnilab.workload import Workload

PYTHON = os.environ.get("OMNILAB_VLLM_OMNI_PYTHON")
# "uni" starts in half the time. Experiments run with "mp": so should these tests after a change to a toggle.
EXECUTOR = os.environ.get("OMNILAB_VLLM_OMNI_EXECUTOR", "uni")
REAL = [
    pytest.mark.skipif(PYTHON is None, reason="set OMNILAB_VLLM_OMNI_PYTHON, or `make test-vllm-omni`"),
    pytest.mark.timeout(900),
]
FOUR = [toggle.name for toggle in TOGGLES]
OFF, ON = dict.fromkeys(FOUR, BASELINE), dict.fromkeys(FOUR, OPTIMIZED)
SAMPLING = Sampling(max_text_tokens=24, max_frames=59, ignore_eos=True, temperature=0.0, seed=11)
WORDS = "The quick brown fox jumps over the lazy dog and then tells a long story about it. " * 2


@pytest.fixture(scope="package")
def parity(tmp_path_factory) -> Path:
    """The folder."""
    return write_folder("parity", tmp_path_factory.mktemp("folder") / "parity")


@pytest.fixture(scope="package")
def served(tmp_path_factory, parity):
    """A server of `parity`, and after the room: nothing of it is left."""
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("vllm-omni")
    deploy, board = Deploy(executor=EXECUTOR, max_model_len=2048), Board.create(folder / "board")
    board.switch({"greedy_codes": OPTIMIZED, "sent_codes": OPTIMIZED})
    spec = ServerSpec(
        python=Path(PYTHON), model=parity, deploy=deploy.write(folder / "deploy.yaml"), folder=folder, board=board,
        environment=deploy.environment, start_s=800,
    )  # fmt: skip
    with serving(spec) as server:
        yield server
        below = server.process.processes()
    assert len(below) >= (7 if EXECUTOR == "mp" else 4)  # an API server, three engines, three workers
    assert not any(psutil.pid_exists(process.pid) for process in below)
    assert port_is_free(int(server.url.rsplit(":", 1)[1]))
    assert not [path for path in SHARED.iterdir() if any(request in path.name for request in board.requests())]


@pytest.fixture(scope="package")
def ask(served):
    """Makes one request under sides; returns its records and what was counted."""
    assert served.board is not None

    def asked(sides, *, prompt=WORDS, sampling=SAMPLING, times=1):
        subject = Subject(served, served.board, OmniServer(served.url, served.name))
        served.board.switch(sides)
        before = served.board.counts()
        item = prompt if isinstance(prompt, Prompt) else Prompt(text=prompt)
        trial = subject.run(Workload.prompts([item] * times, sampling))
        assert [record.error for record in trial.records] == [None] * times
        return trial.records, since(before, served.board.counts())

    return asked


def output(record: Any) -> tuple[str | None, str]:
    """What must stay equal."""
    return record.text, hashlib.sha256(np.asarray(record.audio).tobytes()).hexdigest()
