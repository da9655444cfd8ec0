"""An open conversation with one upstream: its era found out, its exchanges in the core's language.

Promises: `exchange` takes and gives the shapes of 2026-07-28, whatever the server speaks. Refuses to know
what is merged, prefixed or retried.
"""

from __future__ import annotations

from typing import Protocol

import structlog
import trio
from msgspec import Raw

from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import handshake
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import Fields, raw
from mcpmux.protocol.era import downgrade_meta, modern_meta, upgrade_error, upgrade_result
from mcpmux.protocol.handshake import ServerFacts

log = structlog.get_logger()

PROBE_SECONDS = (
    5.0  # a legacy server may be silent on `server/discover`; a slow start must not look like that
)


class Channel(Protocol):
    """What carries exchanges to one server: a duplex link, or HTTP. Knows no era but its headers."""

    closed: trio.Event
    close_reason: TransportError

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Send `call` as it is. Raises RpcError (the server's answer) or TransportError."""
        ...

    async def notify(self, method: str, params: Fields | None = None) -> None:
        """Send a notification. Raises TransportError."""
        ...

    async def listen(self) -> None:
        """From now on hear what a legacy server says of its own accord."""
        ...

    def settle(self, facts: ServerFacts) -> None:
        """The revision is agreed."""
        ...


class Connection:
    """One upstream's open conversation. `facts` is what it said about itself."""

    def __init__(self, channel: Channel, facts: ServerFacts, client_info: Raw) -> None:
        self._channel = channel
        self._client_info = client_info
        self.facts = facts
        self.closed = channel.closed

    def __repr__(self) -> str:
        return f"<Connection {self.facts.revision}{' closed' if self.closed.is_set() else ''}>"

    @property
    def close_reason(self) -> TransportError:
        """Why it ended, once `closed` is set."""
        return self._channel.close_reason

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """One call. Raises RpcError (the upstream's answer) or TransportError (no answer)."""
        raise NotImplementedError


class ModernConnection(Connection):
    """A server of 2026-07-28: every request states its version and its client."""

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        leg = Call(call.method, call.params, modern_meta(call, self._client_info))
        return await self._channel.exchange(leg, notify)


class LegacyConnection(Connection):
    """A session opened with `initialize`; answers are raised to the shape of 2026-07-28."""

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        leg = Call(call.method, call.params, downgrade_meta(call))
        try:
            result = await self._channel.exchange(leg, notify)
        except RpcError as error:
            raise upgrade_error(call.method, call.params, error) from None
        return upgrade_result(call.method, result)


async def unheard(_event: Event) -> None:
    """For an exchange whose notifications nobody waits for."""


async def connect(channel: Channel, client_info: Raw, *, probe: bool) -> Connection:
    """Find out the server's era and open the conversation. The caller owns the deadline.

    `probe` False skips `server/discover`, for a server that is known not to survive it.
    Raises TransportError, RpcError (it refused `initialize`), RemoteProtocolError (it makes no sense).
    """
    facts = await _discover(channel, client_info) if probe else None
    if facts is None:
        try:
            return await _initialize(channel, client_info)
        except RpcError as refusal:
            # A modern server that was too slow for the probe refuses `initialize`: ask it once more.
            facts = await _discover(channel, client_info)
            if facts is None:
                raise refusal from None
    channel.settle(facts)
    return ModernConnection(channel, facts, client_info)


async def _discover(channel: Channel, client_info: Raw) -> ServerFacts | None:
    """The facts of a modern server, None for a legacy one. Raises RemoteProtocolError for a newer one."""
    with trio.move_on_after(PROBE_SECONDS):
        try:
            return handshake.read_discover_result(
                await channel.exchange(handshake.discover_call(client_info), unheard)
            )
        except RpcError as error:
            if handshake.is_modern_error(error) and not handshake.common_legacy(error):
                versions = handshake.supported_versions(error)
                raise RemoteProtocolError(f"no revision in common; it supports {versions}") from None
    return None


async def _initialize(channel: Channel, client_info: Raw) -> Connection:
    result = await channel.exchange(handshake.initialize_call(client_info, raw({})), unheard)
    facts = handshake.read_initialize_result(result)
    channel.settle(facts)
    await channel.notify(m.INITIALIZED)
    await channel.listen()
    return LegacyConnection(channel, facts, client_info)
