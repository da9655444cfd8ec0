"""How many streams each client has, so that one cannot take all connections. Pure.

A stream (a listen, the GET stream of a session, one of HTTP+SSE, a WebSocket) lasts as long as its client
wants, and holds a connection all that time.
"""

from __future__ import annotations

from typing import Final

from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal

SETTING: Final = "limits.max_streams_per_client"


def client_of(principal: Principal, address: str) -> str:
    """Return who a client is for a share: its principal, or its address when it has no name."""
    # No name has a line break in it.
    return principal.name or f"\n{address}"


class Share:
    """Counts the streams of each client."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Share {sum(self._taken.values())} streams of {len(self._taken)} clients>"

    def take(self, client: str) -> None:
        """Count one more. `give_back` must follow. Raises Busy, and counts nothing, when that is too many."""
        taken = self._taken.get(client, 0)
        if taken >= self.most:
            sentence = f"this client has {taken} streams, which is all that it may have; end one"
            raise Busy(sentence, SETTING, own=True)
        self._taken[client] = taken + 1

    def give_back(self, client: str) -> None:
        """Count one less."""
        left = self._taken[client] - 1
        if left:
            self._taken[client] = left
        else:
            del self._taken[client]
