"""What the tab serves: the words of the report, bars that add up, timelines of bounded size, and nothing outside."""

import gzip
import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest

from omnilab.board.data import MOST_SPANS, Board, Recent, bars
from omnilab.board.folders import find_runs
from omnilab.errors import BadInput
from omnilab.experiment.reports import words
from omnilab.experiment.reports.report import Report
from tests.board.scripted_run import BASELINE, FASTEST, VARIANTS


@pytest.fixture
def board(logdir):
    return Board(logdir)


def test_runs_are_found_below_at_and_from_the_traces_of_a_run(logdir):
    shutil.copytree(logdir / "mine", logdir / "deeper" / "down" / "other")
    (logdir / ".hidden").mkdir()
    shutil.copy(logdir / "mine" / "run.json", logdir / ".hidden")
    (logdir / "link").symlink_to(logdir / "mine", target_is_directory=True)
    assert list(find_runs(logdir)) == ["deeper/down/other", "mine"]
    assert find_runs(logdir / "mine") == {"mine": logdir / "mine"}
    (logdir / "mine" / "traces").mkdir()
    assert find_runs(logdir / "mine" / "traces") == {"mine": logdir / "mine"}
    assert find_runs(logdir / "nothing here") == {}
    assert find_runs("") == {}


def test_the_table_is_that_of_the_report(board, logdir):
    found, report = board.run("mine"), Report.load(logdir / "mine")
    assert found["header"] == words.header(report.findings)
    assert found["rows"] == words.rows(report.findings)
    assert [row[-1] for row in found["rows"] if row[0] == FASTEST] == ["faster"]
    said = board.sections("mine")
    assert said == {title: lines for title, lines in report.sections().items() if title != "Definitions"}
    assert "What this does not show" in said
    assert [one["name"] for one in found["variants"]] == [*VARIANTS[:2], *sorted(VARIANTS[2:], key=_order(found))]
    assert {len(one["blocks"]) for one in found["variants"]} == {5}


def _order(found):
    names = [one["name"] for one in found["variants"]]
    return names.index


