"""Sampling as pure functions on tensors: transformers' order and semantics, random numbers given from outside.

Nothing here reads a tensor back to the host, so a CUDA graph can hold all of it. Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def seeded_generator(seed: int, request_key: str, stage: str, device: torch.device | str) -> torch.Generator:
    """Return the generator of one request in one stage: neither neighbours nor slots change its numbers.

    A CUDA generator gives other numbers than a CPU one for the same seed.
    """
    digest = hashlib.sha256(f"{seed}\0{request_key}\0{stage}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def draw_exponential(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw float32 Exp(1) noise, the numbers that torch.multinomial would draw from the same generator."""
    noise = torch.empty(shape, dtype=torch.float32, device=generator.device)
    return noise.exponential_(generator=generator)


def apply_penalties(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Penalize repetition: logits [B, V], seen [B, V] bool of first codes generated so far, penalty [B]; 1 is none."""
    by = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * by, logits / by), logits)


def suppress(logits: Tensor, ids: Tensor) -> Tensor:
    """Return logits [B, V] with ids [n] (int64, on the same device) never sampled."""
    return logits.index_fill(-1, ids, -torch.inf)


def greedy(logits: Tensor) -> Tensor:
    """Return the likeliest ids [B] of logits [B, V]."""
    return logits.argmax(-1)


def limit(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Scale and cut logits [B, V] by temperature, then top-k (0 is no limit), then top-p (1 is no limit), each [B]."""
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered, order = scaled.sort(dim=-1)  # ascending
    size = logits.shape[-1]
    rank = torch.where(top_k > 0, top_k, size).clamp(1, size)
    smallest = ordered.gather(-1, (size - rank)[:, None])  # ties with the k-th stay
    kept = ordered.masked_fill(ordered < smallest, -torch.inf)
    below = kept.softmax(-1).cumsum(-1) <= (1 - top_p)[:, None]
    # Floats may sum to a hair under 1, and "no limit" must not depend on it; the likeliest always stays.
    below = below & (top_p < 1)[:, None]
    below[:, -1] = False
    kept = kept.masked_fill(below, -torch.inf)
    return torch.empty_like(kept).scatter(-1, order, kept)


def pick(logits: Tensor, exp_noise: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sample ids [B] from logits [B, V] with Exp(1) noise [B, V]; a row of temperature 0 is greedy.

    The largest of p / noise is the draw of torch.multinomial(p, 1) when the noise is of its generator.
    """
    probabilities = limit(logits, temperature, top_k, top_p).softmax(-1)
    return torch.where(temperature > 0, (probabilities / exp_noise).argmax(-1), logits.argmax(-1))
