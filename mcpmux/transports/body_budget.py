"""How much memory messages may take that clients have sent and that are not answered yet. Pure.

A message counts from its head or its first bytes on, by the length that it says or else by what has come of
it. Messages of SMALL_BODY or less do not count. A message always fits when no other is there.
"""

from __future__ import annotations

from typing import Final

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
    """What one stream keeps of messages that are not whole or not taken yet, counted in a budget."""

    def __init__(self, bodies: BodyBudget, client: str, small: int) -> None:
        """`small`: bytes that do not count."""
        self.bodies = bodies
        self.size = 0
        self._client = client
        self._small = small

    def hold(self, size: int) -> bool:
        """Count so many bytes from now on. False, and nothing changes, when they do not fit."""
        more = (size if size > self._small else 0) - self.size
        if more > 0 and not self.bodies.take(more, self.size, self._client):
            return False
        if more < 0:
            self.bodies.give_back(-more, self._client)
        self.size += more
        return True
