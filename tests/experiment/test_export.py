"""`python -m omnilab.export` on a scripted run: traces with known times, to a file and to a real local receiver."""

import json
import shutil
import socket
import threading
import time
from contextlib import closing, contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from omnilab import export as command
from omnilab.experiment.checks import bundle
from omnilab.profile import otel
from omnilab.workload import Workload
from tests.experiment.test_waited import scripted

MS = 1_000_000
STAGES = ["thinker", "talker", "code2wav"]


@pytest.fixture
def run(kept, tmp_path, small, script):
    """A copy of a run of one toggle in three blocks, of two requests a trial."""
    if not kept.exists():
        small(toggles=["shallow_merge"], blocks=3).run(kept, open_pipeline=scripted(script().open))
    return shutil.copytree(kept, tmp_path / "run")


@contextmanager
def receiver(status=200, after_s=0.0):
    """A collector on this host; gives its address and the requests that it has parsed."""
    taken, over = [], threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            over.wait(after_s)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Content-Type"], ExportTraceServiceRequest.FromString(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
        finally:
            over.set()
            server.shutdown()
            thread.join()


def exported(*arguments):
    return command.main([str(argument) for argument in arguments])


def refused(capsys, *arguments, status=2):
    """Run the command; it must end with that status and one line, which is returned."""
    assert exported(*arguments) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err


def spans_of(request):
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def plain(value):
    kind = value.WhichOneof("value")
    return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def attributes_of(span):
    return {pair.key: plain(pair.value) for pair in span.attributes}


def events_of(span, start):
    return {event.name: (event.time_unix_nano - start) / MS for event in span.events}


def test_a_trace_a_request_and_a_span_a_stage(run, capsys):
    with receiver() as (endpoint, taken):
        assert exported(run, "--variant", "shallow_merge", "--endpoint", endpoint) == 0
    assert capsys.readouterr().out == f"{endpoint}: shallow_merge, block 0, 2 traces, 8 spans\n"
    assert [(path, kind) for path, kind, _ in taken] == [("/v1/traces", "application/x-protobuf")] * 2
    requests = [spans_of(request) for *_, request in taken]
    assert len({span.trace_id for spans in requests for span in spans}) == 2
    for spans in requests:
        *stages, root = spans
        start = root.start_time_unix_nano
        assert root.name == "chat none" and root.kind == root.SPAN_KIND_SERVER and not root.parent_span_id
        assert [span.name for span in stages] == STAGES
        assert {span.parent_span_id for span in stages} == {root.span_id}
        times = [((s.start_time_unix_nano - start) / MS, (s.end_time_unix_nano - start) / MS) for s in spans]
        # merges of 5 ms: first chunk at 10, Talker from 12, first audio at 36, the second at 51
        assert times == [(0, 11), (12, 44), (30, 51), (0, 51)]
        assert events_of(root, start) == {"first audio": 36, "first text": pytest.approx(0, abs=1e6)}
        assert events_of(stages[0], start) == {"first chunk sent": 11}
        assert events_of(stages[1], start) == {"first chunk taken": 13, "first chunk sent": 29}
        assert events_of(stages[2], start) == {"first chunk taken": 31, "first audio": 36}
        talker = attributes_of(stages[1])
        assert talker["omnilab.busy_ms.merge"] == 10
        assert talker["omnilab.busy_ms.forward"] == 20
        assert (talker["omnilab.chunks.taken"], talker["omnilab.chunks.sent"]) == (1, 2)


