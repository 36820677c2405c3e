"""BEST against transformers' own `generate` on the same folder: `python -m benchmarks.against_generate`.

Same prompt, same lengths, greedy, one torch thread a stage and one for `generate`. `generate` gives its audio at the
end, so its first audio is its last.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnilab import Pipeline, Workload
from omnilab.model.folder import resolve
from omnilab.model.inputs import InputProcessor


def main() -> None:
    """Print both totals, both first audios and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="thin")
    parser.add_argument("--input-len", type=int, default=500)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--frames", type=int, default=199)
    arguments = parser.parse_args()
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "frames": arguments.frames}
    with Pipeline.open(arguments.model) as pipe:
        pipe.run(Workload.random(num_prompts=1, seed=1, **lengths))
        trial = pipe.run(Workload.random(num_prompts=1, seed=2, **lengths))
    total_s, first_s = trial.metrics["e2el_ms"] / 1e3, trial.metrics["audio_ttfp_ms"] / 1e3  # pyright: ignore[reportOptionalOperand]
    theirs_s = generate(arguments.model, arguments.input_len, arguments.output_len, arguments.frames)
    audio_s = trial.metrics["audio_s"] or 0.0
    print(f"{arguments.model}: BEST {total_s:.2f} s, first audio {first_s:.3f} s, RTF {total_s / audio_s:.3f}")
    print(f"generate {theirs_s:.2f} s; total {total_s / theirs_s:.3f}, first audio {first_s / theirs_s:.4f} of it")


def generate(model: str, input_len: int, output_len: int, frames: int) -> float:
    """Return the seconds of the second of two calls; both ends run to their limits."""
    torch.set_num_threads(1)
    folder = resolve(model)
    network = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([InputProcessor(folder).random_ids(input_len, random.Random(2))])
    for seconds in (0.0, 0.0):
        began = time.monotonic()
        network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            return_audio=True,
            thinker_eos_token_id=None,
            thinker_max_new_tokens=output_len,
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=frames + 1,
            talker_eos_token_id=[network.config.talker_config.text_config.vocab_size],
        )
        seconds = time.monotonic() - began
    return seconds


if __name__ == "__main__":
    main()
