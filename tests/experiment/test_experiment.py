"""The protocol on a scripted bench: planted effects are found, none are invented, failures stay rows."""

import json

import numpy as np
import pandas as pd
import pytest

from omnilab.errors import BadInput, ModelNotFound, RunFolderError, ToggleConflict, ToggleUnavailable
from omnilab.experiment.plan import GATE_TOKENS, warm_up
from omnilab.experiment.reports.report import Report
from omnilab.toggle import Toggle
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")


def lines_of(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in (path / "trials.jsonl").read_text().splitlines()]


def test_a_planted_effect_is_found_and_no_other(small, script, tmp_path):
    bench = script(factors={"prefill_only_hidden_states": 0.6, "shallow_merge": 1.3})
    report = small().run(tmp_path / "run", open_pipeline=bench.open)
    assert report.result("prefill_only_hidden_states").verdict == "faster"
    assert report.result("prefill_only_hidden_states").effects["wall_s"].ratio == pytest.approx(0.6, rel=0.05)
    assert report.result("shallow_merge").verdict == "slower"
    assert report.result("async_save").verdict in ("equivalent", "inconclusive")
    same = report.findings.same["wall_s"]
    assert same.low <= 1 <= same.high
    assert bench.opened == 5
    assert not report.failed


def test_spans_and_counters_show_what_time_does_not(small, script, tmp_path):
    report = small(toggles=["shallow_merge"]).run(tmp_path / "run", open_pipeline=script(block_noise=0.0).open)
    result = report.result("shallow_merge")
    assert result.verdict in ("equivalent", "inconclusive")
    moved = {m.what: (m.before, m.after) for m in result.counters}
    assert moved["talker/runner/elements_visited"] == (1000, 10)
    assert "code2wav/engine/idle_steps" not in moved  # the clock's, not the toggle's
    assert [m.what for m in result.spans] == ["talker/runner/merge"]
    assert "36 -> 5 ms" in report.markdown()


def test_equal_counters_are_no_effect_whatever_the_clock_says(small, script, tmp_path):
    bench = script(factors={"async_save": 0.5}, silent=frozenset({"async_save"}))
    report = small(toggles=["async_save"]).run(tmp_path / "run", open_pipeline=bench.open)
    assert report.result("async_save").verdict == "had no effect"
    assert "had no effect: no counter differs from BEFORE_1378 by more than its own two trials do" in report.markdown()


def test_no_verdict_below_five_blocks(small, script, tmp_path):
    bench = script(factors={"async_save": 0.5})
    report = small(toggles=["async_save"], blocks=4).run(tmp_path / "run", open_pipeline=bench.open)
    assert report.result("async_save").verdict == "no verdict below 5 blocks"
    assert report.result("async_save").effects["wall_s"].high < 1
    assert "4 blocks: intervals only" in report.markdown()


def test_the_gate_comes_first_and_names_the_difference(small, script, tmp_path):
    def spoil(on, record):
        if "idle_skip" in on and record.index == 1:
            record.codes = record.codes.copy()
            record.codes[4, 3] += 1

    bench = script(spoil=spoil, factors={"idle_skip": 0.1})
    report = small().run(tmp_path / "run", open_pipeline=bench.open)
    result = report.result("idle_skip")
    assert result.verdict == "failed the gate"
    assert result.effects == {}
    assert result.difference.startswith("request 1: codes at 4:")
    kinds = [line["kind"] for line in lines_of(tmp_path / "run") if line["variant"] == "idle_skip"]
    assert "trial" not in kinds  # no speed was even taken
    assert report.result("async_save").verdict in ("equivalent", "inconclusive")
    assert "failed the gate (other output), no speed: request 1: codes at 4:" in report.markdown()
    assert report.failed


def test_measured_outputs_are_compared_too(small, script, tmp_path):
    def spoil(on, record):
        if "async_save" in on and record.output_tokens > GATE_TOKENS:
            record.token_ids = [*record.token_ids[:-1], -1]

    workload = Workload.random(num_prompts=1, input_len=8, output_len=20, frames=5)
    experiment = small(toggles=["async_save"], workload=workload)
    report = experiment.run(tmp_path / "run", open_pipeline=script(spoil=spoil).open)
    assert report.result("async_save").verdict == "failed the gate"
    assert "tokens at 19" in report.result("async_save").difference


def test_the_gate_has_audio_and_an_image(small):
    gate = small().plan().gate
    assert [(bool(i.prompt.audio), bool(i.prompt.image)) for i in gate.requests] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip


