"""Encode and decode server-sent events. Pure; WHATWG HTML section 9.2, UTF-8 bytes in and out.

The data of an event stays bytes, which its parser decodes. Their content is unknown here.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from mcpmux.errors import LocalProtocolError, MessageTooLarge
from mcpmux.protocol.framing import EXCERPT_BYTES
from mcpmux.protocol.raw_json import BOM

LINE_ENDS: Final = (b"\n", b"\r")
LINE_OVERHEAD: Final = len(b"data: \n")  # what a line of data has besides its data
PACKED_LINES: Final = 1024  # lines of data that are kept one by one: each costs more than it may hold
# Bytes; parts of a message that are smaller are gathered, for the same reason.
SMALL_PART: Final = 512
NAME_BYTES: Final = 4096  # of the name or the id of an event
RETRY_DIGITS: Final = 9  # eleven days; more is not a time to wait
STREAM_HEADERS: Final = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")  # RFC 9110 section 5.5
KEEP_ALIVE: Final = b":\n\n"  # a comment, which readers ignore
KEEP_ALIVE_SECONDS: Final = 15.0  # between comments on a quiet stream, so that no proxy on the way closes it


def add_part(parts: list[bytes | bytearray], part: bytes) -> None:
    """Add a part to those of a message, joining small ones."""
    # Each part is an object: of many small ones these would take more memory than the message.
    if not parts or len(part) >= SMALL_PART:
        parts.append(part)
        return
    last = parts[-1]
    if isinstance(last, bytearray):
        last += part
    else:
        parts.append(bytearray(part))


class SseEvent(msgspec.Struct):
    """One dispatched event. `id` is the last event id in force, "" once reset, None if never set.

    `oversized`: it had more data than the limit, and `data` is the beginning of that.
    """

    event: str
    data: bytes
    id: str | None
    oversized: bool = False


def encode_event(
    data: bytes, *, event: str | None = None, event_id: str | None = None, retry: int | None = None
) -> bytes:
    """Return one event, ended by its empty line. `retry` is in milliseconds.

    Line ends inside `data` arrive as "\\n". Raises LocalProtocolError for an `event` or `event_id` that
    does not fit into a line.
    """
    head = b""
    if event is not None:
        head += b"event: %b\n" % _one_line(event)
    if event_id is not None:
        head += b"id: %b\n" % _one_line(event_id)
    if retry is not None:
        head += b"retry: %d\n" % retry
    if data.find(b"\n") >= 0 or data.find(b"\r") >= 0:  # faster than `in`, which tries an integer first
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"%bdata: %b\n\n" % (head, data)


def with_id(event: bytes, event_id: str) -> bytes:
    """Return an encoded event with an id, which it had not. Raises as `encode_event`."""
    # An event for many readers is encoded once, and has another id for each of them.
    return b"id: %b\n%b" % (_one_line(event_id), event)


def _one_line(text: str) -> bytes:
    if "\n" in text or "\r" in text or "\0" in text:
        raise LocalProtocolError(f"does not fit into one line of an event: {text!r}")
    return text.encode()


class SseDecoder:
    """Turns the chunks of a stream into events.

    `last_event_id` and `retry_milliseconds` follow the stream, also where no event is dispatched. An
    event with more than `max_event_bytes` of data raises MessageTooLarge, and the decoder is spent then;
    a decoder that `skips` returns an `oversized` event instead and goes on. `has_spoken`: whether an event
    had data.
    """

    def __init__(self, max_event_bytes: int, *, skips: bool = False) -> None:
        self.last_event_id: str | None = None
        self.retry_milliseconds: int | None = None
        self.has_spoken = False
        self.max_event_bytes = max_event_bytes
        self._skips = skips
        self._skipping = False  # the event that has not ended yet is too large
        self._beginning = b""  # of its data
        self._unended: list[bytes | bytearray] = []  # parts of the line that has not ended yet
        self._unended_bytes = 0
        self._at_start = True
        self._after_cr = False  # a line feed that comes next belongs to the line end before
        self._event = ""
        self._data: list[bytes] = []
        self._packed = 0  # items at its beginning that are many lines each
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes. Raises MessageTooLarge."""
        events: list[SseEvent] = []
        for line in self._split_lines(chunk):
            if not line:
                if self._skipping:
                    kind = self._event or "message"
                    events.append(SseEvent(kind, self._beginning, self.last_event_id, oversized=True))
                    self._skipping = False
                elif self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(SseEvent(self._event or "message", data, self.last_event_id))
                    self.has_spoken = self.has_spoken or bool(data)
                    self._data.clear()
                    self._data_bytes = self._packed = 0
                self._event = ""
                continue
            if line.startswith(b"data: "):  # which most lines are
                name, value = b"data", line[6:]
            else:
                name, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
            if name == b"data":
                if not self._skipping:
                    self._data.append(value)
                    self._data_bytes += len(value) + 1
                    if self._data_bytes - 1 > self.max_event_bytes:
                        self._give_up()
            elif name == b"event":
                self._event = value[:NAME_BYTES].decode(errors="replace")
            elif name == b"id" and b"\0" not in value:  # the specification ignores an id with a NUL
                # One that no header can carry cannot be sent back in Last-Event-ID.
                fits = len(value) <= NAME_BYTES and _CONTROLS.search(value) is None
                self.last_event_id = value.decode(errors="replace") if fits else ""
            elif name == b"retry" and value.isdigit() and len(value) <= RETRY_DIGITS:
                self.retry_milliseconds = int(value)
        # The unfinished line counts too: a peer that never ends its line must not fill the memory.
        if self._data_bytes + self._unended_bytes - LINE_OVERHEAD > self.max_event_bytes:
            self._give_up()
        if self._skipping and self._unended:
            self._unended = [b":"]  # turns the line into a comment, so that its rest is ignored
            self._unended_bytes = 1
        # Many short lines of data: each is an object, which costs more memory than its bytes.
        if len(self._data) - self._packed > PACKED_LINES:
            self._data[self._packed :] = [b"\n".join(self._data[self._packed :])]
            self._packed += 1
        return events

    def continued(self) -> SseDecoder:
        """Return a decoder for the next connection of the same stream, which keeps its place only."""
        fresh = SseDecoder(self.max_event_bytes, skips=self._skips)
        fresh.last_event_id = self.last_event_id
        fresh.retry_milliseconds = self.retry_milliseconds
        return fresh

    def _split_lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.find(b"\n") < 0 and chunk.find(b"\r") < 0:
            self._keep(chunk)
            return []
        lines = chunk.splitlines()
        if self._unended:  # joined only now, so that a long line is copied once
            lines[0] = b"".join((*self._unended, lines[0]))
            self._drop_line()
        if chunk.endswith(LINE_ENDS):
            self._after_cr = chunk.endswith(b"\r")
        else:
            self._keep(lines.pop())
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BOM)
        return lines

    def _keep(self, part: bytes) -> None:
        if part:
            self._unended_bytes += len(part)
            add_part(self._unended, part)

    def _drop_line(self) -> None:
        self._unended.clear()
        self._unended_bytes = 0

    def _give_up(self) -> None:
        """Discard an event that is too large. Raises MessageTooLarge, unless the decoder skips."""
        if not self._skips:
            self._data.clear()
            self._drop_line()
            raise MessageTooLarge(f"an event is larger than {self.max_event_bytes} bytes")
        self._skipping = True
        # Parts are not empty, so that the beginnings of these few are enough.
        parts = self._data[:1] or [
            b"".join(part[: 2 * EXCERPT_BYTES] for part in self._unended[:EXCERPT_BYTES])
        ]
        self._beginning = parts[0].removeprefix(b"" if self._data else b"data: ")[:EXCERPT_BYTES]
        self._data.clear()
        self._data_bytes = self._packed = 0
