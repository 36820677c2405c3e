"""What another environment says of itself: real environments and checkouts, made-up packages."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from omnilab.errors import BadInput
from omnilab.experiment.arms import Arm
from omnilab.installed import installed


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "engine.py").write_text("fast = False\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    return folder


def put(environment: Path, name: str, number: str, source: dict[str, Any] | None = None) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    here = packages / f"{name.replace('-', '_')}-{number}.dist-info"
    here.mkdir()
    (here / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    if source is not None:
        (here / "direct_url.json").write_text(json.dumps(source))


def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed(environment: Path, checkout: Path) -> None:
    """Two checkouts with one version number, told apart by nothing."""
    put(environment, "vllm-omni", "0.30.0", {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    put(environment, "vllm", "0.30.0+cpu")
    python, head = environment / "bin" / "python", git(checkout, "rev-parse", "HEAD")
    assert installed(python) == {"vllm-omni": f"0.30.0 at {head}", "vllm": "0.30.0+cpu"}
    (checkout / "engine.py").write_text("fast = True\n")
    assert installed(python)["vllm-omni"] == f"0.30.0 at {head}+changes"
    git(checkout, "commit", "-qam", "second")
    assert installed(python)["vllm-omni"] == f"0.30.0 at {git(checkout, 'rev-parse', 'HEAD')}"


def test_a_copy_says_no_commit_and_a_repository_the_one_it_came_from(environment: Path, checkout: Path) -> None:
    """A commit made after the copy was installed."""
    put(environment, "vllm-omni", "1", {"url": checkout.as_uri(), "dir_info": {}})
    put(environment, "vllm", "2", {"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert installed(environment / "bin" / "python") == {"vllm-omni": "1", "vllm": "2 at abc"}


@pytest.mark.parametrize("before", ["", "env CUDA_VISIBLE_DEVICES=0,1 "])
def test_an_arm_is_asked_by_the_first_line_of_its_program(environment: Path, before: str) -> None:
    """The client's versions taken for the server's."""
    put(environment, "vllm-omni", "7")
    program = environment / "bin" / "vllm-omni"
    program.write_text(f"#!{environment / 'bin' / 'python'}\n")
    program.chmod(0o755)
    assert Arm(command=f"{before}{program} serve --port {{port}}").installed() == {"vllm-omni": "7"}


def test_an_arm_whose_program_names_no_python_is_known_by_its_command_alone(tmp_path: Path) -> None:
    assert Arm(command="sh -c 'exec serve {port}'").installed() == {}
    assert Arm(command="env -u A serve {port}").installed() == {}
    assert Arm(command=[sys.executable, "-m", "serve"]).installed()["torch"] == version("torch")
    assert installed(tmp_path / "python") == {}


def test_a_python_that_cannot_say_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BadInput, match=r"python3: its packages cannot be listed: no such module"):
        installed(broken)
