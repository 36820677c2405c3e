"""What a hostile reader of a report would try: each of these once gave a result that said more than its rows."""

import json

import numpy as np
import pytest

from omnilab.experiment.analysis.analyse import analyse
from omnilab.experiment.gate import excused, first_difference, output_class
from omnilab.experiment.reports.report import Report
from omnilab.experiment.statistics import estimate
from omnilab.trial import RequestRecord, Trial

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")
BASE, AGAIN = "BEFORE_1378", "BEFORE_1378 (A/A)"


def rows(path):
    run = json.loads((path / "run.json").read_text())
    return run, [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def failed(line):
    return {**{key: line[key] for key in ("kind", "block", "position", "variant", "files")}, "error": "Timeout: x",
            "seconds": 1.0, "disturbed": []}  # fmt: skip


@pytest.fixture
def run(small, script, tmp_path):
    def go(bench=None, **changes):
        return small(**changes).run(tmp_path / "run", open_pipeline=(bench or script()).open)

    return go


def test_a_baseline_that_rounds_does_not_excuse_a_broken_variant():
    twin = {"difference": "samples", "equal": {"tokens": True, "codes": True, "samples": False}, "differing": 1}
    rounds = {**twin, "same_work": True}
    assert excused(rounds, twin)
    assert not excused({**rounds, "equal": dict.fromkeys(twin["equal"], False)}, twin)  # its tokens differ as well
    assert not excused({**rounds, "differing": 8}, twin)  # in every request
    assert not excused(rounds, {**twin, "difference": None})


def test_without_the_second_baseline_there_is_no_verdict(run, script):
    run_json, lines = rows(run(script(factors={"shallow_merge": 0.5})).path)
    gone = [failed(x) if (x["kind"], x["variant"]) == ("trial", AGAIN) else x for x in lines]
    found = analyse(run_json, gone)
    verdicts = {variant.name: variant.verdict for variant in found.variants}
    assert verdicts["shallow_merge"] == "withheld: no A/A to judge noise by"
    assert any("A/A in 0 of 5 blocks only" in note for note in found.notes)
    assert len(found.variants[0].errors) == 5  # under the baseline's name


def test_a_verdict_says_in_how_many_blocks_the_variant_ran(run, script):
    run_json, lines = rows(run(script(factors={"shallow_merge": 0.5}), blocks=8).path)
    slow = [
        failed(x) if (x["kind"], x["variant"]) == ("trial", "shallow_merge") and x["block"] > 4 else x for x in lines
    ]
    found = analyse(run_json, slow)
    assert (
        next(v for v in found.variants if v.name == "shallow_merge").verdict
        == "faster, in the 5 of 8 blocks where it ran"
    )


@pytest.mark.parametrize("design", ["factorial", "half-fraction"])
def test_a_factorial_that_loses_a_toggle_says_that_it_has_no_verdict(run, script, design):
    def spoil(on, record):
        if "idle_skip" in on:
            record.codes = record.codes + 1

    report = run(script(spoil=spoil, factors={"shallow_merge": 0.5}), design=design, blocks=6)
    assert report.findings.attribution is None or "idle_skip" not in {
        s.toggle for s in report.findings.attribution.shares
    }
    if not report.findings.mains:
        assert report.result("shallow_merge").verdict == "no verdict: a cell is missing"
        assert "no main effects, so no verdict" in report.markdown()
    assert "see the main effects" not in report.markdown() or report.findings.mains


def test_halves_cancel_their_alias_even_when_one_has_lost_a_block():
    """A main effect of 0.1 confounded with 0.5, plus in even blocks and minus in odd ones."""
    random = np.random.default_rng(0)
    even, odd = 0.1 + 0.5 + random.normal(0, 0.01, 3), 0.1 - 0.5 + random.normal(0, 0.01, 2)
    found = estimate.estimate_of_halves(even, odd, 10)
    assert found.value == pytest.approx(0.1, abs=0.02)
    assert found.high - found.low < 0.1  # the alias is no noise
    assert (found.blocks, found.df) == (5, 3)
    assert estimate.estimate_of_halves(even, odd[:1], 10) is None


def test_a_stopped_variant_neither_ends_sizing_nor_keeps_looks_going(small, script, tmp_path):
    def spoil(on, record):
        if "idle_skip" in on and record.output_tokens == 6:  # measured requests: the gate's are longer
            record.codes = record.codes + 1

    noisy = script(noise=0.03, spoil=spoil)
    sized = small(detect=0.03, gate_prompts=None).run(tmp_path / "sized", open_pipeline=noisy.open)
    assert sized.findings.blocks > 5
    assert len([line for line in sized.lines if line["kind"] == "sized"]) == 1
    clear = script(noise=0.005, spoil=spoil, factors=dict.fromkeys(FOUR, 0.5))
    looks = small(looks=True, gate_prompts=None).run(tmp_path / "looks", open_pipeline=clear.open)
    assert looks.findings.blocks == 5


def test_what_is_compared_with_a_stopped_variant_is_not_measured_on(run, script):
    def spoil(on, record):
        if on == set(FOUR):
            record.codes = record.codes + 1

    report = run(script(spoil=spoil), design="leave-one-out")
    assert report.result("all").verdict == "failed the gate"
    assert report.result("all - idle_skip").verdict == "no comparison: what it is compared with failed"
    assert report.trials("all - idle_skip") == []


def test_few_blocks_do_not_make_a_clocks_counter_no_effect(run, script):
    """Code2Wav's idle steps are the clock's; here every one of four blocks has them on one side."""
    run_json, lines = rows(run(toggles=["async_save"], blocks=4).path)
    for line in (x for x in lines if x["kind"] == "trial"):
        line["counters"].pop("talker/runner/did_async_save", None)
        if line["variant"] == "async_save":
            line["counters"]["code2wav/engine/idle_steps"] = 1
    verdict = next(v for v in analyse(run_json, lines).variants if v.name == "async_save").verdict
    assert verdict == "no verdict: too few blocks to tell whether it took part"


def test_a_gate_that_was_done_anew_counts_as_it_ended():
    def line(kind, error=None, **more):
        return {"kind": kind, "block": 0, "variant": "a", "error": error, **more}

    equal = {"difference": None, "same_work": True, "equal": {"tokens": True}, "differing": 0, "requests": 3}
    assert output_class([line("gate", "Timeout: x")], BASE, "a") == ("other output", "Timeout: x")
    assert output_class([line("gate", "Timeout: x"), line("gate"), line("gate comparison", **equal)], BASE, "a")[0] == (
        "same output"
    )


def test_silence_never_passes_whatever_a_toggle_promises():
    def record(audio):
        return RequestRecord(
            index=0, request_id="r", start_s=0.0, token_ids=[1], output_tokens=1, frames=1, audio_s=0.08,
            codes=np.zeros((1, 16), dtype=np.int64), audio=np.asarray(audio, dtype=np.float32),
        )  # fmt: skip

    sound = np.random.default_rng(0).normal(0, 0.1, 400)
    promised = frozenset({"tokens", "codes"})
    for bad in (np.zeros(400), np.full(400, np.nan), sound * 10):
        assert first_difference(Trial([record(bad)]), Trial([record(sound)]), promised, 90.0).what == "samples"
    assert first_difference(Trial([record(sound * 0.9)]), Trial([record(sound)]), promised, 90.0) is None


def test_lost_spans_are_said_and_leave_out_what_they_make_too_low(run, script):
    run_json, lines = rows(run(script(), toggles=["shallow_merge"]).path)
    for line in (x for x in lines if x["kind"] == "trial"):
        line["spans_lost"] = {"talker/runner": 7, "code2wav/runner": 1}
    found = analyse(run_json, lines)
    assert any("15 of code2wav/runner, 105 of talker/runner" in note for note in found.notes)
    assert "host_ms_per_step" not in found.variants[1].effects
    assert found.variants[1].spans == ()
    for line in (x for x in lines if x["kind"] == "trial"):
        line["spans_lost"] = {"code2wav/runner": 1}
    elsewhere = analyse(run_json, lines).variants[1]
    assert "host_ms_per_step" in elsewhere.effects
    assert [moved.what for moved in elsewhere.spans] == ["talker/runner/merge"]


def test_a_block_in_two_sets_of_processes_is_marked(small, script, tmp_path):
    def explode(on, trials):
        if trials == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small().run(tmp_path / "run", open_pipeline=script(explode=explode).open)
    report = small().run(tmp_path / "run", open_pipeline=script().open, resume=True)
    assert "ran in several sets of processes" in report.markdown()
    assert "trials were never compared" in report.markdown()
    assert "several sets" not in small().run(tmp_path / "whole", open_pipeline=script().open).markdown()


def test_what_comes_back_has_no_predicted_time(small, script, tmp_path):
    report = small(design="leave-one-out").run(tmp_path / "run", open_pipeline=script().open)
    found = analyse({**report.run, "row_bytes": 4096}, report.lines)
    back = next(v for v in found.variants if v.name == "all - prefill_only_hidden_states").predicted
    assert back.host_s is None
    assert (
        "foretell"
        not in Report(report.path, report.run, found).markdown().split("all - prefill_only_hidden_states")[-1]
    )
