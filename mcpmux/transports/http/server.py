"""An HTTP/1.1 server: requests in, one handler call each, responses out in order.

Per connection there is one task, per request none. One sweeper checks all connections, for deadlines and for
clients that leave while their requests are being handled.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from operator import itemgetter

import trio
from trio.abc import Listener

from mcpmux.config import Limits
from mcpmux.mux.share import CONNECTIONS_SETTING, origin_of
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.http.message import HttpRequest, Refusal, http_date
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server_connection import (
    EncodeRefusal,
    GiveBack,
    Grants,
    Handler,
    ServerConnection,
    ServerState,
)
from mcpmux.transports.inline import in_task
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.tls import CurrentContext
from mcpmux.transports.waiting import ReadinessPoller

SWEEP_SECONDS = 0.1  # resolution of every deadline, and how soon a client's leaving is noticed
LATE_SECONDS = 0.2  # after more than this between two sweeps, this process did not run for a while
SWEEP_CONNECTIONS = 250  # at a time, as each costs a system call: a thousand take four sweeps
LOOK_SECONDS = 0.1
REFUSED_CONNECTIONS = 64  # that are given time to read their refusal; one more takes the time of the first


async def serve_http(
    listeners: Sequence[Listener[trio.SocketStream]],
    handler: Handler,
    *,
    refuse: EncodeRefusal,
    stopping: trio.Event,
    limits: Limits | None = None,
    tls: CurrentContext | None = None,
    give_back: GiveBack | None = None,
    poller: ReadinessPoller | None = None,
    inline: bool = False,
    grants: Grants | None = None,
    judge: Handler | None = None,
    bodies: BodyBudget | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set, then finish what runs and return. Closes the listeners.

    `handler` gets each request with its reply. It is cancelled when its client leaves; a crash is logged and
    answered with status 500. It has a task unless it is `inline`, see `transports/inline`. `judge` gets a
    request whose large body is still to come, and may answer it: the body is not read then, and the
    connection ends. `bodies`: a budget for such bodies of several servers. `refuse(status, sentence, limit)`
    returns fields and body of the errors that are answered here, see Refusal. `tls` makes it https.
    `give_back`: takes idle connections when this stops, for another process. `poller` runs as long as this
    does; without it there is one for this server alone. Cancelling is the hard stop: all connections are
    closed at once.
    """
    handler = handler if inline else partial(_handle_in_task, handler)
    now, date = trio.current_time(), _date_field()
    limits = limits or Limits()
    bodies = bodies or BodyBudget(limits.max_body_bytes_in_flight)
    async with AsyncExitStack() as stack:
        if poller is None:
            poller = await stack.enter_async_context(open_readiness_poller())
        parts = bodies, poller, tls, give_back
        state = ServerState(handler, refuse, limits, now, date, *parts, grants=grants, judge=judge)
        server = _Server(state)
        background = await stack.enter_async_context(trio.open_nursery())
        background.start_soon(server.sweep_forever, name="http sweeper")
        # Left only after the last connection; the sweeper serves their deadlines until then.
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            serve = partial(
                trio.serve_listeners, server.serve_stream, list(listeners), handler_nursery=connections
            )
            await accepting.start(serve, name="http listeners")
            task_status.started()
            await stopping.wait()
            # From now on each response closes its connection.
            state.draining = True
            accepting.cancel_scope.cancel()
        background.cancel_scope.cancel()


