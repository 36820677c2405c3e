"""For every test: one torch thread, a model cache of the session's own, and nothing left behind."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

# A shell that starts the tests in the background makes SIGINT ignored, and every process that they start inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the named sizes once a session, not into the user's cache; child processes see it too."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("models")
        patch.setenv("OMNILAB_CACHE", str(root))
        patch.setenv("TRANSFORMERS_VERBOSITY", "error")
        yield root


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail when a test leaves a process, a file in shared memory or a temporary file behind."""
    before = leftovers()
    yield
    assert not left_since(before)


def left_since(before: tuple[set[str], set[int]]) -> list[object]:
    """Return what is left now that was not before; what others had left may have been swept."""
    folders, children = leftovers()
    return [*(folders - before[0]), *(children - before[1])]


def leftovers() -> tuple[set[str], set[int]]:
    """Return omnilab folders in shared memory that no live pipeline owns, and this process's children."""
    orphans = {path.name for path in Path("/dev/shm").glob("omnilab-*") if not _owned(path)}
    return orphans, {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}


def _owned(path: Path) -> bool:
    """Does a live process hold the folder's lock? Other pipelines may run on this machine."""
    with suppress(FileNotFoundError):
        folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(folder)
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where torch sees none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """What the imports have made stays to the end: no collection of garbage walks it again."""
    gc.collect()
    gc.freeze()
