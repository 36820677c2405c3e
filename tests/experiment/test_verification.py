"""Verification: a run as it was written is equal, and whatever is changed in it is found and named."""

import fcntl
import hashlib
import json
import shutil
import sys

import pyarrow.parquet as pq
import pytest

from omnilab import verify as command
from omnilab.errors import RunFolderError
from omnilab.experiment.checks.differences import compared
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.reports.report import Report
from omnilab.metrics import HOST_SPANS
from omnilab.record import CounterRow, LostRow, SpanRow
from omnilab.trial import Trial

DRAWN = Report.figures


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Drawing takes most of a verification's time, and what is drawn is not compared."""
    monkeypatch.setattr(Report, "figures", lambda self: {"effects": "<svg>the effects</svg>"})


@pytest.fixture
def run(kept, tmp_path, small, script):
    """A copy of a run of two toggles in five blocks."""
    if not kept.exists():
        small(toggles=["async_save", "shallow_merge"]).run(
            kept, open_pipeline=script(factors={"shallow_merge": 0.8}).open
        )
    return shutil.copytree(kept, tmp_path / "run")


def lines_of(run):
    return [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]


def write_lines(run, lines):
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def first(lines, kind="trial", variant="shallow_merge"):
    return next(i for i, line in enumerate(lines) if (line["kind"], line["variant"]) == (kind, variant))


def change(run, edit, kind="trial", variant="shallow_merge"):
    """Edit one line in place; return its number."""
    lines = lines_of(run)
    index = first(lines, kind, variant)
    edit(lines[index])
    write_lines(run, lines)
    return index + 1


def said_of(run):
    """Everything that differs: all of it is lines that name a place."""
    found = verify(run).differences
    assert all("\n" not in str(one) and one.where for one in found)
    return "\n".join(map(str, found))


def test_a_run_as_it_was_written_is_equal(run, capsys):
    found = verify(run)
    assert found.differences == []
    assert [check.name for check in found.checks] == [
        "plan", "order", "occupants", "row files", "requests", "counters", "spans", "outputs", "report",
    ]  # fmt: skip
    assert command.main([str(run)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{run}: everything that it says is what its rows give"
    trials = sum("metrics" in line for line in lines_of(run))
    assert any(line.startswith("equal   row files: sha256 of ") and str(3 * trials) in line for line in said)
    assert any(f"of {trials} trials" in line for line in said)


def test_differences_are_printed_a_line_each_with_status_1(run, capsys):
    number = change(run, lambda line: line["metrics"].update(e2el_ms=line["metrics"]["e2el_ms"] * 1.01))
    assert command.main([str(run)]) == 1
    said = capsys.readouterr().out
    assert "DIFFERS requests: " in said
    named = [line for line in said.splitlines() if "metrics.e2el_ms" in line]
    assert len(named) == 1
    assert named[0].startswith(f"  trials.jsonl line {number} (trial ")
    assert ", shallow_merge) metrics.e2el_ms: stored " in named[0]
    assert ", recomputed " in named[0]


def set_in(*path):
    """Return an edit that puts a number, or what makes another of one, at a place of a line."""
    *parents, last, value = path

    def edit(line):
        for key in parents:
            line = line[key]
        line[last] = value(line[last]) if callable(value) else value

    return edit


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (set_in("metrics", "audio_rtf", lambda x: x * (1 + 1e-6)), "metrics.audio_rtf: stored"),
        (set_in("metrics", "wall_s", lambda x: x * 1.1), "metrics.output_throughput: stored"),
        (set_in("metrics", "wall_s", None), "metrics.wall_s: stored null, recomputed a time"),
        (set_in("metrics", "wall_s", lambda x: x / 2), "where the last request ended"),
        (set_in("metrics", "completed", lambda x: x + 1), "metrics.completed: stored 3, recomputed 2"),
        (set_in("metrics", "host_ms_per_step", lambda x: x * 2), "metrics.host_ms_per_step: stored"),
        (set_in("metrics", "cpu_s", lambda x: x + 1), "metrics.cpu_s: stored"),
        (set_in("cpu_s", {}), "cpu_s: stored nothing"),
        (set_in("per_request", "ttft_ms", 1, lambda x: x + 1e-3), "per_request.ttft_ms[1]: stored"),
        (set_in("per_request", "audio_underrun_s", lambda x: x[:1]), "per_request.audio_underrun_s: stored"),
        (set_in("outputs", 0, 1, "0" * 16), 'outputs[0][1]: stored "0000000000000000", recomputed "'),
        (set_in("counters", "talker/engine/steps", 41), "counters.talker/engine/steps: stored 41, recomputed 40"),
        (set_in("counters", "talker/engine/made_up", 1), "talker/engine/made_up: stored 1, recomputed nothing"),
        (set_in("spans_ms", "talker/runner/merge", lambda x: x + 1e-3), "spans_ms.talker/runner/merge: stored"),
        (set_in("host_growth", 1.5), "host_growth: stored 1.5, recomputed null"),
        (set_in("disturbed", ["the moon was full"]), "disturbed: stored"),
        (set_in("position", lambda x: (x + 1) % 4), "place: stored"),
        (set_in("variant", "async_save"), "variant: stored"),
        (
            set_in("occupants", "talker", "merge", "merge_elementwise 82b264206156"),
            'occupants.talker.merge: stored "merge_elementwise", recomputed "merge_shallow"',
        ),
        (set_in("occupants", {}), "occupants: stored nothing"),
        (set_in("position", 9), "rows.position: stored 9, recomputed "),
        (lambda line: line.pop("spans_ms"), "stored what cannot be read, recomputed KeyError: 'spans_ms'"),
        (lambda line: line["files"].clear(), "files: stored nothing, recomputed a file of counters.parquet"),
    ],
)
def test_a_changed_line_is_named(run, edit, named):
    number = change(run, edit)
    said = said_of(run)
    assert named in said
    assert f"trials.jsonl line {number} " in said


