"""`python -m omnilab.trace` on the folder of a scripted run: what it writes, what it says, what it refuses."""

import gzip
import json
import shutil
import sys
import wave
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from omnilab import cli, verify
from omnilab import trace as command
from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.checks import bundle
from omnilab.profile import queries, summaries
from omnilab.profile.chrome import from_run, variants_of
from omnilab.record import SpanRow

CHUNKS = [
    SpanRow("thinker", "send", "put", "r0", 0, 100, 200),
    SpanRow("talker", "receive", "get", "r0", 0, 300, 400),
    SpanRow("talker", "send", "put", "r0", 0, 500, 600),  # never taken
]


def chunked(open_pipeline):
    """Add the spans of a chunk that arrives and of one that does not to what a bench records."""

    @contextmanager
    def opened(recipe):
        with open_pipeline(recipe) as bench:
            run = bench.run

            def with_chunks(workload):
                trial = run(workload)
                trial.span_rows += CHUNKS
                return trial

            bench.run = with_chunks
            yield bench

    return opened


@pytest.fixture
def run(kept, tmp_path, small, script):
    """A copy of a run of one toggle in three blocks."""
    if not kept.exists():
        small(toggles=["shallow_merge"], blocks=3).run(kept, open_pipeline=chunked(script().open))
    return shutil.copytree(kept, tmp_path / "run")


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def refused(capsys, *arguments):
    """Run the command; it must end with 2 and one line, which is returned."""
    assert command.main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def lines_of(run):
    return [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]


def write_lines(run, lines):
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_each_variant_has_a_trace_and_the_run_still_verifies(run, capsys):
    assert cli.main(["trace", str(run)]) == 0
    said = capsys.readouterr().out
    names = variants_of(run)
    assert {"shallow_merge", "BEFORE_1378", "BEFORE_1378 (A/A)"} <= set(names)
    paths = sorted(path.relative_to(run / "traces") for path in run.rglob("*.gz"))
    assert len(paths) == len(names)
    assert str(paths[0]) == "BEFORE_1378/spans.json.gz" and str(paths[1]) == "BEFORE_1378_A_A_/spans.json.gz"
    assert f"{run}/traces/shallow_merge/spans.json.gz: shallow_merge, block 0, 4 spans, 1 chunks as arrows" in said
    assert said.count("1 chunks have one end only: no arrow") == len(names)
    assert "ui.perfetto.dev" in said and "chrome://tracing" in said
    assert f"see it: tensorboard --logdir {run}/traces" in said and "with --tensorboard also" in said
    trace = read(run / "traces" / "shallow_merge" / "spans.json.gz")
    assert trace["metadata"]["trial"] == "shallow_merge, block 0"
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} == {"merge", "put", "get"}
    assert verify.main([str(run)]) == 0


def test_one_trial_of_one_variant_into_a_file(run, tmp_path, capsys):
    out = tmp_path / "new" / "x.json.gz"
    assert command.main([str(run), "--variant", "shallow_merge", "--block", "2", "--out", str(out)]) == 0
    assert "shallow_merge, block 2" in capsys.readouterr().out
    assert read(out)["metadata"]["trial"] == "shallow_merge, block 2"
    assert not (run / "traces").exists()
    frame = from_run(run, "shallow_merge", 2)
    assert set(frame["block"]) == {2} and set(frame["variant"]) == {"shallow_merge"} and set(frame["kind"]) == {"trial"}
    merge = frame[frame["name"] == "merge"].iloc[0]
    event = next(event for event in read(out)["traceEvents"] if event["name"] == "merge")
    assert event["dur"] == (merge["end_ns"] - merge["start_ns"]) / 1000
    assert "exists already" in refused(capsys, run, "--variant", "shallow_merge", "--out", out)


def test_a_failed_trial_is_passed_over_unless_its_block_is_asked_for(run):
    lines = lines_of(run)
    for line in lines:
        if line["kind"] == "trial" and line["block"] == 0:
            line |= {"error": "1 of 2 requests failed", "spans_lost": 7}
    write_lines(run, lines)
    assert set(from_run(run, "shallow_merge")["block"]) == {1}
    failed = from_run(run, "shallow_merge", 0)
    assert set(failed["block"]) == {0}
    assert failed.attrs["spans_lost"] == 7


def test_lost_spans_are_said(run, capsys):
    write_lines(run, [line | ({"spans_lost": 1234} if line["kind"] == "trial" else {}) for line in lines_of(run)])
    assert command.main([str(run), "--variant", "shallow_merge"]) == 0
    assert "1,234 spans were lost" in capsys.readouterr().out


