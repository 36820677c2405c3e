"""Noise of trials to try the analysis on: seeded, many runs at once, no effect of any toggle."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import signal

BLOCK_SD, TRIAL_SD, REQUEST_SD = 0.05, 0.02, 0.03
REQUESTS = 4  # a trial; its value is their median
DOUBLED = 0.02
DRIFT = 0.10  # over a block, or in one step
UNEVEN_SD = 0.02  # of a toggle's effect over blocks
AR_SD, AR = 0.03, 0.9

KINDS = (
    "normal",
    "spikes",
    "2 % of requests x2",
    "2 % of trials x2",
    "AR(1)",
    "step",
    "linear drift",
    "heteroscedastic",
    "block x toggle",
)
HEAVY_TAILED = frozenset({"spikes", "2 % of requests x2", "2 % of trials x2"})

Array = NDArray[np.float64]


def simulate(
    kind: str, runs: int, blocks: int, on: NDArray[np.int64], random: np.random.Generator
) -> tuple[Array, Array]:
    """Return log trial values and positions, both [runs, blocks, variants], of variants whose toggles are `on` [V, k].

    Each block has its own random order. With "heteroscedastic" the first toggle makes trials three times as noisy;
    with "block x toggle" each toggle acts differently from block to block, around no effect.
    """
    if kind not in KINDS:
        raise ValueError(f"no noise {kind!r}")
    positions = random.random((runs, blocks, len(on))).argsort(-1).astype(float)
    scale = np.where(on[:, 0] == 1, 3.0, 1.0) if kind == "heteroscedastic" else np.ones(len(on))
    trials = BLOCK_SD * random.standard_normal((runs, blocks, 1))
    trials = trials + TRIAL_SD * scale * random.standard_normal(positions.shape)
    trials += _of_trials(kind, positions, on, random)
    requests = trials[..., None] + REQUEST_SD * random.standard_normal((*positions.shape, REQUESTS))
    requests += _of_requests(kind, requests.shape, random)
    return np.asarray(np.median(requests, axis=-1), dtype=float), positions


def _of_trials(kind: str, positions: Array, on: NDArray[np.int64], random: np.random.Generator) -> Array:
    runs, blocks, variants = positions.shape
    when = np.arange(blocks)[:, None] * variants + positions  # in the run, in trials
    if kind == "2 % of trials x2":
        return np.where(random.random(positions.shape) < DOUBLED, math.log(2), 0.0)
    if kind == "linear drift":
        return DRIFT * positions / (variants - 1)
    if kind == "step":
        return DRIFT * (when >= random.integers(0, blocks * variants, (runs, 1, 1)))
    if kind == "block x toggle":
        return UNEVEN_SD * random.standard_normal((runs, blocks, on.shape[1])) @ (on.T - 0.5)
    if kind == "AR(1)":
        news = AR_SD * random.standard_normal((runs, blocks * variants))
        news[:, 1:] *= math.sqrt(1 - AR**2)
        level = np.asarray(signal.lfilter([1.0], [1.0, -AR], news))
        return np.take_along_axis(level, when.astype(int).reshape(runs, -1), 1).reshape(positions.shape)
    return np.zeros(positions.shape)


def _of_requests(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if kind == "spikes":
        return np.where(random.random(shape) < 0.10, np.log1p(random.lognormal(-1.5, 1.0, shape)), 0.0)
    if kind == "2 % of requests x2":
        return np.where(random.random(shape) < DOUBLED, math.log(2), 0.0)
    return np.zeros(shape)
