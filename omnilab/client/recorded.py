"""A reply as the record of its request: read, decoded, and looked at for what was asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnilab.client import sound
from omnilab.client.reading import Reading, expect, read
from omnilab.client.wire import Fault, Reply
from omnilab.trial import RequestRecord

MODALITIES = ("text", "audio")


def record_of(
    reply: Reply, *, index: int, name: str, began_ns: int, modalities: Sequence[str] = MODALITIES, bare: bool = False
) -> tuple[RequestRecord, Reading, int]:
    """Return the record, the stream behind it, and the audio's rate in Hz (0 without any).

    Times are seconds from `began_ns`. `bare`: audio without headers was asked for. Both parts of `modalities` must
    have come, or the request has failed.
    """

    def seconds(ns: int) -> float:
        return (ns - began_ns) / 1e9

    reading = read(reply)
    samples, rate = [], 0
    try:
        samples, rate = sound.samples_of(reading.packets, bare)
    except sound.Unreadable as error:
        reading.fault = reading.fault or Fault("unreadable", str(error))
    reading.fault = reading.fault or expect(reading, modalities)
    heard = [(packet.at_ns, piece) for packet, piece in zip(reading.packets, samples, strict=False) if len(piece)]
    if reading.fault is None and reading.packets and not heard:
        reading.fault = Fault("empty", "status 200, but its audio has no samples")
    end_ns = reply.end_ns if reading.fault is not None or reading.last_ns is None else reading.last_ns
    frames = reading.metrics.get("num_frames")
    record = RequestRecord(
        index=index, request_id=name, start_s=seconds(reply.start_ns), end_s=seconds(end_ns),
        text_times_s=[seconds(at) for at in reading.text_ns], text_token_counts=reading.text_counts,
        audio_times_s=[seconds(at) for at, _ in heard], audio_samples=[len(piece) for _, piece in heard],
        input_tokens=reading.input_tokens, output_tokens=reading.output_tokens,
        frames=frames if isinstance(frames, int) else 0,
        audio_s=sum(len(piece) for _, piece in heard) / rate if rate else 0.0,
        finish_reason=reading.finish_reason, error=None if reading.fault is None else str(reading.fault),
        token_ids=reading.token_ids, audio=np.concatenate([piece for _, piece in heard]) if heard else None,
        text="".join(reading.texts) if reading.texts else None,
    )  # fmt: skip
    reading.packets.clear()  # the record has the samples and the text
    reading.texts.clear()
    return record, reading, rate
