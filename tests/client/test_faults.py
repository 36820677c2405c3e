"""What must not count as a fast answer: each has its class, and the others' numbers do not see it."""

import asyncio

import pytest

from omnilab import Sampling, Workload
from omnilab.client import Server, Stopped, compat, served_models, wait_ready
from omnilab.client.goodput import Goals
from omnilab.client.wire import FAULTS
from omnilab.errors import BadInput, Error
from omnilab.workload import closed
from tests.client.scripted import (
    DONE,
    END,
    HEAD,
    answer,
    audio,
    body,
    chunked,
    event,
    refusal,
    scripted,
    text,
    usage,
    wav,
)

GOOD = body(*answer())
FAILURES = {
    "error status": (refusal("400 Bad Request", "no such voice"), "http: status 400: no such voice"),
    "no JSON status": ([b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\nboom"], "http: status 500: boom"),
    "refused": (refusal("429 Too Many Requests", "come later"), "refused: status 429: come later"),
    "error event": (body(text("Hi", 1), event({"error": {"message": "stage died"}}), DONE), "error: stage died"),
    "error text": (body(event({"error": "stage died"})), "error: stage died"),
    "empty at once": (body(DONE), "empty: status 200, but no text and no audio"),
    "no audio": (body(text("Hi", 1, reason="stop"), usage(1), DONE), "empty: status 200, but no audio"),
    "no text": (body(text("", 0), audio(), DONE), "empty: status 200, but no text"),
    "no samples": (body(text("Hi", 1), audio(0), DONE), "empty: status 200, but its audio has no samples"),
    "cut in an event": ([HEAD, chunked(text("Hi", 1))[:-20]], "cut: "),
    "cut between events": ([HEAD, chunked(text("Hi", 1))], "cut: "),
    "no end mark": (body(text("Hi", 1), audio()), "cut: the stream ended with neither"),
    "unanswered": ([], "cut: "),
    "no HTTP": ([b"hello\r\n\r\n"], "unreadable: HTTP"),
    "no JSON": (body(text("Hi", 1), b"data: {oh\n\n", DONE), "unreadable: an event is no chat chunk"),
    "wrong type": (body(event({"choices": 3})), "unreadable: an event is no chat chunk"),
    "a list": (body(b"data: [1]\n\n"), "unreadable: an event is no chat chunk"),
    "no stream": ([b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi"], "unreadable: not a"),
    "no base64": (body(text("Hi", 1), audio(data="%%"), DONE), "unreadable: audio packet 0 is not base64"),
    "another rate": (
        body(text("Hi", 1), audio(), audio(data=wav(9, 8000)), DONE),
        "unreadable: audio packet 1 has",
    ),
    "no sound": (body(text("Hi", 1), audio(data="AAAA"), DONE), "unreadable: audio packet 0 cannot be read"),
}


def workload(count=1, together=1):
    return Workload.prompts(["Hello"] * count, Sampling(temperature=0.0), arrivals=closed(together))


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_and_in_no_number(name):
    played, said = FAILURES[name]
    with scripted(lambda number: GOOD if number else played) as server:
        trial = Server(server.url, "m", timeout_s=10).run(workload(2))
    failed, good = trial.records
    assert failed.error is not None
    assert failed.error.startswith(said)
    assert failed.error.split(":")[0] in FAULTS
    assert good.error is None
    assert trial.metrics["failed"] == 1
    assert trial.metrics["output_tokens"] == 2
    alone = {name: len(values) for name, values in compat.samples([good]).items()}
    assert alone["ttft_ms"] == 1
    assert trial.metrics["e2el_ms"] == pytest.approx(1e3 * (good.end_s - good.start_s))
    assert not Goals.read(["e2el_ms:1e9"]).met(failed)
    assert len(server.requests) == 2  # nothing is asked twice


def test_silence_ends_at_the_requests_time():
    with scripted(lambda _: [HEAD, chunked(text("Hi", 1)), None]) as server:
        trial = Server(server.url, "m", timeout_s=0.3).run(workload())
    assert trial.records[0].error == "timeout: no end within 0.3 s"
    assert trial.metrics["ttft_ms"] is None


def test_nobody_there():
    trial = Server("127.0.0.1:9", "m").run(workload())
    assert str(trial.records[0].error).startswith("connect: 127.0.0.1:9: ")


def test_a_server_that_never_closes_after_its_end_mark_is_waited_for_briefly():
    with scripted(lambda _: [HEAD, *map(chunked, answer()), None]) as server:
        trial = Server(server.url, "m", timeout_s=10).run(workload())
        (record,) = trial.records
    assert record.error is None
    assert trial.wall_s < 8


def test_line_ends_of_other_servers():
    crlf = [part.replace(b"\n", b"\r\n") for part in answer()]
    with scripted(lambda _: [HEAD, *map(chunked, crlf), END]) as server:
        (record,) = Server(server.url, "m").run(workload()).records
    assert (record.error, record.text, record.audio_s) == (None, "Hi you", 1.0)


def test_stopping_keeps_what_was_finished():
    with scripted(lambda number: [HEAD, None] if number else GOOD) as server:
        with pytest.raises(Stopped) as stopped:
            Server(server.url, "m").run(workload(3), stop=lambda: len(server.requests) > 1)
        assert [record.index for record in stopped.value.trial.records] == [0]
        assert len(server.requests) == 2


def test_under_a_loop_that_runs():
    with scripted(lambda _: GOOD) as server:

        async def both():
            awaited = await Server(server.url, "m").arun(workload())
            return awaited, Server(server.url, "m").run(workload())

        trials = asyncio.run(both())
    assert [trial.records[0].error for trial in trials] == [None, None]


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Server("ftp://x", "m"), "url"),
        (lambda: Server("http://x:port", "m"), "url"),
        (lambda: Server("http://x", "m", timeout_s=0), "timeout_s"),
        (lambda: Server("http://x", "m", modalities=["video"]), "modalities"),
        (lambda: Server("http://x", "m", headers={"a b": "c"}), "headers"),
        (lambda: Server("http://x", "m", tokenizer="no/folder").run(Workload.random(1, 5, 5)), "tokenizer"),
        (lambda: served_models("127.0.0.1:9"), "start the server"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(make, said):
    with pytest.raises(BadInput, match=said):
        make()


def test_models_and_readiness():
    listed = b'{"data": [{"id": "a"}, {"id": "b"}]}'
    answers = {0: refusal("503 Busy", "loading"), 1: [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]}
    models = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(listed) + listed]
    with scripted(lambda number: answers.get(number, models)) as server:
        wait_ready(server.url, timeout_s=10)
        assert server.heads[1].startswith("GET /health ")
        assert served_models(server.url + "/v1/", api_key="k") == ["a", "b"]
        assert "authorization: bearer k" in server.heads[2].lower()
    with pytest.raises(Error, match=r"not ready within 0\.1 s"):
        wait_ready("127.0.0.1:9", timeout_s=0.1)
    with pytest.raises(Error, match="it ended with 3"):
        wait_ready("127.0.0.1:9", timeout_s=60, alive=lambda: "it ended with 3")
