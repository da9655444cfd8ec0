"""What one piece of text holds: one JSON-RPC message per line, and several in a batch.

    start --bytes--> keeping --more than the limit--> discarding --newline--> start
                     keeping --newline--> start

Promises: any chunking of the same bytes gives the same messages; memory stays within the limit however
long a line is; a member of a batch that cannot be read spoils only itself.

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
GAP: Final = '…"…'.encode()  # between the two ends; no JSON with this in it is valid, in a string or outside


class Oversized(msgspec.Struct):
    """Stands where a line longer than the limit was. `size` is its length in bytes without the newline.

    `excerpt`: its beginning and its end, which may show whose it was.
    """

    size: int
    excerpt: bytes


Line = bytes | Oversized

# As numbers: a byte is found much faster than a sequence of one.
LF: Final = 0x0A
CR: Final = 0x0D

BATCH_LIMIT: Final = 256  # members; as many as a session may have requests in flight


def encode_line(message: bytes) -> bytes:
    """One JSON message as a line.

    A payload that was pretty-printed by its author holds line breaks; in JSON they can only be
    insignificant whitespace, so spaces may stand in. A lone CR would end the line for some readers.
    """
    if LF in message:
        message = message.replace(b"\n", b" ")
    if CR in message:
        message = message.replace(b"\r", b" ")
    return message + b"\n"


class LineDecoder:
    """Cuts a stream of bytes into lines. Empty lines and the CR of a CRLF are dropped."""

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._end_bytes = min(EXCERPT_BYTES, max_message_bytes // 2)
        self._kept = bytearray()  # the unfinished line; its two ends while it is being discarded
        self._size = 0  # bytes of the unfinished line, kept or not

    @property
    def kept_bytes(self) -> int:
        """Bytes of the unfinished line that are kept."""
        return len(self._kept)

    def feed(self, chunk: bytes) -> list[Line]:
        """Take the next bytes, give the lines they complete."""
        found: list[Line] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:  # faster than to split, when lines are long
            raw = chunk[start:end]
            if self._size:
                self._keep(raw)
                found += self.close()
            elif line := self._cut(raw):
                found.append(line)
            start = end + 1
        if start < len(chunk):
            self._keep(chunk[start:])
        return found

    def close(self) -> list[Line]:
        """The stream has ended: its last line, when it was not ended by a newline."""
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
        if self._size > self._limit + 1:  # 1: a CR may be the last byte
            del self._kept[self._end_bytes : len(self._kept) - self._end_bytes]


def read_batch(data: bytes) -> list[Message | BadMessage]:
    """The members of a batch; those that are no messages as what is wrong with them.

    Answers are last, as whoever waits for one hears of nothing that comes behind it. Raises BadMessage when
    the whole is malformed, empty or too long.
    """
    members = split_batch(data)
    if len(members) > BATCH_LIMIT:
        raise BadMessage(INVALID_REQUEST, f"Invalid request: a batch of more than {BATCH_LIMIT} messages")
    found: list[Message | BadMessage] = []
    for member in members:
        try:
            found.append(decode_message(member))
        except BadMessage as bad:
            forget_frames(bad)  # which hold the whole batch
            found.append(bad)
    return sorted(found, key=lambda message: isinstance(message, Reply | ErrorReply))


def join_batch(answers: list[bytes]) -> bytes | None:
    """The one answer to a batch: those to its requests in an array, None when there is none to give."""
    return b"[" + b",".join(answers) + b"]" if answers else None


class BatchAnswer:
    """The one answer to a batch, while it is made.

    It has an answer for each request that was not cancelled, in the order in which they were ready.
    """

    def __init__(self) -> None:
        self._awaited = 1  # the reading itself, so that no answer is the last one before its end
        self._answers: list[bytes] = []

    def expect(self) -> None:
        """One more answer is to be waited for."""
        self._awaited += 1

    def settle(self, answer: bytes | None = None) -> bytes | None:
        """An answer has come, or will not come; the whole array when that was the last thing to wait for."""
        if answer is not None:
            self._answers.append(answer)
        self._awaited -= 1
        return join_batch(self._answers) if self._awaited == 0 else None
