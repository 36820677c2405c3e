"""What requests waited for, and what-ifs beside what was measured: known values of scripted spans, and a real sleep."""

import json
import shutil
import statistics
import time
from contextlib import contextmanager

import pytest

from omnilab import recipes, verify
from omnilab.experiment.analysis import span_trials
from omnilab.experiment.analysis.waited import waited
from omnilab.experiment.checks import bundle
from omnilab.experiment.reports import waiting
from omnilab.experiment.reports.report import Report
from omnilab.experiment.results import read_run
from omnilab.pipeline import Pipeline
from omnilab.profile.order import pieces_of
from omnilab.profile.whatif import Recorded, factors_of, own_ns
from omnilab.prompt import Prompt, Sampling
from omnilab.recipe import recipe_with
from omnilab.record import SpanRow
from omnilab.toggle import Toggle
from omnilab.toggles.shallow_merge import merge_elementwise
from omnilab.workload import Workload

MS = 1_000_000
BASELINE, AGAIN = "BEFORE_1378", "BEFORE_1378 (A/A)"


def spans_of(request, at_ms, merge_ms, saver="engine", sampled=0.0):
    """One request of two frames: two Talker steps, each with a merge, each sent to Code2Wav at once.

    The first audio ends 31 + merge_ms after its start, the second 41 + 2 * merge_ms.
    """
    at, rows = at_ms, []

    def put(loop, name, length, chunk=-1, wait=0.0):
        nonlocal at
        stage, thread = loop.split("/")
        start, at = at + wait, at + wait + length
        rows.append(SpanRow(stage, thread, name, request, chunk, round(start * MS), round(at * MS)))

    put("thinker/runner", "forward", 8)
    put(f"thinker/{saver}", "save", 2)
    put("thinker/send", "put", 1, 0)
    put("talker/receive", "get", 1, 0, wait=1)
    for frame in (0, 1):
        put("talker/runner", "merge", merge_ms)
        put("talker/runner", "forward", 10)
        free = at
        if sampled:
            put("talker/runner", "sample", sampled)
            free = at
        put("talker/send", "put", 1, frame)
        put("code2wav/receive", "get", 1, frame, wait=1)
        put("code2wav/runner", "vocode", 5)
        heard = at
        at = free
    return rows, heard - at_ms


def scripted(open_pipeline, change=lambda on, trial: None):
    """Make the bench's times and spans those of `spans_of`: a merge of 20 ms, of 5 ms with shallow merge on."""

    @contextmanager
    def opened(recipe):
        with open_pipeline(recipe) as bench:
            run = bench.run

            def with_spans(workload):
                trial = run(workload)
                on = bench.script.measured[-1]
                trial.span_rows, at = [], 0.0
                for record in trial.records:
                    merge_ms = 5 if "shallow_merge" in on else 20
                    saver = "send" if "async_save" in on else "engine"
                    sampled = 4.0 if "idle_skip" in on else 0.0
                    rows, took = spans_of(record.request_id, at, merge_ms, saver, sampled)
                    first = 31 + merge_ms + sampled
                    start = record.start_s = at / 1e3
                    record.audio_times_s = [start + first / 1e3, start + took / 1e3]
                    record.audio_s, record.end_s = 0.16, start + took / 1e3
                    trial.span_rows += rows
                    at += took + 5
                trial.wall_s = at / 1e3
                change(on, trial)
                return trial

            bench.run = with_spans
            yield bench

    return opened


@pytest.fixture
def run(kept, tmp_path, small, script):
    """A copy of a run of three toggles in three blocks."""
    if not kept.exists():
        toggles = ["shallow_merge", "async_save", "idle_skip"]
        small(toggles=toggles, blocks=3).run(kept, open_pipeline=scripted(script().open))
    return shutil.copytree(kept, tmp_path / "run")


def tables_of(path):
    return waiting.tables(Report.load(path).waited)


def row_of(table, *names):
    return next(list(row) for row in table.rows if list(row[: len(names)]) == list(names))


def test_the_table_has_the_known_shares(run):
    table = tables_of(run)[waiting.WAITED]
    assert list(table.header) == [
        "variant", "until", "path",
        "thinker", "to talker", "talker", "to code2wav", "code2wav", "most of it",
    ]  # fmt: skip
    assert row_of(table, BASELINE, "first audio") == [
        BASELINE, "first audio", "51 ms", "22 %", "2 %", "63 %", "2 %", "12 %",
        "talker/merge 39 %, talker/forward 20 %",
    ]  # fmt: skip
    assert row_of(table, "shallow_merge", "end")[2:6] == ["51 ms", "22 %", "2 %", "63 %"]
    assert [row[0] for row in table.rows][:5] == [BASELINE, AGAIN, "shallow_merge", "async_save", "idle_skip"]
    said = Report.load(run).sections()[waiting.WAITED]
    assert said[0] == (
        f"**{BASELINE}**: its first audio was held by talker (63 %, most of it merge), "
        "its end was held by talker (77 %, most of it merge)"
    )
    assert said[1].startswith("**shallow_merge**: its first audio was held by talker (47 %, most of it forward)")
    assert "means over 3 blocks, 2 requests of each trial" in said[2]
    assert len(said) == 3


def test_predicted_is_what_a_scripted_toggle_did(run):
    table = tables_of(run)[waiting.FORETOLD]
    assert row_of(table, "shallow_merge")[1:] == ["0.71", "0.71", "+0.00", "0.63", "0.63", "+0.00"]
    assert row_of(table, AGAIN)[1:] == ["1.00", "1.00", "+0.00", "1.00", "1.00", "+0.00"]
    assert row_of(table, "idle_skip")[1:] == ["1.00", "1.08", "-0.08", "1.00", "1.10", "-0.10"]  # a new span
    lines = Report.load(run).sections()[waiting.FORETOLD]
    assert "**idle_skip**, beyond it: talker/sample is new (16.0 ms a trial)" in lines
    assert "**async_save**, beyond it: thinker/save moved from the loop engine to send" in lines
    assert not [line for line in lines if line.startswith("**shallow_merge**")]


