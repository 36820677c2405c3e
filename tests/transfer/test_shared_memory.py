"""Processes that die, memory that is full: nothing half-written is read, nothing stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from omnilab.transfer import Bells, Doorbell, EdgeFolder, SharedMemoryConnector, decode, encode, sweep

from .conftest import Spawn

PATIENCE = 60.0  # s until a wait that should have ended counts as hung

SETUP = """
import os, signal, sys
from pathlib import Path
import torch
from omnilab.transfer import Doorbell, EdgeFolder, EdgeFull, SharedMemoryConnector, encode
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""
TORN = """
edge = SharedMemoryConnector(Path(sys.argv[1]), Doorbell())
edge.put("r", 0, encode({"whole": 1}))
os.rename = die
edge.put("r", 1, encode({"rows": torch.ones(100_000)}))
"""
OWNER = """
folder = EdgeFolder(Path(sys.argv[1]))
edge = SharedMemoryConnector(folder.new_edge(), Doorbell())
edge.put("r", 0, encode({}))
print(folder.path, flush=True)
die()
"""
FULL = """
edge = SharedMemoryConnector(EdgeFolder(Path(sys.argv[1])).new_edge(), Doorbell())
chunk = encode({"rows": torch.ones(100_000, dtype=torch.uint8)})
try:
    for num_put in range(99):
        edge.put("r", num_put, chunk)
except EdgeFull as error:
    assert isinstance(error, OSError) and "room" in str(error), error
assert num_put == 10, num_put
assert edge.held() == num_put + 1, "something was published or left"
edge.bell.drain()
assert edge.get("r", num_put) is None and not edge.bell.drain()
for chunk_id in range(3):
    assert len(edge.get("r", chunk_id)) > 100_000
assert edge.put("r", num_put, chunk) and edge.get("r", num_put)[-9:] == bytes([1] * 9)
edge.close("r"), edge.forget("r")
assert edge.held() == 0
print("done")
"""
PRODUCER = """
import random, time
edge = SharedMemoryConnector(Path(sys.argv[1]), Doorbell.adopt(int(sys.argv[2])))
for number in range(400):
    for name in ("a", "../b"):
        assert edge.put(name, number, encode({"number": number, "rows": torch.full((number * 100,), number)}))
    if random.random() < 0.1:
        time.sleep(random.random() * 3e-3)
edge.forget("a"), edge.forget("../b")
"""


