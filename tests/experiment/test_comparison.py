"""Comparing runs: what cannot be compared is refused with the reason, what can is judged by Welch's interval."""

import json
import math
import shutil

import numpy as np
import pytest
from scipy import stats

from omnilab import compare as command
from omnilab.experiment.checks import bundle
from omnilab.experiment.checks.comparison import CANNOT_TELL, DIFFERS, REPEATS, compare, ratio_of
from omnilab.experiment.reports.report import Report
from omnilab.experiment.statistics.estimate import estimate, slope_factor
from omnilab.workload import Workload, closed, poisson

TOGGLES = ("async_save", "shallow_merge")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Figures take time, and a comparison has none."""
    monkeypatch.setattr(Report, "figures", lambda self: {})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two runs of one question that are made once; tests change copies of the second."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def pair(kept, tmp_path, small, script):
    """Two runs of the same question, other seeds, other processes: shallow merge brings 20 % in both."""
    for number, name in enumerate(("a", "b")):
        if not (kept / name).exists():
            bench = script(factors={"shallow_merge": 0.8})
            bench.opened = 100 * number
            small(toggles=TOGGLES, seed=number, gate_prompts=None).run(kept / name, open_pipeline=bench.open)
    return kept / "a", shutil.copytree(kept / "b", tmp_path / "b")


def change(run, edit):
    stored = json.loads((run / "run.json").read_text())
    edit(stored)
    (run / "run.json").write_text(json.dumps(stored))


def reports(pair):
    return [Report.load(path) for path in pair]


def test_a_second_run_repeats_what_the_first_has_shown(pair, capsys):
    found = compare(*reports(pair))
    assert found.reasons == ()
    by_name = {one.name: one for one in found.pairs}
    merge = by_name["shallow_merge"]
    assert (merge.word, merge.verdict_a, merge.verdict_b) == (REPEATS, "faster", "faster")
    assert merge.low < 1 < merge.high
    assert merge.ratio == pytest.approx(merge.b.ratio / merge.a.ratio, rel=1e-9)
    assert by_name["async_save"].word == CANNOT_TELL  # nothing to repeat
    assert command.main([str(path) for path in pair]) == 0
    said = capsys.readouterr().out
    assert "shallow_merge (against BEFORE_1378)" in said
    assert "repeats" in said
    assert "NOT COMPARABLE" not in said


def test_an_effect_that_went_away_differs(pair, small, script, tmp_path):
    bench = script()
    bench.opened = 200
    small(toggles=TOGGLES, seed=2, gate_prompts=None).run(tmp_path / "c", open_pipeline=bench.open)
    found = {one.name: one for one in compare(*reports((pair[0], tmp_path / "c"))).pairs}
    assert found["shallow_merge"].word == DIFFERS
    assert found["shallow_merge"].low > 1
    assert found["async_save"].word != DIFFERS


def test_the_interval_is_welchs_with_the_price_of_the_slope():
    random = np.random.default_rng(0)
    a, b = random.normal(0, 0.01, 5), random.normal(0.05, 0.05, 8)
    wide = [values.mean() + (values - values.mean()) * slope_factor(4, len(values)) for values in (a, b)]
    expected = stats.ttest_ind(wide[1], wide[0], equal_var=False).confidence_interval(0.95)
    ours = [estimate(values, 4) for values in (a, b)]
    assert ratio_of(*ours) == pytest.approx((b.mean() - a.mean(), expected.low, expected.high))


def test_runs_without_spread_or_with_few_blocks_have_an_interval_or_none():
    same, few = estimate([0.1] * 5, 4), estimate([0.1, 0.2], 4)
    value, low, high = ratio_of(same, estimate([0.2] * 5, 4))
    assert value == pytest.approx(0.1)
    assert high - low < 1e-9
    assert ratio_of(same, few) == (pytest.approx(0.05), None, None)


def put(*path, value):
    def edit(run):
        *parents, last = path
        for key in parents:
            run = run[key]
        run[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (put("machine", "cpu", value="Other 9000"), "other machine: cpu: "),
        (put("machine", "cores", value=99), "other machine: cores: "),
        (put("machine", "system", value="Plan 9"), "other machine: system: "),
        (put("machine", "gpus", value=["H200"]), "other machine: gpus: None and ['H200']"),
        (put("versions", "torch", value="1.0"), "other torch: "),
        (put("versions", "transformers", value="1.0"), "other transformers: "),
        (put("model", value="tiny"), "other model: none and tiny"),
        (put("device", value="cuda"), "other device: cpu and cuda"),
        (put("topology", value="inline"), "other topology: processes and inline"),
        (put("primary", value="cpu_s"), "other primary: wall_s and cpu_s"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(pair, capsys, edit, reason):
    change(pair[1], edit)
    assert command.main([str(path) for path in pair]) == 1
    said = capsys.readouterr().out
    assert f"{pair[0]} and {pair[1]} cannot be compared:" in said
    assert f"- {reason}" in said
    assert "shallow_merge" not in said


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.random(num_prompts=3, input_len=8, output_len=6, frames=30), "other workload: 2 and 3 requests"),
        (Workload.random(num_prompts=2, input_len=9, output_len=6, frames=30), "prompt.random_tokens: 8 and 9"),
        (Workload.random(num_prompts=2, input_len=8, output_len=7, frames=30), "sampling.max_text_tokens: 6 and 7"),
        (Workload.random(num_prompts=2, input_len=8, output_len=6, frames=31), "sampling.max_frames: 30 and 31"),
        (
            Workload.random(num_prompts=2, input_len=8, output_len=6, frames=30, max_concurrency=2),
            "arrivals.max_concurrency: 1 and 2",
        ),
    ],
)
def test_other_workloads_are_refused(pair, workload, reason):
    change(pair[1], put("workload", value=workload.to_dict()))
    assert reason in "; ".join(compare(*reports(pair)).reasons)


def test_prompts_are_part_of_a_workload_and_arrival_times_of_another_seed_are_not(pair):
    texts = [
        Workload.prompts([text], arrivals=poisson(2.0), seed=seed) for text, seed in (("a", 0), ("a", 1), ("b", 0))
    ]
    change(pair[1], put("workload", value=texts[1].to_dict()))
    a, b = reports(pair)
    a.run["workload"] = texts[0].to_dict()
    assert compare(a, b).reasons == ()
    a.run["workload"] = texts[2].to_dict()
    assert compare(a, b).reasons == ('other workload: requests[0].prompt.text: "b" and "a"',)
    a.run["workload"] = Workload.prompts(["a"], arrivals=closed(2)).to_dict()
    assert "arrivals.kind" in compare(a, b).reasons[0]


def test_there_must_be_a_variant_that_is_the_same_in_both(pair, small, script, tmp_path):
    small(toggles=["idle_skip"], seed=5, gate_prompts=None).run(tmp_path / "c", open_pipeline=script().open)
    found = compare(*reports((pair[0], tmp_path / "c")))
    assert found.reasons == ("no variant is in both: async_save, shallow_merge; idle_skip",)
    assert found.pairs == ()
    for index in (1, 2):
        change(pair[1], put("variants", index, "occupants", "merge", value="merge_by_magic 0"))
    said = "\n".join(compare(*reports(pair)).reasons)
    assert 'other variant: shallow_merge, seam merge: "merge_shallow" and "merge_by_magic"' in said
    assert 'other variant: async_save, seam merge: "merge_elementwise" and "merge_by_magic"' in said


def test_another_baseline_is_another_comparison(pair):
    change(pair[1], put("variants", 0, "occupants", "attach", value="attach_once 0"))
    assert "BEFORE_1378, seam attach" in "; ".join(compare(*reports(pair)).reasons)
    change(pair[1], put("variants", 0, "occupants", "attach", value="attach_until_finished 0"))
    change(pair[1], put("variants", 1, "against", value="shallow_merge"))
    change(pair[1], put("variants", 2, "against", value="async_save"))
    said = "; ".join(compare(*reports(pair)).reasons)
    assert "async_save is compared with BEFORE_1378 and with shallow_merge" in said


def test_other_commits_sources_and_variants_are_said_and_jitter_is_not(pair, capsys):
    change(pair[1], put("commit", value="0123456789abcdef+changes"))
    change(pair[1], put("variants", 2, "occupants", "merge", value="merge_shallow 000000000000"))
    change(pair[1], put("machine", "cpu_mhz", value=1234.5))
    change(pair[1], put("machine", "memory_gib", value=1.5))
    change(pair[1], put("variants", 1, "occupants", "save", value="Other 0"))
    found = compare(*reports(pair))
    assert found.reasons == ()
    assert [one.name for one in found.pairs] == ["shallow_merge"]
    said = "\n".join(found.notes)
    assert "and 0123456789ab+changes" in said
    assert "another source in both runs, in the seams merge" in said
    assert "not in both, or not the same in both: async_save" in said
    assert "mhz" not in said
    assert command.main([str(path) for path in pair]) == 0
    assert "0123456789ab+changes" in capsys.readouterr().out


def test_a_run_is_no_repetition_of_itself(pair, capsys):
    zipped = bundle.pack(pair[1]).path
    assert command.main([str(pair[1]), str(zipped)]) == 1
    assert "both are the same run" in capsys.readouterr().out
    assert command.main([str(pair[0]), str(zipped)]) == 0
    assert str(zipped) in capsys.readouterr().out


def test_force_compares_all_the_same_and_marks_every_line(pair, capsys):
    change(pair[1], put("machine", "cpu", value="Other 9000"))
    change(pair[1], put("primary", value="cpu_s"))
    assert command.main([*(str(path) for path in pair), "--force"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if any(letter.isalnum() for letter in line)]
    header = next(line for line in said if "together" in line)
    assert all("NOT COMPARABLE: " in line for line in said if line != header)
    assert any("cpu" in line and "Other 9000" in line for line in said)
    assert any("shallow_merge" in line for line in said)


def test_json(pair, capsys):
    assert command.main([*(str(path) for path in pair), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (found["a"], found["comparable"], found["forced"]) == (str(pair[0]), True, False)
    merge = next(one for one in found["pairs"] if one["name"] == "shallow_merge")
    assert merge["word"] == "repeats"
    assert math.isclose(merge["ratio"], merge["b"]["ratio"] / merge["a"]["ratio"], rel_tol=1e-9)
    change(pair[1], put("model", value="tiny"))
    assert command.main([*(str(path) for path in pair), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"] == ["other model: none and tiny"]


def test_a_variant_without_a_speed_is_not_told(pair, small, script, tmp_path):
    def spoil(on, record):
        if "shallow_merge" in on:
            record.codes = record.codes + 1

    small(toggles=TOGGLES, seed=3).run(tmp_path / "c", open_pipeline=script(spoil=spoil).open)
    found = {one.name: one for one in compare(*reports((pair[0], tmp_path / "c"))).pairs}
    merge = found["shallow_merge"]
    assert (merge.verdict_b, merge.ratio, merge.b, merge.word) == ("failed the gate", None, None, CANNOT_TELL)


@pytest.mark.parametrize("name", ["none", "folder"])
def test_what_is_no_run_has_status_2(pair, tmp_path, capsys, name):
    (tmp_path / "folder").mkdir()
    assert command.main([str(pair[0]), str(tmp_path / name)]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err
