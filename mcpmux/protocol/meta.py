"""The `_meta` of a request: the names of its members, and one that clients say again and again.

Source: "_meta" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

from typing import Final

from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST

META: Final = "_meta"
PROGRESS_TOKEN: Final = "progressToken"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

MODERN_KEYS: Final = frozenset({VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})
"""Members of a request's `_meta` that only 2026-07-28 has; legacy sessions say them once."""


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