def test_a_zip_is_traced_beside_itself(run, tmp_path, capsys):
    assert command.main([str(run), "--variant", "shallow_merge"]) == 0
    bundle.pack(run, tmp_path / "kept.zip")
    assert command.main([str(tmp_path / "kept.zip"), "--variant", "shallow_merge"]) == 0
    same = "traces/shallow_merge/spans.json.gz"
    assert (tmp_path / "kept" / same).read_bytes() == (run / same).read_bytes()


def test_spans_that_were_not_packed_are_named(run, tmp_path, capsys):
    bundle.pack(run, tmp_path / "kept.zip", spans=False)
    assert "spans were not packed (pack --no-spans)" in refused(capsys, tmp_path / "kept.zip")


def test_bad_input_is_one_line_that_names_what_there_is(run, tmp_path, capsys):
    said = refused(capsys, run, "--variant", "shalow_merge")
    assert "no variant 'shalow_merge'; there are" in said and "'shallow_merge'" in said and "'BEFORE_1378'" in said
    said = refused(capsys, run, "--variant", "shallow_merge", "--block", "3")
    assert "not measured in block 3; it was in" in said
    assert all(block in said for block in "012")
    assert "choose one with --variant" in refused(capsys, run, "--out", tmp_path / "x.json.gz")
    (tmp_path / "file").write_text("")
    said = refused(capsys, run, "--variant", "shallow_merge", "--out", tmp_path / "file" / "x.json.gz")
    assert "cannot be written" in said
    assert not (run / "traces").exists()


