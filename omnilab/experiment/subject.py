"""What else can be put on the bench in place of the lab's pipeline: an engine with toggles of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from omnilab.errors import ToggleUnavailable
from omnilab.toggle import Toggle
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.experiment.protocol import Bench


class Setting(Protocol):
    """What a trial is made with: a recipe of the lab's, an arm, or the sides of an engine's toggles."""

    def occupants(self) -> dict[str, str]:
        """Return what fills each seam, as the processes will report it."""
        ...


class Subject(Protocol):
    """An engine whose toggles switch between trials: one set of its processes serves a block."""

    @property
    def model(self) -> str:
        """What is served, for the report."""
        ...

    @property
    def on_cpu(self) -> bool:
        """Does it leave a GPU alone, where there is one?"""
        ...

    @property
    def baseline(self) -> str:
        """Name of the variant without a toggle."""
        ...

    @property
    def toggles(self) -> tuple[Toggle[Any], ...]:
        """All there are, in the order in which a design takes them."""
        ...

    def setting(self, toggles: Sequence[Toggle[Any]]) -> Setting:
        """Return the setting with these toggles on."""
        ...

    def check(self, workloads: Iterable[Workload]) -> None:
        """Raise BadInput for what cannot be started or asked; starts nothing."""
        ...

    def open(self, setting: Any, folder: Path) -> AbstractContextManager[Bench]:
        """Start processes for a block, with a setting in force; what they write goes to `folder`."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        ...


def toggle_of(subject: Subject, name: str) -> Toggle[Any]:
    """Return a toggle of a subject by its name; ToggleUnavailable names those there are."""
    for toggle in subject.toggles:
        if toggle.name == name:
            return toggle
    known = ", ".join(toggle.name for toggle in subject.toggles)
    raise ToggleUnavailable(f"no toggle of {subject.model} is named {name!r}; there are {known}")
