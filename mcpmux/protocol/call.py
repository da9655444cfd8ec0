"""A call in the core's one language: a request of revision 2026-07-28 without its id.

Ids, progress tokens and headers belong to a leg of the way and are made anew by each edge.
Source: "_meta" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from mcpmux.protocol.envelope import Fields, decode_fields, id_of, text_of
from mcpmux.protocol.principal import ANYONE, Principal

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


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request as the core sees it. `params` has no `_meta`; `meta` is what was in it."""

    method: str
    params: Fields
    meta: Fields
    client: object = None
    """Who asks, as far as that is known: the same object for every call of one client. Never looked into."""
    capabilities: Raw | None = None
    """What that client can be asked, on a leg whose `meta` does not say it."""
    legacy: bool = False
    """Whether that client speaks a legacy revision: a server of both eras may be spoken to in the same."""
    principal: Principal = ANYONE
    """Who that client has been shown to be."""

    @classmethod
    def of(
        cls,
        method: str,
        params: Raw | None,
        client: object = None,
        *,
        legacy: bool = False,
        principal: Principal = ANYONE,
    ) -> Call:
        """Split raw params. Raises ValueError when `_meta` is no object."""
        fields = decode_fields(params)
        meta = fields.pop(META, None)
        members = decode_fields(meta)
        if PROGRESS_TOKEN in members and id_of(members[PROGRESS_TOKEN]) is None:
            del members[PROGRESS_TOKEN]  # null and the like are no tokens
        return cls(method, fields, members, client, None, legacy, principal)

    def with_params(self, params: Fields) -> Call:
        """The same call with other parameters."""
        return Call(
            self.method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal
        )

    def with_meta(self, meta: Fields) -> Call:
        """The same call with other `_meta`."""
        return Call(
            self.method, self.params, meta, self.client, self.capabilities, self.legacy, self.principal
        )

    def on_behalf(self, method: str, params: Fields) -> Call:
        """Something else asked for the same client, with the same `_meta`."""
        return Call(method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal)

    def text(self, key: str) -> str | None:
        """The parameter `key` when it is a string, else None."""
        return text_of(self.params.get(key))

    @property
    def wants_progress(self) -> bool:
        """Whether the client gave a progress token (0 and "" are tokens)."""
        return PROGRESS_TOKEN in self.meta


class Event(msgspec.Struct, frozen=True, gc=False):
    """A notification inside the core: request-scoped on its way down, or a change on its way to the relay."""

    method: str
    params: Fields


Notify = Callable[[Event], Awaitable[None]]
"""Takes one request-scoped notification toward the client; waits while that client is slow."""

Exchange = Callable[[Call, Notify], Awaitable[Fields]]
"""The core's one verb: answers with the result's members or raises RpcError.

Cancelling it cancels the work."""


def with_meta(params: Fields, meta: Fields) -> Mapping[str, Any]:
    """Parameters ready to be encoded: `_meta` put back when there is anything in it."""
    return {**params, META: meta} if meta else params
