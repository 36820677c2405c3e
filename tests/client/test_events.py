"""Events out of reads: wherever the reads end, whichever line ends, however large an event is."""

import asyncio
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omnilab.client import wire
from omnilab.client.events import events_of
from omnilab.client.recorded import record_of
from tests.client.scripted import DONE, END, HEAD, answer, audio, chunked, reply, text, usage

STREAM = b"".join(answer())


def pieces_of(data, cuts):
    edges = [0, *sorted(cuts), len(data)]
    return [(number, data[a:b]) for number, (a, b) in enumerate(pairwise(edges)) if b > a]


def data_of(data):
    return [event.data for event in events_of([(0, data)])]


def test_a_cut_at_every_byte_changes_nothing_but_the_time():
    data = b"".join([text("", 0), text("h\u00e9", 1), usage(1), DONE])
    whole = data_of(data)
    assert len(whole) == 4
    for cut in range(1, len(data)):
        found = list(events_of([(10, data[:cut]), (20, data[cut:])]))
        assert [event.data for event in found] == whole
        ends = [data.index(event.data) + len(event.data) + 2 for event in found]
        assert [event.at_ns for event in found] == [10 if end <= cut else 20 for end in ends]


@given(st.sets(st.integers(1, len(STREAM) - 1), max_size=40), st.booleans())
def test_reads_may_end_anywhere(cuts, crlf):
    data = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    record, _, _ = record_of(reply(pieces_of(data, cuts)), index=0, name="r", began_ns=0)
    assert record.error is None
    assert (record.text, record.output_tokens, sum(record.audio_samples)) == ("Hi you", 2, 24_000)


def test_what_is_no_data_is_passed_over():
    noise = b"\xef\xbb\xbf: hello\n\nevent: x\nid: 1\nretry: 5\ndata:a\ndata: b\n\n: ping\n\ndata\n\ndata: c"
    assert data_of(noise) == [b"a\nb", b"c"]


def test_several_events_in_one_read_have_its_time():
    found = list(events_of([(5, b"data: a\n\ndata: b\n\n"), (7, b"data: c\n\n")]))
    assert [(event.at_ns, event.data) for event in found] == [(5, b"a"), (5, b"b"), (7, b"c")]


def cost(data, step):
    """Processor seconds for an exchange that is fed so many bytes at a time, and for reading what came."""

    class Nowhere(asyncio.WriteTransport):
        def write(self, data):
            pass

    async def feed():
        loop = asyncio.get_running_loop()
        found = wire.Reply(status=200)
        request = wire.request_to(wire.Address.of("127.0.0.1:1"), "/", 0, [])
        exchange = wire.Exchange(loop, found, request, b"")
        exchange.connection_made(Nowhere())
        exchange.data_received(HEAD)
        began = time.process_time()
        for at in range(0, len(data), step):
            exchange.data_received(data[at : at + step])
        assert exchange.ended.done()
        taken = time.process_time() - began
        exchange.connection_lost(None)
        return taken, found

    taken, found = asyncio.run(feed())
    began = time.process_time()
    record, _, _ = record_of(found, index=0, name="r", began_ns=0)
    assert record.error is None
    assert sum(record.audio_samples) == 24_000 * 211
    return taken, time.process_time() - began


def test_a_large_event_costs_no_more_in_small_reads():
    """211 s of audio in one event, 13.5 MB: a client that tries to parse after each read takes seconds."""
    sound = audio(24_000 * 211)
    data = b"".join(map(chunked, [text("", 0), text("Hi", 1), sound, usage(1), DONE])) + END
    assert len(data) > 13_500_000
    small, whole = cost(data, 1 << 16), cost(data, len(data))
    assert small[0] < 0.25  # tens of milliseconds; with a scan of all that came at each read, seconds
    assert small[1] < 4 * whole[1] + 0.5


def test_without_a_length_the_end_of_the_connection_may_be_a_cut():
    """A server that dies in the middle of its sound, after a finish reason, over HTTP that says no length."""
    data = b"".join(answer()[:-1])  # all but [DONE]
    for framed, fault in ((True, None), (False, "cut: the stream ended with no [DONE], and HTTP said no length")):
        one = reply([(1.0, data)])
        one.framed = framed
        record, *_ = record_of(one, index=0, name="r", began_ns=0)
        assert record.error == fault
