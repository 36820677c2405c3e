"""Chunks decoded after each other's state, against the one-shot decode of all frames."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from omnilab.errors import BadInput
from omnilab.model.code2wav import Code2Wav
from omnilab.model.folder import resolve
from omnilab.model.weights import build_stage, fill, load_config
from omnilab.seams import CODES, NEW_FRAMES, Vocode
from omnilab.toggles.stateful_vocode import TOGGLE

FRAMES = 240
DTYPES = [torch.float64, torch.float32]


@cache
def network(size: str, dtype: torch.dtype) -> Code2Wav:
    """Build a size's Code2Wav once; `small` is `tiny` with a fraction of its channels."""
    torch.set_num_threads(1)
    config = load_config(resolve("tiny" if size == "small" else size))
    if size == "small":
        sizes = config.code2wav_config
        sizes.decoder_dim, sizes.hidden_size, sizes.intermediate_size, sizes.num_hidden_layers = 16, 16, 16, 1
        sizes.head_dim = 8
    module = build_stage(config, "code2wav", device=torch.device("cpu"), dtype=dtype)
    return Code2Wav(fill(module, "code2wav"), config)


@cache
def frames(size: str) -> list[tuple[int, ...]]:
    """Return random frames."""
    net = network(size, torch.float32)
    codes = torch.randint(0, net.codebook_size, (FRAMES, 16), generator=torch.Generator().manual_seed(0))
    return [tuple(frame) for frame in codes.tolist()]


@cache
def one_shot(size: str, dtype: torch.dtype, num_frames: int) -> Tensor:
    """Decode the first frames all at once."""
    return network(size, dtype).decode_window(torch.tensor(frames(size)[:num_frames]).T[None])[0]


def chunks(size: str, dtype: torch.dtype, lengths: list[int], start: int = 0, state: Any = None) -> tuple[Tensor, Any]:
    """Decode chunks of these lengths one after the other; return all samples and the last state."""
    vocode, parts = TOGGLE.optimized(25), []
    for length in lengths:
        payload = vocode.build(frames(size), start, start + length)
        samples, state = vocode.decode(network(size, dtype), state, payload)
        parts.append(samples)
        start += length
    return torch.cat(parts), state


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """Equal to 1e-9 in float64, to 90 dB in float32."""
    assert found.dtype is wanted.dtype
    assert found.shape == wanted.shape
    assert wanted.std() > 0.001
    difference = found - wanted
    if found.dtype is torch.float64:
        assert difference.abs().max() <= 1e-9
    else:
        assert wanted.square().sum() >= 1e9 * difference.square().sum()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", ["tiny", "thin"])
def test_every_split_in_two(size: str, dtype: torch.dtype) -> None:
    """Seams: samples lost, doubled or shifted where two chunks meet, wherever that is."""
    for first in range(1, 60, 1 if size == "tiny" and dtype is torch.float32 else 9):
        assert_same(chunks(size, dtype, [first, 60 - first])[0], one_shot(size, dtype, 60))


def test_pairs_of_chunks() -> None:
    """Seams: a length of either chunk, shorter than any context or longer, that is handled apart."""
    net, vocode = network("small", torch.float64), TOGGLE.optimized(25)
    for first in range(1, 60, 2):
        begun, state = chunks("small", torch.float64, [first])
        assert_same(begun, one_shot("small", torch.float64, first))
        # around the context of the convolutions all of them, then some: the others were run once, and take a minute
        for second in [*range(1, min(12, 61 - first)), *range(12 + first % 7, 61 - first, 14)]:
            payload = vocode.build(frames("small"), first, first + second)
            samples, _ = vocode.decode(net, state, payload)
            assert_same(torch.cat([begun, samples]), one_shot("small", torch.float64, first + second))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_splits(seed: int, dtype: torch.dtype) -> None:
    """Drift: an error that needs several chunks, also of a single frame, to show."""
    chance, total = random.Random(seed), 5 * (seed + 1)
    lengths: list[int] = []
    while sum(lengths) < total:
        lengths.append(min(chance.choice([1, 2, 3, 7, 25]), total - sum(lengths)))
    assert_same(chunks("tiny", dtype, lengths)[0], one_shot("tiny", dtype, total))


