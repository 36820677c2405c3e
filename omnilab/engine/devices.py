"""Which device a stage runs on."""

from __future__ import annotations

from collections.abc import Mapping

from omnilab.engine.spec import STAGES
from omnilab.errors import BadInput


def device_of(device: str | Mapping[str, str], stage: str) -> str:
    """Return a stage's device, "auto" decided; BadInput for what torch does not know, or does not see here."""
    if not isinstance(device, str):
        if unknown := set(device) - set(STAGES):
            raise BadInput(f"device: no stage is named {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
        return device_of(device.get(stage, "auto"), stage)
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"device {device!r}: {str(error).splitlines()[0]}") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device {device!r}: torch sees no GPU here; use device='cpu'")
    return device
