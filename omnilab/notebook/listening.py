"""Hears the live request's audio as it comes: chunks are played one after another, when the reader wants it."""

from __future__ import annotations

import anywidget
import numpy as np

from omnilab.speech import AudioChunk

SCRIPT = """
function render({ model, el }) {
  const button = document.createElement("button");
  button.style.cssText = "font:inherit;color:inherit;background:transparent;cursor:pointer;padding:1px 8px;" +
    "border:1px solid rgba(128,128,128,.6);border-radius:4px";
  let context = null, until = 0;
  el.dataset.seconds = "0";
  const show = () => {
    button.textContent = context ? "Listening: live audio plays as it comes" : "Listen to live audio as it comes";
    button.setAttribute("aria-pressed", String(context !== null));
  };
  button.addEventListener("click", () => {  // a browser plays only after a click
    if (context) { context.close(); context = null; } else { context = new AudioContext(); until = 0; }
    show();
  });
  const play = (content, buffers) => {
    if (!context || content.kind !== "chunk" || !buffers.length) return;
    const view = buffers[0];
    const samples = new Int16Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
    const sound = context.createBuffer(1, samples.length, content.rate);
    sound.copyToChannel(Float32Array.from(samples, (value) => value / 32767), 0);
    const source = context.createBufferSource();
    source.buffer = sound;
    source.connect(context.destination);
    until = Math.max(until, context.currentTime);
    source.start(until);
    until += sound.duration;
    el.dataset.seconds = String(Number(el.dataset.seconds) + sound.duration);
  };
  model.on("msg:custom", play);
  el.append(button);
  show();
  return () => { model.off("msg:custom", play); if (context) context.close(); };
}
export default { render };
"""


class Listening(anywidget.AnyWidget):
    """A button, off at first; while it is on, chunks that are handed in are heard."""

    _esm = SCRIPT

    def add(self, chunk: AudioChunk) -> None:
        """Hand in the next chunk."""
        samples = np.round(np.clip(np.nan_to_num(chunk.audio), -1, 1) * 32767).astype("<i2")
        self.send({"kind": "chunk", "rate": chunk.sample_rate}, [samples.tobytes()])