class _Server:
    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.connections: set[ServerConnection] = set()
        self._room = Room()
        self._refused: dict[ServerConnection, trio.CancelScope] = {}
        self._turn: list[ServerConnection] = []  # still to be swept before the next turn of all

    async def sweep_forever(self) -> None:
        swept = trio.current_time()
        while True:
            await trio.sleep(SWEEP_SECONDS)
            last_swept, swept = swept, trio.current_time()
            # Time in which this process was stopped or starved does not count: clients may have been in time.
            self.state.now += min(swept - last_swept, LATE_SECONDS)
            self.state.date_field = _date_field()
            for connection in self._next_turn():
                connection.sweep()
                del connection  # this frame would keep the last one alive

    def _next_turn(self) -> list[ServerConnection]:
        """Return the connections to sweep now: a part of them each time, all when the server stops."""
        if self.state.draining:
            return list(self.connections)
        if not self._turn:
            self._turn = list(self.connections)
        turn, self._turn = self._turn[:SWEEP_CONNECTIONS], self._turn[SWEEP_CONNECTIONS:]
        return [connection for connection in turn if connection in self.connections]

    async def serve_stream(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Raises no error."""
        connection = ServerConnection(self.state, stream)
        self.connections.add(connection)
        origin = origin_of(connection.peer)
        refusal = self._find_room(origin)
        try:
            if refusal is None:
                self._room.come(origin, connection)
                await connection.run()
            else:
                await self._refuse(connection, refusal)
        finally:
            self._room.go(origin, connection)
            self.connections.discard(connection)
            connection.close()

    def _find_room(self, origin: str) -> Refusal | None:
        """Return a refusal if there is no place; None if there is one, perhaps another connection's."""
        room, limits, now = self._room, self.state.limits, self.state.now
        share = limits.address_share(limits.max_connections)
        # An address at its limit only displaces its own connections, so that it cannot push out others.
        if origin and room.count(origin) >= share:
            resting = room.make_of(origin, now)
            refusal = Refusal(
                429,
                f"this address has {share} connections, which is all that it may have",
                CONNECTIONS_SETTING,
            )
        elif room.taken < limits.max_connections:
            return None
        else:
            resting = room.make(origin, now)
            refusal = Refusal(503, "too many connections")
        if resting is None:
            return refusal
        resting.end("another client gets its place")
        return None

    async def _refuse(self, connection: ServerConnection, refusal: Refusal) -> None:
        """Send a refusal, and keep the connection for a while."""
        # Otherwise the client would get a reset before it has read the refusal.
        if len(self._refused) >= REFUSED_CONNECTIONS:
            self._refused.pop(next(iter(self._refused))).cancel(reason="others are refused, too")
        connection.refusal = refusal
        with trio.CancelScope() as scope:
            self._refused[connection] = scope
            try:
                await connection.run()
            finally:
                self._refused.pop(connection, None)


class Room:
    """Chooses the connection ("guest") to close when every place is taken.

    It is the one that has rested longest, of the peer with the most connections. Laws: the chosen guest
    rests; no guest of the same peer has rested longer; its peer has no fewer guests than the peer of the new
    one; no peer has more guests, one of which rested at the last look.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._guests: dict[str, dict[ServerConnection, None]] = {}
        # The guests of each peer that rested at the last look, longest first.
        self._resting: dict[str, deque[tuple[float, ServerConnection]]] = {}
        self._looked = -math.inf

    def come(self, peer: str, guest: ServerConnection) -> None:
        """Give `guest` a place. `go` must follow."""
        self.taken += 1
        self._guests.setdefault(peer, {})[guest] = None

    def go(self, peer: str, guest: ServerConnection) -> None:
        """Take back the place of `guest`, if it still has one."""
        guests = self._guests.get(peer, {})
        if guest in guests:
            self.taken -= 1
            del guests[guest]
            if not guests:
                del self._guests[peer]

    def count(self, peer: str) -> int:
        """Return the number of places that a peer has."""
        return len(self._guests.get(peer, ()))

    def make_of(self, peer: str, now: float) -> ServerConnection | None:
        """Choose a guest of `peer` to leave for another of it, and take its place; None if none rests."""
        connection = self._longest(peer)
        if connection is None and now - self._looked >= LOOK_SECONDS:
            self._look(now)
            connection = self._longest(peer)
        if connection is not None:
            self.go(peer, connection)
        return connection

    def make(self, peer: str, now: float) -> ServerConnection | None:
        """Choose a guest to leave for one of `peer`, and take its place; None if none can leave."""
        least = len(self._guests.get(peer, ()))
        pair = self._find(least)
        if pair is None and now - self._looked >= LOOK_SECONDS:
            self._look(now)
            pair = self._find(least)
        if pair is None:
            return None
        self.go(*pair)
        return pair[1]

    # Once in LOOK_SECONDS at most, however many new ones come: all guests are looked at.
    def _look(self, now: float) -> None:
        self._looked = now
        self._resting = {}
        for peer, guests in self._guests.items():
            resting = [(since, guest) for guest in guests if (since := guest.resting_since) is not None]
            if resting:
                self._resting[peer] = deque(sorted(resting, key=itemgetter(0)))

    def _find(self, least: int) -> tuple[str, ServerConnection] | None:
        """Return the next resting guest, and its peer, which has at least `least` guests."""
        while self._resting:
            peer = max(self._resting, key=self.count)
            if self.count(peer) < least:
                return None
            guest = self._longest(peer)  # it forgets a peer of which none rests any more
            if guest is not None:
                return peer, guest
        return None

    def _longest(self, peer: str) -> ServerConnection | None:
        """Return the guest of a peer that has rested longest, None if none rests."""
        guests, resting = self._guests.get(peer, {}), self._resting.get(peer)
        while resting:
            since, guest = resting[0]
            # It may have gone, or have had a request, since the last look.
            if guest in guests and guest.resting_since == since:
                return guest
            resting.popleft()
        self._resting.pop(peer, None)
        return None


async def _handle_in_task(handler: Handler, request: HttpRequest, reply: HttpReply) -> None:
    await in_task()
    await handler(request, reply)


def _date_field() -> bytes:
    return b"Date: %b\r\n" % http_date(time.time()).encode()