def test_a_comparison_that_hashes_contradict_is_named(run):
    def whitewash(line):
        line.update(differing=1, difference="request 0: codes at 4: 1, not 2")

    change(run, whitewash, "comparison")
    said = said_of(run)
    assert "differing: stored 1, recomputed 0" in said
    assert "difference: stored true, recomputed false" in said


@pytest.mark.parametrize("kind", ["trial", "gate", "comparison", "gate comparison", "open"])
@pytest.mark.parametrize("twice", [True, False])
def test_a_line_that_is_gone_or_there_twice_is_named(run, kind, twice):
    lines = lines_of(run)
    index = first(lines, kind, "BEFORE_1378" if kind == "open" else "shallow_merge")
    write_lines(run, [*lines[: index + twice], *lines[index + (not twice) :]] if not twice else
                [*lines[: index + 1], *lines[index:]])  # fmt: skip
    said = said_of(run)
    gone = {
        "trial": f"trials.jsonl trial 0-{lines[index]['position']}: stored nothing, recomputed a line of shallow_merge",
        "gate": "stored a comparison, recomputed no rows of both sides",
        "comparison": "trials.jsonl comparison 0 of shallow_merge: stored nothing, recomputed a line",
        "gate comparison": "trials.jsonl gate comparison 0 of shallow_merge: stored nothing, recomputed a line",
        "open": "trials.jsonl block 0: stored nothing, recomputed a line of its opening",
    }
    assert (f"stored line {index + 1} again" if twice else gone[kind]) in said
    if kind in ("trial", "gate") and not twice:
        assert f"spans.parquet/{kind}-0-{lines[index]['position']}.parquet: stored a row file, recomputed none" in said


def test_the_last_trial_cannot_go_unseen(run):
    lines = lines_of(run)
    last = max(i for i, line in enumerate(lines) if line["kind"] == "trial")
    for file in lines[last]["files"]:
        (run / file).unlink()
    write_lines(run, [*lines[:last], *lines[last + 1 :]])
    said = said_of(run)
    assert "stored a comparison, recomputed no rows of both sides" in said or "a line of" in said
    assert "report.md line " in said


