"""omnilab: which optimization of a staged omni model pays, why, and is the output still the same?"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnilab import recipes as recipes
    from omnilab.errors import (
        Aborted,
        BadInput,
        Error,
        ModelNotFound,
        PromptTooLong,
        RunFolderError,
        StageFailed,
        Timeout,
        ToggleConflict,
        ToggleUnavailable,
    )
    from omnilab.experiment.experiment import Experiment
    from omnilab.pipeline import Pipeline
    from omnilab.prompt import Prompt, Sampling
    from omnilab.recipe import Recipe, recipe_with
    from omnilab.speech import AudioChunk, Finished, Speech, TextDelta
    from omnilab.toggle import Toggle
    from omnilab.toggles import TOGGLES
    from omnilab.trial import Trial
    from omnilab.workload import Workload

_ERRORS = (
    "Aborted", "BadInput", "Error", "ModelNotFound", "PromptTooLong", "RunFolderError", "StageFailed", "Timeout",
    "ToggleConflict", "ToggleUnavailable",
)  # fmt: skip
_WHERE = {
    **dict.fromkeys(_ERRORS, "errors"),
    "Experiment": "experiment.experiment",
    "Pipeline": "pipeline",
    "Prompt": "prompt",
    "Sampling": "prompt",
    "Recipe": "recipe",
    "recipe_with": "recipe",
    "AudioChunk": "speech",
    "Finished": "speech",
    "Speech": "speech",
    "TextDelta": "speech",
    "Toggle": "toggle",
    "TOGGLES": "toggles",
    "Trial": "trial",
    "Workload": "workload",
}
__all__ = [
    "TOGGLES", "Aborted", "AudioChunk", "BadInput", "Error", "Experiment", "Finished", "ModelNotFound", "Pipeline",
    "Prompt", "PromptTooLong", "Recipe", "RunFolderError", "Sampling", "Speech", "StageFailed", "TextDelta", "Timeout",
    "Toggle", "ToggleConflict", "ToggleUnavailable", "Trial", "Workload", "recipe_with", "recipes",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load on first use: `import omnilab` imports neither torch nor transformers."""
    if name == "recipes":
        return importlib.import_module("omnilab.recipes")
    if name not in _WHERE:
        raise AttributeError(f"module 'omnilab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"omnilab.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
