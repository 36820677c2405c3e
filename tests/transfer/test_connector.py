"""What every connector owes its two ends; each test runs over every connector."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from omnilab.transfer import Connector, Doorbell, EdgeFolder, MemoryConnector, SharedMemoryConnector, decode, encode

ODD_IDS = [
    "", ".", "..", "/", "../../escape", "/dev/shm/escape", "a/b", "a:b", "a b", "a\0b", "a\nb", "tmp-x", "0",
    "é", "🔔" * 200, "x" * 200, "x" * 200 + "y", "x" * 30 + "1", "x" * 30 + "2", "\udcff", "%2e%2e", "-rf", "~",
]  # fmt: skip
SIZES = [0, 1, 1000, 300_000]  # bytes: read, and mapped


class Ends(NamedTuple):
    producer: Connector
    consumer: Connector

    def held(self) -> int:
        return max(self.producer.held(), self.consumer.held())

    def put(self, request_id: str, chunk_id: int, value: object = None) -> bool:
        return self.producer.put(request_id, chunk_id, encode({"value": value}))

    def take(self, request_id: str, chunk_id: int) -> object:
        buffer = self.consumer.get(request_id, chunk_id)
        return None if buffer is None else decode(buffer)["value"]


def in_memory(_: Path, bell: Doorbell) -> Ends:
    connector = MemoryConnector(bell)
    return Ends(connector, connector)


def two_objects(edge: Path, bell: Doorbell) -> Ends:
    return Ends(SharedMemoryConnector(edge, bell), SharedMemoryConnector(edge, bell))


def one_object(edge: Path, bell: Doorbell) -> Ends:
    connector = SharedMemoryConnector(edge, bell)
    return Ends(connector, connector)


@pytest.fixture(params=[in_memory, two_objects, one_object], ids=lambda make: make.__name__)
def ends(request: pytest.FixtureRequest, folder: EdgeFolder, bell: Doorbell) -> Iterator[Ends]:
    """Both ends of an edge that must be empty when the test is over."""
    make: Callable[[Path, Doorbell], Ends] = request.param
    made = make(folder.new_edge(), bell)
    yield made
    assert made.held() == 0


def end(ends: Ends, *request_ids: str) -> None:
    for request_id in request_ids:
        ends.consumer.close(request_id)
        ends.producer.forget(request_id)


def test_consume_on_read(ends: Ends) -> None:
    """A chunk is read twice, before it is there, or out of turn."""
    assert ends.consumer.get("r", 0) is None
    for chunk_id in range(3):
        assert ends.put("r", chunk_id, chunk_id)
    assert [ends.take("r", chunk_id) for chunk_id in (1, 0, 1, 2, 3, 2)] == [1, 0, None, 2, None, None]
    end(ends, "r")


def test_put_rings(ends: Ends) -> None:
    """A chunk is published and nobody is told; or rung before it can be read."""
    bell = ends.consumer.bell
    assert not bell.wait(time.monotonic())
    assert ends.put("r", 0, 5) and bell.wait(time.monotonic() + 60) and ends.take("r", 0) == 5
    assert not bell.wait(time.monotonic())
    end(ends, "r")


@pytest.mark.parametrize("size", SIZES)
def test_sizes(ends: Ends, size: int) -> None:
    """Large chunks lose their end, or go with the file they were read from."""
    rows = torch.randint(256, (size,), dtype=torch.uint8)
    assert ends.put("r", 0, rows)
    got = ends.take("r", 0)
    end(ends, "r")
    assert isinstance(got, torch.Tensor) and torch.equal(got, rows)
    got.add_(1)


def test_nothing_is_not_no_chunk(ends: Ends) -> None:
    """An empty chunk is taken for a missing one, or stays behind."""
    assert ends.producer.put("r", 0, []) and ends.producer.put("r", 1, encode({}))
    assert bytes(ends.consumer.get("r", 0) or b"none") == b"none" and ends.consumer.get("r", 0) is None
    buffer = ends.consumer.get("r", 1)
    assert buffer is not None and decode(buffer) == {}
    end(ends, "r")


def test_what_was_put_is_frozen(ends: Ends) -> None:
    """The reader sees what the producer wrote into its buffer after the put."""
    rows = torch.ones(4)
    assert ends.put("r", 0, rows)
    rows.zero_()
    got = ends.take("r", 0)
    assert isinstance(got, torch.Tensor) and got.tolist() == [1, 1, 1, 1]
    end(ends, "r")


def test_odd_ids(ends: Ends, folder: EdgeFolder) -> None:
    """Ids are cut, mixed up, or taken for paths."""
    around = set(folder.path.iterdir())
    for number, request_id in enumerate(ODD_IDS):
        assert ends.put(request_id, 0, number) and ends.put(request_id, 1, -number)
    assert set(folder.path.iterdir()) == around and not Path("/dev/shm/escape").exists()
    ends.consumer.close(ODD_IDS[-1])
    got = [(ends.take(request_id, 0), ends.take(request_id, 1)) for request_id in ODD_IDS]
    assert got == [*((number, -number) for number in range(len(ODD_IDS) - 1)), (None, None)]
    end(ends, *ODD_IDS)


@pytest.mark.parametrize("size", [10, 100_000])
def test_at_most_once_with_four_readers(ends: Ends, size: int) -> None:
    """Two readers get the same chunk, or none does."""
    num_chunks, rows = 100, torch.ones(size, dtype=torch.uint8)
    start, taken = threading.Barrier(4), [[0] * num_chunks for _ in range(4)]

    def read(mine: list[int]) -> None:
        start.wait()
        for chunk_id in range(num_chunks):
            buffer = ends.consumer.get("r", chunk_id)
            mine[chunk_id] += buffer is not None and decode(buffer)["id"] == chunk_id

    for chunk_id in range(num_chunks):
        assert ends.producer.put("r", chunk_id, encode({"id": chunk_id, "rows": rows}))
    readers = [threading.Thread(target=read, args=(mine,)) for mine in taken]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [sum(each) for each in zip(*taken, strict=True)] == [1] * num_chunks
    end(ends, "r")


def test_put_after_close(ends: Ends) -> None:
    """Chunks pile up for a request that its consumer has given up."""
    bell = ends.consumer.bell
    assert ends.put("r", 0, 0) and ends.put("r", 1, 1) and ends.put("other", 0, 7)
    bell.drain()
    ends.consumer.close("r")
    ends.consumer.close("r")
    assert not ends.put("r", 2, 2) and not ends.put("r", 3, 3)
    assert not bell.wait(time.monotonic()), "rang for nothing"
    assert [ends.take("r", chunk_id) for chunk_id in range(4)] == [None] * 4
    assert ends.take("other", 0) == 7
    ends.producer.forget("r")
    ends.producer.close("other")
    end(ends, "other")


def test_close_before_the_first_put(ends: Ends) -> None:
    """A chunk put after a close that came before anything else stays for ever."""
    ends.consumer.close("r")
    ends.put("r", 0, 0)
    ends.producer.close("r")
    ends.producer.forget("r")
    assert ends.take("r", 0) is None


def test_forget_keeps_what_is_unread(ends: Ends) -> None:
    """The producer's clean-up drops the last chunk before it has been read."""
    assert ends.put("r", 0, 1)
    ends.producer.forget("r")
    ends.producer.forget("never seen")
    assert ends.take("r", 0) == 1
    ends.consumer.close("r")


