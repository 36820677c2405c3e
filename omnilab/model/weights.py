"""Weights: a seeded fill in which every part matters, safetensors in the released naming, one stage loaded alone.

On disk experts are single matrices and the Thinker's parts have the released names; in transformers' modules experts
are fused and the names moved between 5.17 and 5.24. Both directions go through `disk_names`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnilab.errors import ModelNotFound
from omnilab.model.config import STAGES, ModelConfig

FILL_VERSION = 2
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING_NAME = "thinker.model.embed_tokens.weight"
RANDOM_WEIGHTS_FILE = "random_weights.json"  # in place of weights: they are made on the device
_LOUDNESS = 0.005  # of the last convolution: audible, not clipped


def load_config(source: Path) -> ModelConfig:
    """Read a model folder's config.json."""
    from transformers import Qwen3OmniMoeConfig

    with quiet():
        return Qwen3OmniMoeConfig.from_pretrained(source)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' remarks: it does not know the multi-axis keys of its own rotary settings."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load_stage(source: Path, stage: str, *, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Build one stage's module and fill it: from the folder's weights, or on the device when the folder has none.

    Only that stage's tensors are read. Rotary tables stay float32. ModelNotFound names tensors that are missing.
    """
    module = build_stage(load_config(source), stage, device=torch.device(device), dtype=dtype)
    if (source / RANDOM_WEIGHTS_FILE).exists():
        return fill(module, stage, seed)
    with torch.no_grad(), contextlib.ExitStack() as files:
        read = _reader(source, files)
        for name, parameter in module.named_parameters():
            for disk_name, part in disk_names(stage, name, parameter):
                part.copy_(read(disk_name))
    return module


def build_stage(config: ModelConfig, stage: str, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Construct a stage on the device with unset parameters and correct buffers, ready to run, gradients off."""
    from transformers import initialization
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    kinds: dict[str, tuple[Any, Any]] = {
        "thinker": (modeling.Qwen3OmniMoeThinkerForConditionalGeneration, config.thinker_config),
        "talker": (modeling.Qwen3OmniMoeTalkerForConditionalGeneration, config.talker_config),
        "code2wav": (modeling.Qwen3OmniMoeCode2Wav, config.code2wav_config),
    }
    if stage not in kinds:
        raise ValueError(f"unknown stage {stage!r}: use one of {', '.join(STAGES)}")
    kind, stage_config = kinds[stage]
    # Constructing in the dtype, not casting afterwards, keeps the rotary tables float32; without the initializers
    # construction is quick, and every parameter is filled below.
    with quiet(), initialization.no_init_weights(), device:
        module = kind._from_config(stage_config, dtype=dtype, attn_implementation="sdpa")
    if stage != "code2wav":
        # batched_mm copies the chosen experts' weights for every token: minutes for a prefill on a CPU.
        module.set_experts_implementation("grouped_mm")
    return module.eval().requires_grad_(False)


