"""Runs in an environment that has vLLM: the same requests to both Thinkers; prints what came as one line of JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import psutil

from omnilab import errors, recipes
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt
from omnilab.speech import Finished, TextDelta
from omnilab.toggles.stateful_vocode import WindowedVocode

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Where do rivers begin? " * 12]
SAID = {"max_text_tokens": 16, "max_frames": 20, "temperature": 0.0, "ignore_eos": True}
TONE = (np.sin(np.arange(8000) / 9).astype(np.float32) * 0.3, 16_000)


def heard(speech):
    """What is compared of an answer."""
    return {
        "tokens": list(speech.token_ids),
        "text": speech.text,
        "codes": speech.codes.tolist(),
        "audio": [float(x) for x in speech.audio],
    }


def refused(ask, *given, **named):
    """The message of a BadInput."""
    try:
        ask(*given, **named)
    except errors.BadInput as error:
        return str(error)
    return "taken"


def together(pipe):
    """Two requests at once."""
    streams = [pipe.stream(text, **SAID) for text in TEXTS]
    return [heard(next(e.speech for e in stream if isinstance(e, Finished))) for stream in streams]


def main(folder):
    """Ask transformers, then vLLM."""
    settings = {"max_model_len": 1024, "timeout_s": 120, "max_num_batched_tokens": 64}
    with Pipeline.open(folder, **settings) as pipe:
        found = {"transformers": [heard(pipe.speak(text, **SAID)) for text in TEXTS]}
    with Pipeline.open(folder, thinker="vllm", **settings) as pipe:
        processes = psutil.Process().children(recursive=True)
        found["vllm"] = [heard(pipe.speak(text, **SAID)) for text in TEXTS]
        found["together"] = together(pipe)
        stream = pipe.stream(TEXTS[0], **SAID | {"max_text_tokens": 400})
        found["first"] = next(event.text for event in stream if isinstance(event, TextDelta))
        stream.close()
        found["tables"] = pipe.tables()
        found["after_abort"] = heard(pipe.speak(TEXTS[0], **SAID))
        found["audio"] = refused(pipe.speak, Prompt(text="What is it?", audio=TONE))
        found["sampled"] = refused(pipe.speak, TEXTS[0], temperature=0.8)
        found["recipe"] = refused(pipe.apply, recipes.AFTER_1378)
        pipe.apply(replace(recipes.BEST, vocode=WindowedVocode))
        found["applied"] = heard(pipe.speak(TEXTS[0], **SAID))
    found["left"] = [process.pid for process in processes if psutil.pid_exists(process.pid)]
    found["processes"] = len(processes)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