def test_held_counts(ends: Ends) -> None:
    """A leak that no count shows."""
    assert ends.held() == 0
    ends.put("r", 0)
    ends.put("r", 1)
    assert ends.held() == 3
    ends.take("r", 0)
    assert ends.held() == 2
    ends.consumer.close("r")
    assert ends.producer.held() == 1
    ends.producer.forget("r")


def test_nothing_stays_behind(ends: Ends, folder: EdgeFolder) -> None:
    """Requests that ended, were aborted, or were never read leave files or entries."""
    before = sorted(folder.path.rglob("*"))
    for number in range(50):
        request_id = f"r{number}"
        for chunk_id in range(3):
            ends.put(request_id, chunk_id, [number])
        if number % 3:
            ends.take(request_id, 0)
        if number % 2:
            ends.producer.close(request_id)
        end(ends, request_id)
    assert ends.held() == 0 and sorted(folder.path.rglob("*")) == before


def test_close_while_chunks_are_put_and_read(ends: Ends) -> None:
    """A put or a get that meets a close leaves its chunk behind, or raises."""
    num_requests, errors = 300, list[BaseException]()

    def guarded(work: Callable[[str], object]) -> None:
        try:
            for number in range(num_requests):
                work(f"r{number}")
        except BaseException as error:
            errors.append(error)

    def produce(request_id: str) -> None:
        for chunk_id in range(4):
            if not ends.put(request_id, chunk_id):
                break
        ends.producer.close(request_id)
        ends.producer.forget(request_id)

    def consume(request_id: str) -> None:
        for chunk_id in range(random.randrange(4)):
            ends.consumer.get(request_id, chunk_id)
        ends.consumer.close(request_id)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (produce, consume, consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and ends.held() == 0
