"""Connectors: how the chunks of one edge get from the producing to the consuming stage.

An edge has one producing stage, so a chunk is named by its request, any text at all, and its id; names are used once.
Producer: `put` (publishes, then rings the bell); `forget` once a request has ended, `close` before it when aborted.
Consumer: wait on the bell, `get` every wanted chunk, wait again; `close` when it is done with a request.

In shared memory a chunk is one tmpfs file, `EDGE/HASH OF THE REQUEST/CHUNK ID`; it appears by rename, whole or not at
all, and is unlinked when it is read. What is not yet published is `EDGE/tmp-*`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from omnilab.transfer.doorbell import Doorbell
from omnilab.transfer.encoding import Buffer

MAP_FROM = 64 << 10  # bytes; a smaller chunk is read faster than mapped
_PENDING = "tmp-"
_ROOT = "omnilab-"
_TRIES = 100  # to remove a folder into which stages still put


class EdgeFull(OSError):
    """There is no room for a chunk. Nothing was published; there is room once the consumer has read."""


class Connector(Protocol):
    """One edge, seen from either end. Every method may be called from any thread; none waits for the other end."""

    bell: Doorbell  # rung after each publication; not closed by the connector

    def put(self, request_id: str, chunk_id: int, buffers: Sequence[Buffer]) -> bool:
        """Publish a chunk, once per id; return False, having published nothing, when the request is closed.

        A request closed before its first put is not known to be: that put publishes, and `close` here drops it.
        """
        ...

    def get(self, request_id: str, chunk_id: int) -> Buffer | None:
        """Take a chunk, at most once; None when it is not there. The writable buffer is the caller's."""
        ...

    def close(self, request_id: str) -> None:
        """Drop the unread chunks of a request and refuse further ones; from either end, as often as you like."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop the producer's bookkeeping: it will put no more. Unread chunks stay until they are read or closed."""
        ...

    def held(self) -> int:
        """Count unread chunks, unpublished files, and requests not yet closed and forgotten; 0: nothing is left."""
        ...


class MemoryConnector:
    """Both ends in one process. Chunks are kept as bytes, so that nothing aliases what the producer goes on using."""

    def __init__(self, bell: Doorbell) -> None:
        self.bell = bell
        self._lock = threading.Lock()
        self._rooms: dict[str, dict[int, bytearray]] = {}
        self._known: set[str] = set()  # requests that have been put to: without a room now, they are closed

    def put(self, request_id: str, chunk_id: int, buffers: Sequence[Buffer]) -> bool:
        chunk = bytearray().join(buffers)
        with self._lock:
            if request_id not in self._known:
                self._known.add(request_id)
                self._rooms.setdefault(request_id, {})
            if (room := self._rooms.get(request_id)) is None:
                return False
            room[chunk_id] = chunk
        self.bell.ring()
        return True

    def get(self, request_id: str, chunk_id: int) -> bytearray | None:
        with self._lock:
            return self._rooms.get(request_id, {}).pop(chunk_id, None)

    def close(self, request_id: str) -> None:
        with self._lock:
            self._rooms.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._known.discard(request_id)

    def held(self) -> int:
        with self._lock:
            return sum(map(len, self._rooms.values())) + len(self._known | set(self._rooms))