def test_the_timeline_begins_with_baseline_and_fastest_in_a_block_where_both_succeeded(board, logdir):
    assert board.run("mine")["first"] == [{"variant": BASELINE, "block": 0}, {"variant": FASTEST, "block": 0}]
    lines = [json.loads(line) for line in (logdir / "mine" / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if (line["kind"], line["block"], line["variant"]) == ("trial", 0, BASELINE):
            line["error"] = "1 of 2 requests failed"
    (logdir / "mine" / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = board.run("mine")
    assert found["first"] == [{"variant": BASELINE, "block": 1}, {"variant": FASTEST, "block": 1}]
    failed = next(one for one in found["variants"] if one["name"] == BASELINE)["blocks"][0]
    assert failed == {"block": 0, "error": "1 of 2 requests failed"}


def test_bars_are_the_span_sums_and_the_rest_is_other(board):
    found = board.run("mine")["bars"]
    assert set(found["names"]) == {"forward", "merge", "put", "get", "vocode"}
    talker = next(stage for stage in found["stages"] if stage["stage"] == "talker")
    assert [stage["stage"] for stage in found["stages"]] == ["thinker", "talker", "code2wav"]
    row = dict(zip(found["names"], _row(talker, BASELINE), strict=True))
    assert (row["forward"], row["get"], row["put"], row["vocode"]) == pytest.approx(
        (180, 8, 8, 0)
    )  # twice the known times
    assert _row(talker, FASTEST)[found["names"].index("forward")] == 90


def _row(stage, variant):
    return next(row["ms"] for row in stage["rows"] if row["variant"] == variant)


def test_names_beyond_the_largest_are_summed_and_what_failed_the_gate_has_no_bar():
    sums = {f"talker/n{i:02}": 100.0 - i for i in range(10)} | {"thinker/n09": 1.0, "vocoder/n00": 2.0}
    variants = [SimpleNamespace(name="a", verdict="baseline"), SimpleNamespace(name="b", verdict="failed the gate")]
    found = bars(SimpleNamespace(per_stage={"a": sums, "b": sums}, variants=variants))  # pyright: ignore
    assert found["names"] == [f"n{i:02}" for i in range(8)] + ["other"]
    assert [(stage["stage"], [row["variant"] for row in stage["rows"]]) for stage in found["stages"]] == [
        ("thinker", ["a"]), ("talker", ["a"]), ("vocoder", ["a"]),
    ]  # fmt: skip
    assert found["stages"][1]["rows"][0]["ms"][-1] == 92 + 91
    assert sum(ms for stage in found["stages"] for row in stage["rows"] for ms in row["ms"]) == sum(sums.values())


def test_a_timeline_holds_the_known_spans_and_a_window_those_in_it(board):
    found = board.timeline("mine", FASTEST, 0, None, None)
    assert (found["label"], found["length_us"]) == (f"{FASTEST}, block 0", 200_000)
    spans = found["spans"]
    named = [found["names"][at] for at in spans["name"]]
    forward = [(spans["start_us"][at], spans["length_us"][at]) for at, name in enumerate(named) if name == "forward"]
    assert sorted(forward) == [(0, 40_000), (60_000, 90_000)]
    assert len(found["arrows"]["from"]) == 2
    window = board.timeline("mine", FASTEST, 0, (60_000.0, 100_000.0), None)
    assert window["window_us"] == [60_000, 100_000]
    assert {window["names"][at] for at in window["spans"]["name"]} == {"forward"}


def test_a_trial_of_many_spans_gives_a_bounded_timeline(board, logdir):
    """Four times what a page may hold: the answer keeps to the bound, and the time adds up."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [json.loads(line) for line in (logdir / "mine" / "trials.jsonl").read_text().splitlines()]
    line = next(one for one in lines if (one["kind"], one["block"], one["variant"]) == ("trial", 0, FASTEST))
    file = logdir / "mine" / next(name for name in line["files"] if name.startswith("spans"))
    few = pq.read_table(file, partitioning=None)
    first = few.slice(0, 1).to_pandas()
    many = pd.concat([first] * (4 * MOST_SPANS), ignore_index=True)
    many["start_ns"] = many.index * 1_000
    many["end_ns"] = many["start_ns"] + 600
    pq.write_table(pa.Table.from_pandas(many, schema=few.schema, preserve_index=False), file)
    found = board.timeline("mine", FASTEST, 0, None, None)
    assert found["total"] == 4 * MOST_SPANS
    assert len(found["spans"]["track"]) <= MOST_SPANS
    assert sum(found["spans"]["count"]) == 4 * MOST_SPANS
    assert sum(found["spans"]["busy_us"]) == pytest.approx(4 * MOST_SPANS * 0.6)


def test_a_trace_is_made_for_any_trial(board):
    trace = json.loads(gzip.decompress(board.trace("mine", BASELINE, 3)))
    assert trace["metadata"]["trial"] == f"{BASELINE}, block 3"
    assert trace["metadata"]["arrows"] == 2


def test_sounds_and_files_are_those_of_the_run_and_links_are_not(board, logdir, tmp_path):
    run = logdir / "mine"
    heard = board.run("mine")["sounds"]
    assert [(one["variant"], one["request"]) for one in heard[:2]] == [(VARIANTS[0], 0), (VARIANTS[1], 0)]
    assert heard[0]["seconds"] == pytest.approx(30 * 40 / 24_000)
    assert board.sound("mine", BASELINE, 0) == run / "audio" / f"{BASELINE}-0.wav"
    folder = run / "traces" / "x"
    folder.mkdir(parents=True)
    for name in ("merged.json.gz", "talker.1.2.pt.trace.json.gz", "talker.speedscope.json", "notes.txt"):
        (folder / name).write_bytes(b"1234")
    secret = tmp_path / "secret.json.gz"
    secret.write_bytes(b"secret")
    (folder / "link.json.gz").symlink_to(secret)
    (run / "traces" / "out").symlink_to(tmp_path, target_is_directory=True)
    (run / "audio" / f"{BASELINE}-7.wav").symlink_to(run / "audio" / f"{BASELINE}-0.wav")
    found = {one["name"]: one for one in board.run("mine")["files"]}
    assert set(found) == {"x/merged.json.gz", "x/talker.1.2.pt.trace.json.gz", "x/talker.speedscope.json"}
    assert found["x/talker.speedscope.json"]["kind"] == "py-spy: speedscope"
    assert [one["perfetto"] for one in found.values()] == [True, True, False]
    for wanted in (
        "x/link.json.gz",
        "out/secret.json.gz",
        "../run.json",
        "x/../../run.json",
        "x/notes.txt",
        "/etc/passwd",
    ):
        with pytest.raises(BadInput, match="has no trace file"):
            board.file("mine", wanted)
    with pytest.raises(BadInput, match="keeps no sound of request 7"):
        board.sound("mine", BASELINE, 7)


def test_what_is_not_there_is_named(board, logdir):
    with pytest.raises(BadInput, match=r"no run '\.\./mine' below the logdir; there are mine"):
        board.run("../mine")
    with pytest.raises(BadInput, match="no run"):
        board.run(str(logdir / "mine"))
    with pytest.raises(BadInput, match="has no variant 'nope'; there are"):
        board.timeline("mine", "nope", 0, None, None)
    with pytest.raises(BadInput, match="not measured in block 9; it was in 0, 1"):
        board.timeline("mine", BASELINE, 9, None, None)
    with pytest.raises(BadInput, match="nobody"):
        board.timeline("mine", BASELINE, 0, None, "nobody")


def damage(run, how):
    """Spoil a run folder in one of several ways."""
    if how == "no rows":
        (run / "trials.jsonl").unlink()
    elif how == "half a run.json":
        (run / "run.json").write_text('{"schema_version": 2')
    elif how == "an empty run.json":
        (run / "run.json").write_text('{"schema_version": 2}')
    elif how == "a line of another kind":
        (run / "trials.jsonl").write_text('{"kind": "trial", "block": 0, "variant": 3}\n')


@pytest.mark.parametrize("how", ["no rows", "half a run.json", "an empty run.json", "a line of another kind"])
def test_a_damaged_run_is_shown_as_such_and_others_still_work(board, logdir, how):
    shutil.copytree(logdir / "mine", logdir / "bad")
    damage(logdir / "bad", how)
    bad, mine = board.runs()
    assert (bad["name"], mine) == ("bad", {"name": "mine", "damaged": ""})
    assert bool(bad["damaged"]) == (how in ("no rows", "half a run.json"))  # the others show when it is opened
    with pytest.raises(BadInput, match=r"bad: (is damaged|is not a run folder)"):
        board.run("bad")
    assert board.run("mine")["rows"]
    assert board.timeline("mine", BASELINE, 0, None, None)["total"] == 8


def test_a_damaged_sound_does_not_hide_the_run(board, logdir):
    (logdir / "mine" / "audio" / f"{BASELINE}-0.wav").write_bytes(b"RIFF")
    found = board.run("mine")
    assert found["sounds"] == [] and "is no sound, or is damaged" in found["unheard"]
    assert found["rows"]


def test_a_run_that_goes_on_is_read_again(board, logdir):
    before = board.run("mine")["heading"]
    path = logdir / "mine" / "trials.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("".join(line + "\n" for line in lines if json.loads(line)["block"] < 4))
    after = board.run("mine")
    assert before[0].startswith("5 of 5 blocks") and after["heading"][0].startswith("4 of 5 blocks")
    assert after["unfinished"]


def test_only_the_values_made_last_are_kept():
    made = []
    recent = Recent(2)
    for key in ("a", "b", "a", "c", "a", "b"):
        recent.get(key, lambda key=key: made.append(key))
    assert made == ["a", "b", "c", "b"]
