"""What says of a call and its answer whether that answer may be used again, and for whom. Pure.

Source: `server/utilities/caching`, 2026-07-28.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Final

from mcpmux.errors import Refused, RpcError
from mcpmux.mux.subscriptions import at_or_above
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, VERSION, Call
from mcpmux.protocol.codes import URL_ELICITATION_REQUIRED
from mcpmux.protocol.envelope import raw, text_of, value_of
from mcpmux.protocol.raw_json import Fields, Raw

LONGEST_TTL_MS: Final = 24 * 3600 * 1000  # whatever a server promises, it is asked again after a day
SHORT_BYTES: Final = 1024  # of what a client says of itself, whose digest is kept ready
_COMPLETE: Final = raw("complete")
_PRIVATE: Final = b'"private"'  # as it is mostly said

HEARD: Final = frozenset({LOG_LEVEL, PROGRESS_TOKEN})
"""What a client wants to hear while it waits: nobody else hears that, and an answer from here is silent."""

PLAIN: Final = HEARD | {VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, "traceparent", "tracestate"}
"""Members of `_meta` that an answer does not depend on, but for who asks."""


def like(call: Call) -> Hashable:
    """What is the same for clients whom a server takes for the same one: the principal, and the host app."""
    info, offered = call.meta.get(CLIENT_INFO, b""), call.meta.get(CLIENT_CAPABILITIES, b"")
    said = b"\0".join((info, offered))
    return call.principal.name, (_digest_again if len(said) <= SHORT_BYTES else _digest)(said)


def _digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=16).digest()


_digest_again = lru_cache(maxsize=128)(_digest)


def is_plain(call: Call) -> bool:
    """Whether an answer depends on nothing in `_meta` but who asks."""
    return PLAIN.issuperset(call.meta)


def ttl_of(result: Fields) -> int:
    """The milliseconds that a result may be used for; 0 when it does not say so."""
    ttl = value_of(result.get("ttlMs"))
    if not isinstance(ttl, int) or isinstance(ttl, bool):
        return 0
    return max(0, min(ttl, LONGEST_TTL_MS))


def is_public(result: Fields) -> bool:
    """Whether a result is complete, and the same for everybody."""
    scope = result.get("cacheScope")
    if scope is None or bytes(scope) == _PRIVATE or text_of(scope) != "public" or "inputRequests" in result:
        return False
    return text_of(result.get("resultType", _COMPLETE)) == "complete"


def is_own_answer(error: RpcError) -> bool:
    """Whether a server itself has said that, and to everybody who asks the same."""
    ours = isinstance(error, Refused) or not (error.data is None or isinstance(error.data, Raw))
    return not ours and error.code != URL_ELICITATION_REQUIRED


def related(uri: str, other: str) -> bool:
    """Whether a change of one resource may be one of the other: it is the same, or below or above it."""
    return other in at_or_above(uri) or uri in at_or_above(other)


def size_of(parts: Iterable[Raw]) -> int:
    """Bytes of raw values."""
    return sum(len(memoryview(part)) for part in parts)


# How long, and for whom, something made of several results may be kept.
#
# The shortest time to live and the narrowest scope win; a part without caching hints is not fresh at all.
# Source: `server/utilities/caching`, 2026-07-28.


class Freshness:
    """Takes the parts' results one by one. `ttl_ms` and `scope` hold for the whole."""

    def __init__(self) -> None:
        self._ttl_ms: int | None = None
        self.scope = "public"

    def __repr__(self) -> str:
        return f"Freshness({self.ttl_ms} ms, {self.scope})"

    def take(self, result: Fields) -> None:
        """One more part. An empty result is no part: there was nothing to ask."""
        if not result:
            return
        ttl = value_of(result.get("ttlMs"))
        ttl = ttl if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0 else 0
        self._ttl_ms = ttl if self._ttl_ms is None else min(self._ttl_ms, ttl)
        if text_of(result.get("cacheScope")) != "public":
            self.scope = "private"

    @property
    def ttl_ms(self) -> int:
        """Milliseconds; 0 when nothing was taken."""
        return self._ttl_ms or 0
