"""What pairs of trials show, as a value that a notebook, a terminal and the panel can show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnilab import show
from omnilab.experiment.analysis.findings import FAILED_GATE, NO_EFFECT, NOT_MEASURED, Findings, Variant
from omnilab.experiment.reports import words
from omnilab.metrics import METRICS
from omnilab.toggle import Toggle

if TYPE_CHECKING:
    from omnilab.recipe import Recipe
    from omnilab.trial import Trial
    from omnilab.workload import Workload

ONE_SET = (
    "One set of processes and one list of requests: a quick look, not the protocol. `python -m omnilab.ablate` starts "
    "fresh processes for every block, asks other requests in each and measures the base twice; that verdict counts."
)
STAGES_NOTE = "ms a trial, summed over its loops; waiting left out"
WAITS = ("wait", "transport")  # spans in which a loop waits for another: no work


@dataclass(frozen=True, slots=True, repr=False)
class Paired:
    """`other` over `base`, pair by pair, on one pipeline. `planned` pairs were asked for; `trials` is the last pair.

    `found` holds the numbers: its effects are ratios over `base` with 95 % intervals (Student t over pairs).
    """

    base: Recipe
    other: Recipe
    workload: Workload
    toggles: tuple[Toggle[Any], ...]  # what turns `base` into `other`
    found: Findings
    planned: int
    trials: Mapping[str, Trial] | None  # by side, "base" and "other"; None when no pair was whole

    @property
    def variant(self) -> Variant:
        """What is shown of `other`."""
        return self.found.variants[1]

    @property
    def pairs(self) -> int:
        """How many pairs were whole."""
        return self.found.blocks

    @property
    def verdict(self) -> str:
        """The verdict on wall time, in the words of a report; "pair" stands where that says "block"."""
        return _of_pairs(words.verdict_text(self.variant))

    @property
    def names(self) -> tuple[str, str]:
        """What base and other are called."""
        from omnilab.recipes import NAMED

        named = [next((n for n, recipe in NAMED.items() if recipe == side), None) for side in (self.base, self.other)]
        base, turned_on = named[0] or "the base recipe", " + ".join(toggle.name for toggle in self.toggles)
        return base, named[1] or turned_on if self.toggles else f"{base} again"

    def said(self) -> str:
        """Say the result in one sentence."""
        base, other = self.names
        title, effect = words.TITLES[self.found.primary], self.variant.effects.get(self.found.primary)
        ratio = "" if effect is None else f": {title} {words.ratio_text(effect)}"
        return f"{other} over {base}{ratio}, {self.verdict}"

    def rows(self) -> list[list[str]]:
        """Return a row a metric: its name, base, other, ratio with its interval."""
        effects = self.variant.effects
        return [
            [words.TITLES[m], words.amount(e.before, m), words.amount(e.after, m), words.ratio_text(e)]
            for m, e in effects.items()
        ]

    def notes(self) -> list[str]:
        """Say what was compared, what counted differently, what moved, and what this is not."""
        variant, (base, _) = self.variant, self.names
        lines = [f"output: {variant.output}" + (f" ({variant.difference})" if variant.difference else "")]
        if self.pairs < self.planned:
            lines.append(f"stopped after {self.pairs} of {self.planned} pairs")
        if variant.verdict == FAILED_GATE:
            lines.append("the output is not what the toggles promise to keep: no speed is given")
        elif variant.verdict == NO_EFFECT:
            lines.append(f"had no effect: no counter differs from {base} by more than its own trials do")
        elif variant.verdict != NOT_MEASURED:
            lines.append("counted: " + (words.moved_text(variant.counters, "") or "nothing differs for certain"))
            if spans := words.moved_text(variant.spans, " ms"):
                lines.append("spans (exploratory): " + spans)
            lines.append("on a GPU: " + variant.carries)
        return [_of_pairs(line) for line in lines]

    def stages(self) -> list[tuple[str, dict[str, float]]]:
        """Return the span sums of each stage in ms a trial by span name, base and other in turn; waiting left out."""
        return [
            (f"{stage} · {side}", stage_parts(self.found.per_stage.get(side, {}), stage))
            for stage in ("thinker", "talker", "code2wav")
            for side in ("base", "other")
        ]

    def __str__(self) -> str:
        """Return it as text, the table included."""
        table = [show.plain_table(self._header(), self.rows())] if self.variant.effects else []
        return "\n".join([self.said(), *table, *(f"- {line}" for line in (*self.notes(), ONE_SET))])

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Paired {self.said()}; {_number(self.pairs)}>"

    def _repr_html_(self) -> str:
        """Return it as HTML: the sentence, the table, stages, both sides' audio, and what it is not."""
        stages = [show.heading("Work by stage", STAGES_NOTE), show.bars(self.stages(), "ms")] if self.pairs else []
        return show.frame(self.html(), *stages, show.line(ONE_SET.replace("`", ""), soft=True))

    def html(self, title: str = "") -> str:
        """Return the sentence, the table, what counted and the audio of both sides as HTML."""
        head = show.said(title + self.said(), f"{_number(self.pairs)} on one set of processes")
        titles = {words.TITLES[name]: METRICS[name] for name in words.TITLES}
        table = show.table(self._header(), self.rows(), titles=titles) if self.variant.effects else ""
        return head + show.columns(table, "".join([*self.players(), *map(show.line, self.notes())]))

    def players(self) -> list[str]:
        """Return an audio player a side, of the first request."""
        if self.trials is None:
            return []
        first = [(side, trial.records[0].audio, trial.sample_rate) for side, trial in self.trials.items()]
        return [show.player(audio, rate, side) for side, audio, rate in sorted(first) if audio is not None]

    def _header(self) -> list[str]:
        return ["metric", "base", "other", "other / base [95 %]"]


def stage_parts(sums: Mapping[str, float], stage: str) -> dict[str, float]:
    """Return the ms of one stage by span name, out of sums by "stage/name"; waiting left out."""
    split = ((*key.split("/"), ms) for key, ms in sums.items())
    return {name: ms for of, name, ms in split if of == stage and name not in WAITS}


def _number(pairs: int) -> str:
    return f"{pairs} pair{'' if pairs == 1 else 's'}"


def _of_pairs(text: str) -> str:
    return re.sub(r"\bblock(s?)\b", r"pair\1", text)
