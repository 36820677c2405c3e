"""A server for arms, of the standard library: `python served.py PORT ...` answers as its command line says."""

import argparse
import base64
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import time
import wave

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--delay", type=float, default=0.0, help="seconds before an answer")
parser.add_argument("--voice", default="same", help="what the sound is made of, beside the prompt")
parser.add_argument("--free", action="store_true", help="another sound, and length, in every process")
parser.add_argument("--longer", type=int, default=0, help="more sound, in samples")
parser.add_argument("--text", default="one two three")
parser.add_argument("--die-at", type=int, help="end at this request")
parser.add_argument("--refuse", action="store_true", help="answer with 400")
parser.add_argument("--orphan", action="store_true", help="leave a process to itself that ignores SIGTERM")
parser.add_argument("--shared", help="a file of /dev/shm to leave there")
parser.add_argument("--never-ready", action="store_true")
asked = parser.parse_args()
answered = 0
if asked.orphan:
    sleeper = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    subprocess.run(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}])"]
    )


def sound(prompt: str) -> bytes:
    """A WAV that depends on the prompt, and on the process where the server is free."""
    own = f"{os.getpid()}" if asked.free else asked.voice
    seed = hashlib.sha256((own + prompt).encode()).digest()
    frames = (seed * 400)[: 4800 + 2 * asked.longer + (2 * (os.getpid() % 97) if asked.free else 0)]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 24000, 0, "NONE", ""))
        out.writeframes(frames)
    return file.getvalue()


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Health and models."""
        ready = self.path.startswith("/v1/models") or not asked.never_ready
        self.plain(200 if ready else 503, {"data": [{"id": "scripted"}]})

    def plain(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Text a word a token, then the sound."""
        global answered
        answered += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.die_at is not None and answered >= asked.die_at:
            print("out of memory, says the script", flush=True)
            os._exit(3)
        if asked.refuse:
            self.plain(400, {"error": {"message": "this server takes nothing"}})
            return
        time.sleep(asked.delay)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = asked.text.split()
        for number, word in enumerate(words, 1):
            usage = {"prompt_tokens": 5, "completion_tokens": number}
            self.event({"modality": "text", "choices": [{"delta": {"content": word + " "}}], "usage": usage})
        if "audio" not in body["modalities"]:
            self.wfile.write(b"data: [DONE]\n\n")
            return
        data = base64.b64encode(sound(json.dumps(body["messages"]))).decode()
        last = {"delta": {"content": data}, "finish_reason": "stop"}
        self.event({"modality": "audio", "choices": [last]})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


if asked.shared:
    import mmap

    with open(asked.shared, "w+b") as file:
        file.write(b"left behind")
        file.flush()
        kept = mmap.mmap(file.fileno(), 11)
http.server.ThreadingHTTPServer(("127.0.0.1", asked.port), Answers).serve_forever()
