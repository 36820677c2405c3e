"""Do vLLM-Omni's bench client and ours say the same of one server? `python -m benchmarks.clients_agree --vllm PATH`.

The server here paces its answers by a clock, so that both clients see the same stream: text 50 ms apart, then sound.
`--url` asks a real server instead: then both also see its noise.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import wave
from pathlib import Path
from typing import Any

from omnilab.model.folder import resolve

TOKENS, TEXT_GAP_S, SOUNDS, SOUND_GAP_S, FIRST_S = 40, 0.05, 6, 0.2, 0.2
SHAPE = ("--num-prompts", "8", "--max-concurrency", "2")
METRICS = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "audio_ttfp_ms", "audio_rtf")


def main() -> None:
    """Run both clients and print each number of both, with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True, help="the program vllm of an environment with vLLM-Omni 0.30")
    parser.add_argument("--url", help="a server to ask in place of the paced one")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokenizer", type=Path, help="folder; default: that of `tiny`")
    arguments = parser.parse_args()
    tokenizer = str(arguments.tokenizer or resolve("tiny"))
    with tempfile.TemporaryDirectory(prefix="omnilab-clients-") as folder:
        url = arguments.url or paced()
        theirs = by_vllm(arguments.vllm, url, arguments.model, tokenizer, Path(folder))
        ours = by_omnilab(url, arguments.model, tokenizer, Path(folder))
    print(f"{'':24} {'vLLM':>10} {'omnilab':>10} {'ratio':>8}")
    for name in ("completed", "failed", "duration", *(f"{kind}_{m}" for m in METRICS for kind in ("median", "p99"))):
        there, here = theirs[name], ours[name]
        ratio = f"{here / there:8.4f}" if there and here else ""
        print(f"{name:24} {there:10.2f} {here:10.2f} {ratio}")


def by_vllm(program: str, url: str, model: str, tokenizer: str, folder: Path) -> dict[str, Any]:
    """Return the JSON of `vllm bench serve --omni`."""
    words = [
        program, "bench", "serve", "--omni", "--backend", "openai-chat-omni", "--base-url", url,
        "--endpoint", "/v1/chat/completions", "--model", model, "--tokenizer", tokenizer, "--dataset-name", "random",
        "--random-input-len", "32", "--random-output-len", str(TOKENS), *SHAPE,
        "--extra-body", json.dumps({"modalities": ["text", "audio"]}),
        "--percentile-metrics", "ttft,tpot,itl,e2el,audio_ttfp,audio_rtf",
        "--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    subprocess.run(words, check=True, cwd=folder, env={**os.environ, **offline}, capture_output=True, timeout=900)
    return json.loads((folder / "theirs.json").read_text())


def by_omnilab(url: str, model: str, tokenizer: str, folder: Path) -> dict[str, Any]:
    """Return the JSON of `omnilab.bench`, on the same prompts."""
    words = [
        sys.executable, "-m", "omnilab.bench", "--url", url, "--model", model, "--tokenizer", tokenizer,
        "--input-len", "32", "--output-len", str(TOKENS), *SHAPE, "--percentiles", "50,99",
        "--out", str(folder / "ours.json"),
    ]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, timeout=900)
    return json.loads((folder / "ours.json").read_text())


def paced() -> str:
    """Start the paced server on a thread that ends with this process; return its URL."""
    ready: list[int] = []
    up = threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        ready.append(server.sockets[0].getsockname()[1])
        up.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    if not up.wait(10):
        raise SystemExit("the paced server did not start within 10 s")
    return f"http://127.0.0.1:{ready[0]}"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a chat by the clock, and whatever else is asked with 404."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length")]
    await reader.readexactly(int(lengths[0]) if lengths else 0)
    if "/chat/completions" not in head.split("\r\n")[0]:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        loop = asyncio.get_running_loop()
        due = loop.time() + FIRST_S
        for gap, chunk in _chunks():
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await writer.drain()
            due += gap
        writer.write(b"data: [DONE]\n\n")
    await writer.drain()
    writer.close()


def _chunks() -> list[tuple[float, dict[str, Any]]]:
    """Return the chunks, each with the seconds until the next."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 24000, 0, "NONE", ""))
        sound.writeframes(b"\1\2" * 12000)
    spoken = {
        "modality": "audio",
        "choices": [{"index": 0, "delta": {"content": base64.b64encode(file.getvalue()).decode()}}],
    }
    written = [
        {"modality": "text", "choices": [{"index": 0, "delta": {"content": "a "}}], "usage": _usage(number)}
        for number in range(1, TOKENS + 1)
    ]
    last = {"choices": [], "usage": _usage(TOKENS), "metrics": {"num_tokens_out": TOKENS}}
    return [*((TEXT_GAP_S, one) for one in written), *[(SOUND_GAP_S, spoken)] * SOUNDS, (0.0, last)]


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 17, "completion_tokens": tokens, "total_tokens": 17 + tokens}


if __name__ == "__main__":
    main()
