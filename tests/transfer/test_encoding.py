"""What is sent is what arrives; what cannot be sent, and what has been damaged, is refused."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from omnilab.transfer.encoding import ALIGNMENT, Buffer, decode, encode, nbytes

DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
ROWS = torch.arange(12, dtype=torch.float32).reshape(3, 4)
SAMPLE = {"rows": ROWS, "last": torch.tensor(7), "ids": [1, -2, 2**40], "finished": True, "name": "é", "none": None}


def joined(buffers: list[Buffer]) -> bytearray:
    return bytearray().join(buffers)


def bits(tensor: Tensor) -> tuple[Any, ...]:
    """All that must survive; as bytes, since NaN is not equal to itself."""
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).tolist()


def assert_same(payload: dict[str, Any], got: dict[str, Any]) -> None:
    assert payload.keys() == got.keys()
    for key, value in payload.items():
        if isinstance(value, Tensor):
            assert bits(value) == bits(got[key])
        else:
            assert type(value) is type(got[key]) and value == got[key]


@st.composite
def any_tensor(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 5), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    highest = 2 if dtype == torch.bool else 256
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = torch.randint(highest, (count,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    return tensor.T if len(shape) == 2 and draw(st.booleans()) else tensor


INTS = st.integers(-(2**63), 2**64 - 1)
VALUES = any_tensor() | st.lists(INTS, max_size=8) | INTS | st.booleans() | st.text(max_size=8) | st.none()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6))
def test_round_trip(payload: dict[str, Any]) -> None:
    """A value changes its type, shape or bits on the way."""
    buffers = encode(payload)
    assert nbytes(buffers) == len(joined(buffers))
    assert_same(payload, decode(joined(buffers)))


@pytest.mark.parametrize(
    "tensor",
    [
        ROWS.clone().requires_grad_(),
        torch.nn.Parameter(ROWS.clone()),
        ROWS.T,
        ROWS[:, 1::2],
        ROWS[1:1],
        ROWS[0, 0],
        ROWS.expand(2, 3, 4),
        torch.complex(ROWS, ROWS).conj().imag,
        torch.from_numpy(np.arange(5.0)),
    ],
)
def test_tensors_of_every_make(tensor: Tensor) -> None:
    """A tensor that is not plain and contiguous is sent as its memory, not as its values."""
    got = decode(joined(encode({"t": tensor})))["t"]
    assert got.dtype == tensor.dtype and got.shape == tensor.shape and torch.equal(got, tensor)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_memory() -> None:
    """A tensor over memory that may only be read cannot be sent."""
    array = np.arange(5.0)
    array.setflags(write=False)
    got = decode(joined(encode({"t": torch.from_numpy(array)})))["t"]
    assert got.tolist() == [0, 1, 2, 3, 4]


def test_contiguous_tensors_are_not_copied() -> None:
    """A hidden copy of every large tensor."""
    buffers = encode({"rows": ROWS, "more": ROWS.double()[:1], "third": ROWS})
    addresses = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    assert addresses.count(ROWS.data_ptr()) == 2


def test_tensor_bytes_are_aligned() -> None:
    """Rows that start at an odd address: slow or faulting vector loads."""
    buffer = joined(encode({"a": torch.ones(3, dtype=torch.bool), "b": ROWS, "c": torch.tensor(1.0), "id": 1}))
    start = np.frombuffer(buffer, np.uint8).ctypes.data
    tensors = [value for value in decode(buffer).values() if isinstance(value, Tensor)]
    assert len(tensors) == 3 and not any((tensor.data_ptr() - start) % ALIGNMENT for tensor in tensors)


def test_decoded_tensors_are_the_readers_own() -> None:
    """The reader writes into what the producer, or another reader, still uses; or may not write at all."""
    source = ROWS.clone()
    sent = bytes(joined(encode({"rows": source})))
    source.zero_()
    first, second = decode(sent)["rows"], decode(sent)["rows"]
    first.fill_(-1)
    assert torch.equal(second, ROWS) and torch.equal(decode(sent)["rows"], ROWS)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        b"raw",
        (1, 2),
        {"nested": 1},
        [1.0],
        [True],
        [[1]],
        [1, None],
        np.int64(3),
        np.ones(3),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
    ],
)
def test_refused_values(value: Any) -> None:
    """A value that would arrive as another type is sent all the same, or refused without saying which it was."""
    with pytest.raises(TypeError, match="culprit"):
        encode({"fine": 1, "culprit": value})


def test_refused_keys_and_numbers() -> None:
    """Numbers cut to 64 bits, keys turned into text."""
    with pytest.raises(TypeError, match="keys"):
        encode({1: 1})  # type: ignore[dict-item]
    for value in (2**64, -(2**63) - 1, [2**70]):
        with pytest.raises(ValueError, match="64 bits"):
            encode({"n": value})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    """Damage crashes the reader, or goes unseen in the header."""
    whole = joined(encode(SAMPLE))
    header_end = struct.unpack_from("<8sIIQ", whole)[1] + 24
    position = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(("flip", "cut", "longer", "hole")))
    if kind == "flip":
        whole[position] ^= 1 << data.draw(st.integers(0, 7))
        if position >= header_end:
            assert decode(whole).keys() == SAMPLE.keys()
            return
    elif kind == "cut":
        del whole[position:]
    elif kind == "longer":
        whole += bytes(position + 1)
    else:
        del whole[position : position + data.draw(st.integers(1, 64))]
    with pytest.raises(ValueError):
        decode(whole)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_foreign_bytes(data: bytes) -> None:
    """Something else than a chunk is read as one."""
    with pytest.raises(ValueError):
        decode(data)


@pytest.mark.parametrize(
    "header",
    [
        [{}, [["t", "float31", [2], 0]]],
        [{}, [["t", "float32", [-2], 0]]],
        [{}, [["t", "float32", [2], -64]]],
        [{}, [["t", "float32", [2], 1 << 60]]],
        [{}, [["t", "float32", [1 << 40, 1 << 40], 0]]],
        [{}, [["t", "float32", [0, 1 << 63, 1 << 63], 0]]],
        [{}, [["t", "float32", "shape", 0]]],
        [{"x": 1.5}, []],
        [{"x": {"y": 1}}, []],
        {"plain": {}},
        [],
        7,
    ],
)
def test_headers_that_make_no_sense(header: Any) -> None:
    """A header with a right checksum makes the reader look outside the chunk."""
    head = msgspec.msgpack.encode(header)
    gap = -(24 + len(head)) % ALIGNMENT
    total = 24 + len(head) + gap + 64
    chunk = struct.pack("<8sIIQ", b"OMNILAB1", len(head), zlib.crc32(head), total) + head + bytes(gap + 64)
    with pytest.raises(ValueError):
        decode(chunk)