def test_attributes_are_those_of_the_conventions(run, capsys):
    with receiver() as (endpoint, taken):
        assert exported(run, "--variant", "shallow_merge", "--block", "1", "--endpoint", endpoint) == 0
    found = attributes_of(spans_of(taken[1][2])[-1])
    plan = json.loads((run / "run.json").read_text())
    sampling = plan["workload"]["requests"][1]["sampling"]
    asked = Workload.random(num_prompts=2, input_len=8, output_len=6).with_seed(plan["workload_seeds"][1])  # of block 1
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "omnilab", "gen_ai.request.model": "none",
        "gen_ai.output.type": "speech", "gen_ai.response.id": "r1", "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 6, "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": sampling["temperature"], "gen_ai.request.seed": asked.requests[1].sampling.seed,
        "omnilab.variant": "shallow_merge", "omnilab.block": 1, "omnilab.audio.frames": 30,
        "omnilab.audio.time_to_first_packet": pytest.approx(0.036),
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_the_file_is_otlp_json_and_the_same_each_time(run, tmp_path, capsys):
    with receiver() as (endpoint, taken):
        assert exported(run, "--endpoint", endpoint) == 0
    for name in ("one", "other"):
        assert exported(run, "--out", tmp_path / f"{name}.jsonl") == 0
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    assert (tmp_path / "other.jsonl").read_text().splitlines() == lines
    for line, (_, _, request) in zip(lines, taken, strict=True):
        spans = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert [span["traceId"] for span in spans] == [span.trace_id.hex() for span in spans_of(request)]
        assert [span["spanId"] for span in spans] == [span.span_id.hex() for span in spans_of(request)]
        assert [int(s["startTimeUnixNano"]) for s in spans] == [s.start_time_unix_nano for s in spans_of(request)]
        assert spans[-1]["kind"] == 2 and "parentSpanId" not in spans[-1]


def test_the_date_is_the_runs_start_and_distances_are_exact(run):
    started = datetime.strptime(json.loads((run / "run.json").read_text())["started"], "%Y-%m-%dT%H:%M:%S%z")
    trial = otel.read_trial(run, "shallow_merge")
    spans = otel.traces(trial)
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    opened = next(line for line in lines if line["kind"] == "open")
    first = spans[0][-1].start_time / 1e9
    assert first == pytest.approx(started.timestamp() + opened["seconds"], abs=0.01)
    assert spans[1][-1].start_time - spans[0][-1].start_time == pytest.approx(56 * MS, abs=1000)


def test_a_failed_request_says_so(run):
    trial = otel.read_trial(run, "shallow_merge")
    trial.records[1].error, trial.records[1].end_s = "the talker died", None
    root = otel.traces(trial)[1][-1]
    assert root.status.status_code.name == "ERROR"
    assert root.status.description == root.attributes["error.message"] == "the talker died"


def test_a_zip_will_do(run, tmp_path, capsys):
    bundle.pack(run, tmp_path / "run.zip")
    assert exported(tmp_path / "run.zip", "--out", tmp_path / "one.jsonl") == 0


def test_what_no_endpoint_takes(run, capsys):
    with receiver(status=400) as (endpoint, _):
        assert "took 0 traces, then none within 10 s" in refused(capsys, run, "--endpoint", endpoint, status=1)
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/traces"
        said = refused(capsys, run, "--endpoint", endpoint, "--timeout", "2", status=1)
    assert "refused" in said and endpoint in said


def test_an_endpoint_that_never_answers_is_given_up(run, capsys):
    with receiver(after_s=60) as (endpoint, _):
        began = time.monotonic()
        refused(capsys, run, "--endpoint", endpoint, "--timeout", "1", status=1)
        assert time.monotonic() - began < 20


def test_bad_input(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "there.jsonl").write_text("mine")
    assert "one of them" in refused(capsys, run)
    assert "one of them" in refused(capsys, run, "--out", tmp_path / "x", "--endpoint", "http://x")
    assert "exists already" in refused(capsys, run, "--out", tmp_path / "there.jsonl")
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert "is no http URL" in refused(capsys, run, "--endpoint", "localhost:4318")
    assert "above 0" in refused(capsys, run, "--endpoint", "http://x", "--timeout", "0")
    assert "has no variant 'faster'" in refused(capsys, run, "--variant", "faster", "--out", tmp_path / "x")
    assert "is not a run folder" in refused(capsys, tmp_path, "--out", tmp_path / "x")
    monkeypatch.setattr(otel, "find_spec", lambda name: None)
    assert "pip install 'omnilab[export]'" in refused(capsys, run, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_spans_that_were_not_packed(run, tmp_path, capsys):
    bundle.pack(run, tmp_path / "small.zip", spans=False)
    assert "not packed" in refused(capsys, tmp_path / "small.zip", "--out", tmp_path / "x")