def test_a_failed_trial_is_a_row_and_the_others_go_on(small, script, tmp_path):
    def explode(on, trials):
        if on == {"idle_skip"}:
            raise RuntimeError("the talker died")

    bench = script(explode=explode)
    report = small(gate_prompts=None).run(tmp_path / "run", open_pipeline=bench.open)
    failed = [line for line in lines_of(tmp_path / "run") if line["kind"] == "trial" and line["error"]]
    assert {(line["variant"], line["error"]) for line in failed} == {("idle_skip", "RuntimeError: the talker died")}
    assert len(failed) == 5
    assert report.result("idle_skip").verdict == "not measured"
    assert report.result("async_save").trials == 5
    assert bench.opened == 10 - sum(order[-1] == "idle_skip" for order in report.run["orders"])
    assert report.failed
    assert "the talker died" in report.markdown()


def test_a_failed_request_makes_a_failed_trial(small, script, tmp_path):
    def spoil(on, record):
        if on == {"idle_skip"} and record.index == 1:
            record.error = "Timeout: code2wav waited 5 s"

    report = small(gate_prompts=None).run(tmp_path / "run", open_pipeline=script(spoil=spoil).open)
    assert "1 of 2 requests failed: Timeout" in report.result("idle_skip").errors[0]
    assert report.result("idle_skip").verdict in ("not measured", "failed the gate")


def test_the_label_must_match_what_ran(small, script, tmp_path):
    report = small(gate_prompts=None, blocks=3).run(tmp_path / "run", open_pipeline=script(wrong_label=True).open)
    assert "talker runs something_else 123 in the seam merge" in report.result("async_save").errors[0]


