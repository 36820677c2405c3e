"""Server-sent events out of stamped pieces of a body, once it has ended. Each byte is looked at a few times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """The data of one event, and the stamp of the read that brought its last byte."""

    at_ns: int
    data: bytes


def events_of(pieces: Sequence[tuple[int, bytes]]) -> Iterator[Event]:
    """Yield the events. Lines end in LF or CRLF; several `data` lines make one; other fields are passed over.

    Data behind the last blank line is an event too: some servers leave the last blank line away.
    """
    body = b"".join(data for _, data in pieces)
    stamps = _Stamps(pieces)
    at, lines = len(BOM) if body.startswith(BOM) else 0, list[bytes]()
    while at < len(body):
        end = body.find(b"\n", at)
        last = len(body) if end < 0 else end + 1
        line = body[at : last if end < 0 else end].removesuffix(b"\r")
        at = last
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield Event(stamps.of(last), b"\n".join(lines))
            lines = []
    if lines:
        yield Event(stamps.of(len(body)), b"\n".join(lines))


class _Stamps:
    """Which read brought the byte before an offset; offsets are asked for in rising order."""

    def __init__(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._pieces, self._index = pieces, 0
        self._end = len(pieces[0][1]) if pieces else 0

    def of(self, offset: int) -> int:
        while self._end < offset:
            self._index += 1
            self._end += len(self._pieces[self._index][1])
        return self._pieces[self._index][0]
