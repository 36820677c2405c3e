"""What a loop sleeps on: an eventfd that another thread or process rings.

No wake-up is lost when the producer publishes, then rings, and the consumer waits (which drains the bell), then scans
everything it wants, then waits again: a ring after the scan began is still in the bell at the next wait.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress


class Doorbell:
    """Rings add up and never block; one wait takes them all. One thread waits; any number ring.

    An eventfd does not notice that its producer has died: wait on the control channel too (`Bells`).
    Close it only after the threads that use it have ended: the number of a closed descriptor is given out anew.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @classmethod
    def adopt(cls, fd: int) -> Doorbell:
        """Take over a bell by its number, in a child started with `pass_fds=[bell.fileno()]`; OSError if not open."""
        bell = cls.__new__(cls)
        os.set_inheritable(fd, False)
        bell._fd = fd
        return bell

    def ring(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        with suppress(BlockingIOError):  # the counter is full: rung already
            os.eventfd_write(self.fileno(), 1)

    def wait(self, deadline: float) -> bool:
        """Sleep until rung or until `deadline` (time.monotonic(), s; may be inf); return whether it was rung."""
        return bool(_ready((self.fileno(),), deadline)) and self.drain()

    def drain(self) -> bool:
        """Take all rings so far, without waiting; return whether there were any."""
        with suppress(BlockingIOError):
            return os.eventfd_read(self.fileno()) > 0
        return False

    def fileno(self) -> int:
        """Return its descriptor, readable while it is rung; ValueError after `close`."""
        if self._fd < 0:
            raise ValueError("the doorbell is closed")
        return self._fd

    def close(self) -> None:
        """Give the descriptor back, in this process; once is enough."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Bells:
    """One doorbell and other descriptors, waited on at once; ready descriptors are for the caller to read.

    A descriptor whose peer has gone stays ready: the caller must take it out, or it spins.
    """

    def __init__(self, doorbell: Doorbell, also: Iterable[int]) -> None:
        self._doorbell, self._also = doorbell, tuple(also)

    def wait(self, deadline: float) -> bool:
        """Sleep until anything is ready or `deadline` (time.monotonic(), s); the doorbell is drained.

        Raises OSError (EBADF) when one of the descriptors has been closed here.
        """
        ready = _ready((self._doorbell.fileno(), *self._also), deadline)
        self._doorbell.drain()
        return bool(ready)


def _ready(fds: Sequence[int], deadline: float) -> list[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    seconds = min(max(0.0, deadline - time.monotonic()), 1e6)  # poll takes no more than 2**31 ms
    events = poll.poll(seconds * 1000)
    for fd, event in events:
        if event & select.POLLNVAL:
            raise OSError(errno.EBADF, f"descriptor {fd} is waited on but closed")
    return [fd for fd, _ in events]
