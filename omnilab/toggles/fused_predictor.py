"""Toggle: find the 15 residual codes of a frame in one function over weights fused for it.

transformers' predictor is made for `generate`: a fresh cache a frame, three projections where one would do, and for
each of the 15 groups a model forward with its masks, positions and outputs. In small models, and on a GPU without
graphs, that is most of the time of a frame. The arithmetic is nothing: 16 positions in all.

Shapes: B rows, n positions, G code groups, T Talker width, Vc codebook size, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omnilab.seams import CodePredictor, Draws, MakePredictCodes, PredictCodes, PredictorLayer, PredictorWeights
from omnilab.toggle import Toggle


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


class FusedPredictor:
    """Optimized: keys and values in buffers made once, the groups unrolled, sampling inside. A graph can hold it."""

    def __init__(self, predictor: CodePredictor, max_batch: int) -> None:
        weights = predictor.weights()
        self._predictor = predictor
        self._heads, self._embeddings = weights.heads, weights.embeddings
        self._norm, self._epsilon = weights.norm, weights.epsilon
        self._layers = [_Layer(layer, weights, max_batch) for layer in weights.layers]

    @torch.no_grad()
    def __call__(self, hidden: Tensor, code0: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return codes [B, G] and embedding sums [B, T] of hidden states [B, T] and first codes [B]."""
        embedded = self._predictor.embed_first(code0)
        codes, parts, inputs, position = [code0], [embedded], torch.stack([hidden, embedded], dim=1), 0
        for group, (head, table) in enumerate(zip(self._heads, self._embeddings, strict=True)):
            states = inputs
            for layer in self._layers:
                states = layer(states, position)
            position += inputs.shape[1]
            logits = F.linear(_rms_norm(states[:, -1], self._norm, self._epsilon), head).float()
            codes.append(self._choose(logits, group, draws))
            parts.append(F.embedding(codes[-1], table))
            inputs = parts[-1][:, None]
        # stacked then summed, as the loop does
        return torch.stack(codes, dim=1), torch.stack(parts, dim=1).sum(dim=1)

    def _choose(self, logits: Tensor, group: int, draws: Draws) -> Tensor:
        likeliest = logits.argmax(-1)
        if draws.all_greedy:
            return likeliest
        drawn = draw(logits, draws.residual[group], self._predictor.top_k, self._predictor.top_p)
        return torch.where(draws.temperature > 0, drawn, likeliest)


class _Layer:
    """One decoder layer on fused weights, with its keys and values [B, kv heads, G, D] of the frame at hand."""

    def __init__(self, layer: PredictorLayer, weights: PredictorWeights, max_batch: int) -> None:
        self._head_dim, self._epsilon = weights.head_dim, weights.epsilon
        self._queries, self._kv_heads = len(layer.query) // self._head_dim, len(layer.key) // self._head_dim
        self._qkv = torch.cat([layer.query, layer.key, layer.value])
        self._gate_up = torch.cat([layer.gate, layer.up])
        self._output, self._down = layer.output, layer.down
        self._input_norm, self._feed_forward_norm = layer.input_norm, layer.feed_forward_norm
        # queries and keys are normed and rotated together, each head by its own kind's weight
        self._head_norm = torch.stack([layer.query_norm] * self._queries + [layer.key_norm] * self._kv_heads)
        half = self._head_dim // 2
        self._cosines = weights.cosines[:, None]
        self._sines = torch.cat([-weights.sines[:, :half], weights.sines[:, half:]], dim=1)[:, None]
        # normal tensors even under inference_mode: a later frame outside of it must be able to write
        with torch.inference_mode(False):
            shape = (max_batch, self._kv_heads, len(weights.cosines), self._head_dim)
            self._keys, self._values = (layer.key.new_zeros(shape) for _ in range(2))

    def __call__(self, states: Tensor, position: int) -> Tensor:
        """Run states [B, n, T] at `position` and after it."""
        states = states + self._attention(_rms_norm(states, self._input_norm, self._epsilon), position)
        normed = _rms_norm(states, self._feed_forward_norm, self._epsilon)
        gate, up = F.linear(normed, self._gate_up).chunk(2, dim=-1)
        return states + F.linear(F.silu(gate) * up, self._down)

    def _attention(self, states: Tensor, position: int) -> Tensor:
        rows, new, _ = states.shape
        end, rotated = position + new, self._queries + self._kv_heads
        heads = F.linear(states, self._qkv).view(rows, new, rotated + self._kv_heads, self._head_dim)
        both = _rms_norm(heads[:, :, :rotated], self._head_norm, self._epsilon)
        turned = both.roll(self._head_dim // 2, -1) * self._sines[position:end]
        both = (both * self._cosines[position:end] + turned).transpose(1, 2)
        keys, values = self._keys[:rows, :, :end], self._values[:rows, :, :end]
        keys[:, :, position:] = both[:, self._queries :]
        values[:, :, position:] = heads[:, :, rotated:].transpose(1, 2)
        # a single new position sees all there is; the first two see each other causally
        mixed = F.scaled_dot_product_attention(
            both[:, : self._queries], keys, values, is_causal=new > 1, enable_gqa=self._queries != self._kv_heads
        )
        return F.linear(mixed.transpose(1, 2).reshape(rows, new, -1), self._output)


def _rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm in float32 and weigh in the model's dtype, in this order: so transformers rounds in bfloat16."""
    return weight * F.rms_norm(states.float(), states.shape[-1:], None, epsilon).to(states.dtype)


_SPARE = 14  # candidates beyond top-k: so many ties with the last of them stay, as all do in transformers


def draw(logits: Tensor, exp_noise: Tensor, top_k: int, top_p: float) -> Tensor:
    """Draw ids [B] from logits [B, Vc] cut to top-k, then to top-p, with Exp(1) noise [B, Vc]: the largest p / noise.

    Sorted as the sampler for any limits sorts, not by topk: logits of bfloat16 tie all the time, and the order of ties
    decides which of them top-p cuts. All that follows is done for the likeliest few alone.
    """
    candidates = min(top_k + _SPARE, logits.shape[-1])
    ordered, order = logits.sort(dim=-1)
    ordered, order = ordered[:, -candidates:], order[:, -candidates:]
    kept = ordered.masked_fill(ordered < ordered[:, -min(top_k, candidates), None], -torch.inf)
    probabilities = kept.softmax(-1)
    # 1 - top_p in float32, as that sampler has it: the edge is the same to the last bit
    below = probabilities.cumsum(-1) <= 1 - torch.full_like(logits[:, :1], top_p)
    below[:, -1] = False  # the likeliest always stays
    race = probabilities.masked_fill(below, 0) / exp_noise.gather(-1, order)
    return order.gather(-1, race.argmax(-1, keepdim=True))[:, 0]


TOGGLE: Toggle[MakePredictCodes] = Toggle(
    name="fused_predictor",
    seam="predict_codes",
    baseline=predict_in_loop,
    optimized=FusedPredictor,
    claim="the residual codes of a frame take about half the time of the loop, greedy or sampled",
)
