"""How long, and for whom, something made of several results may be kept.

The shortest time to live and the narrowest scope win; a part without caching hints is not fresh at all.
Source: `server/utilities/caching`, 2026-07-28.
"""

from __future__ import annotations

from mcpmux.protocol.envelope import text_of, value_of
from mcpmux.protocol.raw_json import Fields


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
