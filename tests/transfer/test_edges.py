"""Sender and receiver around a connector: order, ids, ends, failures and deadlines of one edge, without an engine."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from omnilab.errors import RequestFailed, StageFailed, Timeout
from omnilab.record import Recorder
from omnilab.seams import FINISHED, NEW_FRAMES, NUM_OUTPUTS, Accumulate, MakeSave, Outbox, Payload, Snapshot, TalkerRows
from omnilab.toggles.async_save import BuildInBackground, PutInBackground
from omnilab.toggles.small_first_chunk import full_first_chunk
from omnilab.toggles.stateful_vocode import WindowedVocode
from omnilab.transfer import Connector, Doorbell, EdgeFolder, MemoryConnector, SharedMemoryConnector
from omnilab.transfer.codec_chunks import CodecChunks
from omnilab.transfer.encoding import Buffer
from omnilab.transfer.receiver import Inlet, Receiver
from omnilab.transfer.sender import Sender

SAVES = pytest.mark.parametrize("save", [PutInBackground, BuildInBackground])
ODD_IDS = [
    "", "0", "x", "x" * 200, "y" * 30, "y" * 30 + "1", "y" * 30 + "2", "a/b", "a:b", "a b", "..", "../..", ".",
    "/etc/passwd", "ünï-例え-🙂", "tmp-1", "a\x00b", "edge-1",
]  # fmt: skip


@dataclass(eq=False)
class Request:
    """Satisfies seams.LiveRequest."""

    request_id: str
    prompt_ids: list[int] = field(default_factory=lambda: [1])
    output_ids: list[int] = field(default_factory=list)
    finished: bool = False
    outbox: Outbox = field(default_factory=lambda: Outbox(""))

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.request_id)


@dataclass(frozen=True)
class Rows:
    """Rows of one step; nothing is sent for a step without."""

    value: int | None


def build(state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
    """A chunk with the step's value as a row, a list as long as the outputs, and how many were built before."""
    if snapshot.rows.value is None:
        return None
    state["built"] = state.get("built", 0) + 1
    rows = torch.full((2, 3), float(snapshot.rows.value))
    return {"rows": rows, "ids": snapshot.output_ids[: snapshot.num_outputs], "before": state["built"] - 1}


class Edge:
    """Both ends around one connector."""

    def __init__(self, save: MakeSave, connector: Connector, **more: Any) -> None:
        self.failures: list[RequestFailed] = []
        self.saved, self.rung = 0, 0
        self.sends, self.receives = Recorder("thinker", "send"), Recorder("talker", "receive")
        self.connector = connector
        accumulate: Accumulate = more.get("accumulate", lambda held, chunk: {**(held or {}), **chunk})
        self.sender = Sender(
            stage="thinker", connector=connector, builder=more.get("builder", build), make_save=save,
            recorder=self.sends, saved=self._count_saved, failed=self.failures.append,
        )  # fmt: skip
        self.receiver = Receiver(
            stage="talker", producer="thinker", connector=more.get("inward", connector), accumulate=accumulate,
            recorder=self.receives, timeout_s=more.get("timeout_s", 30.0), arrived=self._count_rung,
            failed=self.failures.append,
        )  # fmt: skip

    def _count_saved(self) -> None:
        self.saved += 1

    def _count_rung(self) -> None:
        self.rung += 1

    def step(self, request: Request, value: int | None, *, finished: bool = False) -> None:
        """One step of a producer."""
        request.output_ids.append(len(request.output_ids))
        request.finished = finished
        self.sender.save(request, Rows(value))

    def drain(self) -> None:
        """Let the sender work until there is nothing."""
        while self.sender.step():
            pass

    def received(self, request_id: str) -> list[Payload]:
        """Take chunks until the finished one, or until there is none."""
        inlet, chunks = Inlet(request_id), list[Payload]()
        while True:
            self.receiver.want(inlet)
            self.receiver.step()
            if (taken := self.receiver.take()) is None:
                inlet.closed = True
                self.receiver.step()
                return chunks
            chunks.append(taken[1])
            if taken[1][FINISHED]:
                return chunks


