"""A server's `requestState` on its way through a client, bound to the principal that it was given to.

Servers see mcpmux as one client, so they cannot tell whether it is the same somebody who comes back with a
state. The text form is base64url of `tag | state`; the tag is HMAC-SHA256 over the principal's name and the
state, cut to 16 bytes. Nothing is remembered. Source: `basic/patterns/mrtr`, 2026-07-28.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from mcpmux.errors import McpmuxError

_TAG_BYTES = 16


class ForeignState(McpmuxError):
    """The state was not given out to this principal."""


class StateSeal:
    """Seals and opens states with one key. Stateless."""

    def __init__(self, key: bytes) -> None:
        """`key`: at least 16 bytes; replicas that share states share it."""
        self._key = hashlib.sha256(b"mcpmux request state" + key).digest()

    def __repr__(self) -> str:
        return "StateSeal()"

    def _tag(self, principal: str, state: bytes) -> bytes:
        return hmac.new(self._key, principal.encode() + b"\x00" + state, hashlib.sha256).digest()[:_TAG_BYTES]

    def seal(self, principal: str, state: str) -> str:
        """What the client gets; `principal` has no NUL in its name."""
        data = state.encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(self._tag(principal, data) + data).rstrip(b"=").decode()

    def open(self, principal: str, text: str) -> str:
        """The server's state. Raises ForeignState for anything that `seal` did not make for `principal`."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            state = data[_TAG_BYTES:].decode("utf-8", "surrogatepass")
        except (ValueError, binascii.Error):
            raise ForeignState("this is no state that was given out") from None
        if not hmac.compare_digest(data[:_TAG_BYTES], self._tag(principal, data[_TAG_BYTES:])):
            raise ForeignState("this state was not given to whoever shows it")
        return state