def rewrite(run, table, edit, rehash=True):
    """Change a row file of the first trial of shallow_merge as a table, and its hash in the line with it."""
    lines = lines_of(run)
    index = first(lines)
    name = next(file for file in lines[index]["files"] if file.startswith(table))
    stored = pq.ParquetFile(run / name).read()
    frame = stored.to_pandas()
    frame = edit(frame)
    pq.write_table(stored.from_pandas(frame, schema=stored.schema, preserve_index=False), run / name)
    if rehash:
        lines[index]["files"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
        write_lines(run, lines)
    return name, index + 1


def test_a_changed_span_row_is_named_by_its_file_and_by_what_it_changes(run):
    def longer(frame):
        return frame.assign(end_ns=frame["end_ns"] + 1_000_000)

    name, number = rewrite(run, "spans", longer, rehash=False)
    said = said_of(run)
    assert f"{name} (line {number}) sha256: stored " in said
    assert "spans_ms.talker/runner/merge: stored" in said
    assert "metrics.host_ms_per_step: stored" in said


def at(row, column, value):
    def edit(frame):
        frame.loc[row, column] = value
        return frame

    return edit


@pytest.mark.parametrize(
    ("table", "edit", "named"),
    [
        ("spans", at(0, "name", "wait"), "spans_ms.talker/runner/wait: stored nothing"),
        ("counters", at(0, "value", 39), "counters.talker/engine/steps: stored 40, recomputed 39"),
        ("requests", at(1, "end_s", 0.5), "per_request.e2el_ms[1]: stored"),
        ("requests", at(0, "frames", 31), "metrics.frames: stored 60, recomputed 61"),
        ("requests", at(0, "frames", 31), "same_work: stored true, recomputed false"),
        ("requests", at(0, "codes_sha", "f" * 16), "equal.codes: stored true, recomputed false"),
        ("requests", at(0, "text_sha", "f" * 16), 'outputs[0][0]: stored "'),
        ("requests", at(0, "error", "Timeout"), "metrics.failed: stored 0, recomputed 1"),
        ("requests", lambda frame: frame.drop(index=1), "requests: stored 1, recomputed 2"),
    ],
)
def test_rows_with_a_hash_that_fits_are_computed_again_all_the_same(run, table, edit, named):
    rewrite(run, table, edit)
    assert named in said_of(run)


def test_row_files_that_are_replaced_gone_damaged_or_too_many(run):
    lines = lines_of(run)
    ours, other = (lines[first(lines, variant=name)] for name in ("shallow_merge", "async_save"))
    files = [next(file for file in line["files"] if file.startswith("counters")) for line in (ours, other)]
    shutil.copy(run / files[1], run / files[0])
    gone = next(file for file in ours["files"] if file.startswith("requests"))
    (run / gone).unlink()
    damaged = next(file for file in other["files"] if file.startswith("spans"))
    (run / damaged).write_bytes(b"PAR1 no more")
    (run / "counters.parquet" / "extra.parquet").touch()
    said = said_of(run)
    assert f"{files[0]} (line " in said
    assert f"{gone} (line {lines.index(ours) + 1}) sha256: stored " in said
    assert "recomputed no file" in said
    assert "rows: stored what cannot be read, recomputed ArrowInvalid" in said
    assert "counters.parquet/extra.parquet: stored a row file, recomputed none: no line names it" in said


def test_span_rows_may_be_missing_only_where_a_manifest_says_so(run):
    shutil.rmtree(run / "spans.parquet")
    assert "recomputed no file" in said_of(run)
    manifest = {"format": 1, "files": {}, "left_out": {"spans.parquet": 24}}
    (run / "MANIFEST.json").write_text(json.dumps(manifest))
    found = verify(run)
    assert found.differences == []
    assert "span rows are not packed: span sums are taken from trials.jsonl" in found.notes[0]
    change(run, lambda line: line["spans_ms"].update({"talker/runner/merge": 1.0}))
    assert "metrics.host_ms_per_step: stored" in said_of(run)
    (run / "MANIFEST.json").write_text("[]")
    with pytest.raises(RunFolderError, match=r"MANIFEST\.json: is damaged"):
        verify(run)


def test_a_manifest_names_every_file(run):
    files = {"report.md": "0" * 64, "figures/none.svg": "1" * 64, "../../etc/passwd": "2" * 64}
    (run / "MANIFEST.json").write_text(json.dumps({"format": 1, "files": files, "left_out": {}}))
    said = said_of(run)
    assert "report.md (MANIFEST.json) sha256: stored 000000000000, recomputed " in said
    assert "figures/none.svg (MANIFEST.json) sha256: stored 111111111111, recomputed no file" in said
    assert "../../etc/passwd (MANIFEST.json) sha256: stored 222222222222, recomputed no file" in said


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_digit_of_a_report(run, name):
    text = (run / name).read_text()
    place = text.index("0.8")
    (run / name).write_text(text[:place] + "0.7" + text[place + 3 :])
    said = said_of(run)
    assert f"{name} line " in said
    assert "0.7" in said
    (run / name).unlink()
    assert f"{name}: stored nothing, recomputed a report" in said_of(run)


def test_what_a_figure_looks_like_is_not_compared_and_that_is_said(small, script, tmp_path, monkeypatch):
    monkeypatch.setattr(Report, "figures", DRAWN)
    small(toggles=["async_save", "shallow_merge"], blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    assert said_of(tmp_path / "run") == ""
    page = tmp_path / "run" / "report.html"
    changed = page.read_text().replace("</svg>", "<text>other</text></svg>")
    assert changed != page.read_text()
    page.write_text(changed)
    found = verify(tmp_path / "run")
    assert found.differences == []
    assert any("figures and the timeline's script are not compared" in note for note in found.notes)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.style")
    found = verify(tmp_path / "run")
    assert found.differences == []
    assert any("report.html was not compared: matplotlib is not installed" in check.said for check in found.checks)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (set_in("seed", 7), "run.json plan_hash: stored"),
        (set_in("margin", 0.05), "run.json plan_hash: stored"),
        (set_in("plan_hash", "0" * 64), "run.json plan_hash: stored"),
        (set_in("orders", 1, lambda order: order[::-1]), "variant: stored"),
        (set_in("variants", 1, "occupants", "save", "Nothing 123"), "occupants.talker.save: stored"),
        (set_in("workload", "requests", lambda requests: requests[:1]), "requests: stored 2, recomputed 1"),
        (set_in("machine", "cores", lambda cores: cores + 1), "report.md line "),
        (set_in("variants", 1, "name", "other"), "recomputed KeyError: 'async_save'"),
        (lambda run: run.pop("orders"), "plan: stored what cannot be read, recomputed KeyError: 'orders'"),
    ],
)
def test_a_changed_plan(run, edit, named):
    stored = json.loads((run / "run.json").read_text())
    edit(stored)
    (run / "run.json").write_text(json.dumps(stored))
    assert named in said_of(run)


