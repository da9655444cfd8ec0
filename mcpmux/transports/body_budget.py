"""A memory budget for the messages that clients have sent and that are not answered yet.

A message counts from its head or its first bytes on: by the length that its head declares, otherwise by the
bytes received so far. Messages of SMALL_BODY bytes or less do not count. A message always fits when it is the
only one.
"""

from __future__ import annotations

import math
from typing import Final

from mcpmux.mux.share import client_of, origin_of
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Id

# Bytes. A shorter body is read before its sender is known, and does not count: it may have come with its head
# in one receive, which holds as much.
SMALL_BODY: Final = 64 * 1024
BODY_RATE: Final = 1024  # bytes a second, from the end of the head on; a slower client loses its patience

SETTING: Final = "limits.max_body_bytes_in_flight"
SHARES: Final = 2  # one client with several messages may have the budget divided by this


class BodyBudget:
    """The bytes that the listeners of a process may together keep for their clients."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._clients: dict[str, int] = {}

    def take(self, size: int, held: int = 0, client: str = "") -> bool:
        """Count `size` more bytes of a message with `held` counted bytes; return False if they do not fit.

        `client`: the sender, which is limited to its share of the budget; "" is not.
        """
        # More is taken than this message holds: there are others. Alone it may exceed the whole budget, or it
        # could never be sent.
        if self.taken > held and self.taken + size > self.most:
            return False
        if client:
            # Likewise, the only message of a client may exceed its share.
            has = self._clients.get(client, 0)
            if has > held and has + size > self.most // SHARES:
                return False
            self._clients[client] = has + size
        self.taken += size
        return True

    def give_back(self, size: int, client: str = "") -> None:
        """Count `size` bytes of `client` no longer."""
        self.taken -= size
        if client:
            self._clients[client] -= size
            # The table must not grow with every client that has ever come.
            if not self._clients[client]:
                del self._clients[client]

    @property
    def full(self) -> str:
        """The reason for which a message is refused."""
        return f"large requests fill the {self.most} bytes of `{SETTING}`, or this client its half of them"


class Holding:
    """Bytes of one client's messages, counted in a budget until their last user leaves.

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
        """Count `size` bytes instead of those before; return False, without a change, if they do not fit."""
        more = (size if size > self._small else 0) - self.size
        if more > 0 and not self.bodies.take(more, self.size, self._client):
            return False
        if more < 0:
            self.bodies.give_back(-more, self._client)
        self.size += more
        if not self.size:  # the next message has all its patience
            self._waited = 0.0
        return True

    def join(self) -> Holding:
        """Add a user of the bytes."""
        self._users += 1
        return self

    def leave(self) -> None:
        """Remove a user of the bytes; after the last one they do not count."""
        self._users -= 1
        if not self._users:
            self.hold(0)

    @property
    def left(self) -> float:
        """Seconds for which the rest of a counted message may be awaited, infinite while none counts.

        As for a body over HTTP: `patience`, less the time by which it was slower than BODY_RATE.
        """
        if not self.size:
            return math.inf
        return self._patience - max(0.0, self._waited - self.size / BODY_RATE)

    def note_wait(self, seconds: float) -> None:
        """Add the `seconds` that were spent waiting for more of the message."""
        if self.size:
            self._waited += seconds


class LargeRequests:
    """The large requests of one stream of messages, which count in a budget until they are answered."""

    def __init__(self, bodies: BodyBudget, client: str) -> None:
        """`client`: the sender, for its share of the budget."""
        self._bodies, self._client = bodies, client
        self._size = 0  # of the message that is being read
        self._holding: Holding | None = None  # of that message, once it is counted
        self._held: dict[Id, Holding] = {}

    def read(self, size: int) -> None:
        """Note that a message of `size` bytes is being read, whose requests follow."""
        self._size, self._holding = size, None

    def begin(self, request_id: Id) -> None:
        """Count the message until the request is answered. Raises Busy if it does not fit.

        The message of a batch counts once, until the last of its requests is answered.
        """
        if self._size <= SMALL_BODY:
            return
        if (holding := self._holding) is not None:
            holding.join()
        else:
            holding = Holding(self._bodies, self._client)
            if not holding.hold(self._size):
                raise Busy(self._bodies.full, SETTING)
            self._holding = holding
        self._held[request_id] = holding

    def end(self, request_id: Id) -> None:
        """Note that a request is answered, or given up."""
        if self._held and (holding := self._held.pop(request_id, None)) is not None:
            holding.leave()


def budget_client(principal: Principal, peer: str) -> str:
    """Return the client for whom large messages count; "" for one on this machine that has no name."""
    origin = origin_of(peer)
    return client_of(principal, origin) if principal or origin else ""
