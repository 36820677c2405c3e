"""The plan: how many blocks, for how long, and what they can show, all before the first trial."""

import json
import math

import pytest

from omnilab.errors import BadInput
from omnilab.experiment import sizing
from omnilab.experiment.sizing import Noise, plan_lines, seconds_of

NOISE = Noise(sd=0.02, df=20, trial_s=10.0, open_s=20.0, source="run earlier")


def test_an_earlier_run_gives_its_noise_and_its_times(small, script, tmp_path):
    small(blocks=30).run(tmp_path / "run", open_pipeline=script(noise=0.03).open)
    noise = sizing.noise_of_run(tmp_path / "run", "wall_s")
    assert noise.sd == pytest.approx(0.03 / math.sqrt(2), rel=0.2)  # a trial is the sum of two requests
    assert noise.df == 29 * 5
    assert noise.source == "run run"
    sized = small(noise_from=tmp_path / "run", detect=0.03).plan()
    assert sized.rule.to_dict()["rule"] == "fixed"
    assert sized.rule.first == len(sized.orders) > 5


def test_an_effect_that_cannot_be_seen_says_what_can(small):
    said = r"detect: 0.1 % needs more than 30 blocks where a trial varies by 2.0 %; 30 find"
    with pytest.raises(BadInput, match=said):
        small(detect=0.001).plan(NOISE)


def test_a_budget_buys_blocks_and_one_that_is_too_small_says_what_it_takes(small):
    plan = small(budget="10m").plan(NOISE)
    assert plan.rule.first == 6  # 6 trials of 10 s and an opening of 20 s a block, and the gate before them
    assert sizing.minutes(plan, NOISE, 6) <= 10 < sizing.minutes(plan, NOISE, 7)
    with pytest.raises(BadInput, match=r"budget: 1m is too short for 6 trials a block: 3 blocks take about .* min"):
        small(budget="1m").plan(NOISE)
    assert [seconds_of(text) for text in ("90s", "5m", "1.5h")] == [90, 300, 5400]
    for text in ("5", "m", "-5m", "0m", "5 days"):
        with pytest.raises(BadInput, match="90s, 5m or 2h"):
            seconds_of(text)


def test_the_plan_says_everything_before_anything_runs(small):
    plan = small().plan()
    text = "\n".join(plan_lines(plan, NOISE))
    assert "30 trials in 5 blocks, 6 gate trials before them; 5 starts of the stage processes" in text
    assert "error rate 0.05 over 4 verdicts (Holm)" in text
    least = sizing.detectable(plan, NOISE.sd, NOISE.df, 5)
    assert f"can show {100 * least:.1f} % (80 % power)" in text.replace("\n", " ")
    assert "if a trial varies by 2 %" in "\n".join(plan_lines(plan, None))
    assert plan.hash[:12] in text


def test_what_can_be_seen_follows_the_published_table(small):
    """One toggle a comparison over two averaged baselines, four of them: 3.0 trial sds at 5 blocks, 1.9 at 8."""
    plan = small().plan()
    for blocks, times in ((5, 3.0), (8, 1.9)):
        factor = 1 + 1 / (5 * (blocks - 1))
        found = math.log1p(sizing.detectable(plan, 0.01, math.inf, blocks)) / 0.01 / factor
        assert found == pytest.approx(times, abs=0.06)
    factorial = small(design="factorial").plan()
    assert sizing.contrast_sd(factorial) == 0.5
    assert sizing.contrast_sd(small(design="half-fraction").plan()) == pytest.approx(0.707, abs=1e-3)
    assert sizing.num_verdicts(factorial) == 4


def test_a_pilot_measures_the_baseline_on_requests_that_no_trial_uses(small, script, tmp_path):
    bench = script(noise=0.01)
    experiment = small(budget="0.1s", toggles=["idle_skip"], gate_prompts=None)
    report = experiment.run(tmp_path / "run", open_pipeline=bench.open)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["noise"]["source"] == "pilot"
    assert run["asked"]["budget"] == "0.1s"
    assert report.findings.blocks == run["rule"]["first"]
    pilot = small().plan().experiment.workload.with_seed(2**40)
    assert not {w.seed for w in small().plan().workloads} & {pilot.seed}


def test_the_hash_changes_with_whatever_changes_the_run(small):
    base = small().plan()
    assert base.hash == small().plan().hash
    others = [{"seed": 1}, {"margin": 0.03}, {"primary": "cpu_s"}, {"blocks": 6}, {"toggles": ["idle_skip"]}]
    hashes = {small(**changes).plan().hash for changes in others}
    assert len(hashes | {base.hash}) == len(others) + 1