def values(chunks: list[Payload]) -> list[int]:
    """The steps' values that have come."""
    return [int(chunk["rows"][0, 0]) for chunk in chunks if "rows" in chunk]


@pytest.fixture(params=["memory", "shared_memory"])
def connector(request: pytest.FixtureRequest, bell: Doorbell, folder: EdgeFolder) -> Connector:
    return MemoryConnector(bell) if request.param == "memory" else SharedMemoryConnector(folder.new_edge(), bell)


@pytest.fixture
def memory(bell: Doorbell) -> MemoryConnector:
    return MemoryConnector(bell)


@SAVES
def test_ids_have_no_gap_where_a_step_sends_nothing(save: MakeSave, connector: Connector) -> None:
    """Kind: a chunk id taken for a step that has nothing to send."""
    edge, request = Edge(save, connector), Request("r")
    for value in (None, 10, None, None, 11, 12):
        edge.step(request, value)
    edge.step(request, None, finished=True)
    edge.drain()
    chunks = edge.received("r")
    assert values(chunks) == [10, 11, 12, 12]  # accumulated: the end brings no rows of its own
    assert [chunk["before"] for chunk in chunks] == [0, 1, 2, 2]
    assert [chunk[FINISHED] for chunk in chunks] == [False, False, False, True]
    assert [chunk[NUM_OUTPUTS] for chunk in chunks] == [2, 5, 6, 7]
    assert request.outbox.next_chunk_id == 4 and request.outbox.closed
    assert edge.saved == 7 and edge.rung == 4 and not edge.failures


@SAVES
def test_the_end_always_leaves(save: MakeSave, connector: Connector) -> None:
    """Kind: a request with nothing to send never ends for its consumer."""
    edge = Edge(save, connector)
    edge.step(Request("only the end"), None, finished=True)
    edge.step(Request("with data"), 5, finished=True)
    edge.drain()
    (only,), (data,) = edge.received("only the end"), edge.received("with data")
    assert only == {FINISHED: True, NUM_OUTPUTS: 1}
    assert data[FINISHED] and values([data]) == [5]


@SAVES
def test_odd_request_ids_are_not_mixed_up(save: MakeSave, connector: Connector, folder: EdgeFolder) -> None:
    """Kind: an id that is cut, escaped, or taken for a path."""
    edge, before = Edge(save, connector), {path for path in folder.path.parent.iterdir() if path != folder.path}
    requests = [Request(request_id) for request_id in ODD_IDS]
    for step in range(3):
        for number, request in enumerate(requests):
            edge.step(request, 100 * number + step, finished=step == 2)
    edge.drain()
    inside = {path for path in folder.path.rglob("*") if not path.resolve().is_relative_to(folder.path.resolve())}
    assert not inside and before <= set(folder.path.parent.iterdir())
    for number, request_id in reversed(list(enumerate(ODD_IDS))):
        assert values(edge.received(request_id)) == [100 * number + step for step in range(3)]
    for request_id in ODD_IDS:
        connector.close(request_id)
        connector.forget(request_id)
    assert connector.held() == 0


