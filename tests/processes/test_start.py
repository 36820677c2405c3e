"""How a stage's process starts: what reaches its parent's group meanwhile is not for it."""

from __future__ import annotations

import pickle
import signal
import socket
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace

import cloudpickle

from omnilab.engine.worker import end_process, start_process


def test_an_interrupt_that_comes_before_it_can_say_so_is_not_for_it() -> None:
    """One after the fork and before it has a group of its own ended it; the pipeline then never opened."""

    def no_runner(spec: object, recipe: object) -> None:
        raise RuntimeError("as far as its runner")

    here, there = socket.socketpair()
    with there:
        process = start_process("worker", there.fileno())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with Connection(here.detach()) as connection:
            spec = SimpleNamespace(stage="talker", num_threads=1, make_runner=no_runner)
            connection.send_bytes(cloudpickle.dumps((spec, None)))
            connection.send_bytes(pickle.dumps("a message"))
            deadline = time.monotonic() + 60
            while not connection.poll(0.05):
                process.send_signal(signal.SIGINT)
                assert time.monotonic() < deadline
            assert "as far as its runner" in str(pickle.loads(connection.recv_bytes()))
    finally:
        end_process(process)
