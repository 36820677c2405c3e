"""A whole number with bounds: a slider and a field. A wrong value is refused beside where it is typed."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets


class Number:
    """A slider and a field of one value. `wrong` says what is wrong with what the field holds, "" when nothing is."""

    def __init__(self, title: str, value: int, least: int, most: int, changed: Callable[[], None]) -> None:
        self.title, self._least, self._most, self._changed = title, least, most, changed
        self.wrong = ""
        self.slider = widgets.IntSlider(
            value=value, min=least, max=most, readout=False, layout=widgets.Layout(flex="1 1 6em", min_width="5em")
        )
        self.field = widgets.IntText(value=value, layout=widgets.Layout(width="5.5em"))
        self.message = widgets.HTML(layout=widgets.Layout(display="none"))
        label = widgets.Label(title, layout=widgets.Layout(width="7em"))
        row = widgets.HBox([label, self.slider, self.field], layout=widgets.Layout(align_items="center"))
        self.widget = widgets.VBox([row, self.message])
        self.slider.observe(lambda change: self._slid(change["new"]), "value")
        self.field.observe(lambda change: self._typed(change["new"]), "value")

    @property
    def value(self) -> int:
        """The value; ask `wrong` first."""
        return self.field.value

    @value.setter
    def value(self, value: int) -> None:
        self.field.value = value

    def enable(self, enabled: bool) -> None:
        """Let it be changed, or not."""
        self.slider.disabled = self.field.disabled = not enabled

    def refuse(self, why: str) -> None:
        """Say beside the field why its value cannot be used; "" takes it back."""
        self.wrong = why
        text = f'<span style="color:#D55E00">{self.title}: {why}</span>' if why else ""
        self.message.value, self.message.layout.display = text, "" if why else "none"

    def _slid(self, value: int) -> None:
        if not self.wrong or self._least <= self.field.value <= self._most:
            self.field.value = value

    def _typed(self, value: int) -> None:
        inside = self._least <= value <= self._most
        self.refuse("" if inside else f"must lie between {self._least:,} and {self._most:,}, not {value:,}")
        if inside:
            self.slider.value = value
        self._changed()
