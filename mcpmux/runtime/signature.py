"""Results as mcpmux's own: their `_meta` names us as the server on this leg.

Source: "_meta" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mcpmux.protocol.call import META, SERVER_INFO
from mcpmux.protocol.envelope import decode_fields, raw
from mcpmux.protocol.raw_json import Fields, Raw

KEPT: Final = 256  # values of `_meta` whose signed form is kept: servers repeat them
KEPT_BYTES: Final = 1024  # of one; a longer one is signed anew each time


class Signature:
    """Signs results with `server_info`."""

    def __init__(self, server_info: Raw) -> None:
        self._server_info = server_info
        self._own = raw({SERVER_INFO: server_info})
        self._kept = lru_cache(KEPT)(self._signed)

    def __repr__(self) -> str:
        return f"<Signature {bytes(self._server_info)!r}>"

    def put_on(self, result: Fields) -> Fields:
        """The result, signed (changed in place). A `_meta` that is no object goes."""
        meta = result.get(META)
        if meta is None:
            result[META] = self._own
        else:
            signed = self._kept if len(meta) <= KEPT_BYTES else self._signed
            result[META] = signed(bytes(meta))
        return result

    def _signed(self, meta: bytes) -> Raw:
        try:
            members = decode_fields(meta)
        except ValueError:
            members = {}
        return raw({**members, SERVER_INFO: self._server_info})
