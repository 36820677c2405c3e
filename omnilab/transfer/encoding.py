"""The bytes of a chunk: a msgpack header, then the raw bytes of each tensor, aligned to 64 bytes.

Layout: prefix (magic, header length, header CRC-32, total length) | header | zeros to 64 | tensor | zeros to 64 | ...
The CRC covers the header only: checking 10 MB of rows would cost more than moving them. Truncation is always seen.
"""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from collections.abc import Iterable
from typing import TypeAlias

import msgspec
import torch
from torch import Tensor

from omnilab.seams import Payload

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

ALIGNMENT = 64  # bytes
_PREFIX = struct.Struct("<8sIIQ")
_MAGIC = b"OMNILAB1"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
        torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PLAIN = (int, bool, str, type(None))


class _Placed(msgspec.Struct, array_like=True):
    """Where a tensor lies; the offset, in bytes, counts from the end of the padded header."""

    key: str
    dtype: str
    shape: list[int]
    offset: int


class _Header(msgspec.Struct, array_like=True):
    plain: dict[str, list[int] | int | bool | str | None]
    tensors: list[_Placed]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)


def encode(payload: Payload) -> list[Buffer]:
    """Return the buffers of a chunk, to be written in order.

    Contiguous tensors are not copied: the buffers alias them, so leave them unchanged until `put` has returned.
    Raises TypeError naming the key of a value that cannot be sent, ValueError for an int of more than 64 bits.
    """
    header = _Header({}, [])
    body: list[Buffer] = []
    end = 0
    for key, value in payload.items():
        if not isinstance(key, str):
            raise TypeError(f"the keys of a payload are str, not {type(key).__name__} ({key!r})")
        if isinstance(value, Tensor):
            raw = _raw(key, value)
            gap = _gap(end)
            header.tensors.append(_Placed(key, _NAMES[value.dtype], list(value.shape), end + gap))
            body.extend((bytes(gap), raw))
            end += gap + raw.nbytes
        else:
            _require_plain(key, value)
            header.plain[key] = value
    try:
        head = _ENCODER.encode(header)
    except OverflowError as error:
        raise ValueError("an int of a payload must fit 64 bits") from error
    gap = _gap(_PREFIX.size + len(head))
    total = _PREFIX.size + len(head) + gap + end
    front = _PREFIX.pack(_MAGIC, len(head), zlib.crc32(head), total) + head + bytes(gap)
    return [front, *filter(len, body)]


def decode(buffer: Buffer) -> Payload:
    """Rebuild a payload; raise ValueError when the bytes are not those of a whole chunk.

    Tensors are writable views that keep all of `buffer` alive: clone what is to outlive the chunk. A read-only buffer
    is copied first. Tensor keys come after the others.
    """
    view = memoryview(buffer).cast("B")
    if view.readonly:
        view = memoryview(bytearray(view))
    header, start = _read_header(view)
    payload: Payload = dict(header.plain)
    for placed in header.tensors:
        payload[placed.key] = _view_of(view, placed, start)
    return payload


def nbytes(buffers: Iterable[Buffer]) -> int:
    """Size in bytes of what `encode` returned."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _gap(position: int) -> int:
    return -position % ALIGNMENT


def _raw(key: str, tensor: Tensor) -> memoryview:
    if tensor.device.type != "cpu":
        raise TypeError(f"payload[{key!r}] is on {tensor.device}: copy it to the CPU before it is sent")
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
        raise TypeError(f"payload[{key!r}] is a tensor of {tensor.dtype}, {tensor.layout}: cannot be sent")
    flat = tensor.detach().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data  # through bytes: numpy has no bfloat16


def _require_plain(key: str, value: object) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if isinstance(value, list) and kind is list:
        strangers = [each for each in set(map(type, value)) if each is not int]
        if not strangers:
            return
        raise TypeError(f"payload[{key!r}] is a list with {strangers[0].__name__} in it: lists hold ints")
    raise TypeError(f"payload[{key!r}] is {kind.__name__}: send CPU tensors, lists of ints, ints, bools, str or None")


def _read_header(view: memoryview) -> tuple[_Header, int]:
    if view.nbytes < _PREFIX.size:
        raise ValueError(f"not a chunk: {view.nbytes} bytes")
    magic, length, checksum, total = _PREFIX.unpack_from(view)
    end = _PREFIX.size + length
    if magic != _MAGIC or total != view.nbytes or end + _gap(end) > total:
        raise ValueError(f"not a whole chunk: {view.nbytes} bytes")
    head = view[_PREFIX.size : end]
    if zlib.crc32(head) != checksum:
        raise ValueError("damaged chunk: the header does not match its checksum")
    try:
        return _DECODER.decode(head), end + _gap(end)
    except msgspec.MsgspecError as error:
        raise ValueError(f"damaged chunk: {error}") from error


def _view_of(view: memoryview, placed: _Placed, start: int) -> Tensor:
    dtype = _DTYPES.get(placed.dtype)
    count, first = math.prod(placed.shape), start + placed.offset
    if dtype is None or min(placed.shape, default=0) < 0 or placed.offset < 0:
        raise ValueError(f"damaged chunk: tensor {placed.key!r} makes no sense")
    if first + count * dtype.itemsize > view.nbytes:
        raise ValueError(f"damaged chunk: tensor {placed.key!r} ends beyond it")
    try:
        if not count:  # frombuffer refuses 0 elements
            return torch.empty(placed.shape, dtype=dtype)
        return torch.frombuffer(view, dtype=dtype, count=count, offset=first).view(placed.shape)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"damaged chunk: tensor {placed.key!r}: {error}") from error
