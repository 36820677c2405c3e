"""Toggle: merge a payload into a request's state by `dict.update`.

The merge before vllm-omni#1378 is called deep in its review, but does not nest: it visits every element of every list,
to look for tensors, and moves each tensor to contiguous CPU memory. Its price is the length of the lists, on the
runner's critical path before the forward. With prefill_only_hidden_states on there are no lists after the prefill: the
two are strongly sub-additive.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from omnilab.seams import Merge, Payload
from omnilab.toggle import Toggle


def merge_elementwise(state: Payload | None, payload: Payload) -> Payload:
    """Baseline: a new state, every value and every element of every list visited."""
    merged = dict(state or {})
    for key, value in payload.items():
        merged[key] = [_on_cpu(element) for element in value] if isinstance(value, list) else _on_cpu(value)
    return merged


def merge_shallow(state: Payload | None, payload: Payload) -> Payload:
    """Optimized: keys replaced in place. Payloads are flat and on the CPU already."""
    if state is None:
        return dict(payload)
    state.update(payload)
    return state


def _on_cpu(value: Any) -> Any:
    return value.detach().to("cpu").contiguous() if isinstance(value, Tensor) else value


TOGGLE: Toggle[Merge] = Toggle(
    name="shallow_merge",
    seam="merge",
    baseline=merge_elementwise,
    optimized=merge_shallow,
    claim="a merge costs the number of keys, not the length of the lists",
)
