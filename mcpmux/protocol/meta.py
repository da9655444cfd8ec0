"""The `_meta` of a request: the names of its members, and what is said again and again, kept as it was read.

Source: "_meta" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

from mcpmux.protocol.envelope import decode_fields, id_of, raw, text_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST

META = "_meta"
PROGRESS_TOKEN = "progressToken"
VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

MODERN_KEYS = frozenset({VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})
"""Members of a request's `_meta` that only 2026-07-28 has; legacy sessions say them once."""

KEPT = 256  # values of `_meta` that are kept as they were read
KEPT_BYTES = 1024  # of one; a longer one is read anew each time


class Meta(dict[str, Raw]):
    """A `_meta` of MODERN_KEYS alone: what a client says again and again. Calls share it: nobody changes it.

    `encoded`: all of it. `sound`: whether it was found to say what 2026-07-28 requires. `complete`: whether
    it says all that we say to a server of our newest revision.
    """

    __slots__ = ("complete", "encoded", "sound", "version")

    def __init__(self, members: Fields) -> None:
        super().__init__(members)
        self.encoded = raw(members)
        self.version = text_of(members.get(VERSION))
        self.sound = False
        self.complete = self.version == NEWEST and CLIENT_INFO in members and CLIENT_CAPABILITIES in members


_kept: dict[bytes, Meta] = {}  # the oldest first


def read_meta(meta: bytes) -> Fields:
    """Its members. Raises ValueError when it is no object."""
    known = _kept.get(meta)
    if known is not None:
        return known
    members = _members_of(meta)
    if len(meta) > KEPT_BYTES or not MODERN_KEYS.issuperset(members):  # a token, say, is for one call
        return members
    if len(_kept) >= KEPT:
        del _kept[next(iter(_kept))]
    _kept[meta] = kept = Meta(members)
    return kept


def _members_of(meta: bytes) -> Fields:
    members = decode_fields(meta)
    if PROGRESS_TOKEN in members and id_of(members[PROGRESS_TOKEN]) is None:
        del members[PROGRESS_TOKEN]  # null and the like are no tokens
    return members