def test_a_folder_that_is_no_run_or_is_damaged_is_refused(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "is not a run folder" in refused(capsys, tmp_path / "empty")
    assert refused(capsys, tmp_path / "none")
    file = next((run / "spans.parquet").glob("trial-0-*"))
    variant = next(line["variant"] for line in lines_of(run) if f"spans.parquet/{file.name}" in line["files"])
    file.write_bytes(file.read_bytes()[:100])
    assert f"{file.name}: is damaged" in refused(capsys, run, "--variant", variant)
    shutil.copy(next((run / "counters.parquet").glob("trial-0-*")), file)
    assert "lacks the columns chunk, end_ns" in refused(capsys, run, "--variant", variant)
    file.unlink()
    assert "is not there, so the run folder is damaged" in refused(capsys, run, "--variant", variant)
    write_lines(run, [line for line in lines_of(run) if line["kind"] != "trial"])
    assert "holds no measured trial" in refused(capsys, run)
    (run / "trials.jsonl").write_text("{}\n")
    assert "is damaged" in refused(capsys, run)


def test_a_trial_without_spans_is_refused(kept, tmp_path, small, script):
    import pyarrow.parquet as pq

    run = tmp_path / "bare"
    small(toggles=["shallow_merge"], blocks=3).run(run, open_pipeline=script().open)
    for file in (run / "spans.parquet").glob("trial-0-*"):
        pq.write_table(pq.read_table(file, partitioning=None).slice(0, 0), file)
    with pytest.raises(BadInput, match="shallow_merge in block 0 recorded no spans"):
        from_run(run, "shallow_merge", 0)
    assert len(from_run(run, "shallow_merge", 1)) == 1
    with pytest.raises(RunFolderError):
        from_run(tmp_path, "shallow_merge")


def read_back(folder):
    """Read a folder of event files as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "audio": 0})
    events.Reload()
    return events


def texts_of(events):
    return {
        tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
    }


def test_scalars_text_and_sounds_can_be_read_back(run, capsys):
    assert command.main([str(run), "--tensorboard"]) == 0
    said = capsys.readouterr().out
    assert "shallow_merge, scalars, text and sounds for TensorBoard" in said
    assert said.splitlines()[-1] == f"see it: tensorboard --logdir {run}/traces"
    events = read_back(run / "traces" / "shallow_merge")
    ours = [line for line in lines_of(run) if (line["kind"], line["variant"]) == ("trial", "shallow_merge")]
    lines = {line["block"]: line for line in ours}
    for name in ("wall_s", "ttft_ms", "host_ms_per_step"):
        found = [(event.step, event.value) for event in events.Scalars(f"metrics/{name}")]
        assert found == [(block, pytest.approx(line["metrics"][name])) for block, line in sorted(lines.items())]
    merged = [event.value for event in events.Scalars("spans_ms/talker/runner/merge")]
    assert merged == pytest.approx([lines[block]["spans_ms"]["talker/runner/merge"] for block in sorted(lines)])
    texts = texts_of(events)
    assert "## What moved" in texts["report"] and "- **shallow_merge**: counted:" in texts["report"]
    assert "verdicts" not in texts
    assert texts_of(read_back(run / "traces" / "BEFORE_1378"))["verdicts"].count("| shallow_merge |") == 1
    with wave.open(str(run / "audio" / "shallow_merge-0.wav"), "rb") as file:
        whole = file.readframes(file.getnframes())
    (sound,) = events.Audio("request 0")
    assert _close(whole, sound.encoded_audio_string)
    assert verify.main([str(run)]) == 0
    packed = bundle.pack(run)
    assert packed.left_out["traces"] == 2 * len(variants_of(run))


def _close(pcm, wav):
    """Are the samples the same, but for the rounding of 16 bits?"""
    ours, theirs = np.frombuffer(pcm, "<i2").astype(int), np.frombuffer(wav[-len(pcm) :], "<i2").astype(int)
    return np.abs(ours - theirs).max() <= 1


def test_a_long_sound_is_cut_and_says_so(run):
    rate = 24_000
    with wave.open(str(run / "audio" / "shallow_merge-0.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(2 * rate * (summaries.MOST_SECONDS + 5)))
    assert command.main([str(run), "--variant", "shallow_merge", "--tensorboard"]) == 0
    (tag,) = read_back(run / "traces" / "shallow_merge").Tags()["audio"]
    assert tag == "request 0 (its first 30 s)"


def test_a_second_call_replaces_our_summaries_and_no_others(run):
    folder = run / "traces" / "shallow_merge"
    folder.mkdir(parents=True)
    other = folder / "events.out.tfevents.1.other.host"
    other.write_bytes(b"")
    for _ in range(2):
        assert command.main([str(run), "--variant", "shallow_merge", "--tensorboard"]) == 0
    assert other.exists()
    assert len(list(folder.glob("*.omnilab"))) == 1
    assert len(read_back(next(folder.glob("*.omnilab"))).Scalars("metrics/wall_s")) == 3
    assert not (run / "traces" / "BEFORE_1378").exists()


def test_without_tensorboard_the_extra_is_named_and_nothing_is_written(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install 'omnilab[trace]'" in refused(capsys, run, "--tensorboard")
    assert not (run / "traces").exists()
    assert command.main([str(run), "--variant", "shallow_merge"]) == 0  # a trace needs none


def test_summaries_go_into_the_run_not_beside_out(run, tmp_path, capsys):
    said = refused(capsys, run, "--variant", "shallow_merge", "--tensorboard", "--out", tmp_path / "x.json.gz")
    assert "leave one of them away" in said


class Processor:
    """Stands for Perfetto's trace processor: answers each query with one row that names it."""

    def __init__(self, trace, config):
        self.trace, self.config = trace, config

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def query(self, sql):
        if self.config.bin_path and self.config.bin_path.endswith("broken"):
            raise Exception("Trace processor failed to start.\nstdout: \n")
        title = next(title for title, text in queries.QUERIES.items() if text == sql)
        return Result([SimpleNamespace(title=title, trace=self.trace, ms=1234.5678, chunks=1234)])


class Result(list):
    column_names = ("title", "ms", "chunks")


@pytest.fixture
def perfetto(monkeypatch):
    """The package `perfetto`, with a stand-in for its trace processor."""
    config = lambda bin_path: SimpleNamespace(bin_path=bin_path)  # noqa: E731
    module = SimpleNamespace(TraceProcessor=Processor, TraceProcessorConfig=config)
    monkeypatch.setitem(sys.modules, "perfetto", SimpleNamespace(trace_processor=module))
    monkeypatch.setitem(sys.modules, "perfetto.trace_processor", module)


def test_queries_are_asked_of_each_trace(run, perfetto, capsys):
    assert command.main([str(run), "--variant", "shallow_merge", "--queries"]) == 0
    said = capsys.readouterr().out
    for title in ("busy per stage", "wait per edge", "chunk latency"):
        assert f"shallow_merge, {title}:\n  title" in said
    assert "  busy per stage  1,234.568   1,234\n" in said


def test_without_perfetto_or_its_program_the_message_says_what_to_do(run, tmp_path, perfetto, monkeypatch, capsys):
    assert "no such file; name Perfetto's trace_processor_shell" in refused(
        capsys, run, "--queries", "--processor", tmp_path / "none"
    )
    assert not (run / "traces").exists()
    (tmp_path / "broken").write_text("")
    asked = [str(run), "--variant", "shallow_merge", "--queries", "--processor", str(tmp_path / "broken")]
    assert command.main(asked) == 2
    said = capsys.readouterr().err
    assert "Trace processor failed to start;" in said and "--processor" in said and "ui.perfetto.dev" in said
    monkeypatch.setitem(sys.modules, "perfetto.trace_processor", None)
    assert "pip install perfetto" in refused(capsys, run, "--queries")