def test_the_number_of_blocks_is_computed_again(small, script, tmp_path):
    made = small(toggles=["shallow_merge"], blocks=None, detect=0.02)
    made.run(tmp_path / "run", open_pipeline=script(noise=0.02).open)
    assert verify(tmp_path / "run").differences == []
    change(tmp_path / "run", set_in("blocks", lambda blocks: blocks + 1), "sized", "BEFORE_1378")
    assert "blocks: stored " in said_of(tmp_path / "run")


def test_failed_trials_are_rows_that_verify(small, script, tmp_path):
    def explode(on, trials):
        if on == {"idle_skip"}:
            raise RuntimeError("the talker died")

    def spoil(on, record):
        if on == {"async_save"} and record.index == 1:
            record.error = "Timeout: code2wav waited 5 s"

    def change_codes(on, record):
        spoil(on, record)
        if on == {"shallow_merge"}:
            record.codes = record.codes + 1

    bench = script(explode=explode, spoil=change_codes)
    small().run(tmp_path / "run", open_pipeline=bench.open)
    assert said_of(tmp_path / "run") == ""
    small(gate_prompts=None).run(tmp_path / "again", open_pipeline=script(explode=explode, spoil=change_codes).open)
    assert said_of(tmp_path / "again") == ""


@pytest.mark.parametrize("stops", [(4,), (8,), (15,), (12, 4, 4)], ids=str)
def test_interrupted_and_resumed_runs_verify(small, script, tmp_path, stops):
    """In the gate, in the first block, at an opening, and several times in one block."""
    made = small(toggles=["async_save", "shallow_merge"])
    for number, after in enumerate(stops):

        def explode(on, trials, after=after):
            if trials == after:
                raise KeyboardInterrupt

        bench = script(explode=explode)
        bench.opened = 100 * number
        with pytest.raises(KeyboardInterrupt):
            made.run(tmp_path / "run", open_pipeline=bench.open, resume=number > 0)
        assert said_of(tmp_path / "run") == ""
    bench = script()
    bench.opened = 1000
    made.run(tmp_path / "run", open_pipeline=bench.open, resume=True)
    assert said_of(tmp_path / "run") == ""


def test_factorials_and_ladders_verify(small, script, tmp_path):
    for design in ("factorial", "ladder"):
        made = small(toggles=["async_save", "shallow_merge"], design=design, gate_prompts=None)
        made.run(tmp_path / design, open_pipeline=script().open)
        assert said_of(tmp_path / design) == ""


