"""What a run shows: verdicts, corrections, attributions, on runs whose truth is planted."""

import json
import math
import time

import numpy as np
import pytest

from omnilab.experiment.analysis.analyse import analyse
from omnilab.experiment.reports.report import Report

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")
BOTH = frozenset({"prefill_only_hidden_states", "shallow_merge"})


@pytest.fixture
def run(small, script, tmp_path):
    """Run a small experiment on a scripted bench."""

    def go(bench=None, **changes):
        return small(**changes).run(tmp_path / "run", open_pipeline=(bench or script()).open)

    return go


def test_noise_is_no_effect_and_a_still_bench_is_equivalent(run, script):
    report = run(script(noise=0.001), margin=0.02)
    assert {report.result(name).verdict for name in FOUR} == {"equivalent"}


def test_an_inconclusive_result_says_how_many_more_blocks(run, script):
    report = run(script(noise=0.2))
    said = [row[-1] for row in (line.split(" | ") for line in report.markdown().splitlines() if "more blocks" in line)]
    assert report.result("async_save").verdict == "inconclusive"
    assert report.result("async_save").more_blocks is None or report.result("async_save").more_blocks > 5
    assert any("more blocks" in text for text in said)


def test_small_but_certain_is_below_the_margin(run, script):
    report = run(script(noise=0.001, factors={"async_save": 0.99}))
    assert report.result("async_save").verdict == "faster, below the margin"


def test_more_of_a_throughput_is_faster(run, script):
    report = run(script(factors={"shallow_merge": 0.5}), primary="request_throughput")
    assert report.result("shallow_merge").verdict == "faster"
    assert report.result("shallow_merge").effects["request_throughput"].ratio == pytest.approx(2, rel=0.05)