class SharedMemoryConnector:
    """The ends in any processes of one host, an object each, made from the edge's folder and the edge's bell."""

    def __init__(self, path: Path, bell: Doorbell) -> None:
        """Raise NotADirectoryError when there is no such edge."""
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "no such edge: make it with EdgeFolder.new_edge()", str(path))
        self.bell = bell
        self._path = str(path)
        self._lock = threading.Lock()
        self._known: set[str] = set()  # rooms made here: one that has vanished is closed

    def put(self, request_id: str, chunk_id: int, buffers: Sequence[Buffer]) -> bool:
        """Publish a chunk; raise EdgeFull when it does not fit."""
        room, pending = self._room(request_id), self._pending()
        try:
            # A store into a full mapped tmpfs is SIGBUS; write(2) reports ENOSPC.
            with open(pending, "xb") as file:
                file.writelines(buffers)
            with self._lock:
                if room not in self._known:
                    with suppress(FileExistsError):
                        os.mkdir(room)
                    self._known.add(room)
            os.rename(pending, f"{room}/{chunk_id:d}")
        except FileNotFoundError:  # the room has been closed, or the edge destroyed
            return False
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise EdgeFull(error.errno, "no room for a chunk: enlarge /dev/shm or send less", self._path) from error
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(pending)
        self.bell.ring()
        return True

    def get(self, request_id: str, chunk_id: int) -> bytearray | mmap.mmap | None:
        """Take a chunk. From 64 KiB up it is mapped: its memory and a descriptor are freed with its last view."""
        path = f"{self._room(request_id)}/{chunk_id:d}"
        with suppress(FileNotFoundError):
            # Few system calls: after each one this thread waits for the interpreter's lock that the runner wants too.
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.unlink(path)  # of several takers one gets past this line
                size = os.fstat(file).st_size
                if size >= MAP_FROM:  # shared: a private map that is populated copies every page
                    return mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                chunk = bytearray(size)
                os.readv(file, [chunk])
                return chunk
            finally:
                os.close(file)
        return None

    def close(self, request_id: str) -> None:
        dead = self._pending()
        with suppress(FileNotFoundError):
            os.rename(self._room(request_id), dead)  # closed in one step; a put under way may still land in `dead`
            _remove(dead)

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._known.discard(self._room(request_id))

    def held(self) -> int:
        """Count chunks, unpublished files, requests with a room, and requests put to here and not forgotten."""
        names = os.listdir(self._path)
        rooms = {f"{self._path}/{name}" for name in names if not name.startswith(_PENDING)}
        num_chunks = 0
        for room in rooms:
            with suppress(FileNotFoundError):  # closed meanwhile
                num_chunks += len(os.listdir(room))
        with self._lock:
            return num_chunks + len(names) - len(rooms) + len(rooms | self._known)

    def _room(self, request_id: str) -> str:
        name = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{self._path}/{name}"

    def _pending(self) -> str:
        return f"{self._path}/{_PENDING}{os.urandom(8).hex()}"


class EdgeFolder:
    """Where the edges of one pipeline lie: `omnilab-*` in /dev/shm; in the temporary folder where that does not exist.

    The parent of the stages makes and destroys it. An flock on the folder says that its owner lives: see `sweep`.
    """

    def __init__(self, parent: Path | None = None) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_ROOT, dir=parent or _parent()))
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)  # swept between mkdtemp and flock

    def new_edge(self) -> Path:
        """Make the folder of one edge."""
        return Path(tempfile.mkdtemp(prefix="edge-", dir=self.path))

    def destroy(self) -> None:
        """Remove all of it; once is enough. Stages that still run find every request closed."""
        for _ in range(_TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():  # else a put under way has landed in it meanwhile
                break
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> EdgeFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.destroy()


def sweep(parent: Path | None = None) -> list[Path]:
    """Remove and return the folders of this user whose owners have died without destroying them."""
    return [path for path in (parent or _parent()).glob(f"{_ROOT}*") if remove_orphan(path)]


def remove_orphan(path: Path) -> bool:
    """Remove a pipeline's folder if it is this user's and its owner has died; return whether that was done here."""
    with suppress(OSError):  # vanished, not a folder, or its owner lives
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                return True
        finally:
            os.close(fd)
    return False


def _parent() -> Path:
    return shm if (shm := Path("/dev/shm")).is_dir() else Path(tempfile.gettempdir())


def _remove(room: str) -> None:
    while True:  # once more whenever a put under way has landed in it
        for name in os.listdir(room):
            with suppress(FileNotFoundError):  # a get under way has taken it
                os.unlink(f"{room}/{name}")
        try:
            return os.rmdir(room)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
