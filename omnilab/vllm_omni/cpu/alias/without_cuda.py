"""Lets the CUDA builds of torchvision and torchaudio be imported next to a torch without CUDA.

torch calls `prepare` at the end of its own import (entry point group `torch.backends`), so in every process, a spawned
one too, and before any of the two. Their compiled parts cannot load here and nothing of Qwen3-Omni needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# of torchvision's compiled part: its Python part registers meta kernels for these two, and fails where they are unknown
_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def prepare() -> None:
    """Declare torchvision's operators without kernels; say that torchaudio has no compiled part."""
    import torch

    if torch.version.cuda is not None:
        return
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", _NMS)
    extension = ModuleType("torchaudio._extension", "Stands for the one that loads torchaudio's compiled part.")
    vars(extension).update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, fail_if_no_align=_refuse_alignment)
    sys.modules[extension.__name__] = extension


def _refuse_alignment(function: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{function.__name__} needs torchaudio's compiled part, which needs CUDA")

    return refused
