"""How much memory messages may take that clients have sent and that are not answered yet.

A message counts from its head or its first bytes on, by the length that it says or else by what has come of
it. Messages of SMALL_BODY or less do not count. A message always fits when no other is there.
"""

from __future__ import annotations

import math
from typing import Final

from mcpmux.mux.share import client_of, origin_of
from mcpmux.protocol.principal import Principal

# Bytes; a shorter body is read before it is known who sends it, and counts for no budget: it may be in the
# receive that brought its head, which holds as much.
SMALL_BODY: Final = 64 * 1024
BODY_RATE: Final = 1024  # bytes a second, from the end of the head on: slower is not a client but a burden

SETTING: Final = "limits.max_body_bytes_in_flight"
SHARES: Final = 2  # one client has a part of this much of the budget, with more than one message


class BodyBudget:
    """What all listeners of a process that share it may keep for their clients."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._clients: dict[str, int] = {}

    def take(self, size: int, held: int = 0, client: str = "") -> bool:
        """Count `size` more bytes of a message of which `held` count already. False when they do not fit.

        `client`: whose they are; "" is anybody, for whom there is no share.
        """
        if self.taken > held and self.taken + size > self.most:
            return False
        if client:
            has = self._clients.get(client, 0)
            if has > held and has + size > self.most // SHARES:
                return False
            self._clients[client] = has + size
        self.taken += size
        return True

    def give_back(self, size: int, client: str = "") -> None:
        """Count `size` bytes no longer."""
        self.taken -= size
        if client:
            self._clients[client] -= size
            if not self._clients[client]:
                del self._clients[client]

    @property
    def full(self) -> str:
        """The reason for which a message is refused."""
        return f"large requests fill the {self.most} bytes of `{SETTING}`, or this client its half of them"


class Holding:
    """Bytes of one client's messages that are counted in a budget until the last that needs them lets go.

    `bodies`: the budget. `size`: the bytes that count now.
    """

    def __init__(
        self, bodies: BodyBudget, client: str, small: int = SMALL_BODY, patience: float = math.inf
    ) -> None:
        """`small`: bytes that do not count. `patience`: seconds a message may be late; see `left`."""
        self.bodies = bodies
        self.size = 0
        self._client = client
        self._small = small
        self._patience = patience
        self._waited = 0.0  # seconds, for more of what is held
        self._users = 1

    def hold(self, size: int) -> bool:
        """Count so many bytes from now on. False, and nothing changes, when they do not fit."""
        more = (size if size > self._small else 0) - self.size
        if more > 0 and not self.bodies.take(more, self.size, self._client):
            return False
        if more < 0:
            self.bodies.give_back(-more, self._client)
        self.size += more
        if not self.size:
            self._waited = 0.0
        return True

    def join(self) -> Holding:
        """Have one more that needs the bytes."""
        self._users += 1
        return self

    def leave(self) -> None:
        """Have one less that needs the bytes; after the last one they do not count."""
        self._users -= 1
        if not self._users:
            self.hold(0)

    @property
    def left(self) -> float:
        """The seconds for which more of a message may be waited for that keeps others out of the budget.

        As for a body over HTTP: `patience`, less what has come at under BODY_RATE.
        """
        if not self.size:
            return math.inf
        return self._patience - max(0.0, self._waited - self.size / BODY_RATE)

    def note_wait(self, seconds: float) -> None:
        """Note that more of what is held was waited for."""
        if self.size:
            self._waited += seconds


def budget_client(principal: Principal, peer: str) -> str:
    """Return for whom large messages count; "" for a client on this machine that has no name."""
    origin = origin_of(peer)
    return client_of(principal, origin) if principal or origin else ""