def test_a_source_that_changed_during_the_run_is_named(run):
    lines = lines_of(run)
    last = [line for line in lines if (line["kind"], line["variant"]) == ("trial", "async_save")][-1]
    last["occupants"]["talker"]["save"] = last["occupants"]["talker"]["save"].split()[0] + " 0123456789ab"
    write_lines(run, lines)
    said = said_of(run)
    assert f"trials.jsonl line {lines.index(last) + 1} (trial 4-" in said
    assert 'async_save) occupants.talker.save: stored "BuildInBackground 0123456789ab", recomputed "Build' in said


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"run.json": "{}"},
        {"run.json": "[]", "trials.jsonl": ""},
        {"run.json": '{"schema_version": 1}', "trials.jsonl": ""},
    ],
)
def test_folders_of_something_else_have_status_2(tmp_path, capsys, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert command.main([str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert str(tmp_path) in said.err


def test_a_run_that_is_being_written_is_left_alone(run, capsys):
    with open(run / "trials.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert command.main([str(run)]) == 2
    assert "another process is writing it" in capsys.readouterr().err
    assert command.main([str(run)]) == 0


def test_verifying_changes_nothing(run):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    verify(run)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_values_are_compared_part_by_part():
    assert compared("x", {"a": [1, 2.0]}, {"a": [1, 2.0 * (1 + 1e-12)]}) == []
    said = [str(one) for one in compared("x", {"a": [1, 2], "b": None}, {"a": [1, 3], "c": "y"})]
    assert said == [
        "x.a[1]: stored 2, recomputed 3",
        'x.c: stored nothing, recomputed "y"',
        "x.b: stored null, recomputed nothing",
    ]
    assert compared("x", 10**12, 10**12 + 1)  # whole numbers are exact
    assert compared("x", None, 0.0)
    assert compared("x", [1], [1, 2])


def test_growth_and_sums_come_from_span_rows_as_in_the_trial(small, script, tmp_path, monkeypatch):
    """Many steps, several threads and names: what the scripted bench does not have."""
    rows = [
        SpanRow("talker", f"thread-{i % 2}", name, "r0", i, 1000 * i + place, 1000 * i + place + 10 + i)
        for i in range(240)
        for place, name in enumerate(("get", "accumulate", "pickle", "unpickle", "merge"))
    ] + [SpanRow("code2wav", "engine", "wait", "", -1, 5, 50)]
    assert {row.name for row in rows} >= set(HOST_SPANS)
    bench = sys.modules[script.__module__].Scripted
    counters = [CounterRow("talker", "engine", "steps", 40), CounterRow("talker", "runner", "steps", 2)]
    assert Trial([], rows, counters).metrics["host_ms_per_step"]
    monkeypatch.setattr(bench, "rows", lambda self, on, factor: (rows, counters))
    small(blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    assert lines_of(tmp_path / "run")[1]["host_growth"] > 1
    assert said_of(tmp_path / "run") == ""


def test_sums_hold_the_spans_that_a_full_ring_overwrote(small, script, tmp_path, monkeypatch):
    bench = sys.modules[script.__module__].Scripted
    whole = bench.run

    def overwritten(self, workload):
        trial = whole(self, workload)
        trial.lost_rows = [
            LostRow("talker", "runner", "merge", 1000, 5_000_000),
            LostRow("thinker", "engine", "schedule", 3, 70),
        ]
        return trial

    monkeypatch.setattr(bench, "run", overwritten)
    report = small(blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    line = next(line for line in lines_of(tmp_path / "run") if line["kind"] == "trial")
    kept = line["spans_ms"]["talker/runner/merge"] - 5
    assert kept > 0 and line["metrics"]["host_ms_per_step"] == pytest.approx((kept + 5) / 40)
    assert line["span_numbers"] == {"talker/runner": 1001, "thinker/engine": 3}
    assert line["host_growth"] is None  # the first steps are not there to compare with
    assert "too low" not in report.markdown() and "host ms" in report.markdown()
    assert said_of(tmp_path / "run") == ""
    line["spans_lost"]["talker/runner"]["merge"][1] = 4.0
    others = [other for other in lines_of(tmp_path / "run") if other["kind"] != "trial" or other["block"]]
    write_lines(tmp_path / "run", [line, *others])
    assert "spans_ms.talker/runner/merge" in said_of(tmp_path / "run")
