"""Split text into JSON-RPC messages: one per line, and several in a batch.

    start --bytes--> keeping --more than the limit--> discarding --newline--> start
                     keeping --newline--> start

Promises: any chunking of the same bytes gives the same messages; memory stays within the limit for lines of
any length; an unreadable member of a batch spoils only itself.

Source: "stdio" in the transports page of every MCP revision. Batches, which 2025-03-26 alone has: JSON-RPC
2.0 section 6, "Batching" in the Base Protocol overview and "Transports" of that revision.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mcpmux.errors import forget_frames
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import BadMessage, ErrorReply, Message, Reply, decode_message, split_batch

EXCERPT_BYTES: Final = 512  # at each end of a line; an id stands there, and little else
GAP: Final = '…"…'.encode()  # between the two ends; it makes the text invalid JSON, in a string or outside


class Oversized(msgspec.Struct):
    """Replaces a line longer than the limit. `size` is its length in bytes without the newline.

    `excerpt`: its beginning and its end, which may show the request it belongs to.
    """

    size: int
    excerpt: bytes


Line = bytes | Oversized

# As numbers: bytes.find and `in` are much faster for a byte than for a sequence of one.
LF: Final = 0x0A
CR: Final = 0x0D

BATCH_LIMIT: Final = 256  # members; as many as a session may have requests in flight


def encode_line(message: bytes) -> bytes:
    """Return one JSON message as a line."""
    # A pretty-printed payload holds line breaks; in JSON they can only be insignificant whitespace, so spaces
    # may replace them.
    if LF in message:
        message = message.replace(b"\n", b" ")
    # A lone CR would end the line for some readers.
    if CR in message:
        message = message.replace(b"\r", b" ")
    return message + b"\n"


class LineDecoder:
    """Splits a stream of bytes into lines. Empty lines and the CR of a CRLF are dropped."""

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._end_bytes = min(EXCERPT_BYTES, max_message_bytes // 2)
        self._kept = bytearray()  # the unfinished line; its two ends while it is being discarded
        self._size = 0  # bytes of the unfinished line, kept or not

    @property
    def kept_bytes(self) -> int:
        """The bytes of the unfinished line that are kept."""
        return len(self._kept)

    def feed(self, chunk: bytes) -> list[Line]:
        """Add the next bytes. Return the lines that they complete."""
        lines: list[Line] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:  # faster than `split` when lines are long
            raw = chunk[start:end]
            if self._size:
                self._keep(raw)
                lines += self.close()
            elif line := self._cut(raw):
                lines.append(line)
            start = end + 1
        if start < len(chunk):
            self._keep(chunk[start:])
        return lines

    def close(self) -> list[Line]:
        """End the stream. Return its last line, if a newline did not end it."""
        size, kept = self._size, bytes(self._kept)
        self._size = 0
        self._kept.clear()
        line = self._oversized(size, kept) if size > len(kept) else self._cut(kept)
        return [line] if line else []

    def _cut(self, raw: bytes) -> Line:
        line = raw[:-1] if raw.endswith(b"\r") else raw
        return line if len(line) <= self._limit else self._oversized(len(raw), raw)

    def _oversized(self, size: int, line: bytes) -> Oversized:
        return Oversized(size, line[: self._end_bytes] + GAP + line[len(line) - self._end_bytes :])

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        self._kept += piece
        # 1 more: a CR may be the last byte, which does not count.
        if self._size > self._limit + 1:
            del self._kept[self._end_bytes : len(self._kept) - self._end_bytes]


def read_batch(data: bytes) -> list[Message | BadMessage]:
    """Return the members of a batch, answers last; in place of an invalid one, its error.

    Raises BadMessage when the whole is malformed, empty or too long.
    """
    members = split_batch(data)
    if len(members) > BATCH_LIMIT:
        raise BadMessage(INVALID_REQUEST, f"Invalid request: a batch of more than {BATCH_LIMIT} messages")
    messages: list[Message | BadMessage] = []
    for member in members:
        try:
            messages.append(decode_message(member))
        except BadMessage as bad:
            forget_frames(bad)  # its traceback holds the whole batch
            messages.append(bad)
    # An exchange that gets its answer ignores later messages of the batch.
    return sorted(messages, key=lambda message: isinstance(message, Reply | ErrorReply))


def join_batch(answers: list[bytes]) -> bytes | None:
    """Return the one answer to a batch: an array of its answers; None when there are none."""
    return b"[" + b",".join(answers) + b"]" if answers else None


class BatchAnswer:
    """Collects the one answer to a batch.

    It has an answer for each request that was not cancelled, in the order in which they became ready.
    """

    def __init__(self) -> None:
        # Reading the batch counts as well, so that an early answer is not taken for the last one.
        self._awaited = 1
        self._answers: list[bytes] = []

    def expect(self) -> None:
        """Wait for one more answer."""
        self._awaited += 1

    def settle(self, answer: bytes | None = None) -> bytes | None:
        """Add an answer, or None if there will be none. Return the whole array if it was the last one."""
        if answer is not None:
            self._answers.append(answer)
        self._awaited -= 1
        return join_batch(self._answers) if self._awaited == 0 else None
