"""How large the notebooks are: minutes on `thin` for a reader, seconds on `tiny` for a test of the notebooks.

OMNILAB_NOTEBOOK_MODEL names the model, default thin. Under tiny the lengths are short, there are 3 blocks, which is too
few for a verdict, the three stages run in the kernel's own process, and the output gate asks one short text instead of
prompts with text, sound and a picture; nothing else differs. Runs go to ./runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.plan import EXPERIMENTS
from omnilab.experiment.progress import TimeLeft
from omnilab.workload import Workload

if TYPE_CHECKING:
    from pandas import DataFrame

    from omnilab.pipeline import Pipeline
    from omnilab.recipe import Recipe
    from omnilab.trial import Trial

VARIABLE = "OMNILAB_NOTEBOOK_MODEL"
SEED_RUN = EXPERIMENTS / "results" / "seed.zip"  # the hour of experiments/seed.py, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, lengths in tokens (frames follow text one to one), blocks, and where the stages run."""

    model: str
    input_len: int
    output_len: int
    long_len: int  # of an answer, where its length is the point
    blocks: int
    topology: str
    gate: Workload | str

    def workload(self, output_len: int | None = None) -> Workload:
        """Return one request; a frame of speech a text token."""
        length = output_len or self.output_len
        return Workload.random(num_prompts=1, input_len=self.input_len, output_len=length, frames=length)

    def open(self, recipe: Recipe, topology: str | None = None) -> Pipeline:
        """Open a pipeline of this size; it is yours to close. Running its cell again closes the earlier one."""
        from omnilab.notebook import cells
        from omnilab.pipeline import Pipeline

        topology = topology or self.topology
        if topology == "inline":
            import torch

            torch.set_num_threads(1)  # the network computes on the kernel's own threads then
        opened = Pipeline.open(self.model, recipe=recipe, topology=topology, timeout_s=120)
        cells.keep(opened)
        return opened

    def experiment(self, **asked: object) -> Experiment:
        """Return an Experiment of this size; what is asked comes on top."""
        given = {
            "model": self.model, "workload": self.workload(), "blocks": self.blocks, "topology": self.topology,
            "gate_prompts": self.gate,
        }  # fmt: skip
        return Experiment(**{**given, **asked})  # pyright: ignore[reportArgumentType]


def size() -> Size:
    """Return the size that OMNILAB_NOTEBOOK_MODEL asks for."""
    model = os.environ.get(VARIABLE, "thin")
    if model == "tiny":
        gate = Workload.random(num_prompts=1, input_len=20, output_len=4, frames=4)
        return Size(
            model=model, input_len=40, output_len=26, long_len=30, blocks=3, topology="inline", gate=gate
        )  # 26: a full chunk of 25 frames, and another
    return Size(
        model=model, input_len=2500, output_len=70, long_len=300, blocks=5, topology="processes", gate="prompts.jsonl"
    )


def spans_by_loop(*names: str, **trials: Trial) -> DataFrame:
    """Return how many spans of these names each loop of a stage has, and their ms, a pair of columns a trial."""
    import pandas as pd

    found = {}
    for label, trial in trials.items():
        spans = trial.spans[trial.spans["name"].isin(names)]
        spans = spans.assign(
            loop=spans["stage"] + "/" + spans["thread"], ms=(spans["end_ns"] - spans["start_ns"]) / 1e6
        )
        grouped = spans.groupby(["loop", "name"])["ms"]
        found[label, "number"], found[label, "ms"] = grouped.size(), grouped.sum()
    table = pd.DataFrame(found).fillna(0).round(2).rename_axis([None, None])
    return table.astype({column: "int64" for column in table if column[1] == "number"})


def counted(**trials: Trial) -> DataFrame:
    """Return the counters that differ between trials, a column a trial, written with commas."""
    import pandas as pd

    found = {}
    for label, trial in trials.items():
        rows = trial.counters
        found[label] = rows.groupby(rows["stage"] + "/" + rows["thread"] + "/" + rows["counter"])["value"].sum()
    table = pd.DataFrame(found).fillna(0).astype("int64")
    return table.loc[table.nunique(axis=1) > 1].map("{:,}".format)


class OneLine:
    """Progress of a run in a notebook: the plan, then one line that changes; what failed stays."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._left, self._text, self._done, self._of = TimeLeft({}), "", 0, 0
        self._shown: Any = None  # IPython's handle of the line

    def note(self, text: str) -> None:
        """Say it above the line."""
        print(text)

    def begin(self, counts: Mapping[str, int]) -> None:
        """Show the line."""
        from IPython.display import display

        self._left, self._of = TimeLeft(counts), self._done + sum(counts.values())
        if self._shown is None:
            self._shown = display(self._line(), raw=True, display_id=True)

    def start(self, text: str) -> None:
        """Show what is done."""
        self._text = text
        self._show()

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """Move on."""
        self._left.done(kind, seconds)
        self._done += 1
        if outcome:
            print(f"failed: {self._text}: {outcome}")
        self._show()

    def end(self) -> None:
        """Leave the line as it is."""

    def _show(self) -> None:
        if self._shown is not None:
            self._shown.update(self._line(), raw=True)

    def _line(self) -> dict[str, str]:
        return {"text/plain": f"{self._done} of {self._of} steps, {self._left}; {self._text}"}
