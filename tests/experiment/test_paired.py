"""Two recipes in turn on one pipeline: planted effects are found, by the protocol's rules and in its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnilab import recipes
from omnilab.errors import Aborted, BadInput, Error
from omnilab.experiment.analysis import findings
from omnilab.experiment.paired import kept, orders, paired
from omnilab.recipe import recipe_with
from omnilab.toggles.wake_on_chunk import spin
from omnilab.workload import Workload

BASE, MERGED = recipes.BEFORE_1378, recipe_with("shallow_merge")
WORK = Workload.random(num_prompts=2, input_len=8, output_len=6, frames=30)


class Bench:
    """The scripted bench as an open pipeline: it can be stopped, and knows how it was opened."""

    def __init__(self, scripted):
        self.opened = {"model": "none", "device": "cpu"}
        self.applied, self.ran = [], []
        self._scripted = scripted

    def apply(self, recipe):
        self.applied.append(recipe)
        self._scripted.apply(recipe)

    def run(self, workload, *, stop=None):
        self.ran.append((self.applied[-1], workload))
        if stop is not None and stop():
            raise Aborted("the trial was stopped")
        return self._scripted.run(workload)


@pytest.fixture
def bench(script):
    """Make a bench with a script's planted effects."""

    def make(**planted):
        with script(**planted).open(BASE) as scripted:
            return Bench(scripted)

    return make


def test_a_planted_effect_is_found(bench):
    """Half the time, and what counted differently; both sides are warmed, and measured equally often."""
    ours = bench(factors={"shallow_merge": 0.5})
    seen = []
    result = paired(ours, BASE, MERGED, WORK, pairs=6, on_trial=lambda side, pair, trial: seen.append((side, pair)))
    effect = result.variant.effects["wall_s"]
    assert effect.low < 0.5 < effect.high and effect.high - effect.low < 0.05
    assert result.verdict == findings.FASTER
    assert result.names == ("BEFORE_1378", "shallow_merge")
    assert result.said().startswith("shallow_merge over BEFORE_1378: wall time 0.50 [")
    assert {"talker/runner/elements_visited", "talker/runner/did_shallow_merge"} == {
        moved.what for moved in result.variant.counters
    }  # not the idle steps, which the clock decides
    assert [recipe for recipe, _ in ours.ran[:2]] == [MERGED, BASE]
    assert all(workload.requests[0].sampling.max_text_tokens == 4 for _, workload in ours.ran[:2])
    assert sorted(seen) == sorted((side, pair) for side in ("base", "other") for pair in range(6))
    assert [pair for _, pair in seen] == sorted(pair for _, pair in seen)
    assert result.variant.output == findings.SAME


def test_no_time_without_an_effect(bench):
    """Counters differ, times do not: never faster; the words name pairs, not blocks."""
    result = paired(bench(noise=0.05), BASE, MERGED, WORK, pairs=5)
    assert result.verdict.startswith((findings.INCONCLUSIVE, findings.EQUIVALENT))
    assert "block" not in str(result).replace("for every block", "")


def test_what_counts_the_same_had_no_effect(bench):
    result = paired(bench(factors={"shallow_merge": 0.5}, silent={"shallow_merge"}), BASE, MERGED, WORK, pairs=5)
    assert result.verdict == findings.NO_EFFECT
    assert "no counter differs from BEFORE_1378" in str(result)
    assert paired(bench(), BASE, BASE, WORK, pairs=7).verdict == findings.NO_EFFECT


def test_another_output_gets_no_speed(bench):
    """The gate comes before any speed."""

    def spoil(on, record):
        if "shallow_merge" in on:
            record.token_ids[2] = 7777

    result = paired(bench(factors={"shallow_merge": 0.5}, spoil=spoil), BASE, MERGED, WORK, pairs=5)
    assert result.verdict == findings.FAILED_GATE
    assert not result.variant.effects and "0.5" not in result.said()
    assert "tokens at 2: 7777, not" in str(result)


def test_fewer_than_five_pairs_give_no_verdict(bench):
    """Three give an interval, one gives a ratio alone."""
    three = paired(bench(factors={"shallow_merge": 0.5}), BASE, MERGED, WORK, pairs=3)
    assert three.verdict == "no verdict below 5 pairs" and three.variant.effects["wall_s"].high is not None
    one = paired(bench(factors={"shallow_merge": 0.5}), BASE, MERGED, WORK, pairs=1)
    assert one.variant.effects["wall_s"].low is None
    assert "no verdict" in one.verdict and "wall time" in str(one) and one._repr_html_()


def test_names_are_escaped(bench):
    """A seam that a lambda fills is named in the sentence."""
    html = paired(bench(), BASE, replace(BASE, merge=lambda state, payload: payload), WORK, pairs=1)._repr_html_()
    assert "&lt;lambda&gt; over BEFORE_1378" in html and "<lambda>" not in html


def test_stopped_it_keeps_the_whole_pairs(bench):
    done = []
    result = paired(
        bench(), BASE, MERGED, WORK, pairs=5, stop=lambda: len(done) >= 5, on_trial=lambda *a: done.append(a)
    )
    assert result.pairs == 2 and "stopped after 2 of 5 pairs" in str(result)
    nothing = paired(bench(), BASE, MERGED, WORK, pairs=5, stop=lambda: True)
    assert nothing.pairs == 0 and nothing.verdict == findings.NOT_MEASURED and nothing.trials is None
    assert nothing._repr_html_() and "not measured" in str(nothing)


def test_a_trial_that_failed_is_an_error(bench):
    """A wrong label, a request that failed, and pairs that are none."""

    def fail(on, record):
        record.error = "talker: its process has ended"

    with pytest.raises(Error, match="talker runs something_else"):
        paired(bench(wrong_label=True), BASE, MERGED, WORK)
    with pytest.raises(Error, match="2 of 2 requests failed: talker: its process"):
        paired(bench(spoil=fail), BASE, MERGED, WORK)
    with pytest.raises(BadInput, match="pairs"):
        paired(bench(), BASE, MERGED, WORK, pairs=0)


@pytest.mark.parametrize("pairs", [1, 2, 5, 8])
def test_each_side_comes_first_as_often_as_the_other(pairs):
    drawn = orders(pairs, 3)
    assert drawn == orders(pairs, 3)
    assert abs(2 * sum(first == "base" for first, _ in drawn) - pairs) <= 1
    assert {order for seed in range(20) for order in orders(8, seed)} == {("base", "other"), ("other", "base")}


def test_what_must_stay_equal_follows_from_the_toggles():
    """Either way round: a toggle that may change samples excuses them where it is on only in the base, too."""
    assert kept(BASE, MERGED).exact == {"tokens", "codes", "samples"}
    assert kept(BASE, recipes.BEST).exact == kept(recipes.BEST, BASE).exact == {"tokens", "codes"}
    assert kept(BASE, replace(BASE, receive_wait=spin)).exact == {"tokens", "codes", "samples"}


def test_a_worker_that_starts_anew_is_warmed_before_each_trial(bench):
    """With another worker link the runner's process is as cold as after opening."""
    ours = bench()
    paired(ours, BASE, recipe_with("direct_worker"), WORK, pairs=2)
    warm = [workload.requests[0].sampling.max_text_tokens == 4 for _, workload in ours.ran]
    assert warm == [True, True, *([True, False] * 4)]