@SAVES
def test_what_save_was_given_is_what_arrives(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: the live request is read when the chunk is built: later tokens and the end are in earlier chunks."""
    edge, request = Edge(save, memory), Request("r")
    for value in range(5):
        edge.step(request, value, finished=value == 4)  # five steps before the saver gets to the first
    request.output_ids.extend(range(100, 200))
    edge.drain()
    chunks = edge.received("r")
    assert [chunk["ids"] for chunk in chunks] == [list(range(n)) for n in range(1, 6)]
    assert [chunk[FINISHED] for chunk in chunks] == [False] * 4 + [True]
    assert [chunk[NUM_OUTPUTS] for chunk in chunks] == [1, 2, 3, 4, 5]


@SAVES
def test_chunks_of_16_requests_keep_their_order(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: a queue shared by requests loses the order of one of them."""
    for seed in range(10):
        rng, edge = random.Random(seed), Edge(save, memory)
        requests = [Request(f"{seed}/{number}") for number in range(16)]
        inlets = {request.request_id: Inlet(request.request_id) for request in requests}
        got: dict[str, list[int]] = {request_id: [] for request_id in inlets}
        for inlet in inlets.values():
            edge.receiver.want(inlet)
        left = {request.request_id: 0 for request in requests}
        while any(len(chunks) < 30 for chunks in got.values()):
            live = rng.choice(requests)
            if left[live.request_id] < 30:
                left[live.request_id] += 1
                edge.step(live, left[live.request_id], finished=left[live.request_id] == 30)
            for _ in range(rng.choice((0, 1, 1, 3))):
                edge.sender.step()
            if rng.random() < 0.5:
                edge.receiver.step()
            while (taken := edge.receiver.take()) is not None:
                inlet, held = taken
                got[inlet.request_id].append(int(held["rows"][0, 0]))
                if not held[FINISHED]:
                    edge.receiver.want(inlet)
        assert all(chunks == list(range(1, 31)) for chunks in got.values())
        assert all(request.outbox.next_chunk_id == 30 for request in requests)
        assert edge.receiver.entries() == 0


@SAVES
def test_threads_with_random_delays_keep_the_order(save: MakeSave, connector: Connector) -> None:
    """Kind: the saver's thread and the engine's touch the queue without order."""
    edge = Edge(save, connector, timeout_s=60)
    requests = [Request(f"r{number}") for number in range(8)]
    stop = threading.Event()

    def loop(step: Callable[[], bool], seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            if not step():
                time.sleep(rng.random() * 0.002)

    steps = (edge.sender.step, edge.receiver.step)
    threads = [threading.Thread(target=loop, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    try:
        got: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for request in requests:
            edge.receiver.want(Inlet(request.request_id))
        deadline = time.monotonic() + 60
        step = 0
        while any(len(chunks) < 40 for chunks in got.values()):
            assert time.monotonic() < deadline
            if step < 40:
                step += 1
                for request in requests:
                    edge.step(request, step, finished=step == 40)
            while (taken := edge.receiver.take()) is not None:
                got[taken[0].request_id].append(int(taken[1]["rows"][0, 0]))
                if not taken[1][FINISHED]:
                    edge.receiver.want(taken[0])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(chunks == list(range(1, 41)) for chunks in got.values())
    assert not edge.failures


class Refusing:
    """A connector whose put fails as often as it is told to; after that it works."""

    def __init__(self, inner: Connector, failing: Iterator[bool]) -> None:
        self.inner, self.failing, self.bell = inner, failing, inner.bell

    def put(self, request_id: str, chunk_id: int, buffers: list[Buffer]) -> bool:
        if next(self.failing):
            raise OSError("no room")
        return self.inner.put(request_id, chunk_id, buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@SAVES
def test_a_put_that_fails_ends_its_request_once(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: a send that failed is swallowed, and the next chunk takes its place or leaves a hole."""
    edge = Edge(save, Refusing(memory, iter([False, True] + [False] * 10)))  # pyright: ignore[reportArgumentType]
    one, two = Request("one"), Request("two")
    for value in range(4):
        edge.step(one, value)
    edge.step(two, 7, finished=True)
    edge.drain()
    (failure,) = edge.failures
    assert isinstance(failure, StageFailed) and failure.stage == "thinker" and failure.request == "one"
    assert "could not put chunk 1" in str(failure) and "no room" in str(failure)
    assert one.outbox.closed
    assert values(edge.received("one")) == [0]
    assert values(edge.received("two")) == [7]


@SAVES
def test_a_build_that_raises_ends_its_request_once(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: an exception in a builder ends the loop that called it."""

    def builder(state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        if snapshot.outbox.request_id == "one" and snapshot.rows.value == 1:
            raise ArithmeticError("scripted")
        return build(state, snapshot)

    edge, one, two = Edge(save, memory, builder=builder), Request("one"), Request("two")
    for value in range(4):
        edge.step(one, value, finished=value == 3)
        edge.step(two, value, finished=value == 3)
    edge.drain()
    (failure,) = edge.failures
    assert "could not build chunk 1" in str(failure) and failure.request == "one"
    assert values(edge.received("one")) in ([], [0])  # closed at once: what was built before may not have left
    assert values(edge.received("two")) == [0, 1, 2, 3]


@SAVES
def test_nothing_leaves_a_closed_outbox(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: a saver that runs late puts chunks of a request that has been released: they stay for ever."""
    edge, request = Edge(save, memory), Request("r")
    edge.step(request, 0)
    edge.drain()
    edge.step(request, 1)
    edge.step(request, 2, finished=True)
    request.outbox.closed = True  # as the engine does on an abort
    memory.close("r")
    memory.forget("r")
    edge.step(request, 3)
    edge.drain()
    assert memory.held() == 0 and not edge.failures
    built_before = 3 if save is PutInBackground else 1  # nor is anything built for it
    assert request.outbox.state["built"] == built_before


@SAVES
def test_a_closed_consumer_stops_the_producer(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: a put that is refused is taken for one that failed, or is tried for ever."""
    edge, request = Edge(save, memory), Request("r")
    edge.step(request, 0)
    edge.drain()
    memory.close("r")
    for value in range(1, 4):
        edge.step(request, value, finished=value == 3)
    edge.drain()
    assert request.outbox.closed and not edge.failures
    assert edge.sends.counts["chunks_refused"] == 1 and edge.sends.counts["chunks_put"] == 1
    memory.forget("r")
    assert memory.held() == 0


@SAVES
def test_closing_waits_for_the_put_under_way(save: MakeSave, memory: MemoryConnector) -> None:
    """Kind: a request is closed while its chunk is being put, and the chunk stays behind."""
    putting, go_on = threading.Event(), threading.Event()

    class Slow(Refusing):
        def put(self, request_id: str, chunk_id: int, buffers: list[Buffer]) -> bool:
            putting.set()
            assert go_on.wait(30)
            return self.inner.put(request_id, chunk_id, buffers)

    edge, request = Edge(save, Slow(memory, iter(()))), Request("r")  # pyright: ignore[reportArgumentType]
    edge.step(request, 0)
    thread = threading.Thread(target=edge.drain)
    thread.start()
    assert putting.wait(30)
    threading.Timer(0.05, go_on.set).start()
    with request.outbox.lock:  # as the engine does on an abort
        assert go_on.is_set()
        request.outbox.closed = True
    memory.close("r")
    memory.forget("r")
    thread.join()
    assert memory.held() == 0


def test_a_deadline_names_stage_chunk_and_request(memory: MemoryConnector) -> None:
    """Kind: a wait for ever, or an error that does not say for what."""
    edge = Edge(PutInBackground, memory, timeout_s=0.05)
    edge.receiver.want(Inlet("r"))
    assert edge.receiver.pending and edge.receiver.entries() == 1
    deadline = time.monotonic() + 30
    while not edge.failures:
        edge.receiver.step()
        assert time.monotonic() < deadline
    (failure,) = edge.failures
    assert isinstance(failure, Timeout) and (failure.stage, failure.request) == ("talker", "r")
    assert "waited 0.05 s for chunk 0 of the thinker" in str(failure)
    assert not edge.receiver.pending and not edge.receiver.step()


def test_a_get_that_raises_is_tried_again(memory: MemoryConnector) -> None:
    """Kind: the polling loop dies of the first transient error."""

    class Flaky(Refusing):
        def get(self, request_id: str, chunk_id: int) -> Buffer | None:
            if next(self.failing):
                raise OSError("for a moment")
            return self.inner.get(request_id, chunk_id)

    edge = Edge(PutInBackground, memory, inward=Flaky(memory, iter([True, True] + [False] * 9)))
    edge.step(Request("r"), 3, finished=True)
    edge.drain()
    inlet = Inlet("r")
    edge.receiver.want(inlet)
    assert [edge.receiver.step() for _ in range(3)] == [False, False, True]
    taken = edge.receiver.take()
    assert taken is not None and values([taken[1]]) == [3] and not edge.failures
    assert "for a moment" in repr(inlet.last_error)


def test_a_damaged_chunk_is_said_to_be_one(memory: MemoryConnector) -> None:
    """Kind: bytes that are no chunk end the receiving loop."""
    edge = Edge(PutInBackground, memory, timeout_s=0.05)
    memory.put("r", 0, [b"no chunk at all"])
    edge.receiver.want(Inlet("r"))
    deadline = time.monotonic() + 30
    while not edge.failures:
        edge.receiver.step()
        assert time.monotonic() < deadline
    assert "not a chunk" in str(edge.failures[0])


def test_an_accumulate_that_raises_ends_its_request(memory: MemoryConnector) -> None:
    """Kind: an exception in an occupant ends the receiving loop."""

    def accumulate(held: Payload | None, chunk: Payload) -> Payload:
        if held is not None:
            raise ArithmeticError("scripted")
        return chunk

    edge, request = Edge(PutInBackground, memory, accumulate=accumulate), Request("r")
    edge.step(request, 0)
    edge.step(request, 1, finished=True)
    edge.drain()
    assert values(edge.received("r")) == [0]
    (failure,) = edge.failures
    assert isinstance(failure, StageFailed) and "chunk 1" in str(failure) and "scripted" in str(failure)


def test_a_closed_inlet_is_neither_polled_nor_counted(memory: MemoryConnector) -> None:
    """Kind: an aborted request is polled for until its deadline, and then fails."""
    edge, inlet = Edge(PutInBackground, memory), Inlet("r")
    edge.receiver.want(inlet)
    inlet.closed = True
    assert edge.receiver.entries() == 0
    edge.step(Request("r"), 0)
    edge.drain()
    assert not edge.receiver.step() and edge.receiver.take() is None
    assert not edge.receiver.pending and not edge.failures
    assert memory.held() == 2  # the chunk, and that the producer may go on: the engine closes the edge


def test_requests_are_taken_in_the_order_of_their_chunks(memory: MemoryConnector) -> None:
    """Kind: one request that waits holds up those behind it."""
    edge = Edge(PutInBackground, memory)
    for name in ("slow", "a", "b"):
        edge.receiver.want(Inlet(name))
    for name in ("a", "b"):
        edge.step(Request(name), 1, finished=True)
    edge.drain()
    assert edge.receiver.step()
    taken = [edge.receiver.take(), edge.receiver.take(), edge.receiver.take()]
    assert [t[0].request_id for t in taken if t is not None] == ["a", "b"]
    assert edge.receiver.entries() == 1 and not edge.receiver.step()


@pytest.mark.parametrize("frames", [0, 1, 3, 4, 5, 24, 25, 26, 29, 49, 50, 54, 60])
@pytest.mark.parametrize("end_code", [True, False])
@pytest.mark.parametrize("first", [25, 4])
@pytest.mark.parametrize("left_context", [0, 10, 25])
def test_codec_chunks_are_full_until_the_end(frames: int, end_code: bool, first: int, left_context: int) -> None:
    """Kind: frames lost or repeated at a border, a context that is not what came right before."""

    def first_chunk(chunk_id: int, chunk_frames: int) -> int:
        return full_first_chunk(chunk_id, chunk_frames) if chunk_id or first == 25 else first

    chunks = CodecChunks(WindowedVocode(left_context), first_chunk, 25)
    outbox, made = Outbox("r"), list[Payload]()
    steps = [(k, k + 100) for k in range(frames)] + [()] * (end_code or not frames)
    for index, codes in enumerate(steps):
        snapshot = Snapshot(outbox, TalkerRows(codes), [], [], index + 1, index == len(steps) - 1)
        if (payload := chunks(outbox.state, snapshot)) is not None:
            made.append(payload)
    sizes = [payload[NEW_FRAMES] for payload in made]
    assert sum(sizes) == frames
    assert sizes[:-1] == [first, 25, 25, 25][: len(sizes) - 1] and sizes[-1] <= 25
    start = 0
    for payload, new in zip(made, sizes, strict=True):
        window = list(range(max(0, start - left_context), start + new)) if new else []
        assert payload["codes"] == window + [k + 100 for k in window]
        start += new
