"""Seam `predict_codes`: how the 15 residual codes of a frame are found."""

from __future__ import annotations

import torch
from torch import Tensor

from omnilab.seams import CodePredictor, Draws, PredictCodes


def predict_in_loop(predictor: CodePredictor, max_batch: int) -> PredictCodes:
    """Baseline: transformers' loop, one forward a group, a fresh cache a frame."""

    def predict(hidden: Tensor, code0: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        cache = predictor.new_cache()
        embedded = predictor.embed_first(code0)
        codes, parts, inputs = [code0], [embedded], torch.stack([hidden, embedded], dim=1)
        for group in range(predictor.num_code_groups - 1):
            logits = predictor.head(group, predictor.step(inputs, cache)[:, -1])
            codes.append(predictor.choose(group, logits, draws))
            parts.append(predictor.embed(group, codes[-1]))
            inputs = parts[-1][:, None]
        # stacked then summed: the order of the additions is transformers', and so is the rounding
        return torch.stack(codes, dim=1), torch.stack(parts, dim=1).sum(dim=1)

    return predict
