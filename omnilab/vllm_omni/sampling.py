"""One request's lengths and sampling as each stage of vLLM-Omni takes them: the field `sampling_params_list`."""

from __future__ import annotations

from typing import Any

from omnilab.client.asking import TALKER
from omnilab.prompt import Sampling

STOP_TOKEN_ID = 2150  # end of speech, as released and in `parity`


def by_stage(sampling: Sampling) -> list[dict[str, Any]]:
    """Return fields by stage, Thinker and Talker.

    Once a stage's fields are given, the server fills in none of its deploy file's. The last code that the Talker
    samples becomes no frame, so n frames are n + 1 tokens of its. `ignore_eos` fixes both ends: the Talker is kept from
    its stop token by `min_tokens`, which it honours.
    """
    shared: dict[str, Any] = {} if sampling.seed is None else {"seed": sampling.seed % (1 << 63)}
    if sampling.top_k is not None:
        shared["top_k"] = sampling.top_k
    thinker = {"temperature": sampling.temperature or 0.0, "max_tokens": sampling.max_text_tokens}
    codes = sampling.frame_limit + 1
    talker: dict[str, Any] = {
        **TALKER, "max_tokens": codes, "stop_token_ids": [STOP_TOKEN_ID], "detokenize": False,
    }  # fmt: skip
    if sampling.temperature is not None:
        talker["temperature"] = sampling.temperature
    if sampling.ignore_eos:
        thinker["ignore_eos"] = True
        talker["min_tokens"] = codes
    return [{**thinker, **shared}, {**talker, **shared}]
