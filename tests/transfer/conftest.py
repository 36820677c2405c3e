"""Edges, bells and child processes; whatever a test makes is gone afterwards, or the test fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from omnilab.transfer import Doorbell, EdgeFolder

Spawn: TypeAlias = Callable[..., "subprocess.Popen[str]"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[EdgeFolder]:
    with EdgeFolder() as made:
        yield made
    assert not made.path.exists()


@pytest.fixture
def make_bell() -> Iterator[Callable[[], Doorbell]]:
    made: list[Doorbell] = []

    def make() -> Doorbell:
        made.append(Doorbell())
        return made[-1]

    yield make
    for bell in made:
        bell.close()


@pytest.fixture
def bell(make_bell: Callable[[], Doorbell]) -> Doorbell:
    return make_bell()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `python -c SCRIPT ARGUMENTS` from the root of the repository; killed when the test ends."""
    children: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object, pass_fds: tuple[int, ...] = (), before: tuple[str, ...] = ()):
        command = [*before, sys.executable, "-c", script, *map(str, arguments)]
        child = subprocess.Popen(command, pass_fds=pass_fds, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()
