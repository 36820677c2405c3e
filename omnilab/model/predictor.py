"""The code predictor: the residual codes of a frame, one group at a time.

Shapes: B rows, n positions, T Talker width, Vc codebook size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from omnilab.model.cache import cache_keyword
from omnilab.model.sampling import greedy, pick
from omnilab.record import count
from omnilab.seams import Draws, PredictorLayer, PredictorWeights

RESIDUAL_TOP_K, RESIDUAL_TOP_P = 50, 0.8


class CodePredictor:
    """The Talker's code predictor and the embeddings that feed it. `module` is transformers' own."""

    def __init__(self, talker: nn.Module) -> None:
        self.module: Any = talker.code_predictor
        self.talker_embedding: Any = talker.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        self.num_code_groups: int = self.module.config.num_code_groups
        self.codebook_size: int = self.module.config.vocab_size
        self.top_k, self.top_p = RESIDUAL_TOP_K, RESIDUAL_TOP_P
        self._body: Any = self.module.model
        self._embeddings: Any = self._body.get_input_embeddings()
        self._keyword = cache_keyword(self._body)

    @torch.no_grad()
    def weights(self) -> PredictorWeights:
        """Return the weights as they lie in the module, and the rotary tables of one frame in the module's dtype."""
        norm = self._body.norm
        positions = torch.arange(self.num_code_groups, device=norm.weight.device)[None]
        cosines, sines = self._body.rotary_emb(norm.weight, positions)
        return PredictorWeights(
            layers=tuple(_layer(layer) for layer in self._body.layers),
            norm=norm.weight,
            heads=tuple(head.weight for head in self.module.lm_head),
            embeddings=tuple(table.weight for table in self._embeddings),
            cosines=cosines[0],
            sines=sines[0],
            head_dim=cosines.shape[-1],
            epsilon=norm.variance_epsilon,
        )

    def new_cache(self) -> Any:
        """Return an empty key-value cache for one frame."""
        from transformers import DynamicCache

        return DynamicCache(config=self.module.config)

    @torch.no_grad()
    def step(self, inputs: Tensor, cache: Any) -> Tensor:
        """Run inputs [B, n, T] after what the cache holds; return post-norm hidden states [B, n, T]."""
        count("predictor_forwards")
        return self._body(inputs_embeds=inputs, use_cache=True, **{self._keyword: cache}).last_hidden_state

    @torch.no_grad()
    def head(self, group: int, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, Vc] of residual group 0..G-2 from hidden states [B, T]."""
        return self.module.lm_head[group](hidden).float()

    def choose(self, group: int, logits: Tensor, draws: Draws) -> Tensor:
        """Return the codes [B] of residual group 0..G-2; transformers draws them with top-k 50, top-p 0.8."""
        if draws.all_greedy:
            return greedy(logits)
        rows = logits.shape[0]
        top_k = torch.full((rows,), RESIDUAL_TOP_K, device=logits.device)
        top_p = torch.full((rows,), RESIDUAL_TOP_P, device=logits.device)
        warm = torch.where(draws.temperature > 0, 1.0, 0.0)  # residual codes know no temperature but 0
        return pick(logits, draws.residual[group], warm, top_k, top_p)

    @torch.no_grad()
    def embed(self, group: int, codes: Tensor) -> Tensor:
        """Return embeddings [B, T] of the codes [B] of residual group 0..G-2."""
        return self._embeddings[group](codes)

    @torch.no_grad()
    def embed_first(self, codes: Tensor) -> Tensor:
        """Return embeddings [B, T] of first codes [B]."""
        return self.talker_embedding(codes)


def _layer(layer: Any) -> PredictorLayer:
    attention, feed_forward = layer.self_attn, layer.mlp
    return PredictorLayer(
        query=attention.q_proj.weight,
        key=attention.k_proj.weight,
        value=attention.v_proj.weight,
        output=attention.o_proj.weight,
        gate=feed_forward.gate_proj.weight,
        up=feed_forward.up_proj.weight,
        down=feed_forward.down_proj.weight,
        input_norm=layer.input_layernorm.weight,
        query_norm=attention.q_norm.weight,
        key_norm=attention.k_norm.weight,
        feed_forward_norm=layer.post_attention_layernorm.weight,
    )
