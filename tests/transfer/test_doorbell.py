"""Bells wake whoever waits, always, and nobody waits for ever."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable

import pytest

from omnilab.seams import Bell
from omnilab.transfer.doorbell import Bells, Doorbell

from .conftest import Spawn

PATIENCE = 60.0  # s until a wait that should have ended counts as hung
NUM_RINGS = 20_000
MANY_RINGS = 1_000_000  # `make races`

RINGER = """
import mmap, random, sys, time
from omnilab.transfer.doorbell import Doorbell
there, back = Doorbell.adopt(int(sys.argv[1])), Doorbell.adopt(int(sys.argv[2]))
words = memoryview(mmap.mmap(int(sys.argv[3]), 16)).cast("Q")
delays = random.Random(1)
for number in range(1, int(sys.argv[4]) + 1):
    words[0] = number
    there.ring()
    if delays.random() < 0.02:
        time.sleep(delays.random() * 1e-3)
    while words[1] < words[0] and delays.random() < 0.8:
        if not back.wait(time.monotonic() + 60):
            sys.exit(f"no acknowledgement of {number}")
print("done")
"""
SLEEPER = "import os, sys, time; print('up', flush=True); time.sleep(600)"


def soon() -> float:
    return time.monotonic() + PATIENCE


def over() -> float:
    return time.monotonic()


def test_rings_add_up(bell: Doorbell) -> None:
    """A ring before the wait is lost, or one ring wakes twice."""
    for _ in range(3):
        bell.ring()
    assert bell.wait(soon())
    assert not bell.wait(over()) and not bell.wait(over() - 5)


def test_a_ring_never_blocks(bell: Doorbell) -> None:
    """The producer stops at a consumer that never reads."""
    os.eventfd_write(bell.fileno(), 2**64 - 2)
    bell.ring()
    assert bell.wait(soon()) and not bell.wait(over())


@pytest.mark.parametrize("make", [lambda bell: bell, lambda bell: Bells(bell, [])])
def test_the_deadline_holds(bell: Doorbell, make: Callable[[Doorbell], Bell]) -> None:
    """A wait returns before its deadline though nothing rang."""
    deadline = time.monotonic() + 0.3
    assert not make(bell).wait(deadline)
    assert time.monotonic() >= deadline


def test_no_deadline(bell: Doorbell) -> None:
    """An infinite or far deadline overflows."""
    for deadline in (float("inf"), time.monotonic() + 1e12):
        bell.ring()
        assert bell.wait(deadline)


def test_closed_bell() -> None:
    """A closed bell rings a descriptor that has been given out anew."""
    bell = Doorbell()
    bell.close()
    bell.close()
    for use in (bell.ring, bell.fileno, bell.drain, lambda: bell.wait(over())):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_bells_leave_the_others_unread(bell: Doorbell) -> None:
    """Waiting swallows a control message, or leaves the bell rung."""
    reader, writer = os.pipe()
    bells = Bells(bell, [reader])
    try:
        assert not bells.wait(over())
        bell.ring()
        assert bells.wait(soon()) and not bells.wait(over())
        os.write(writer, b"m")
        bell.ring()
        assert bells.wait(soon())
        assert not bell.wait(over())
        assert bells.wait(over()) and os.read(reader, 9) == b"m"
        assert not bells.wait(over())
    finally:
        os.close(reader)
        os.close(writer)
    with pytest.raises(OSError, match="closed"):
        bells.wait(soon())


@pytest.mark.parametrize(
    "num_rings",
    [NUM_RINGS, pytest.param(MANY_RINGS, marks=[pytest.mark.races, pytest.mark.timeout(0)])],
)
def test_no_wakeup_is_lost_between_processes(make_bell: Callable[[], Doorbell], spawn: Spawn, num_rings: int) -> None:
    """A ring between the last scan and the wait is lost: the consumer sleeps beside a published chunk."""
    there, back, memory = make_bell(), make_bell(), os.memfd_create("words")
    os.ftruncate(memory, 16)
    shared = mmap.mmap(memory, 16)
    words = memoryview(shared).cast("Q")
    delays = random.Random(2)
    fds = (there.fileno(), back.fileno(), memory)
    child = spawn(RINGER, *fds, num_rings, pass_fds=fds)
    try:
        while words[1] < num_rings:
            assert there.wait(soon()), f"asleep at {words[1]}, published {words[0]}"
            words[1] = words[0]
            if delays.random() < 0.02:
                time.sleep(delays.random() * 1e-3)
            back.ring()
        assert child.wait(PATIENCE) == 0
    finally:
        words.release()
        shared.close()
        os.close(memory)


def test_a_dead_producer_ends_the_wait(bell: Doorbell, spawn: Spawn) -> None:
    """The consumer waits for ever for a producer that was killed."""
    control, far = os.pipe()
    child = spawn(SLEEPER, pass_fds=(far, bell.fileno()))
    os.close(far)
    try:
        assert child.stdout and child.stdout.readline() == "up\n"
        bells = Bells(bell, [control])
        assert not bells.wait(over())
        child.kill()
        started = time.monotonic()
        assert bells.wait(soon()) and os.read(control, 1) == b""
        assert time.monotonic() - started < PATIENCE / 2
        assert not bell.wait(time.monotonic() + 0.3)
    finally:
        os.close(control)
