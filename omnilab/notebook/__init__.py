"""Widgets for notebooks; no logic of their own."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnilab.notebook.panel import Panel
    from omnilab.notebook.timeline import Timeline

__all__ = ["Panel", "Timeline"]
_WHERE = {"Panel": "panel", "Timeline": "timeline"}
_NEEDS = ("anywidget", "ipywidgets")


def __getattr__(name: str) -> Any:
    """Load on first use; ImportError says what to install where there are no widgets."""
    if name not in _WHERE:
        raise AttributeError(f"module 'omnilab.notebook' has no attribute {name!r}")
    if missing := [package for package in _NEEDS if importlib.util.find_spec(package) is None]:
        raise ImportError(f"{name} needs {' and '.join(missing)}: pip install 'omnilab[notebook]'", name=missing[0])
    return getattr(importlib.import_module(f"omnilab.notebook.{_WHERE[name]}"), name)