def test_a_block_tries_each_variant_once_and_the_baseline_twice_in_its_own_order(small, script, tmp_path):
    plan = small().plan()
    assert len(set(plan.orders)) > 1
    for order in plan.orders:
        assert sorted(order) == sorted([*FOUR, "BEFORE_1378", "BEFORE_1378 (A/A)"])
    assert plan.orders == small().plan().orders != small(seed=1).plan().orders
    assert len({workload.requests for workload in plan.workloads}) == 5  # a fresh list a block
    small(blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    tried = [(x["block"], x["variant"]) for x in lines_of(tmp_path / "run") if x["kind"] == "trial"]
    assert tried == [(block, name) for block, order in enumerate(small(blocks=3).plan().orders) for name in order]


def test_warm_up_is_as_wide_as_the_workload_short_and_not_measured():
    workload = Workload.random(num_prompts=6, input_len=50, output_len=40, max_concurrency=3)
    warm = warm_up(workload)
    assert len(warm.requests) == 3
    seeds = {item.prompt.random_seed for item in workload.requests}
    assert all(i.prompt.random_tokens == 50 and i.sampling.max_text_tokens == 4 for i in warm.requests)
    assert not seeds & {item.prompt.random_seed for item in warm.requests}


def test_the_run_folder_can_be_read_back(small, script, tmp_path):
    out = tmp_path / "deep" / "run"
    report = small(blocks=3).run(out, open_pipeline=script().open)
    run = json.loads((out / "run.json").read_text(), parse_constant=pytest.fail)
    assert run["schema_version"] == 2
    assert {"machine", "versions", "commit", "orders", "workload", "workload_seeds", "variants"} <= set(run)
    assert run["variants"][0]["occupants"]["merge"].startswith("merge_elementwise ")
    requests = pd.read_parquet(out / "requests.parquet")
    assert len(requests[requests.kind == "trial"]) == 3 * 6 * 2
    assert set(pd.read_parquet(out / "counters.parquet").counter) >= {"steps", "elements_visited"}
    assert not pd.read_parquet(out / "spans.parquet").empty
    assert Report.load(out).markdown() == report.markdown() == (out / "report.md").read_text()


def test_a_cut_off_last_line_is_left_out(small, script, tmp_path):
    small(blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    with open(tmp_path / "run" / "trials.jsonl", "a") as lines:
        lines.write('{"kind": "tri')
    assert Report.load(tmp_path / "run").findings.blocks == 3


def test_an_interrupt_leaves_what_is_finished(small, script, tmp_path):
    def explode(on, trials):
        if trials == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(gate_prompts=None).run(tmp_path / "run", open_pipeline=script(explode=explode).open)
    assert len([x for x in lines_of(tmp_path / "run") if x["kind"] == "trial" and not x["error"]]) == 9
    report = Report.load(tmp_path / "run")
    assert report.findings.unfinished
    assert "was not finished" in report.markdown()


def test_models_that_are_not_there_leave_no_folder(small, tmp_path):
    def open_pipeline(recipe):
        raise ModelNotFound("no model is named 'none'")

    with pytest.raises(ModelNotFound):
        small().run(tmp_path / "a" / "run", open_pipeline=open_pipeline)
    assert not (tmp_path / "a").exists()


def test_folders_that_cannot_be_used_stop_before_a_stage_starts(small, script, tmp_path):
    bench = script()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for name in ("full", "file", "file/below"):
        with pytest.raises(RunFolderError, match="--out"):
            small().run(tmp_path / name, open_pipeline=bench.open)
    with pytest.raises(RunFolderError):
        small().run("/proc/omnilab", open_pipeline=bench.open)
    assert bench.opened == 0
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "full", "x"]


def other(name="other", seam="merge", **more):
    return Toggle(name=name, seam=seam, baseline=len, optimized=max, claim="", **more)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"toggles": ["async_sav"]}, ToggleUnavailable, "shallow_merge"),
        ({"toggles": [other(), "shallow_merge"]}, ToggleConflict, "other and shallow_merge"),
        ({"toggles": [other(needs="cuda")]}, ToggleUnavailable, "cuda"),
        ({"toggles": []}, BadInput, "none given"),
        ({"design": "latin"}, BadInput, "ladder"),
        ({"base": "BEFORE"}, ToggleUnavailable, "BEFORE_1378"),
        ({"base": "AFTER_1378"}, BadInput, "is on in AFTER_1378 already"),
        ({"blocks": 2}, BadInput, "blocks: must be 3 or more"),
        ({"budget": "soon"}, BadInput, "90s, 5m or 2h"),
        ({"budget": "5m", "blocks": 5}, BadInput, "blocks and budget: give only one"),
        ({"detect": 3.0}, BadInput, "detect: must lie between"),
        ({"looks": True, "design": "factorial"}, BadInput, "looks: take a design of single comparisons"),
        ({"looks": True, "variants": {"b": (), **{n: (n,) for n in FOUR}, "all": FOUR}}, BadInput, "4 at most"),
        ({"primary": "speed"}, BadInput, "no metric 'speed'; there are wall_s"),
        ({"margin": 0.0}, BadInput, "margin"),
        ({"noise_from": "nowhere"}, RunFolderError, "not a run folder"),
        ({"design": "half-fraction", "toggles": FOUR[:3]}, BadInput, "4 toggles or more"),
        ({"design": "half-fraction", "blocks": 5}, BadInput, "must be even"),
        ({"gate_prompts": "none.jsonl"}, BadInput, "none.jsonl"),
        ({"variants": {"a": ("async_save",)}}, BadInput, "exactly one"),
    ],
)
def test_bad_experiments_are_refused_by_their_plan(small, changes, kind, said):
    with pytest.raises(kind, match=said):
        small(**changes).plan()


def test_variants_by_name_and_toggles_of_ones_own(small, script, tmp_path):
    mine = Toggle(name="mine", seam="merge", baseline=len, optimized=max, claim="c")
    experiment = small(variants={"before": (), "both": ("async_save", mine)}, blocks=3)
    report = experiment.run(tmp_path / "run", open_pipeline=script().open)
    assert report.result("both").toggles == ("async_save", "mine")
    assert report.run["variants"][1]["occupants"]["merge"].startswith("max ")


def test_a_null_bench_is_rarely_called_different(small, script, tmp_path):
    wrong = 0
    for seed in range(5):
        bench = script(noise=0.03)
        bench.opened = 100 * seed
        report = small(gate_prompts=None, seed=seed).run(tmp_path / str(seed), open_pipeline=bench.open)
        wrong += any(v.verdict.startswith(("faster", "slower")) for v in report.findings.variants)
    assert wrong <= 1  # of 5 runs, where 5 % of runs are to have one


def test_printing_says_what_the_file_says(small, script, tmp_path, capsys):
    report = small(blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    report.print()
    said = capsys.readouterr().out
    assert "shallow_merge" in said
    assert "measured on a CPU" in said
    assert str(tmp_path / "run" / "report.md") in said
    assert np.isfinite(json.loads(json.dumps(report.to_dict(), allow_nan=False))["findings"]["blocks"])
