"""One scripted run for the room; tests change copies of it."""

import shutil

import pytest

from tests.board.scripted_run import make_run


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory):
    """A run of five variants and A/A that no test changes."""
    return make_run(tmp_path_factory.mktemp("board") / "run")


@pytest.fixture
def logdir(kept_run, tmp_path):
    """A folder with a copy of the run, and room for others."""
    shutil.copytree(kept_run, tmp_path / "logs" / "mine")
    return tmp_path / "logs"