def test_both_reports_hold_it_and_verify(run, capsys):
    text, page = (run / "report.md").read_text(), (run / "report.html").read_text()
    assert "| shallow_merge | 0.71 | 0.71 | +0.00 | 0.63 | 0.63 | +0.00 |" in text
    assert "<td>talker/merge 39 %, talker/forward 20 %</td>" in page.replace(' class="long"', "")
    assert verify.main([str(run)]) == 0, capsys.readouterr().out
    (run / "report.md").write_text(text.replace("| 0.71 | 0.71 |", "| 0.61 | 0.71 |"))
    assert verify.main([str(run)]) == 1
    assert "report.md line" in capsys.readouterr().out


def test_what_was_found_outlives_the_spans(run, tmp_path, capsys):
    bundle.pack(run, tmp_path / "small.zip", spans=False)
    assert verify.main([str(tmp_path / "small.zip")]) == 0, capsys.readouterr().out
    with bundle.opened(tmp_path / "small.zip") as folder:
        assert not (folder / "spans.parquet").exists()
        assert Report.load(folder).waited.to_dict() == Report.load(run).waited.to_dict()
        (folder / "waited.json").unlink()
        assert Report.load(folder).sections()[waiting.WAITED] == [
            "not known: span rows are not there (pack --no-spans), and nothing was kept of them"
        ]
        assert waiting.FORETOLD not in Report.load(folder).sections()


def lose(run, losses):
    """Write what a ring overwrote into the lines of every trial."""
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "trial":
            line["spans_lost"] = losses
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Report.load(run).waited


def test_paths_through_lost_spans_are_left_out(run):
    found = lose(run, {"code2wav/engine": {"schedule": [900, 1.0]}})  # of no span that a path came by
    assert {one.until for one in found.held} == set()  # for it is not known when its ring begins
    assert found.said == ("15 trials do not show the first audio and end: full rings had overwritten spans on the way",)
    assert waiting.waited_lines(found, BASELINE) == [f"not known: {found.said[0]}"]
    assert lose(run, 9).held == ()  # an older run does not say which loop


def test_the_end_is_known_where_only_what_came_long_before_it_is_lost(run):
    """Its path comes by nothing that was before the first span in the ring of Code2Wav's runner."""
    found = lose(run, {"code2wav/runner": {"vocode": [1, 5.0]}})
    assert {one.until for one in found.held} == {"end"}
    assert [one.until for one in found.foretold] == ["end"] * 4
    assert found.said == ("15 trials do not show the first audio: full rings had overwritten spans on the way",)


def test_no_more_rows_are_followed_than_take_seconds(run, monkeypatch):
    monkeypatch.setattr(span_trials, "MOST_ROWS", 200)
    found = Report.load(run).waited
    assert (found.blocks, found.of_blocks) == (1, 3)
    assert "at most 200 span rows are followed: 1 of 3 blocks" in found.said
    assert "means over 1 of 3 blocks" in " ".join(waiting.waited_lines(found, BASELINE))


def test_a_damaged_row_file_is_no_silent_gap(run):
    damaged = next((run / "spans.parquet").glob("trial-0-*"))
    damaged.write_bytes(b"PAR1 no more")
    with pytest.raises((OSError, ValueError)):
        waited(run, *read_run(run))


SLEEP_S = 0.12


def sleeps(state, payload):
    """Merge as the baseline does, 120 ms late."""
    time.sleep(SLEEP_S)
    return merge_elementwise(state, payload)


SLEEPY = Toggle(name="sleeps", seam="merge", baseline=merge_elementwise, optimized=sleeps, claim="planted")


def test_a_sleep_planted_in_a_real_pipeline_costs_what_was_predicted():
    """The end within 10 %, and a third of what changed: a model that sees no sleep, or half of it, fails."""
    base = recipe_with("direct_worker", base=recipes.BEFORE_1378)  # inline, `transport` would hold the runner's work
    sampling = Sampling(max_text_tokens=6, max_frames=30, ignore_eos=True, seed=3)
    workload, pairs = Workload.prompts([Prompt(text="Where do rivers begin?")], sampling), []
    with Pipeline.open("tiny", recipe=base, topology="inline", connector="memory") as pipeline:
        pipeline.run(workload)
        for _ in range(5):
            trials = []
            for recipe in (base, recipe_with(SLEEPY, base=base)):
                pipeline.apply(recipe)
                trials.append(pipeline.run(workload))
            pairs.append(trials)
    off, changed = {}, {}
    for until in ("first audio", "end"):
        found = [foretold(*trials, until) for trials in pairs]
        off[until] = statistics.median(abs(predicted - measured) / measured for predicted, measured in found)
        changed[until] = statistics.median(abs(measured - 1) / measured for _, measured in found)
    assert off["first audio"] < 0.15, off  # whose part of the sleeps is taken for its part of all merges
    assert off["end"] < 0.1 and off["end"] < changed["end"] / 3, (off, changed)


def foretold(before, after, until):
    """Predicted and measured ratio of a request's time."""
    factors, _ = factors_of(own_ns(pieces_of(before.span_rows)), own_ns(pieces_of(after.span_rows)))
    change = Recorded(before.span_rows).at(factors).change(before.records[0].request_id, until) / 1e9
    index = 0 if until == "first audio" else -1
    base, other = (trial.records[0].audio_times_s[index] - trial.records[0].start_s for trial in (before, after))
    return (base + change) / base, other / base
