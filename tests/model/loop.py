"""A loop that drives the stages as a runner does, one request at a time; and conversations to drive it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnilab.model import sampling
from omnilab.model.code2wav import Code2Wav
from omnilab.model.inputs import InputProcessor, PromptInputs
from omnilab.model.talker import Talker
from omnilab.model.thinker import EmbeddedPrompt, Thinker
from omnilab.model.weights import load_config, load_stage

PREDICTOR_LIMITS = (1.0, 50, 0.8)  # temperature, top-k, top-p


@dataclass
class Limits:
    """How a stage samples; a temperature of 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    generator: torch.Generator | None = None

    def pick(self, logits: Tensor) -> Tensor:
        if self.generator is None:
            return sampling.greedy(logits)
        noise = sampling.draw_exponential(self.generator, *logits.shape)
        one = torch.ones(len(logits))
        return sampling.pick(logits, noise, one * self.temperature, (one * self.top_k).long(), one * self.top_p)


class Network:
    """The three stages of one folder and the loop over them."""

    def __init__(self, folder: Path, max_num_seqs: int = 4, dtype: torch.dtype = torch.float32) -> None:
        self.config = load_config(folder)
        self.processor = InputProcessor(folder)
        modules = {s: load_stage(folder, s, device="cpu", dtype=dtype) for s in ("thinker", "talker", "code2wav")}
        sizes = {"max_num_seqs": max_num_seqs, "max_model_len": 2048}
        self.thinker = Thinker(modules["thinker"], self.config, **sizes)
        self.talker = Talker(modules["talker"], self.config, **sizes)
        self.code2wav = Code2Wav(modules["code2wav"], self.config)

    def prefill(self, prompt: EmbeddedPrompt, part: int = 1 << 30) -> tuple[int, Tensor, Tensor]:
        """Run a prompt in parts; return slot, last hidden state [H] and accept rows [P, H]."""
        slot, length, rows = self.thinker.join(), len(prompt.embeddings), []
        hidden = prompt.embeddings[0]
        for start in range(0, length, part):
            hidden, accepted = self.thinker.prefill(slot, prompt, start, min(start + part, length))
            rows.append(accepted)
        return slot, hidden, torch.cat(rows)

    def answer(
        self, inputs: PromptInputs, max_tokens: int, limits: Limits, part: int
    ) -> tuple[list[int], Tensor, Tensor]:
        """Generate text; return its ids, the rows of prompt and answer, and the accept rows of the prompt."""
        thinker, prompt = self.thinker, self.thinker.embed(inputs)
        slot, hidden, accepted = self.prefill(prompt, part)
        tokens, rows = [int(limits.pick(thinker.logits(hidden[None])))], [prompt.embeddings]
        while len(tokens) < max_tokens and tokens[-1] not in thinker.eos_ids:
            rows.append(thinker.embed_tokens(tokens[-1:]))
            position = len(inputs.ids) + len(tokens) - 1 + inputs.position_delta
            hidden, _ = thinker.decode(rows[-1], torch.tensor([position]), [slot])
            tokens.append(int(limits.pick(thinker.logits(hidden))))
        thinker.leave(slot)
        return tokens, torch.cat([*rows, thinker.embed_tokens(tokens[-1:])]), accepted

    def residual(self, hidden: Tensor, code: Tensor, limits: Limits) -> tuple[list[int], Tensor]:
        """Predict the rest of a frame; return its codes and their summed embedding [1, T]."""
        predictor, cache = self.talker.predictor, self.talker.predictor.new_cache()
        rows, codes = [predictor.embed_first(code)], [int(code)]
        inputs = torch.stack([hidden, rows[0]], 1)
        for group in range(predictor.num_code_groups - 1):
            code = limits.pick(predictor.head(group, predictor.step(inputs, cache)[:, -1]))
            codes.append(int(code))
            rows.append(predictor.embed(group, code))
            inputs = rows[-1][:, None]
        return codes, torch.stack(rows, 1).sum(1)

    def speak(
        self,
        inputs: PromptInputs,
        max_tokens: int = 12,
        max_frames: int = 12,
        *,
        thinker: Limits | None = None,
        talker: Limits | None = None,
        part: int = 1 << 30,
        ignore_eos: bool = False,
        change: Callable[[Tensor], Tensor] = lambda rows: rows,
        speaker: str = "Ethan",
    ) -> tuple[list[int], Tensor]:
        """Return the text's ids and the codes [1, G, frames]; `change` may alter the accept rows on their way."""
        thinker, talker = thinker or Limits(), talker or Limits()
        residual = Limits(*PREDICTOR_LIMITS, talker.generator)
        net, length = self.talker, len(inputs.ids)
        tokens, rows, accepted = self.answer(inputs, max_tokens, thinker, part)
        tts = self.thinker.tts_rows()
        accepted = change(accepted) if inputs.has_media else None
        prompt = net.prompt_inputs(inputs.ids, rows[: length + 1], accepted, tts, speaker)
        assert len(prompt) == inputs.talker_prompt_len
        trailing = net.project_text(torch.cat([rows[length + 1 : -1], tts[1:2]]))
        pad, slot, hidden = net.project_text(tts[2:]), net.join(), prompt[:1]
        for start in range(0, len(prompt), part):
            positions = inputs.talker_positions[:, start : start + part]
            hidden = net.prefill(slot, prompt[start : start + part], positions)[None]
        seen, frames = torch.zeros(1, net.vocab_size, dtype=torch.bool), []
        while True:
            logits = sampling.apply_penalties(net.logits(hidden), seen, torch.tensor([1.05]))
            logits = sampling.suppress(logits, net.suppressed_ids)
            if ignore_eos:
                logits = sampling.suppress(logits, torch.tensor([net.eos_id]))
            code = talker.pick(logits)
            if int(code) == net.eos_id or len(frames) == max_frames:
                break
            seen[0, code] = True
            codes, embedded = self.residual(hidden, code, residual)
            text = trailing[len(frames) : len(frames) + 1] if len(frames) < len(trailing) else pad
            position = inputs.talker_prompt_len + len(frames) + inputs.talker_position_delta
            frames.append(codes)
            hidden = net.decode(embedded + text, torch.tensor([position]), [slot])
        net.leave(slot)
        return tokens, torch.tensor(frames).T[None]


