"""vLLM-Omni stage by stage against transformers' modules of the same folder, each stage given what it was given there.

All in float32, so that tokens and codes are equal and not merely near. Each stage is followed: after vLLM-Omni's own
tokens and codes, how far behind the best was the one that it took next? One step that differs is then one that differs.
That our loop over these modules is transformers' `generate` bit for bit is held in `tests/model/test_parity.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch

from omnilab.model import sampling
from omnilab.model.code2wav import Code2Wav
from omnilab.prompt import Prompt
from omnilab.vllm_omni.sent_codes import Window, windows, written
from tests.model.loop import Limits, Network
from tests.vllm_omni.conftest import OFF, REAL, SAMPLING, WORDS

pytestmark = REAL
T = SAMPLING.max_text_tokens
MEDIA = Path(__file__).parents[2] / "experiments" / "media"
RATE = 16_000  # of Qwen3-Omni's ears; vLLM resamples with FFmpeg and we with soxr, which moves codes by 4 %
SENT = [(0, 4), (4, 25), (25, 25), (25, 5)]  # context and new frames of each window


@pytest.fixture(scope="module")
def network(parity):
    """transformers' modules, driven by our loop."""
    return Network(parity, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """What is asked, by name."""
    samples, rate = soundfile.read(MEDIA / "rising.wav", dtype="float32")
    path = tmp_path_factory.mktemp("media") / "rising.wav"
    soundfile.write(path, soxr.resample(samples, rate, RATE), RATE, subtype="FLOAT")
    return {"text": Prompt(text=WORDS), "audio": Prompt(text="What do you hear?", audio=str(path))}


@pytest.fixture(scope="module", params=["text", "audio"])
def answer(request, prompts, ask, served, network):
    """What was asked, and what each stage made of it."""
    prompt, vocabulary = prompts[request.param], network.processor.tokenizer.get_vocab()
    before = written(served.board.folder)
    ((record,), _) = ask(OFF, prompt=prompt)
    (sent,) = windows(served.board.folder, before).values()
    parts = [{"type": "audio", "audio": prompt.audio}] if prompt.audio else []
    message = {"role": "user", "content": [*parts, {"type": "text", "text": prompt.text}]}
    return SimpleNamespace(
        inputs=network.processor.process([message]), record=record, sent=sent,
        tokens=[vocabulary["\u0120" + word] for word in record.text.split()],  # one word a token
    )  # fmt: skip


@torch.inference_mode()
def follow(network: Network, answer: Any, *, late: int = 0, heard: float = 1.0) -> np.ndarray:
    """Return how far behind the best each code [frames, 16] was.

    `late`: as if text rows came so many frames later. `heard`: as if accept-layer rows were multiplied by this.
    """
    talker, inputs, length = network.talker, answer.inputs, len(answer.inputs.ids)
    _, rows, accepted = network.answer(inputs, 1, Limits(), 1 << 30)
    rows = torch.cat([rows[:length], network.thinker.embed_tokens(answer.tokens)])
    tts = network.thinker.tts_rows()
    accepted = accepted * heard if inputs.has_media else None
    prompt = talker.prompt_inputs(inputs.ids, rows[: length + 1], accepted, tts, talker.speakers[0])
    pad, slot = talker.project_text(tts[2:]), talker.join()
    trailing = torch.cat([pad] * late + [talker.project_text(torch.cat([rows[length + 1 : -1], tts[1:2]]))])
    hidden = talker.prefill(slot, prompt, inputs.talker_positions)[None]
    never = torch.cat([talker.suppressed_ids, torch.tensor([talker.eos_id])])
    seen, behind = torch.zeros(1, talker.vocab_size, dtype=torch.bool), []
    for frame, codes in enumerate(torch.as_tensor(answer.record.codes)):
        logits = sampling.apply_penalties(talker.logits(hidden), seen, torch.tensor([1.05]))
        logits = sampling.suppress(logits, never)
        seen[0, codes[0]] = True
        embedded, residual = follow_residual(network, hidden, codes)
        behind.append([float(logits.max() - logits[0, codes[0]]), *residual])
        text = trailing[frame : frame + 1] if frame < len(trailing) else pad
        position = inputs.talker_prompt_len + frame + inputs.talker_position_delta
        hidden = talker.decode(embedded + text, torch.tensor([position]), [slot])
    talker.leave(slot)
    return np.asarray(behind)


def follow_residual(network: Network, hidden: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """Return a frame's embedding [1, T] and how far behind each of its residual codes was."""
    predictor, behind = network.talker.predictor, []
    cache, rows = predictor.new_cache(), [predictor.embed_first(codes[:1])]
    inputs = torch.stack([hidden, rows[0]], 1)
    for group, code in enumerate(codes[1:]):
        logits = predictor.head(group, predictor.step(inputs, cache)[:, -1])
        behind.append(float(logits.max() - logits[0, code]))
        rows.append(predictor.embed(group, code[None]))
        inputs = rows[-1][:, None]
    return torch.stack(rows, 1).sum(1), behind


@torch.inference_mode()
def vocode(vocoder: Code2Wav, sent: Any) -> np.ndarray:
    """Decode windows as they were sent, each from the sample at which the one before ended."""
    pieces = []
    for window in sent:
        samples = vocoder.decode_window(torch.tensor(window.codes.T[None]))[0]
        again = max(0, window.context * vocoder.samples_per_frame - vocoder.lost_samples)
        pieces.append(samples[again:].float().numpy())
    return np.concatenate(pieces)


def rms(samples: np.ndarray) -> float:
    """Loudness."""
    return float(np.sqrt(np.square(samples).mean()))


@torch.inference_mode()
def test_each_token_of_the_thinker_is_the_best_of_transformers(answer, network):
    assert len(answer.tokens) == T
    assert answer.record.input_tokens == len(answer.inputs.ids)
    (wanted, _, _) = network.answer(answer.inputs, T, Limits(), 1 << 30)
    assert answer.tokens == wanted


def test_each_code_of_the_talker_is_the_best_of_transformers(answer, network):
    assert answer.record.codes.shape == (SAMPLING.max_frames, 16)
    assert not follow(network, answer).any()


def test_a_text_row_one_frame_late_would_be_seen(answer, network):
    assert (follow(network, answer, late=1) == 0).mean() < 0.9


def test_accept_layer_rows_are_what_the_talker_hears_of_a_recording(answer, network):
    unheard = (follow(network, answer, heard=0.0) == 0).mean()
    assert unheard < 0.85 if answer.inputs.has_media else unheard == 1


def test_code2wav_is_sent_each_frame_once_after_its_context(answer):
    assert [(window.context, len(window.codes) - window.context) for window in answer.sent] == SENT
    codes, frames = answer.record.codes, 0
    for window in answer.sent:
        frames += len(window.codes) - window.context
        assert np.array_equal(window.codes, codes[frames - len(window.codes) : frames])


def test_samples_are_those_of_transformers(answer, network):
    heard, wanted = np.asarray(answer.record.audio), vocode(network.code2wav, answer.sent)
    assert len(heard) == len(wanted)
    assert rms(heard) > 0.05
    assert np.abs(heard - wanted).max() < 1e-4  # what 16 bits a sample lose


def test_windows_are_the_whole_as_long_as_their_context_is_all_there_was(answer, network):
    vocoder = network.code2wav
    windowed, whole = vocode(vocoder, answer.sent), vocode(vocoder, [Window(0, answer.record.codes)])
    assert len(windowed) == len(whole)
    uncut = 29 * vocoder.samples_per_frame - vocoder.lost_samples  # the second window begins at frame 0
    assert rms(windowed[:uncut] - whole[:uncut]) < 1e-4
    assert rms(windowed[uncut:] - whole[uncut:]) > 0.1 * rms(whole)  # attention looks back over 72 frames