def rows(path):
    run = json.loads((path / "run.json").read_text())
    return run, [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def test_a_baseline_that_differs_from_itself_withholds_verdicts(run, script):
    run_folder, lines = rows(run(script(factors={"shallow_merge": 0.5})).path)
    for line in lines:
        if (line["kind"], line["variant"]) == ("trial", "BEFORE_1378 (A/A)"):
            line["metrics"]["wall_s"] *= 1.2
    found = analyse(run_folder, lines)
    assert found.same["wall_s"].p < 0.01
    verdicts = {variant.name: variant.verdict for variant in found.variants}
    assert verdicts["shallow_merge"] == "withheld: the baseline differs from itself"
    assert any("faster and slower are withheld" in note for note in found.notes)
    assert not {"faster", "slower"} & set(verdicts.values())


def test_both_baseline_trials_count(run, script):
    """Averaging halves the noise of the baseline; using one of them would not see a factor on the other."""
    report = run(script(noise=0.0, block_noise=0.0, again=1.44), gate_prompts=None, toggles=["async_save"])
    assert report.result("async_save").effects["wall_s"].ratio == pytest.approx(1 / 1.2, rel=1e-3)


def test_verdicts_share_one_error_rate_and_the_rest_is_exploratory(run):
    report = run()
    raw = [report.result(name).effects["wall_s"].p for name in FOUR]
    adjusted = [report.result(name).effects["wall_s"].p_adjusted for name in FOUR]
    assert min(adjusted) == pytest.approx(min(1, 4 * min(raw)))
    assert "Holm" in report.markdown()
    assert report.result("async_save").effects["cpu_s"].p_adjusted is not None


def test_detectable_effects_stand_beside_every_verdict(run):
    report = run()
    for name in FOUR:
        assert 0 < report.result(name).effects["wall_s"].mde < 1
    assert "detectable" in report.markdown().splitlines()[6]


def test_an_outlier_shows_in_the_clipped_row_and_not_in_the_verdict(small, script, tmp_path):
    run, lines = rows(small().run(tmp_path / "run", open_pipeline=script().open).path)
    for line in lines:
        if (line["kind"], line["variant"], line["block"]) == ("trial", "idle_skip", 2):
            line["metrics"]["wall_s"] *= 3
    effect = next(v for v in analyse(run, lines).variants if v.name == "idle_skip").effects["wall_s"]
    assert effect.ratio > 1.15
    assert effect.clipped == pytest.approx(1, abs=0.05)


def test_factorials_give_verdicts_on_main_effects_and_shares_that_add_up(run, script):
    bench = script(factors={"prefill_only_hidden_states": 0.5, "shallow_merge": 0.8}, together={BOTH: 1.25}, opened=50)
    report = run(bench, design="factorial")
    found = report.findings
    verdicts = {main.toggle: main.verdict for main in found.mains}
    assert (verdicts["prefill_only_hidden_states"], verdicts["shallow_merge"]) == ("faster", "faster")
    assert verdicts["async_save"] in ("equivalent", "inconclusive")
    shares = {share.toggle: share for share in found.attribution.shares}
    total = sum(math.log(share.shapley.ratio) for share in shares.values())
    assert total == pytest.approx(math.log(found.attribution.total.ratio), abs=1e-9)
    assert shares["shallow_merge"].least < 0.85
    assert shares["shallow_merge"].greatest > 0.95
    strongest = found.interactions[0]
    assert {strongest.first, strongest.second} == BOTH
    assert strongest.effect.ratio == pytest.approx(1.25, rel=0.05)
    assert "(they overlap, sub-additive)" in strongest.words
    assert "elements_visited" not in strongest.words  # prefill-only leaves them in this script
    assert found.pairs["prefill_only_hidden_states x shallow_merge"].p_adjusted < 0.05


def test_half_fractions_find_the_same_with_half_the_trials(run, script):
    bench = script(factors={"prefill_only_hidden_states": 0.5}, noise=0.005)
    report = run(bench, design="half-fraction", blocks=6)
    orders = report.run["orders"]
    assert [len(order) for order in orders] == [9, 10, 9, 10, 9, 10]
    mains = {main.toggle: main for main in report.findings.mains}
    assert mains["prefill_only_hidden_states"].effect.ratio == pytest.approx(0.5, rel=0.05)
    assert mains["prefill_only_hidden_states"].verdict == "faster"
    assert mains["idle_skip"].verdict in ("equivalent", "inconclusive")
    assert report.findings.attribution is None
    assert not report.findings.unfinished


def test_the_two_by_two_is_there_wherever_its_four_cells_are(run, script):
    four = {"b": (), "a": ("shallow_merge",), "c": ("prefill_only_hidden_states",), "both": tuple(sorted(BOTH))}
    report = run(script(factors={"shallow_merge": 0.7}), variants=four)
    assert len(report.findings.interactions) == 1
    assert "a difference that these blocks cannot tell from none" in report.findings.interactions[0].words or (
        report.findings.interactions[0].effect.excludes_one()
    )


def test_leave_one_out_and_ladder_name_what_they_are_compared_with(small, script, tmp_path):
    bench = script(factors={"shallow_merge": 0.5}, opened=50)
    report = small(design="leave-one-out").run(tmp_path / "out", open_pipeline=bench.open)
    assert report.result("all - shallow_merge").against == "all"
    assert report.result("all - shallow_merge").verdict == "slower"
    assert "all - shallow_merge (against all)" in report.markdown()
    report = small(design="ladder").run(tmp_path / "ladder", open_pipeline=bench.open)
    assert report.result("+ shallow_merge").against == "+ idle_skip"
    assert report.result("+ shallow_merge").verdict == "faster"


def test_quantiles_are_refused_below_their_requests(run):
    report = run()
    said = " ".join(report.sections()["Quantiles above the median"])
    assert "p90 needs 29 requests a variant, not 10" in said
    assert "p99 needs 299" in said


def test_outputs_that_may_differ_are_a_class_of_their_own(small, script, tmp_path):
    from omnilab.toggle import Toggle
    from omnilab.toggles import THE_FOUR

    merge = THE_FOUR[3]
    mine = Toggle(name="shallow_merge", seam="merge", baseline=merge.baseline, optimized=merge.optimized, claim="",
                  exact=frozenset({"tokens"}))  # fmt: skip

    def spoil(on, record):
        if "shallow_merge" in on:
            record.codes = record.codes + 1

    report = small(toggles=[mine]).run(tmp_path / "run", open_pipeline=script(spoil=spoil).open)
    assert report.result("shallow_merge").output == "same work, other samples"
    assert report.result("shallow_merge").effects


def test_other_work_gets_no_speed(small, script, tmp_path):
    def spoil(on, record):
        if "shallow_merge" in on:
            record.frames += 1

    bench = script(spoil=spoil, factors={"shallow_merge": 0.1})
    report = small(toggles=["shallow_merge"]).run(tmp_path / "run", open_pipeline=bench.open)
    assert (report.result("shallow_merge").output, report.result("shallow_merge").verdict) == (
        "other work", "failed the gate",
    )  # fmt: skip


def test_a_baseline_that_differs_from_itself_makes_differences_batch_shape_numerics(small, script, tmp_path):
    baselines = []

    def spoil(on, record):
        if record.index == 1:
            baselines.extend([record] * (not on))
            if on or len(baselines) % 2:  # whatever the toggle, and every second trial of the baseline itself
                record.token_ids = [*record.token_ids[:-1], -1]

    bench = script(spoil=spoil, factors={"shallow_merge": 0.5})
    report = small(gate_prompts=None).run(tmp_path / "run", open_pipeline=bench.open)
    assert {report.result(name).output for name in FOUR} <= {"batch-shape numerics", "same output"}
    assert "batch-shape numerics" in {report.result(name).output for name in FOUR}
    assert report.result("shallow_merge").verdict == "faster"
    assert "1 of 2 requests; the baseline differs from itself in 1" in report.markdown()


def test_little_noise_needs_no_more_than_five_blocks(run, script):
    still = run(script(noise=0.002, block_noise=0.0), detect=0.05)
    assert still.findings.blocks == 5
    assert still.run["rule"] == {"rule": "noise", "first": 5, "most": 30, "target": 0.05}


def test_sizing_from_noise_goes_on_and_is_written_down(run, script):
    report = run(script(noise=0.03), detect=0.03)
    sized = [line for line in report.lines if line["kind"] == "sized"]
    assert len(sized) == 1
    assert report.findings.blocks == report.findings.planned_blocks == sized[0]["blocks"] > 5


def test_looks_stop_when_all_is_decided_and_end_at_ten(small, script, tmp_path):
    big = script(factors=dict.fromkeys(FOUR, 0.5), noise=0.005)
    report = small(looks=True).run(tmp_path / "big", open_pipeline=big.open)
    assert report.findings.blocks == 5
    assert {report.result(name).verdict for name in FOUR} == {"faster"}
    null = small(looks=True).run(tmp_path / "null", open_pipeline=script(noise=0.02).open)
    assert null.findings.blocks == 10
    assert not any(null.result(name).verdict.startswith(("faster", "slower")) for name in FOUR)
    assert null.run["rule"]["levels"]["5"]["4"] == 0.00041


@pytest.mark.drawn
def test_equal_rows_give_equal_reports(run):
    report = run()
    again = Report.load(report.path)
    assert again.texts() == report.texts()
    assert (report.path / "report.html").read_text() == report.texts()["report.html"]
    assert (report.path / "figures" / "effects.svg").exists()


def test_seventeen_variants_ten_blocks_eight_requests_within_ten_seconds(small, script, tmp_path):
    from omnilab.workload import Workload

    workload = Workload.random(num_prompts=8, input_len=8, output_len=6, frames=30)
    experiment = small(design="factorial", blocks=10, workload=workload)
    path = experiment.run(tmp_path / "run", open_pipeline=script().open).path
    began = time.process_time()
    Report.load(path)
    assert time.process_time() - began < 10


def test_carries_and_limits_are_said(run):
    report = run()
    text = report.markdown()
    assert "counts, bytes and rows: exactly" in text
    assert "% of an 80 ms frame" in text
    assert "moves work between threads" in next(
        line for line in text.splitlines() if line.startswith("- **async_save**: counts")
    )
    assert "not exercised: copies between device and host" in text
    assert "RTF" not in text.split("## ")[0]  # never in the headline of a CPU


def test_a_gate_without_audio_or_image_is_said_to_be_blind(run):
    from omnilab.prompt import Sampling
    from omnilab.workload import Workload

    text = Workload.prompts(["Tell me about rivers."], Sampling(max_text_tokens=4, max_frames=4))
    assert "the gate had no prompt with audio or image" in run(gate_prompts=text).markdown()


def test_the_usual_gate_is_not_blind(run):
    assert "the gate had no prompt" not in run().markdown()


def test_guards_mark_and_never_drop(small, script, tmp_path, monkeypatch):
    from omnilab.experiment import guards

    monkeypatch.setattr(guards, "disturbances", lambda *_: ["the machine swapped"])
    report = small(toggles=["async_save"]).run(tmp_path / "run", open_pipeline=script().open)
    assert report.findings.trials == 15
    assert "15 of 15 trials were disturbed: the machine swapped" in report.markdown()


def test_guards_see_other_programs_memory_and_throttling():
    from omnilab.experiment import guards

    calm = {"busy_elsewhere_s": 0.0, "memory_available_share": 0.5, "swapped_mib": 0.0, "gpus": []}
    assert guards.disturbances(calm, {**calm, "busy_elsewhere_s": 10.5}, 10.0, 10.0, 2) == []
    assert len(guards.disturbances(calm, {**calm, "busy_elsewhere_s": 13.0}, 10.0, 10.0, 2)) == 1
    assert guards.disturbances(calm, {**calm, "memory_available_share": 0.01}, 10, 0, 2)[0].startswith("less than")
    assert guards.disturbances(calm, {**calm, "swapped_mib": 100.0}, 10, 0, 2) == ["the machine swapped"]
    hot = {**calm, "gpus": [{"slowed_by": 0x40}]}
    assert guards.disturbances(calm, hot, 10, 0, 2) == ["a GPU was slowed by heat or power"]
    assert guards.disturbances(calm, {**calm, "gpus": [{"slowed_by": 1}]}, 10, 0, 2) == []  # idle
    now = guards.read()
    assert now["resident_mib"] > 10
    assert 0 < now["memory_available_share"] <= 1


def test_a_law_stands_beside_what_was_measured(small, script, tmp_path):
    """The scripted bench knows no model; with a row's size the laws speak."""
    run, lines = rows(small().run(tmp_path / "run", open_pipeline=script().open).path)
    found = analyse({**run, "row_bytes": 4096}, lines)
    merge = next(v for v in found.variants if v.name == "shallow_merge").predicted
    assert merge.counts["elements_visited"][1] == 0
    assert merge.measured["elements_visited"] == (2000, 20) or merge.measured["elements_visited"] == (1000, 10)
    assert merge.host_s == pytest.approx(-0.036, rel=0.3)  # all of the merge span
    idle = next(v for v in found.variants if v.name == "idle_skip").predicted
    assert idle.host_s == 0
    assert np.isfinite(merge.measured_host_s)
