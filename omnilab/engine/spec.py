"""What a stage is built from, in any process. Travels by cloudpickle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from omnilab.recipe import Recipe
from omnilab.seams import Runner

STAGES = ("thinker", "talker", "code2wav")
PRODUCER = {"talker": "thinker", "code2wav": "talker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage. `make_runner` builds its runner (network and all) in the process that calls it."""

    stage: str
    make_runner: MakeRunner
    model: str  # folder
    device: str
    dtype: str | None  # None: float32 on a CPU, bfloat16 elsewhere
    edge_dtype: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    codec_chunk_frames: int
    codec_left_context_frames: int
    timeout_s: float
    seed: int
    num_threads: int = 1  # torch's, in the runner's process


MakeRunner: TypeAlias = Callable[[StageSpec, Recipe], Any]  # -> Runner


def network_runner(spec: StageSpec, recipe: Recipe) -> Runner:
    """Load a stage's network and wrap its runner around it."""
    import torch

    from omnilab.model.weights import load_config, load_stage

    folder = Path(spec.model)
    config = load_config(folder)
    device = torch.device(spec.device)
    dtype = getattr(torch, spec.dtype) if spec.dtype else (torch.float32 if device.type == "cpu" else torch.bfloat16)
    module = load_stage(folder, spec.stage, device=device, dtype=dtype, seed=spec.seed)
    sizes = {"max_num_seqs": spec.max_num_seqs, "max_model_len": spec.max_model_len}
    if spec.stage == "thinker":
        from omnilab.engine.thinker_runner import ThinkerRunner
        from omnilab.model.thinker import Thinker

        edge_dtype = getattr(torch, spec.edge_dtype)
        return ThinkerRunner(
            Thinker(module, config, **sizes), recipe, max_num_seqs=spec.max_num_seqs, edge_dtype=edge_dtype
        )
    if spec.stage == "talker":
        from omnilab.engine.talker_runner import TalkerRunner
        from omnilab.model.embedding import TokenRows
        from omnilab.model.talker import Talker

        lookup = TokenRows(folder, device, dtype, getattr(torch, spec.edge_dtype), spec.seed)
        return TalkerRunner(Talker(module, config, **sizes), recipe, max_num_seqs=spec.max_num_seqs, lookup=lookup)
    from omnilab.engine.code2wav_runner import Code2WavRunner
    from omnilab.model.code2wav import Code2Wav

    return Code2WavRunner(Code2Wav(module, config), recipe, left_context=spec.codec_left_context_frames)
