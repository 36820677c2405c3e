"""The Talker: prompt rows from the Thinker's, prefill in parts, batched decode. Needs none of the Thinker's weights.

Shapes: P prompt tokens, U tokens of user turns, B rows, Ht Thinker width, T Talker width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnilab.errors import BadInput
from omnilab.model.cache import CachedBody, Step
from omnilab.model.config import ModelConfig
from omnilab.model.layout import ASSISTANT_HEADER, talker_layout
from omnilab.model.predictor import CodePredictor
from omnilab.record import count

_NEVER_SAMPLED = 1024  # ids at the end of the vocabulary that are no codes; end-of-speech is the exception
_PADS = 4  # tts pads between the answer's header and tts bos


class Talker:
    """One module, many requests: each has a slot of the KV cache and nothing is kept on the module."""

    def __init__(self, module: nn.Module, config: ModelConfig, *, max_num_seqs: int, max_model_len: int) -> None:
        self.module: Any = module
        self._config = config
        self._body = CachedBody(module.model, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.cache = self._body.cache
        self.device, self.dtype = self._body.device, self._body.dtype
        self.predictor = CodePredictor(module)
        talker = config.talker_config
        self.eos_id: int = talker.codec_eos_token_id
        self.vocab_size: int = talker.text_config.vocab_size
        self.hidden_size: int = talker.text_config.hidden_size
        self.num_code_groups: int = talker.num_code_groups
        self.codebook_size: int = talker.code_predictor_config.vocab_size
        never = range(self.vocab_size - _NEVER_SAMPLED, self.vocab_size)
        self.suppressed_ids = torch.tensor([i for i in never if i != self.eos_id], device=self.device)
        self.speakers: tuple[str, ...] = tuple(talker.speaker_id)

    def join(self) -> int:
        """Take a slot; IndexError when none is free."""
        return self.cache.join()

    def leave(self, slot: int) -> None:
        """Give a slot back."""
        self.cache.leave(slot)

    @torch.no_grad()
    def prompt_inputs(
        self,
        prompt_ids: Sequence[int],
        embeddings: Tensor,
        hidden_states: Tensor | None,
        tts_rows: Tensor,
        speaker: str,
    ) -> Tensor:
        """Build the Talker's prompt [U + 9, T].

        `embeddings` [P + 1, Ht]: layer-0 rows of the prompt and of the first generated token. `hidden_states`
        [>= P, Ht]: accept-layer rows, read at audio and image positions of user turns only; None where there are none.
        `tts_rows` [3, Ht]: bos, eos, pad. Rows may be of any dtype and device. BadInput for an unknown speaker.
        """
        layout = talker_layout(prompt_ids, self._config)
        rows = self._to_module(embeddings)
        answer = layout.assistant_start
        user = self.module.text_projection(rows[layout.user_positions])
        if layout.media_positions:
            if hidden_states is None:
                raise ValueError("the prompt holds audio or an image: the Talker needs the accept-layer rows")
            place = {position: row for row, position in enumerate(layout.user_positions)}
            index = torch.tensor([place[position] for position in layout.media_positions], device=self.device)
            media = self._to_module(hidden_states[layout.media_positions])
            user = user.index_copy(0, index, self.module.hidden_projection(media))
        bos, _, pad = self.project_text(tts_rows).unbind()
        spoken = self.module.text_projection(rows[answer : answer + ASSISTANT_HEADER + 1])
        text = [*spoken[:ASSISTANT_HEADER], *[pad] * _PADS, bos, spoken[ASSISTANT_HEADER]]
        return torch.cat([user, torch.stack(text) + self._codec_rows(speaker)])

    def _codec_rows(self, speaker: str) -> Tensor:
        """Return the codec half of the answer's first rows, [9, T]: nothing under the header, then control codes."""
        talker = self._config.talker_config
        voice = talker.speaker_id.get(speaker.lower())
        if voice is None:
            raise BadInput(f"unknown speaker {speaker!r}: use one of {', '.join(self.speakers)}")
        ids = [
            talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id,
            voice, talker.codec_pad_id, talker.codec_bos_id,
        ]  # fmt: skip
        control = self.codec_embed(torch.tensor(ids, device=self.device))
        return torch.cat([control.new_zeros(ASSISTANT_HEADER, control.shape[1]), control])

    def _to_module(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, self.dtype, non_blocking=True)

    @torch.no_grad()
    def project_text(self, rows: Tensor) -> Tensor:
        """Project the Thinker's layer-0 rows [n, Ht] to [n, T]."""
        return self.module.text_projection(self._to_module(rows))

    @torch.no_grad()
    def prefill(self, slot: int, inputs: Tensor, positions: Tensor) -> Tensor:
        """Run the next part of a prompt, inputs [n, T] at positions [3, n]; return the last hidden state [T]."""
        step = self.cache.plan([slot], len(inputs), length=self.cache.lengths[slot] + len(inputs))
        positions = positions.to(self.device, non_blocking=True)
        return self.run(self._to_module(inputs)[None], positions[:, None], step)[0, -1]

    @torch.no_grad()
    def decode(self, inputs: Tensor, positions: Tensor, slots: Sequence[int] | Tensor) -> Tensor:
        """Run one frame a row: inputs [B, T], positions [B] with the delta in, slots [B] on the host; return [B, T]."""
        count("eager_decodes")
        return self.decode_planned(self._to_module(inputs), positions, self._body.plan_decode(slots))

    @torch.no_grad()
    def decode_planned(self, inputs: Tensor, positions: Tensor, planned: Step) -> Tensor:
        """Decode as `decode` does, with the step planned already. A graph can hold it."""
        return self.run(inputs[:, None], self._body.text_positions(positions), planned)[:, 0]

    @torch.no_grad()
    def run(self, inputs: Tensor, positions: Tensor, step: Step) -> Tensor:
        """Run a planned step, inputs [B, n, T] at positions [3, B, n]; return [B, n, T]. A graph can hold it."""
        return self._body.run(inputs, positions, step)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of first codes from post-norm hidden states [B, T]."""
        return self.module.codec_head(hidden).float()

    @torch.no_grad()
    def codec_embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [n, T] of first codes or control codes [n]."""
        return self.predictor.talker_embedding(ids)