def tone(seconds: float = 1.0, rate: int = 16000, seed: int = 0) -> tuple[np.ndarray, int]:
    """Return a noisy tone."""
    noise = np.random.default_rng(seed).normal(size=int(seconds * rate))
    return (0.3 * np.sin(np.arange(len(noise)) * 0.05) + 0.1 * noise).astype(np.float32), rate


def picture(height: int = 64, width: int = 96, seed: int = 0) -> np.ndarray:
    """Return a noisy picture."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def conversation(kind: str) -> list[dict[str, Any]]:
    """Return messages of a kind: text, audio, image, both, turns."""
    ask = {"type": "text", "text": "What is this?"}
    audio, image = {"type": "audio", "audio": tone()}, {"type": "image", "image": picture()}
    system = {"role": "system", "content": "You are a voice."}
    kinds: dict[str, list[dict[str, Any]]] = {
        "text": [{"role": "user", "content": "Say something nice to me."}],
        "audio": [{"role": "user", "content": [audio, ask]}],
        "image": [{"role": "user", "content": [ask, image]}],
        "both": [system, {"role": "user", "content": [audio, image, ask]}],
        "turns": [
            system,
            {"role": "user", "content": [{"type": "text", "text": "Look: "}, image]},
            {"role": "assistant", "content": "A picture."},
            {"role": "user", "content": [audio, {"type": "text", "text": " And two more "}, image, image]},
        ],
    }
    return kinds[kind]
