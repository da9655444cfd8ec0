"""Identify clients and count their streams, so that one client cannot take all connections. Pure.

A stream (a listen, the GET stream of a session, one of HTTP+SSE, a WebSocket) lasts as long as its client
wants, and holds a connection all that time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal

SETTING: Final = "limits.max_streams_per_client"
CONNECTIONS_SETTING: Final = "limits.max_connections_per_address"  # an address as `origin_of` returns it


def origin_of(peer: str) -> str:
    """Return the host of a peer's address and port, reduced to what one client cannot choose.

    An address of this machine is "".
    """
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            # A client with an IPv6 address has the whole /64 network of it.
            network = ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64))
            return "" if address.is_loopback else str(network)
        address = address.ipv4_mapped
    # Behind a proxy on this machine, its address may be any client's.
    return "" if address.is_loopback else str(address)


def client_of(principal: Principal, address: str) -> str:
    """Return the client that a share is for: its principal's name, or its address if it has no name."""
    # No name has a line break in it, so no principal can be mistaken for an address.
    return principal.name or f"\n{address}"


class Share:
    """Counts the streams of each client."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Share {sum(self._taken.values())} streams of {len(self._taken)} clients>"

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count one more stream meanwhile. Raises Busy, without counting, when that is too many."""
        taken = self._taken.get(client, 0)
        if taken >= self.most:
            sentence = f"this client has {taken} streams, which is all that it may have; end one"
            raise Busy(sentence, SETTING, own=True)
        self._taken[client] = taken + 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:  # or the table would grow with every client ever seen
                del self._taken[client]
