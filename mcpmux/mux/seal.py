"""Seal what clients carry for us: the cursor of a merged list, a server's `requestState`, a task's id.

No text is stored, so a sealed one works after a restart and on a replica that has the same key. A text is
base64url of `tag | contents`; the tag is HMAC-SHA256, cut to 16 bytes, over the contents and the name of the
principal that it is for. Every text that `seal` did not make for that principal is refused.

The contents of a cursor are a position per unfinished upstream: `version | body`. The body is compressed when
that is shorter; the tag is also over the kind of list. The walk checks that its upstreams still exist.

Source: "Pagination" (opaque cursors, `""` is a cursor, -32602 for an invalid one) and `basic/patterns/mrtr`,
2026-07-28.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import operator
import zlib
from collections.abc import Iterable

import msgspec

from mcpmux.errors import McpmuxError
from mcpmux.protocol.envelope import encode

CURSOR_LIMIT = 256 * 1024
"""Characters. A thousand unfinished upstreams with cursors of 100 characters stay below it."""

FIRST_TOLD = 8  # names that a list begins with: enough to see that it begins again
LAST_TOLD = 48  # names before a cursor: servers whose pages overlap repeat a few
MARKS_LIMIT = 10_000  # of all these names in one cursor: with many upstreams, fewer of the last names

_BODY_LIMIT = 4 * CURSOR_LIMIT  # bytes after decompression; bounds what a forged stream could inflate to
_TAG_BYTES = 16
_PLAIN, _DEFLATED = b"\x03", b"\x04"  # version bytes: the two ways a body is stored

CRC_BITS = 16  # of a mark, below its CRC-32
utf8_of = operator.methodcaller("encode", "utf-8", "surrogatepass")


class InvalidCursor(McpmuxError):
    """The text is not a cursor that this mux gave out for this list. The message has the advice."""


class ForeignState(McpmuxError):
    """The text was not given out to this principal."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where one upstream's walk continues.

    `cursor`: the upstream's own, None to start at the beginning. `anchor`, `left`, `stride`: Brent's state,
    the mark of an earlier cursor, pages until the anchor moves, and the length of the next stride.
    `items`, `pages`: numbers of earlier ones. `first`, `last`: marks of the first names of the list, and of
    the last ones so far. `stale`: pages in a row without a new name.
    """

    upstream: str
    cursor: str | None = None  # "" is a cursor, and not the beginning
    anchor: int | None = None
    left: int = 1
    stride: int = 1
    items: int = 0
    pages: int = 0
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    stale: int = 0

    def advance(self, following: str, items: int = 0) -> Position | None:
        """Return the position after a page of `items` with the cursor `following`; None in a cycle."""
        mark = mark_of(following)
        if following == self.cursor or mark == self.anchor:
            return None
        anchor, left, stride = self.anchor, self.left - 1, self.stride
        # Brent's method: the anchor moves after 1, 2, 4, … pages, so it ends up in the cycle and finds it.
        # The cursor of a merged list stays of constant size, for any length of the walk.
        if not left:
            anchor, left, stride = mark, stride * 2, stride * 2
        return msgspec.structs.replace(
            self,
            cursor=following,
            anchor=anchor,
            left=left,
            stride=stride,
            items=self.items + items,
            pages=self.pages + 1,
        )

    def tell(
        self, first: Iterable[str | None], last: Iterable[str | None], stale: int = 0, room: int = LAST_TOLD
    ) -> Position:
        """Return the position with more marks of names: the first and last ones since the last cursor.

        `room`: the number of last ones in all.
        """
        marks = map(mark_of, filter(None, first))
        first_marks = (*self.first, *itertools.islice(marks, FIRST_TOLD - len(self.first)))
        newest = (*self.last, *map(mark_of, filter(None, last)))
        return msgspec.structs.replace(
            self, first=first_marks, last=newest[max(0, len(newest) - room) :], stale=stale
        )


def mark_of(text: str) -> int:
    """Return the mark of a cursor or a name: 48 bits, of which the upper 32 are its CRC-32."""
    # Two CRCs, whose polynomials have no common factor: a list's names are many, and other hashes take as
    # long as everything else that is done with an item. No server gains anything by two names of one mark.
    data = utf8_of(text)
    return zlib.crc32(data) << CRC_BITS | binascii.crc_hqx(data, 0)


_decoder = msgspec.json.Decoder(list[Position])


class _Seal:
    """A key for one purpose, and the tags made with it."""

    PURPOSE = b""

    def __init__(self, key: bytes) -> None:
        """`key`: at least 16 bytes; replicas that open each other's texts need the same one."""
        # A key for each purpose: a text sealed for one is never valid for another.
        self._key = hashlib.sha256(self.PURPOSE + key).digest()

    def _seal(self, data: bytes, *bound: str) -> str:
        """Return a text that only those can open who name the same `bound`. None of these has a NUL in it."""
        return _encode(self._tag(data, bound) + data)

    def _open(self, text: str, *bound: str) -> bytes:
        """Return what was sealed. Raises ForeignState for a text that was not made with these `bound`."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            sealed = b""
        tag, data = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        # One text per value, so that no two texts are the same cursor.
        if _encode(sealed) != text or not hmac.compare_digest(tag, self._tag(data, bound)):
            raise ForeignState("this was not given to whoever shows it")
        return data

    def _tag(self, data: bytes, bound: tuple[str, ...]) -> bytes:
        # A NUL between the parts: only the last one may contain any, so no other parts make the same text.
        parts = b"\x00".join((*(name.encode() for name in bound), data))
        return hmac.new(self._key, parts, hashlib.sha256).digest()[:_TAG_BYTES]


class CursorSeal(_Seal):
    """Seals the cursors of merged lists."""

    PURPOSE = b"mcpmux cursor"

    def seal(self, kind: str, positions: list[Position], principal: str = "") -> str:
        """Return the cursor for `positions` of a list of `kind`. Raises InvalidCursor past the limit.

        Only `principal` can use it. Neither `kind` nor the principal's name has a NUL in it.
        """
        body = encode(positions)
        if len(body) <= _BODY_LIMIT:
            # Of a small body, the compressed form is longer.
            packed = zlib.compress(body, 6)
            data = _DEFLATED + packed if len(packed) < len(body) else _PLAIN + body
            text = self._seal(data, kind, principal)
            if len(text) <= CURSOR_LIMIT:
                return text
        raise InvalidCursor("the upstreams' cursors are too long to be combined")

    def open(self, kind: str, text: str, principal: str = "") -> list[Position]:
        """Return the positions in a cursor that `seal` made for `kind` and `principal`.

        Raises InvalidCursor for anything else.
        """
        if len(text) > CURSOR_LIMIT:
            raise InvalidCursor("this cursor is longer than any that was given out")
        try:
            # The tag is compared before any decompression: only our own bytes reach the decoder.
            data = self._open(text, kind, principal)
        except ForeignState:
            reason = "this cursor was not given out for this list: list again without a cursor"
            raise InvalidCursor(reason) from None
        version, body = data[:1], data[1:]
        if version == _DEFLATED:
            body = zlib.decompressobj().decompress(body, _BODY_LIMIT)
        elif version != _PLAIN:
            raise InvalidCursor("this cursor is from another version: list again without a cursor")
        return _decoder.decode(body)


class StateSeal(_Seal):
    """Seals the `requestState` of servers, which take mcpmux for one client with all its principals."""

    PURPOSE = b"mcpmux request state"

    def seal(self, principal: str, state: str) -> str:
        """Return the text for the client; `principal` has no NUL in its name."""
        return self._seal(state.encode("utf-8", "surrogatepass"), principal)

    def open(self, principal: str, text: str) -> str:
        """Return the server's state. Raises ForeignState for a text that was not made for `principal`."""
        return self._open(text, principal).decode("utf-8", "surrogatepass")


class TaskSeal(StateSeal):
    """Seals the ids of tasks, with a separate key: no server's state can pass for a task id."""

    PURPOSE = b"mcpmux task id"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