def fill(module: nn.Module, stage: str, seed: int = 0) -> nn.Module:
    """Fill a stage with seeded random weights, in place, on its device; return it.

    A matrix gets deviation 1/sqrt(fan in), so that no part drowns in another. Each parameter has a seed of its own, so
    that one can be made again without the others. The numbers depend on the device's kind and the dtype.
    """
    device = next(module.parameters()).device
    generator = torch.Generator(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            generator.manual_seed(_seed_of(seed, _released_name(stage, name)))
            _fill_parameter(name, parameter, generator)
        if stage == "code2wav":
            vocoder: Any = module
            vocoder.decoder[-1].conv.weight.mul_(_LOUDNESS)
    return module


def thinker_embedding(source: Path, *, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return the Thinker's token embedding [V, Ht] alone: what a Talker needs that is sent token ids."""
    if (source / RANDOM_WEIGHTS_FILE).exists():
        sizes = load_config(source).thinker_config.text_config
        table = torch.empty(sizes.vocab_size, sizes.hidden_size, device=device, dtype=dtype)
        generator = torch.Generator(device=device).manual_seed(_seed_of(seed, EMBEDDING_NAME))
        _fill_parameter(EMBEDDING_NAME.removeprefix("thinker."), table, generator)
        return table
    with contextlib.ExitStack() as files:
        return _reader(source, files)(EMBEDDING_NAME).to(device, dtype)


def _seed_of(seed: int, name: str) -> int:
    # torch's CPU generator uses the low 32 bits only: a plain shift of the seed would not reach it
    return int.from_bytes(hashlib.sha256(f"omnilab/{seed}/{name}".encode()).digest()[:4], "big")


def _fill_parameter(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    last = name.rsplit(".", 1)[-1]
    if name.endswith("layer_scale.scale") or last == "gamma":
        parameter.fill_(0.5)
    elif last in ("alpha", "beta", "bias"):
        parameter.zero_()
    elif parameter.ndim == 1:
        parameter.fill_(2.0 if "q_norm" in name or "k_norm" in name else 1.0)
    elif "embed_tokens" in name or "embedding" in name:
        parameter.normal_(0, 1, generator=generator)
    else:
        fan_in = parameter.shape[-1] if parameter.ndim == 2 or "experts" in name else parameter[0].numel()
        parameter.normal_(0, 1 / math.sqrt(fan_in), generator=generator)


def _released_name(stage: str, name: str) -> str:
    """Return a parameter's name in the released layout, which both versions' modules map to; experts still fused."""
    name = name.removeprefix("model.") if name.startswith(("model.audio_tower.", "model.visual.")) else name
    return f"{stage}.{name.replace('model.language_model.', 'model.', 1)}"


def disk_names(stage: str, name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield (name on disk, view of the parameter) for one parameter of a stage's module."""
    name = _released_name(stage, name)
    base, last = name.rpartition(".")[::2]
    if not base.endswith(".experts") or last not in ("gate_up_proj", "down_proj"):
        yield name, parameter
        return
    for index, expert in enumerate(parameter):
        if last == "down_proj":
            yield f"{base}.{index}.down_proj.weight", expert
        else:
            gate, up = expert.chunk(2)
            yield f"{base}.{index}.gate_proj.weight", gate
            yield f"{base}.{index}.up_proj.weight", up


def write_weights(config: ModelConfig, folder: Path, *, dtype: torch.dtype, seed: int = 0) -> None:
    """Write seeded weights of all stages to one safetensors file."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for stage in STAGES:
        # Drawn in float32, so that a size's weights are the same numbers whatever they are saved in.
        module = fill(build_stage(config, stage, device=torch.device("cpu"), dtype=torch.float32), stage, seed)
        for name, parameter in module.named_parameters():
            for disk_name, part in disk_names(stage, name, parameter.detach()):
                tensors[disk_name] = part.to(dtype).clone()
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)  # it is written private; a cache may be shared


def has_weights(folder: Path) -> bool:
    """Say whether a folder holds weights, or says that they are made on the device."""
    return any((folder / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE, RANDOM_WEIGHTS_FILE))


def _reader(source: Path, files: contextlib.ExitStack) -> Any:
    """Return a function that reads one tensor by its name on disk; files are opened once, when first needed."""
    from safetensors import safe_open

    index = source / INDEX_FILE
    where = json.loads(index.read_text())["weight_map"] if index.exists() else None
    opened: dict[str, Any] = {}

    def read(name: str) -> Tensor:
        file = WEIGHTS_FILE if where is None else where.get(name)
        if file is not None and file not in opened:
            opened[file] = files.enter_context(safe_open(source / file, framework="pt"))
        if file is None or name not in opened[file].keys():  # noqa: SIM118 - not a dict
            raise ModelNotFound(f"{source} has no tensor {name}: the folder is of another model or incomplete")
        return opened[file].get_tensor(name)

    return read
