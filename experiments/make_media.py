"""Make the sounds and pictures that go with prompts.jsonl: the same bytes every time, a few kilobytes each.

`python experiments/make_media.py` writes them into experiments/media.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

MEDIA = Path(__file__).with_name("media")
RATE = 8000  # Hz, mono, 16 bit
Signal = NDArray[np.float64]


def seconds(length: float, rate: int = RATE) -> Signal:
    """Times of the samples of `length` seconds."""
    return np.arange(round(length * rate)) / rate


def chirp(length: float, low: float, high: float) -> Signal:
    """A tone that glides from `low` to `high` Hz."""
    t = seconds(length)
    return 0.6 * np.sin(2 * np.pi * (low * t + (high - low) * t**2 / (2 * length)))


def beeps(count: int, pitch: float) -> Signal:
    """So many short tones with pauses as long."""
    tone = 0.6 * np.sin(2 * np.pi * pitch * seconds(0.15)) * np.hanning(round(0.15 * RATE))
    return np.tile(np.concatenate([tone, np.zeros_like(tone)]), count)


def vowel(length: float, pitch: float, formants: tuple[float, ...]) -> Signal:
    """Something like a sung vowel: harmonics of `pitch`, loud near the formants."""
    t = seconds(length)
    total = np.zeros_like(t)
    for harmonic in np.arange(pitch, RATE / 2, pitch):
        loudness = sum(np.exp(-(((harmonic - formant) / 120) ** 2)) for formant in formants)
        total += (loudness + 0.02) * np.sin(2 * np.pi * harmonic * t)
    return 0.6 * total / np.abs(total).max() * np.minimum(1, np.minimum(t, length - t) / 0.05)


def rain(length: float, seed: int) -> Signal:
    """Smoothed noise that swells and falls."""
    noise = np.random.Generator(np.random.PCG64(seed)).standard_normal(round(length * RATE))
    smooth = np.convolve(noise, np.hanning(9) / 4, mode="same")
    return 0.3 * np.clip(smooth, -3, 3) / 3 * (1 + np.sin(2 * np.pi * 0.7 * seconds(length))) / 2


def write_wav(path: Path, samples: Signal) -> None:
    """Write samples in -1..1 as 16 bit mono."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def shapes() -> Image.Image:
    """A red circle, a blue square and a green triangle on white."""
    picture = Image.new("RGB", (112, 112), "white")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((8, 8, 48, 48), fill="red")
    draw.rectangle((62, 12, 100, 50), fill="blue")
    draw.polygon([(56, 60), (20, 104), (92, 104)], fill="green")
    return picture


def landscape() -> Image.Image:
    """Sky, sun, hills and a house."""
    picture = Image.new("RGB", (140, 84), (140, 190, 240))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((104, 6, 128, 30), fill=(255, 220, 60))
    draw.ellipse((-30, 44, 90, 130), fill=(60, 140, 60))
    draw.ellipse((50, 52, 180, 140), fill=(80, 160, 70))
    draw.rectangle((60, 44, 84, 64), fill=(200, 120, 80))
    draw.polygon([(56, 44), (72, 30), (88, 44)], fill=(140, 40, 40))
    return picture


def bars() -> Image.Image:
    """A bar chart of five values, the fourth the greatest."""
    picture = Image.new("RGB", (112, 84), "white")
    draw = ImageDraw.Draw(picture)
    for index, height in enumerate((20, 44, 32, 66, 12)):
        draw.rectangle(
            (10 + 20 * index, 78 - height, 22 + 20 * index, 78), fill=(40 + 40 * index, 90, 200 - 30 * index)
        )
    draw.line((6, 79, 108, 79), fill="black", width=2)
    return picture


def checkers() -> Image.Image:
    """A board of 6 x 6 squares with one piece."""
    picture = Image.new("RGB", (84, 84), (235, 215, 180))
    draw = ImageDraw.Draw(picture)
    for row in range(6):
        for column in range((row + 1) % 2, 6, 2):
            draw.rectangle((14 * column, 14 * row, 14 * column + 13, 14 * row + 13), fill=(120, 70, 40))
    draw.ellipse((44, 30, 54, 40), fill="black")
    return picture


def main() -> None:
    """Write all of them."""
    MEDIA.mkdir(exist_ok=True)
    sounds = {
        "rising": chirp(1.5, 200, 2500),
        "falling": chirp(1.2, 3000, 300),
        "three_beeps": beeps(3, 880),
        "vowels": np.concatenate([vowel(0.6, 120, (700, 1200, 2500)), vowel(0.6, 140, (300, 2200, 2900))]),
        "rain": rain(2.0, seed=3),
    }
    for name, samples in sounds.items():
        write_wav(MEDIA / f"{name}.wav", samples)
    for name, picture in {"shapes": shapes(), "landscape": landscape(), "bars": bars(), "checkers": checkers()}.items():
        picture.save(MEDIA / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
