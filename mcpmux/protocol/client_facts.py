"""What a legacy client has said of itself, once and for all of its session."""

from __future__ import annotations

from functools import cached_property

import msgspec

from mcpmux.protocol.envelope import raw
from mcpmux.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION, Meta
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.revisions import NEWEST


class ClientFacts(msgspec.Struct, frozen=True, dict=True):
    """What a legacy client said in `initialize`, as raw JSON, and the log level it set since."""

    info: Raw
    capabilities: Raw
    log_level: str | None = None

    @cached_property
    def meta(self) -> Meta:
        """The same as every request of 2026-07-28 says it."""
        members = {VERSION: raw(NEWEST), CLIENT_INFO: self.info, CLIENT_CAPABILITIES: self.capabilities}
        return Meta(members if self.log_level is None else {**members, LOG_LEVEL: raw(self.log_level)})
