"""A call in the core's one language: a request of revision 2026-07-28 without its id.

Ids, progress tokens and headers belong to a leg of the way and are made anew by each edge.
Source: "_meta" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

from mcpmux.protocol.envelope import decode_fields, text_of
from mcpmux.protocol.frozen import Frozen
from mcpmux.protocol.meta import META, PROGRESS_TOKEN, Meta, read_meta
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw


class Call(Frozen, frozen=True, gc=False):
    """One request as the core sees it. `params` has no `_meta`; `meta` is what was in it."""

    method: str
    params: Fields
    meta: Fields
    client: Hashable | None = None
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
        params: Raw | Fields | None,
        client: object = None,
        *,
        legacy: bool = False,
        principal: Principal = ANYONE,
    ) -> Call:
        """Split params, raw or not. Raises ValueError when `_meta` is no object."""
        fields = decode_fields(params)
        meta = fields.pop(META, None)
        members = {} if meta is None else read_meta(bytes(meta))
        return cls(method, fields, members, client, None, legacy, principal)

    def with_params(self, params: Fields) -> Call:
        """The same call with other parameters."""
        return Call(
            self.method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal
        )

    def with_meta(self, meta: Fields) -> Call:
        """The same call with other `_meta`."""
        if meta is self.meta:
            return self
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


class Event(Frozen, frozen=True, gc=False):
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
    if not meta:
        return params
    return {**params, META: meta.encoded if isinstance(meta, Meta) else meta}
