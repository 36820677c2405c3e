"""transformers' `generate` behind a chat API: an arm of `engines.py`.

One request at a time, text prompts, greedy. Text and audio come at the end, in one piece each: so does what `generate`
gives. Its first text and first audio are therefore its last.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import secrets
from typing import Any

import soundfile
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnilab.model.folder import resolve
from omnilab.model.inputs import InputProcessor

SAMPLE_RATE = 24_000
NAME = "transformers"


class Engine:
    """A model folder and its `generate`."""

    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        folder = resolve(model)
        self._inputs = InputProcessor(folder)
        # Any: its types say neither what its configuration holds nor what comes with return_audio
        self._network: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self._lock = asyncio.Lock()

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions: a text prompt, lengths as `omnilab.client` sends them."""
        body = await request.json()
        async with self._lock:
            prompt, ids, audio = await asyncio.to_thread(self._answer, body)
        wave = io.BytesIO()
        soundfile.write(wave, audio, SAMPLE_RATE, format="WAV", subtype="PCM_16")
        usage = {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)}
        contents = {"text": self._inputs.decode(ids), "audio": base64.b64encode(wave.getvalue()).decode("ascii")}
        head = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion.chunk", "model": NAME}
        chunks: list[dict[str, Any]] = [
            {
                **head, "modality": kind, "usage": usage,
                "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": "length"}],
            }
            for kind, content in contents.items()
        ]  # fmt: skip
        chunks.append({**head, "choices": [], "usage": usage})
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return Response(f"{events}data: [DONE]\n\n", media_type="text/event-stream")

    def _answer(self, body: dict[str, Any]) -> tuple[int, list[int], Any]:
        """Return the prompt's length, the text's ids and the samples."""
        inputs = self._inputs.process(body["messages"])
        ids = torch.tensor([list(inputs.ids)])
        thinker, talker = body["sampling_params_list"][:2]
        text, audio = self._network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            return_audio=True,
            thinker_eos_token_id=None,
            thinker_max_new_tokens=thinker["max_tokens"],
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=talker["max_tokens"],
            talker_eos_token_id=[self._network.config.talker_config.text_config.vocab_size],
        )
        sequences = getattr(text, "sequences", text)
        return ids.shape[1], sequences[0, ids.shape[1] :].tolist(), audio.reshape(-1).numpy()


async def models(_request: Request) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": [{"id": NAME, "object": "model"}]})


async def health(_request: Request) -> Response:
    """GET /health."""
    return JSONResponse({"status": "healthy"})


def main() -> None:
    """Load the folder and serve it on loopback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="parity")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.threads)
    routes = [
        Route("/v1/chat/completions", engine.chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
