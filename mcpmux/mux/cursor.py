"""The combined cursor: where a walk over many upstreams' lists stands, sealed.

Rules
  * It holds one position per unfinished upstream and nothing else; the mux remembers nothing, so a cursor
    works after a restart and on a replica that has the same key.
  * Text form: base64url of `version | body | tag`; the body is compressed when that is shorter, the tag is
    HMAC-SHA256 over everything before it, the kind of list and the principal's name, cut to 16 bytes.
  * Whatever is not exactly what `seal` made, for the same kind of list and principal, is refused: damaged,
    forged, cut, extended, of another kind, of another version. Whether its upstreams
    still exist is the walk's business.
  * `None` (start here) and `""` are different upstream cursors.
  * A cycle of upstream cursors is found by Brent's method: a fingerprint to compare with, and how many
    pages until it moves on. Constant size, whatever the length of the walk.

Source: "Pagination", 2026-07-28 (opaque cursors, `""` is a cursor, -32602 for an invalid one).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib

import msgspec

from mcpmux.errors import McpmuxError

CURSOR_LIMIT = 256 * 1024
"""Characters. A thousand unfinished upstreams with cursors of 100 characters stay well below it."""

_BODY_LIMIT = 4 * CURSOR_LIMIT  # bytes after decompression; bounds what a forged stream could inflate to
_TAG_BYTES = 16
_PLAIN, _DEFLATED = b"\x01", b"\x02"  # version bytes: the two ways a body is stored


class InvalidCursor(McpmuxError):
    """The text is no cursor that this mux gave out for this list. The message says what to do."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where one upstream's walk goes on.

    `cursor`: the upstream's own, None to start at the beginning. `anchor`, `left`, `stride`: Brent's state,
    a fingerprint of an earlier cursor, pages until the anchor moves, and the length of the next stride.
    `items`, `pages`: how many came before.
    """

    upstream: str
    cursor: str | None = None
    anchor: str = ""
    left: int = 1
    stride: int = 1
    items: int = 0
    pages: int = 0

    def advance(self, following: str, items: int = 0) -> Position | None:
        """The position after a page of `items` that named `following` as the next; None in a circle."""
        mark = _fingerprint(following)
        if following == self.cursor or mark == self.anchor:
            return None
        items, pages, stride = self.items + items, self.pages + 1, self.stride
        if self.left > 1:
            return Position(self.upstream, following, self.anchor, self.left - 1, stride, items, pages)
        return Position(self.upstream, following, mark, stride * 2, stride * 2, items, pages)


def _fingerprint(cursor: str) -> str:
    return hashlib.blake2b(cursor.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Position])


class CursorSeal:
    """Seals and opens cursors with one key. Stateless."""

    def __init__(self, key: bytes) -> None:
        """`key`: at least 16 bytes; replicas that share cursors share it."""
        self._key = hashlib.sha256(b"mcpmux cursor" + key).digest()

    def __repr__(self) -> str:
        return "CursorSeal()"

    def _tag(self, kind: str, sealed: bytes, principal: str) -> bytes:
        message = kind.encode() + b"\x00" + principal.encode() + b"\x00" + sealed
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_TAG_BYTES]

    def seal(self, kind: str, positions: list[Position], principal: str = "") -> str:
        """The cursor for `positions` of a list of `kind`. Raises InvalidCursor past the limit.

        Only `principal` can use it. Neither `kind` nor the principal's name has a NUL in it.
        """
        body = _encoder.encode(positions)
        packed = zlib.compress(body, 6)
        sealed = _DEFLATED + packed if len(packed) < len(body) else _PLAIN + body
        text = base64.urlsafe_b64encode(sealed + self._tag(kind, sealed, principal)).rstrip(b"=").decode()
        if len(body) > _BODY_LIMIT or len(text) > CURSOR_LIMIT:
            raise InvalidCursor("the upstreams' cursors are too long to be combined")
        return text

    def open(self, kind: str, text: str, principal: str = "") -> list[Position]:
        """The positions in a cursor that `seal` made for `kind` and `principal`.

        Raises InvalidCursor for anything else.
        """
        if len(text) > CURSOR_LIMIT:
            raise InvalidCursor("this cursor is longer than any that was given out")
        data = _decode_text(text)
        sealed, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(kind, sealed, principal)):
            raise InvalidCursor("this cursor was not given out for this list: list again without a cursor")
        return _decoder.decode(_unpack(sealed))


def _decode_text(text: str) -> bytes:
    """Strict base64url without padding: one text per value, so that no two cursors mean the same."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise InvalidCursor("this is not a cursor: list again without one") from None
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise InvalidCursor("this is not a cursor: list again without one")
    return data


def _unpack(sealed: bytes) -> bytes:
    version, body = sealed[:1], sealed[1:]
    if version == _PLAIN:
        return body
    if version == _DEFLATED:
        return zlib.decompressobj().decompress(body, _BODY_LIMIT)
    raise InvalidCursor("this cursor is from another version: list again without a cursor")
