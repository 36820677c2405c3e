"""Model folders: a size written once to the user's cache, a folder checked, a hub id fetched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from omnilab.errors import ModelNotFound
from omnilab.model.config import SIZES, WEIGHT_DTYPE, config_dict

FOLDER_VERSION = 1  # of everything but the config and the weights' fill
_PIXELS = {"shortest_edge": 3136, "longest_edge": 200704}
_IMAGE = {
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 16, "merge_size": 2,
    "temporal_patch_size": 2, "size": _PIXELS,
}  # fmt: skip
_AUDIO = {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
    "hop_length": 160, "chunk_length": 30, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000,
    "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True, "dither": 0.0,
}  # fmt: skip


def write_folder(size: str, path: str | os.PathLike[str]) -> Path:
    """Write a size as a Hugging Face folder; return its path. A model folder that is there already stays as it is.

    Written beside its place and renamed, so that a folder is whole or not there. `full` gets no weights, but a file
    that says they are made on the device.
    """
    target = Path(path)
    if target.exists():
        return _check_folder(target)
    config = config_dict(size)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write_contents(size, config, staging)
        staging.chmod(0o755)
        try:
            staging.rename(target)
        except OSError:
            if not target.exists():  # else another process was first; both wrote the same
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _write_contents(size: str, config: dict[str, Any], folder: Path) -> None:
    import torch
    from transformers import Qwen3OmniMoeConfig

    from omnilab.model import tokenizer, weights

    _write_json(folder / "config.json", config)
    eos = config["im_end_token_id"]
    generation = {"eos_token_id": [eos], "pad_token_id": eos, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    tokenizer.write(config, folder)
    processor = {"processor_class": "Qwen3OmniMoeProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    _write_json(folder / "preprocessor_config.json", {**processor, **_AUDIO, **_IMAGE})
    video = {"video_processor_type": "Qwen2VLVideoProcessor", **_IMAGE}
    _write_json(folder / "video_preprocessor_config.json", video)
    if size == "full":
        _write_json(folder / weights.RANDOM_WEIGHTS_FILE, {"fill_version": weights.FILL_VERSION})
        return
    dtype = getattr(torch, WEIGHT_DTYPE[size])
    with weights.quiet():
        model_config = Qwen3OmniMoeConfig(**config)
    weights.write_weights(model_config, folder, dtype=dtype)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def cache_root() -> Path:
    """Return where sizes are kept: $OMNILAB_CACHE, else the platform's cache folder."""
    if chosen := os.environ.get("OMNILAB_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "omnilab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnilab"


def cached_folder(size: str) -> Path:
    """Return where a size lies or will lie; the name changes with its config and with how it is filled."""
    from omnilab.model.weights import FILL_VERSION

    content = json.dumps([config_dict(size), FILL_VERSION, FOLDER_VERSION], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return cache_root() / "models" / f"{size}-{digest}"


def resolve(model: str | os.PathLike[str]) -> Path:
    """Return the folder of a size name, a folder or a hub id. ModelNotFound says what was wrong and what to do."""
    name = os.fspath(model)
    if name in SIZES:
        return _resolve_size(name)
    path = Path(name).expanduser()
    if path.exists():
        return _check_folder(path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelNotFound(
            f"no model {name!r}: give a size ({', '.join(SIZES)}), a model folder, or a hub id owner/name"
        )
    return _check_folder(_download(name))


def _resolve_size(size: str) -> Path:
    from filelock import FileLock

    folder = cached_folder(size)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            write_folder(size, folder)
    return folder


def _check_folder(folder: Path) -> Path:
    from omnilab.model.weights import has_weights

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{folder} is no model folder (config.json: {error}): give a folder as save_pretrained writes it"
        ) from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "qwen3_omni_moe":
        raise ModelNotFound(f"{folder} holds a {kind!r} model: omnilab runs 'qwen3_omni_moe' only")
    if not has_weights(folder):
        raise ModelNotFound(
            f"{folder} has a config but no safetensors: copy the weights there, or name a size ({', '.join(SIZES)})"
        )
    return folder


def _download(name: str) -> Path:
    import huggingface_hub

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many unrelated kinds
        raise ModelNotFound(
            f"cannot fetch {name!r} from the hub ({type(error).__name__}: {error}): check the name and the network, "
            f"or give a size ({', '.join(SIZES)}) or a local folder"
        ) from error