LONG = {
    "4 then 25": [4, *[25] * 9, 11],
    "25": [25] * 9 + [15],
    "ones about the window": [60, *[1] * 25, 75, *[1] * 5, 75],
    "beyond the window at once": [100, 140],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", LONG.values(), ids=LONG)
def test_beyond_the_window(lengths: list[int], dtype: torch.dtype) -> None:
    """Window: a past one frame short or long, or positions that begin anew, past 72 frames."""
    assert sum(lengths) == FRAMES
    assert_same(chunks("tiny", dtype, lengths)[0], one_shot("tiny", dtype, FRAMES))


def test_each_chunk_is_final_and_nothing_is_held_back() -> None:
    """Delay: a chunk that keeps samples for later; n frames must have given 1920 n - 555 samples."""
    state, given = None, 0
    for start, end in ((0, 1), (1, 5), (5, 30), (30, 31)):
        samples, state = chunks("tiny", torch.float32, [end - start], start, state)
        given += len(samples)
        assert given == 1920 * end - 555


def test_state_does_not_grow() -> None:
    """Memory: a past that is not bounded, or a view that keeps all of what it was cut from."""
    sizes = []
    state = None
    for start in range(0, FRAMES, 20):
        _, state = chunks("tiny", torch.float32, [20], start, state)
        assert state is not None
        tensors = [state.hidden, *(side for layer in state.past for side in layer)]
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)
        sizes.append(sum(tensor.nbytes for tensor in tensors))
        assert state.past[0][0].shape[2] <= 71
    assert sizes[4:] == [sizes[4]] * len(sizes[4:])


def test_requests_and_retries_do_not_meet() -> None:
    """Sharing: state kept on the module or the occupant, or a decode that changes the state it was given."""
    net, vocode = network("tiny", torch.float64), TOGGLE.optimized(25)
    whole = one_shot("tiny", torch.float64, 40)
    states: list[Any] = [None, None]
    parts: list[list[Tensor]] = [[], []]
    for start in range(0, 40, 8):
        for request in (0, 1):
            payload = vocode.build(frames("tiny"), start, start + 8)
            vocode.decode(net, states[request], payload)  # as if it had failed afterwards
            samples, states[request] = vocode.decode(net, states[request], payload)
            parts[request].append(samples)
    for request in (0, 1):
        assert_same(torch.cat(parts[request]), whole)


def test_a_context_of_fewer_frames_is_heard() -> None:
    """Context: the frames that the convolutions look back are counted, not guessed; one less than they read shows."""
    net = network("tiny", torch.float64)
    assert net.convolution_context == 10 >= 9

    class Short:
        convolution_context = 8

        def __getattr__(self, name: str) -> Any:
            return getattr(net, name)

    vocode, state, parts = TOGGLE.optimized(25), None, []
    for start in range(0, 60, 20):
        payload = vocode.build(frames("tiny"), start, start + 20)
        samples, state = vocode.decode(Short(), state, payload)  # pyright: ignore[reportArgumentType]
        parts.append(samples)
    assert (torch.cat(parts) - one_shot("tiny", torch.float64, 60)).abs().max() > 1e-9


@pytest.mark.parametrize("make", [TOGGLE.baseline, TOGGLE.optimized], ids=["windowed", "stateful"])
def test_payloads(make: Any) -> None:
    """Payload: the end without frames must decode to nothing, new frames are said, codes go codebook by codebook."""
    vocode: Vocode = make(2)
    three = [(1, 2), (3, 4), (5, 6)]
    assert vocode.build(three, 0, 2) == {CODES: [1, 3, 2, 4], NEW_FRAMES: 2}
    assert vocode.build(three, 2, 3)[CODES] == ([1, 3, 5, 2, 4, 6] if make is TOGGLE.baseline else [5, 6])
    assert vocode.build(three, 3, 3) == {CODES: [], NEW_FRAMES: 0}
    samples, _ = vocode.decode(network("tiny", torch.float32), None, vocode.build(three, 3, 3))
    assert samples.shape == (0,)


def test_codes_outside_the_codebook_are_refused() -> None:
    """Input: the end code, or another's, read as an embedding of the next group."""
    net, vocode = network("tiny", torch.float32), TOGGLE.optimized(25)
    with pytest.raises(BadInput, match="codebook"):
        vocode.decode(net, None, {CODES: [net.codebook_size] * 16, NEW_FRAMES: 1})
