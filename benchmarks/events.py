"""Chunked bodies and event streams, as far as an answer comes in one. Pure.

Promises: `Events` takes bytes in any pieces. Of an event only its name and its data matter.
"""

from __future__ import annotations

from typing import NamedTuple

LAST_CHUNK = b"\r\n0\r\n\r\n"  # no JSON has these bytes: a string's line breaks are escaped


class Event(NamedTuple):
    """One event of a stream. `name` is empty for a message without one."""

    name: str
    data: bytes


class Unchunking:
    """Takes the framing of `Transfer-Encoding: chunked` off."""

    def __init__(self) -> None:
        self._held = b""

    def __repr__(self) -> str:
        return f"<Unchunking {len(self._held)} bytes held>"

    def feed(self, data: bytes) -> bytes:
        """The contents of the chunks that are complete now. Raises ValueError when these are no chunks."""
        data = self._held + data
        start = 0
        parts = []
        while (end := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:end].partition(b";")[0], 16)
            if len(data) < end + 2 + size + 2:
                break
            parts.append(data[end + 2 : end + 2 + size])
            start = end + 2 + size + 2
        self._held = data[start:]
        return b"".join(parts)


class Events:
    """Takes an event stream apart."""

    def __init__(self) -> None:
        self._held = b""

    def __repr__(self) -> str:
        return f"<Events {len(self._held)} bytes held>"

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now, without those that have no data."""
        *blocks, self._held = (self._held + data).replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for event in map(_event, blocks) if event.data]


def _event(block: bytes) -> Event:
    fields = [line.partition(b":") for line in block.split(b"\n")]
    name = b"".join(value.removeprefix(b" ") for key, _, value in fields if key == b"event")
    data = b"\n".join(value.removeprefix(b" ") for key, _, value in fields if key == b"data")
    return Event(name.decode(), data)


def unchunked(body: bytes) -> bytes:
    """The contents of a whole chunked body. Raises ValueError."""
    return Unchunking().feed(body)


def answer_in(stream: bytes) -> bytes:
    """The answer in a whole event stream: the data of its last event. Raises ValueError when there is none.

    What comes before are notifications of the same request.
    """
    events = Events().feed(stream)
    if not events:
        raise ValueError("an event stream without data")
    return events[-1].data
