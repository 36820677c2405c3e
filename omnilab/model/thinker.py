"""The Thinker: prompt rows, prefill in parts, batched decode. Talks to transformers' text model through `forward` only.

Shapes: P prompt tokens, B rows, H hidden size, V vocabulary, I image tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from omnilab.model.cache import CachedBody, Step
from omnilab.model.config import ModelConfig
from omnilab.record import count

if TYPE_CHECKING:
    from omnilab.model.inputs import PromptInputs


@dataclass(frozen=True, slots=True)
class EmbeddedPrompt:
    """A prompt ready for prefill, on the model's device."""

    embeddings: Tensor  # [P, H] after audio and image rows took the placeholders' places
    positions: Tensor  # [3, P]
    position_delta: int  # rotary position of token i of the answer: P + i + delta
    image_positions: tuple[int, ...]  # I positions in the prompt, in order
    deepstack: tuple[Tensor, ...]  # [I, H] per early layer that gets image features added; empty without images


class Thinker:
    """One module, many requests: each has a slot of the KV cache and nothing is kept on the module."""

    def __init__(self, module: nn.Module, config: ModelConfig, *, max_num_seqs: int, max_model_len: int) -> None:
        self.module: Any = module
        # 5.17 keeps the towers beside the text model, 5.24 wraps all three.
        towers: Any = module.model if hasattr(module.model, "language_model") else module
        self.text_model: Any = getattr(module.model, "language_model", module.model)
        self._audio_tower, self._vision_tower = towers.audio_tower, towers.visual
        self._body = CachedBody(self.text_model, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self._embedding: nn.Embedding = self.text_model.get_input_embeddings()
        self._accept_layer = self.text_model.layers[config.talker_config.accept_hidden_layer - 1]
        thinker = config.thinker_config
        self._audio_id, self._image_id = thinker.audio_token_id, thinker.image_token_id
        self._tts_ids = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
        self.eos_ids: tuple[int, ...] = (config.im_end_token_id,)
        self.hidden_size: int = thinker.text_config.hidden_size
        self.vocab_size: int = thinker.text_config.vocab_size
        self.cache = self._body.cache
        self.device, self.dtype = self._body.device, self._body.dtype

    def join(self) -> int:
        """Take a slot; IndexError when none is free."""
        return self.cache.join()

    def leave(self, slot: int) -> None:
        """Give a slot back."""
        self.cache.leave(slot)

    @torch.no_grad()
    def embed(self, inputs: PromptInputs) -> EmbeddedPrompt:
        """Embed a prompt: look tokens up, run the towers, put their rows in the placeholders' places."""
        rows = self.embed_tokens(inputs.ids)
        images = tuple(i for i, token in enumerate(inputs.ids) if token == self._image_id)
        deepstack: tuple[Tensor, ...] = ()
        if inputs.input_features is not None:
            audio = [i for i, token in enumerate(inputs.ids) if token == self._audio_id]
            rows = _replace(rows, audio, self._audio_rows(inputs))
        if inputs.pixel_values is not None and inputs.image_grid_thw is not None:
            pixels = inputs.pixel_values.to(self.device, self._vision_tower.dtype)
            seen = self._vision_tower(pixels, grid_thw=inputs.image_grid_thw.to(self.device), return_dict=True)
            rows = _replace(rows, images, seen.pooler_output)
            deepstack = tuple(feature.to(self.dtype) for feature in seen.deepstack_features)
        return EmbeddedPrompt(rows, inputs.positions.to(self.device), inputs.position_delta, images, deepstack)

    def _audio_rows(self, inputs: PromptInputs) -> Tensor:
        """Run the audio tower on all clips, [n, H]; padding frames are left out first."""
        assert inputs.input_features is not None and inputs.feature_attention_mask is not None
        present = inputs.feature_attention_mask.bool()
        frames = inputs.input_features.transpose(1, 2)[present].T
        lengths = present.sum(1)
        return self._audio_tower(
            frames.to(self.device, self.dtype), feature_lens=lengths.to(self.device), return_dict=True
        ).last_hidden_state

    @torch.no_grad()
    def prefill(self, slot: int, prompt: EmbeddedPrompt, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Run prompt positions start..end-1 in one forward.

        Returns the post-norm hidden state [H] of the last one and the accept-layer rows [end - start, H], taken before
        image features are added. Parts must follow each other: ValueError otherwise.
        """
        if start != self.cache.lengths[slot] or not start < end <= len(prompt.embeddings):
            raise ValueError(f"slot {slot} holds {self.cache.lengths[slot]} tokens: cannot run {start}..{end}")
        # The exact length: a part costs what it attends to, and shapes need not repeat as they do in decode.
        step = self.cache.plan([slot], end - start, length=end)
        hidden, accepted = self.run(
            prompt.embeddings[None, start:end],
            prompt.positions[:, None, start:end],
            step,
            **self._deepstack_part(prompt, start, end),
        )
        return hidden[0, -1], accepted[0]

    def _deepstack_part(self, prompt: EmbeddedPrompt, start: int, end: int) -> dict[str, Any]:
        """Return the image features of one part of a prompt, as the text model takes them."""
        before = sum(position < start for position in prompt.image_positions)
        inside = [position - start for position in prompt.image_positions if start <= position < end]
        if not inside:
            return {}
        mask = torch.zeros(1, end - start, dtype=torch.bool)
        mask[0, inside] = True
        features = [feature[before : before + len(inside)] for feature in prompt.deepstack]
        return {"visual_pos_masks": mask.to(self.device), "deepstack_visual_embeds": features}

    @torch.no_grad()
    def decode(self, inputs: Tensor, positions: Tensor, slots: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Run one token a row: inputs [B, H], positions [B] with the delta in, slots [B] on the host.

        Returns post-norm hidden states [B, H] and accept-layer rows [B, H].
        """
        count("eager_decodes")
        return self.decode_planned(inputs.to(self.device, self.dtype), positions, self._body.plan_decode(slots))

    @torch.no_grad()
    def decode_planned(self, inputs: Tensor, positions: Tensor, planned: Step) -> tuple[Tensor, Tensor]:
        """Decode as `decode` does, with the step planned already. A graph can hold it."""
        hidden, accepted = self.run(inputs[:, None], self._body.text_positions(positions), planned)
        return hidden[:, 0], accepted[:, 0]

    @torch.no_grad()
    def run(self, inputs: Tensor, positions: Tensor, step: Step, **extra: Any) -> tuple[Tensor, Tensor]:
        """Run a planned step, inputs [B, n, H] at positions [3, B, n]; a graph can hold it when `step` has no images.

        Returns post-norm hidden states and accept-layer rows, both [B, n, H].
        """
        with self._accept_rows() as accepted:
            hidden = self._body.run(inputs, positions, step, **extra)
        return hidden, accepted[0]

    @contextmanager
    def _accept_rows(self) -> Iterator[list[Tensor]]:
        """Collect the accept layer's output [B, n, H]; the hook goes with the block, so the module stays as it was."""
        rows: list[Tensor] = []

        def take(_layer: nn.Module, _args: Any, output: Any) -> None:
            rows.append(output[0] if isinstance(output, tuple) else output)

        handle = self._accept_layer.register_forward_hook(take)
        try:
            yield rows
        finally:
            handle.remove()

    @torch.no_grad()
    def embed_tokens(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Return layer-0 rows [n, H] of token ids [n]."""
        ids = ids if isinstance(ids, Tensor) else torch.tensor(ids, dtype=torch.int64)
        return self._embedding(ids.to(self.device, non_blocking=True))

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of post-norm hidden states [B, H]."""
        return self.module.lm_head(hidden).float()

    def tts_rows(self) -> Tensor:
        """Return layer-0 rows [3, H] of the tts bos, eos and pad tokens."""
        return self.embed_tokens(self._tts_ids)


def _replace(rows: Tensor, positions: Sequence[int], new: Tensor) -> Tensor:
    """Return rows with those at `positions` replaced; ValueError when the counts differ."""
    if len(positions) != len(new):
        raise ValueError(f"{len(positions)} placeholders for {len(new)} rows of audio or image")
    index = torch.tensor(positions, dtype=torch.int64, device=rows.device)
    return rows.index_copy(0, index, new.to(rows.dtype))
