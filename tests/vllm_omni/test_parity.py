"""vLLM-Omni stage by stage against transformers' modules on the same folder: each stage is given what it was given there.

0.30.0 computes the Talker in bfloat16, so that free-running answers part sooner or later. Therefore each stage is
followed: after vLLM-Omni's own tokens and codes, how far behind the best is the next one that it took?
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnilab.model import sampling
from omnilab.vllm_omni.sent_codes import windows
from tests.model.loop import Network
from tests.vllm_omni.conftest import OFF, REAL, SAMPLING, WORDS

pytestmark = REAL
FRAMES = SAMPLING.max_frames
CHUNKS = [(0, 4), (4, 25), (25, 25), (25, 5)]  # context and new frames of each window


@pytest.fixture(scope="module")
def network(parity):
    """transformers' modules of the folder in bfloat16, driven by our loop."""
    torch.set_num_threads(2)
    return Network(parity, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def answer(ask):
    """A request's record and the windows that Code2Wav was sent."""
    ((record,), _) = ask(OFF)
    return record


def tokens_of(record, network):
    """The ids of an answer, whose text is one word a token."""
    vocabulary = network.processor.tokenizer.get_vocab()
    return [vocabulary["\u0120" + word] for word in record.text.split()]


@torch.inference_mode()
def follow(network, inputs, tokens, codes, *, late=0):
    """Give the Talker what it was given and return how far each code [frames, 16] was behind the best.

    `late`: let text rows come so many frames later than they do.
    """
    talker, thinker = network.talker, network.thinker
    _, rows, accepted = network.answer(inputs, 1, sampling_limits(), 1 << 30)
    rows = torch.cat([rows[: len(inputs.ids)], thinker.embed_tokens(tokens)])
    tts, length = thinker.tts_rows(), len(inputs.ids)
    prompt = talker.prompt_inputs(
        inputs.ids, rows[: length + 1], accepted if inputs.has_media else None, tts, talker.speakers[0]
    )
    trailing = talker.project_text(torch.cat([rows[length + 1 : -1], tts[1:2]]))
    pad, slot = talker.project_text(tts[2:]), talker.join()
    trailing = torch.cat([pad] * late + [trailing])
    hidden = talker.prefill(slot, prompt, inputs.talker_positions)[None]
    seen, behind = torch.zeros(1, talker.vocab_size, dtype=torch.bool), []
    for frame, row in enumerate(torch.as_tensor(codes)):
        logits = sampling.apply_penalties(talker.logits(hidden), seen, torch.tensor([1.05]))
        logits = sampling.suppress(logits, torch.cat([talker.suppressed_ids, torch.tensor([talker.eos_id])]))
        behind.append([float(logits.max() - logits[0, row[0]])])
        seen[0, row[0]] = True
        embedded = follow_residual(network, hidden, row, behind[-1])
        text = trailing[frame : frame + 1] if frame < len(trailing) else pad
        position = inputs.talker_prompt_len + frame + inputs.talker_position_delta
        hidden = talker.decode(embedded + text, torch.tensor([position]), [slot])
    talker.leave(slot)
    return np.asarray(behind)


def follow_residual(network, hidden, row, behind):
    """Add how far each residual code of a frame was behind; return the frame's embedding [1, T]."""
    predictor = network.talker.predictor
    cache, rows = predictor.new_cache(), [predictor.embed_first(row[:1])]
    inputs = torch.stack([hidden, rows[0]], 1)
    for group, code in enumerate(row[1:]):
        logits = predictor.head(group, predictor.step(inputs, cache)[:, -1])
        behind.append(float(logits.max() - logits[0, code]))
        rows.append(predictor.embed(group, code[None]))
        inputs = rows[-1][:, None]
    return torch.stack(rows, 1).sum(1)


def sampling_limits():
    """Greedy."""
    from tests.model.loop import Limits

    return Limits()
