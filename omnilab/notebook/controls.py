"""The panel's controls: one per seam, base recipe, workload. What they say is read as an Asked; they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from omnilab import show
from omnilab.errors import BadInput
from omnilab.notebook.choice import Asked, Choice, occupants
from omnilab.notebook.number import Number
from omnilab.recipes import NAMED
from omnilab.toggle import Toggle, occupant_name
from omnilab.toggles import TOGGLES

WIDE = widgets.Layout(width="auto")
AGAINST_BASE, AGAINST_LAST, AGAINST_PINNED = "the base recipe", "the last run", "the pinned run"


class Switch:
    """A seam with one toggle: a button, pressed when it is on; its claim is the tooltip."""

    def __init__(self, toggle: Toggle[Any], can_run: bool) -> None:
        self._toggle, self._can_run = toggle, can_run
        needs = "" if can_run else f"needs {toggle.needs}; "
        self.widget = widgets.ToggleButton(
            description=toggle.name, tooltip=f"{needs}{toggle.seam}: {toggle.claim}", disabled=not can_run, layout=WIDE
        )
        self.widget.observe(lambda change: self._look(change["new"]), "value")

    @property
    def occupant(self) -> Any:
        """What fills the seam."""
        return self._toggle.optimized if self.widget.value else self._toggle.baseline

    def show(self, occupant: Any) -> None:
        """Show that this fills the seam."""
        self.widget.value = occupant is self._toggle.optimized

    def enable(self, enabled: bool) -> None:
        """Let it be pressed, or not."""
        self.widget.disabled = not (enabled and self._can_run)

    def _look(self, on: bool) -> None:
        self.widget.button_style, self.widget.icon = ("info", "check") if on else ("", "")


class Menu:
    """A seam with more occupants: a button each, one of them pressed; the claim of its toggle is the tooltip."""

    def __init__(self, seam: str, several: Sequence[Any], toggles: Sequence[Toggle[Any]], cuda: bool) -> None:
        on = {toggle.optimized: toggle for toggle in toggles}
        runs = [o for o in several if o not in on or on[o].needs is None or cuda]
        self.widget = widgets.ToggleButtons(
            options=[(on[o].name if o in on else occupant_name(o), o) for o in runs],
            tooltips=[on[o].claim if o in on else "the baseline" if o is several[0] else "" for o in runs],
            style={"button_width": "auto"}, layout=WIDE,
        )  # fmt: skip
        label = widgets.Label(seam, layout=widgets.Layout(width="8em"))
        self.view = widgets.HBox([label, self.widget], layout=widgets.Layout(align_items="center"))

    @property
    def occupant(self) -> Any:
        """What fills the seam."""
        return self.widget.value

    def show(self, occupant: Any) -> None:
        """Show that this fills the seam."""
        self.widget.value = occupant

    def enable(self, enabled: bool) -> None:
        """Let it be changed, or not."""
        self.widget.disabled = not enabled


class Controls:
    """All of them. `own` are toggles that are not listed; `changed` is called after every change."""

    def __init__(self, own: Sequence[Toggle[Any]], cuda: bool, changed: Callable[[], None]) -> None:
        self._own = tuple(own)
        self.base = widgets.Dropdown(
            options=list(NAMED), value="BEFORE_1378", description="base recipe", layout=WIDE,
            style={"description_width": "initial"}, tooltip="the recipe that the toggles are put on",
        )  # fmt: skip
        self.against = widgets.Dropdown(
            options=[AGAINST_BASE], description="compare with", layout=WIDE, style={"description_width": "initial"},
            tooltip="what is measured in turn with the chosen recipe",
        )  # fmt: skip
        self.seams: dict[str, Switch | Menu] = _seam_controls((*TOGGLES, *own), cuda)
        self.prompt = widgets.Text(
            value="Tell me about rivers.", description="live prompt", layout=widgets.Layout(width="100%"),
            style={"description_width": "initial"}, continuous_update=False,
            tooltip="what the live request says before the timed pairs",
        )  # fmt: skip
        self.numbers = {
            "input_len": Number("input tokens", 300, 1, 4000, changed),
            "output_len": Number("output tokens", 60, 1, 2000, changed),
            "num_prompts": Number("requests", 1, 1, 32, changed),
            "max_concurrency": Number("in flight", 1, 1, 8, changed),
            "pairs": Number("pairs", 5, 1, 20, changed),
            "seed": Number("seed", 0, 0, 9999, changed),
        }
        self.base.observe(lambda change: self._show_base(change["new"]), "value")
        for widget in (self.base, self.against, self.prompt, *(c.widget for c in self.seams.values())):
            widget.observe(lambda _: changed(), "value")

    def chosen(self) -> Choice:
        """Return the chosen recipe."""
        base = NAMED[self._base()]
        differs = {seam: c.occupant for seam, c in self.seams.items() if c.occupant != getattr(base, seam)}
        return Choice(self._base(), differs, self._own)

    def asked(self, runs: Mapping[str, Choice]) -> Asked:
        """Return what is asked for; `runs` are the last and the pinned run's recipes, by AGAINST_..."""
        if wrong := self.problem():
            raise BadInput(wrong)
        against = runs.get(str(self.against.value), Choice(self._base(), {}, self._own))
        return Asked(against=against, chosen=self.chosen(), **{name: n.value for name, n in self.numbers.items()})

    def problem(self) -> str:
        """Say what is wrong with the values as they stand; "" when nothing is."""
        wrong = [f"{number.title}: {number.wrong}" for number in self.numbers.values() if number.wrong]
        if not wrong and self.numbers["max_concurrency"].value > self.numbers["num_prompts"].value:
            wrong.append("in flight: more than there are requests")
        if not self.prompt.value.strip():
            wrong.append("live prompt: empty; write something")
        return "; ".join(wrong)

    def offer(self, names: Sequence[str]) -> None:
        """Offer these to be compared with."""
        kept = self.against.value if self.against.value in names else AGAINST_BASE
        self.against.options, self.against.value = list(names), kept

    def enable(self, enabled: bool) -> None:
        """Let them be changed, or not while something runs: what is shown is what runs."""
        for number in self.numbers.values():
            number.enable(enabled)
        for widget in (self.base, self.against, self.prompt):
            widget.disabled = not enabled
        for seam in self.seams.values():
            seam.enable(enabled)

    def text(self) -> str:
        """Return what each seam is filled with, as a table of text."""
        rows = [[seam, occupant_name(control.occupant)] for seam, control in self.seams.items()]
        rows += [[number.title, f"{number.value:,}"] for number in self.numbers.values()]
        return show.plain_table([f"seam over {self._base()}", "filled by"], rows)

    def view(self) -> widgets.VBox:
        """Return them laid out."""
        flow = widgets.Layout(display="flex", flex_flow="row wrap", grid_gap="4px", align_items="center")
        numbers = widgets.Layout(grid_template_columns="repeat(auto-fill, minmax(23em, 1fr))", grid_gap="0 1.5em")
        pairs = widgets.Layout(grid_template_columns="repeat(auto-fill, minmax(34em, 1fr))", grid_gap="0 1em")
        switches = [c.widget for c in self.seams.values() if isinstance(c, Switch)]
        menus = [c.view for c in self.seams.values() if isinstance(c, Menu)]
        return widgets.VBox([
            widgets.HBox([self.base, self.against], layout=flow),
            widgets.HBox(switches, layout=flow),
            widgets.GridBox(menus, layout=pairs),
            widgets.GridBox([number.widget for number in self.numbers.values()], layout=numbers),
            self.prompt,
        ])  # fmt: skip

    def _base(self) -> str:
        return str(self.base.value)

    def _show_base(self, name: str) -> None:
        for seam, control in self.seams.items():
            control.show(getattr(NAMED[name], seam))


def _seam_controls(toggles: Sequence[Toggle[Any]], cuda: bool) -> dict[str, Switch | Menu]:
    made: dict[str, Switch | Menu] = {}
    for seam, several in occupants(toggles).items():
        of_seam = [toggle for toggle in toggles if toggle.seam == seam]
        alone = len(of_seam) == 1 and len(several) == 2
        runs = [t for t in of_seam if t.needs is None or (t.needs == "cuda" and cuda)]
        made[seam] = Switch(of_seam[0], bool(runs)) if alone else Menu(seam, several, of_seam, cuda)
    return made
