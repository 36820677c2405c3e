"""The four sizes of the Qwen3-Omni-MoE architecture, as plain dicts and as transformers' config.

`tiny`: under a million parameters, for tests. `parity`: token and code ids as released, the smallest that vLLM-Omni
accepts. `thin`: what crosses an edge has its released size, what stays inside a stage is small. `full`: as released.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, TypeAlias

from omnilab.errors import ModelNotFound

# A transformers.Qwen3OmniMoeConfig. Its nested configs are typed `dict | None` there, which no reader could use.
ModelConfig: TypeAlias = Any

SIZES: tuple[str, ...] = ("tiny", "parity", "thin", "full")
STAGES: tuple[str, ...] = ("thinker", "talker", "code2wav")
WEIGHT_DTYPE = {"tiny": "float32", "parity": "bfloat16", "thin": "bfloat16", "full": "bfloat16"}

_MAIN_IDS = {
    "im_start_token_id": 256, "im_end_token_id": 257, "tts_pad_token_id": 258, "tts_bos_token_id": 259,
    "tts_eos_token_id": 260, "system_token_id": 271, "user_token_id": 270, "assistant_token_id": 272,
}  # fmt: skip
_MEDIA_IDS = {
    "audio_token_id": 300, "image_token_id": 301, "video_token_id": 302, "audio_start_token_id": 303,
    "audio_end_token_id": 304, "vision_start_token_id": 305, "vision_end_token_id": 306,
}  # fmt: skip
_RELEASED_MAIN_IDS = {
    "im_start_token_id": 151644, "im_end_token_id": 151645, "tts_pad_token_id": 151671, "tts_bos_token_id": 151672,
    "tts_eos_token_id": 151673, "system_token_id": 8948, "user_token_id": 872, "assistant_token_id": 77091,
}  # fmt: skip
_RELEASED_MEDIA_IDS = {
    "audio_token_id": 151675, "image_token_id": 151655, "video_token_id": 151656, "audio_start_token_id": 151669,
    "audio_end_token_id": 151670, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
}  # fmt: skip
_CODEC_IDS = {
    "codec_pad_id": 64, "codec_bos_id": 65, "codec_eos_token_id": 66, "codec_nothink_id": 71,
    "codec_think_bos_id": 72, "codec_think_eos_id": 73,
}  # fmt: skip
_RELEASED_CODEC_IDS = {
    "codec_pad_id": 2148, "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
}  # fmt: skip
_TIME = {"position_id_per_seconds": 13, "seconds_per_chunk": 2}
_PATCHES = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
_WINDOWS = {"num_mel_bins": 128, "n_window": 50, "n_window_infer": 800, "max_source_positions": 1500}
_DECODER = {"upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2], "sliding_window": 72}


class _Parts(NamedTuple):
    """What differs from one size to another."""

    main_ids: dict[str, int]
    media_ids: dict[str, int]
    codec_ids: dict[str, int]
    speakers: dict[str, int]
    thinker_text: dict[str, Any]
    vision: dict[str, Any]
    audio: dict[str, Any]
    talker_text: dict[str, Any]
    predictor: dict[str, Any]
    code2wav: dict[str, Any]
    accept_hidden_layer: int


def _attention(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, feed_forward: int) -> dict[str, Any]:
    """Return the fields that every transformer of the network has."""
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": feed_forward,
        "rms_norm_eps": 1e-6, "hidden_act": "silu",
    }  # fmt: skip


def _experts(experts: int, per_token: int, width: int, shared: int) -> dict[str, Any]:
    """Return the mixture-of-experts fields; the shared width is not a declared field, yet the Talker needs it."""
    return {
        "num_experts": experts, "num_experts_per_tok": per_token, "moe_intermediate_size": width,
        "norm_topk_prob": True, "shared_expert_intermediate_size": shared, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "tie_word_embeddings": False,
    }  # fmt: skip


def _mrope(sections: list[int], max_positions: int) -> dict[str, Any]:
    """Return rotary positions in three axes, in the spelling that transformers 4 and 5 and vLLM all read."""
    scaling = {"rope_type": "default", "mrope_section": sections, "interleaved": True, "mrope_interleaved": True}
    return {"rope_theta": 1e6, "rope_scaling": scaling, "max_position_embeddings": max_positions}


def _assemble(parts: _Parts, dtype: str) -> dict[str, Any]:
    """Build a whole config dict as it stands in config.json."""
    groups = parts.code2wav["num_quantizers"]
    predictor = {
        "model_type": "qwen3_omni_moe_talker_code_predictor", "num_code_groups": groups, "rope_theta": 1e6,
        "layer_types": ["full_attention"] * parts.predictor["num_hidden_layers"],
        "attention_bias": False, "max_window_layers": 28, **parts.predictor,
    }  # fmt: skip
    vision_defaults = {
        "model_type": "qwen3_omni_moe_vision_encoder", "in_channels": 3, "hidden_act": "gelu_pytorch_tanh",
        "apply_vit_abs_pos_embed": True,  # vLLM wants it; transformers does not know it
    }  # fmt: skip
    audio_defaults = {"model_type": "qwen3_omni_moe_audio_encoder", "activation_function": "gelu"}
    thinker = {
        "model_type": "qwen3_omni_moe_thinker", "dtype": dtype, "user_token_id": parts.main_ids["user_token_id"],
        **parts.media_ids, **_TIME,
        "text_config": {"model_type": "qwen3_omni_moe_text", **parts.thinker_text},
        "vision_config": {**vision_defaults, **_PATCHES, **parts.vision},
        "audio_config": {**audio_defaults, **_WINDOWS, **parts.audio},
    }  # fmt: skip
    talker_media = {name: value for name, value in parts.media_ids.items() if name != "vision_end_token_id"}
    talker = {
        "dtype": dtype, "num_code_groups": groups, "thinker_hidden_size": parts.thinker_text["hidden_size"],
        "accept_hidden_layer": parts.accept_hidden_layer, "speaker_id": parts.speakers, **parts.codec_ids,
        "spatial_merge_size": _PATCHES["spatial_merge_size"],  # not a declared field, yet needed
        **talker_media, **_TIME,
        "text_config": {"model_type": "qwen3_omni_moe_talker_text", **parts.talker_text},
        "code_predictor_config": predictor,
    }  # fmt: skip
    code2wav = {
        "rope_theta": 1e4, "max_position_embeddings": 8000, "layer_scale_initial_scale": 0.01, **_DECODER,
        **parts.code2wav, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe", "dtype": dtype,
        "enable_audio_output": True, **parts.main_ids,
        "thinker_config": thinker, "talker_config": talker, "code2wav_config": code2wav,
    }  # fmt: skip


_SMALL_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "num_position_embeddings": 16}
_SMALL_AUDIO = {
    "d_model": 32, "encoder_layers": 1, "num_hidden_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "downsample_hidden_size": 16,
}  # fmt: skip


def _tiny() -> _Parts:
    """Under a million parameters; a codebook of 64."""
    return _Parts(
        _MAIN_IDS, _MEDIA_IDS, _CODEC_IDS, {"chelsie": 81, "ethan": 82, "aiden": 83},
        thinker_text={"vocab_size": 320, **_attention(64, 4, 4, 2, 16, 64), **_experts(8, 2, 32, 0),
                      **_mrope([4, 2, 2], 4096)},
        vision={**_SMALL_VISION, "out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        audio={**_SMALL_AUDIO, "output_dim": 64},
        # 64 codes and 1024 more: the last 1024 ids but end-of-speech are never sampled
        talker_text={"vocab_size": 1088, **_attention(32, 3, 4, 2, 8, 64), **_experts(8, 2, 32, 32),
                     **_mrope([2, 1, 1], 4096)},
        predictor={"vocab_size": 64, **_attention(32, 2, 4, 2, 8, 64), "max_position_embeddings": 64},
        code2wav={"codebook_size": 64, "num_quantizers": 16, **_attention(32, 2, 4, 4, 8, 64), "decoder_dim": 64},
        accept_hidden_layer=2,
    )  # fmt: skip


def _thin() -> _Parts:
    """Rows of 2048 and 16 codes of 2048 on the edges; a few narrow layers inside."""
    return _Parts(
        _MAIN_IDS, _MEDIA_IDS, _RELEASED_CODEC_IDS, {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        thinker_text={"vocab_size": 1024, **_attention(2048, 2, 4, 2, 64, 128), **_experts(8, 2, 64, 0),
                      **_mrope([12, 10, 10], 32768)},
        vision={**_SMALL_VISION, "out_hidden_size": 2048, "deepstack_visual_indexes": [0]},
        audio={**_SMALL_AUDIO, "output_dim": 2048},
        talker_text={"vocab_size": 3072, **_attention(128, 2, 2, 1, 32, 128), **_experts(4, 2, 64, 64),
                     **_mrope([6, 5, 5], 32768)},
        predictor={"vocab_size": 2048, **_attention(128, 1, 2, 1, 32, 128), "max_position_embeddings": 64},
        code2wav={"codebook_size": 2048, "num_quantizers": 16, **_attention(64, 2, 4, 4, 16, 128), "decoder_dim": 64},
        accept_hidden_layer=1,
    )  # fmt: skip


def _parity() -> _Parts:
    """Ids as released; nearly all of the 58 M parameters are vocabulary."""
    return _Parts(
        _RELEASED_MAIN_IDS, _RELEASED_MEDIA_IDS, _RELEASED_CODEC_IDS, {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        thinker_text={"vocab_size": 152064, **_attention(128, 4, 4, 2, 64, 256), **_experts(8, 2, 64, 0),
                      **_mrope([12, 10, 10], 65536)},
        vision={"depth": 2, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "image_size": 768,
                "num_position_embeddings": 2304, "out_hidden_size": 128, "deepstack_visual_indexes": [0]},
        audio={"d_model": 128, "encoder_layers": 2, "num_hidden_layers": 2, "encoder_attention_heads": 4,
               "encoder_ffn_dim": 256, "downsample_hidden_size": 32, "conv_chunksize": 500, "output_dim": 128},
        talker_text={"vocab_size": 3072, **_attention(128, 4, 4, 2, 64, 256), **_experts(8, 2, 64, 128),
                     **_mrope([12, 10, 10], 65536)},
        predictor={"vocab_size": 2048, **_attention(128, 2, 4, 2, 64, 256), "max_position_embeddings": 32768},
        code2wav={"codebook_size": 2048, "num_quantizers": 16, **_attention(128, 2, 4, 4, 32, 256), "decoder_dim": 96},
        accept_hidden_layer=2,
    )  # fmt: skip


def _full() -> _Parts:
    """The released 30B-A3B sizes; transformers' class defaults are not these."""
    return _Parts(
        _RELEASED_MAIN_IDS, _RELEASED_MEDIA_IDS, _RELEASED_CODEC_IDS, {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        thinker_text={"vocab_size": 152064, **_attention(2048, 48, 32, 4, 128, 768), **_experts(128, 8, 768, 0),
                      **_mrope([24, 20, 20], 65536)},
        vision={"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "image_size": 768,
                "num_position_embeddings": 2304, "out_hidden_size": 2048, "deepstack_visual_indexes": [8, 16, 24]},
        audio={"d_model": 1280, "encoder_layers": 32, "num_hidden_layers": 32, "encoder_attention_heads": 20,
               "encoder_ffn_dim": 5120, "downsample_hidden_size": 480, "conv_chunksize": 500, "output_dim": 2048},
        talker_text={"vocab_size": 3072, **_attention(1024, 20, 16, 2, 128, 2048), **_experts(128, 6, 384, 768),
                     **_mrope([24, 20, 20], 65536)},
        predictor={"vocab_size": 2048, **_attention(1024, 5, 16, 8, 128, 3072), "max_position_embeddings": 32768},
        code2wav={"codebook_size": 2048, "num_quantizers": 16, **_attention(1024, 8, 16, 16, 64, 3072),
                  "decoder_dim": 1536},
        accept_hidden_layer=24,
    )  # fmt: skip


_PARTS = {"tiny": _tiny, "parity": _parity, "thin": _thin, "full": _full}


def config_dict(size: str) -> dict[str, Any]:
    """Return a size's config as config.json holds it; ModelNotFound for an unknown size."""
    if size not in _PARTS:
        raise ModelNotFound(f"unknown size {size!r}: use one of {', '.join(SIZES)}")
    return copy.deepcopy(_assemble(_PARTS[size](), WEIGHT_DTYPE[size]))


def make_config(size: str) -> ModelConfig:
    """Return a size as transformers' config; ModelNotFound for an unknown size."""
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig(**config_dict(size))