@pytest.fixture
def parent() -> Iterator[Path]:
    """A place for folders, so that no other user of /dev/shm is swept or listed."""
    path = Path(tempfile.mkdtemp(prefix="test-omnilab-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield path
    shutil.rmtree(path)


def test_chunks_cross_processes(folder: EdgeFolder, bell: Doorbell, spawn: Spawn) -> None:
    """A chunk is lost, changed, or found only by polling."""
    path, (control, far) = folder.new_edge(), os.pipe()
    child = spawn(SETUP + PRODUCER, path, bell.fileno(), pass_fds=(bell.fileno(), far))
    os.close(far)
    edge, bells = SharedMemoryConnector(path, bell), Bells(bell, [control])
    wanted = {"a": 0, "../b": 0}
    while any(number < 400 for number in wanted.values()):
        assert bells.wait(time.monotonic() + PATIENCE), f"asleep at {wanted}"
        for name in wanted:
            while (buffer := edge.get(name, wanted[name])) is not None:
                payload = decode(buffer)
                assert payload["number"] == wanted[name] and bool((payload["rows"] == wanted[name]).all())
                wanted[name] += 1
        assert child.poll() in (None, 0)
    assert child.wait(PATIENCE) == 0
    os.close(control)
    edge.close("a")
    edge.close("../b")
    assert edge.held() == 0


def test_killed_between_write_and_publish(folder: EdgeFolder, bell: Doorbell, spawn: Spawn) -> None:
    """A half-written chunk is read, or outlives the edge."""
    path = folder.new_edge()
    assert spawn(SETUP + TORN, path).wait(PATIENCE) == -signal.SIGKILL
    edge = SharedMemoryConnector(path, bell)
    whole = edge.get("r", 0)
    assert whole is not None and decode(whole) == {"whole": 1}
    assert edge.get("r", 1) is None
    edge.close("r")
    assert edge.held() == 1, "the unpublished file is not counted"
    folder.destroy()
    assert not path.exists()


def test_sweep_takes_only_the_dead(parent: Path, spawn: Spawn) -> None:
    """The next start removes what a live one uses, or leaves what a dead one left."""
    with EdgeFolder(parent) as live:
        child = spawn(SETUP + OWNER, parent)
        assert child.stdout
        dead = Path(child.stdout.readline().strip())
        assert child.wait(PATIENCE) == -signal.SIGKILL and dead.is_dir()
        (parent / "omnilab-file").touch()
        (parent / "omnilab-link").symlink_to(live.path)
        (parent / "other").mkdir()
        assert sweep(parent) == [dead]
        assert not dead.exists() and live.path.is_dir() and sweep(parent) == []
        assert (parent / "omnilab-file").exists() and (parent / "other").exists()
    assert not live.path.exists()


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (fcntl, "flock")])
def test_swept_while_made(parent: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """A sweep between making and locking takes a folder that is then used."""
    call: Callable[..., Any] = getattr(module, name)
    swept: list[Path] = []

    def sweep_first(*arguments: Any, **named: Any) -> Any:
        if not swept:
            swept.append(parent)
            swept[:] = sweep(parent)
        return call(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, sweep_first)
        folder = EdgeFolder(parent)
    with folder:
        assert len(swept) == 1 and folder.path not in swept and folder.new_edge().is_dir()


def test_full_memory(parent: Path, spawn: Spawn) -> None:
    """A full tmpfs kills the producer (SIGBUS), publishes half a chunk, or is reported as something else."""
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    script = 'tmpfs=$1; shift; mount -t tmpfs -o size=1m full "$tmpfs" && exec "$@"'
    before = (*alone, script, "sh", str(parent))
    if shutil.which("unshare") is None:
        pytest.skip("cannot mount a small tmpfs here: there is no unshare")
    tried = subprocess.run([*before, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {tried.stderr.strip()}")
    child = spawn(SETUP + FULL, parent, before=before)
    output, _ = child.communicate(timeout=PATIENCE)
    assert (child.returncode, output) == (0, "done\n")


def test_views_outlive_the_edge(folder: EdgeFolder, bell: Doorbell) -> None:
    """Rows vanish, or fault, when the edge they came over is destroyed."""
    edge = SharedMemoryConnector(folder.new_edge(), bell)
    assert edge.put("r", 0, encode({"rows": torch.ones(100_000)}))
    buffer = edge.get("r", 0)
    assert buffer is not None
    rows = decode(buffer)["rows"]
    del buffer
    folder.destroy()
    assert rows.add_(1).sum().item() == 200_000


def test_a_destroyed_edge(folder: EdgeFolder, bell: Doorbell) -> None:
    """A stage that outlives its edge makes the folder anew, or fails on clean-up."""
    path = folder.new_edge()
    edge = SharedMemoryConnector(path, bell)
    assert edge.put("r", 0, encode({}))
    folder.destroy()
    folder.destroy()
    assert not edge.put("r", 1, encode({})) and not edge.put("s", 0, encode({})) and edge.get("r", 0) is None
    edge.close("r")
    assert not folder.path.exists()
    with pytest.raises(NotADirectoryError, match="new_edge"):
        SharedMemoryConnector(path, bell)


def test_destroyed_during_a_put(folder: EdgeFolder, bell: Doorbell) -> None:
    """A put makes a destroyed folder anew: it stays in shared memory for ever."""
    edge = SharedMemoryConnector(folder.new_edge(), bell)

    def buffers() -> Iterator[bytes]:
        yield b"first"
        folder.destroy()
        yield b"second"

    assert not edge.put("r", 0, buffers())  # type: ignore[arg-type]
    assert not folder.path.exists()


def test_put_and_get_meet_a_close(folder: EdgeFolder, bell: Doorbell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A room stays because a chunk landed in it, or was taken from it, while it was being removed."""
    edge = SharedMemoryConnector(folder.new_edge(), bell)
    list_names, remove_folder, landed = os.listdir, os.rmdir, list[str]()

    def remove_late(room: str) -> None:
        if not landed:
            landed.append(f"{room}/1")
            Path(landed[0]).touch()
        remove_folder(room)

    assert edge.put("r", 0, encode({}))
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda room: [*list_names(room), "taken"])
        patch.setattr(os, "rmdir", remove_late)
        edge.close("r")
    edge.forget("r")
    assert landed and edge.held() == 0


def test_published_before_rung(folder: EdgeFolder, bell: Doorbell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell rings before the chunk can be read: the consumer scans too early and sleeps."""
    edge, seen = SharedMemoryConnector(folder.new_edge(), bell), list[bool]()
    monkeypatch.setattr(bell, "ring", lambda: seen.append(edge.get("r", 0) is not None))
    assert edge.put("r", 0, encode({}))
    assert seen == [True]
    edge.close("r")


def test_where_folders_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folders go to a disk though there is shared memory, or nowhere where there is none."""
    with EdgeFolder() as usual:
        assert usual.path.parent == Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
        assert usual.path.name.startswith("omnilab-")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    is_dir: Callable[[Path], bool] = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: path != Path("/dev/shm") and is_dir(path))
    with EdgeFolder() as other:
        assert other.path.parent == tmp_path and sweep() == []
    assert not usual.path.exists() and not other.path.exists()
