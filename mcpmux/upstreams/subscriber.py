"""Keep what an upstream has agreed to equal to the URIs that clients want. `mux/wanted` decides, this acts.

A modern upstream is asked by one `subscriptions/listen` for all lists and URIs, a legacy one by a
`resources/subscribe` or `unsubscribe` for each difference. In a cluster one replica, the owner, asks an
upstream for all, and the others listen there, just as at a modern upstream.

Sources: `basic/patterns/subscriptions`, 2026-07-28; `server/resources`, 2024-11-05 to 2025-11-25.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Set
from typing import Final, Protocol

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.mux.wanted import Wanted, Way
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import raw, text_of, value_at, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.upstreams.connection import Connection

log = structlog.get_logger()

GATHER_SECONDS = 0.02  # between two rounds of asking, as clients often change several subscriptions at a time
GATHER_URIS: Final = 1000  # URIs of a listen that add as much again, as each listen has all of them
AGREE_SECONDS = 10.0  # for the upstream's answer to a subscription
SUBSCRIBES_AT_ONCE = 16  # requests in flight at a legacy upstream; enough to hide latency, too few to flood
REPLACES = "replaces"  # a parameter of an owner's acknowledgement: the listen continues the one before it

_LISTS: Final = tuple((f"{capability}ListChanged", capability) for capability in m.LIST_CHANGES)


class Server(Protocol):
    """What can be listened to: the connection to an upstream, or an owner."""

    def exchange(self, call: Call, notify: Notify) -> Awaitable[Fields]:
        """Return the result of one call. Raises RpcError, TransportError, RemoteProtocolError."""


class Replicas(Protocol):
    """The interface to the replicas of a cluster that ask upstreams for each other."""

    def owner_of(self, upstream: str) -> Server | None:
        """Return the replica that asks `upstream` for this one; None when this one asks itself.

        `upstream`: the key of a session that serves clients of all replicas. The replica answers LISTEN only.
        An acknowledgement with REPLACES means that the listen before has sent all earlier updates.
        """

    async def owners_changed(self) -> None:
        """Wait until the results of `owner_of` may have changed."""

    @property
    def settle_seconds(self) -> float:
        """The longest time that an update may wait at an owner before it is sent, in seconds."""


class Subscriber:
    """One upstream's subscriptions. `run` must run while a connection lasts.

    `settled` is set once it is known which list changes the upstream sends. `lists`: the capabilities whose
    list changes a modern upstream sends now. `on_lists` is called when they may be others.
    """

    def __init__(
        self,
        key: str,
        wanted: Callable[[], Set[str]],
        whose: Callable[[str], object],
        tell_update: Callable[[str], None],
        tell_lists: Callable[[frozenset[str]], None],
        pass_on: Callable[[str], None],
        replicas: Replicas | None = None,
    ) -> None:
        """`wanted` returns the wanted URIs. `whose` returns a client of a URI, for the upstream's questions.

        `tell_update` reports that a resource may have changed, `tell_lists` that the lists of these
        capabilities may have. `pass_on` gets the URIs of an owner's updates, for which all replicas have
        dropped their caches. `replicas`: None when this process asks the upstream for itself only.
        """
        self._wanted = Wanted(wanted)
        self._key, self._whose, self._replicas = key, whose, replicas
        self._tell_update, self._tell_lists, self._pass_on = tell_update, tell_lists, pass_on
        self.lists: frozenset[str] = frozenset()
        self.on_lists: Callable[[], None] = lambda: None
        self.settled = trio.Event()
        self._askers = trio.lowlevel.ParkingLot()  # the tasks that ask for what is wanted
        self._waiting: dict[str, set[trio.lowlevel.ParkingLot]] = {}  # where tasks wait for answers, by URI
        self._connection: Connection
        self._lists: tuple[str, ...] = ()  # the names by which it is asked for list changes
        self._newest: dict[Way, trio.CancelScope] = {}  # around the newest acknowledged listens
        self._asking: set[str] = set()  # URIs that a legacy upstream is being asked about
        self._answering: set[str] = set()  # those of them about which a client is being asked
        self._limit = trio.CapacityLimiter(SUBSCRIBES_AT_ONCE)
        self._settle_seconds = replicas.settle_seconds if replicas is not None else 0.0

    def __repr__(self) -> str:
        return f"<Subscriber {len(self.asked)} asked, {len(self._wanted.refused)} refused>"

    @property
    def asked(self) -> frozenset[str]:
        """The URIs that are agreed on the present connection."""
        return self._wanted.agreed

    @property
    def is_needed(self) -> bool:
        """Whether any client has subscribed to a resource."""
        return bool(self._wanted.uris())

    # Changes, and waiting for them

    def poke(self) -> None:
        """Look again at the wanted URIs, of which there may be fewer."""
        self._wanted.look_again()
        self._act()

    def take_over(self, uris: Set[str]) -> None:
        """Take over `uris` from another session or process, whose updates may have been missed."""
        self._wanted.miss(uris)
        self._act()

    def catch_up(self) -> None:
        """Report all URIs that the upstream sends updates of as changed, as some updates were lost."""
        self._wanted.miss(self._wanted.direct.agreed)
        self._act()

    def _act(self, answered: Collection[str] = ()) -> None:
        """Report what may have changed unnoticed, and wake the tasks that ask, and those that wait.

        `answered`: the URIs about which there may be an answer. Tasks that wait for others sleep on, as
        thousands of clients may subscribe at a time.
        """
        for uri in self._wanted.take_changed():
            self._tell_update(uri)
        self._askers.unpark_all()
        for uri in answered:
            for arrival in self._waiting.get(uri, ()):
                arrival.unpark_all()

    def refusal(self, uri: str) -> RpcError | None:
        """Return the error with which the upstream has refused `uri`, None if it has not."""
        error = self._wanted.refused.get(uri)
        return error.anew() if error is not None else None

    async def ensure_all(
        self, uris: Collection[str], seconds: float, *, renewed: bool = False
    ) -> frozenset[str]:
        """Wait until the upstream has agreed to or refused each of `uris`, for so many seconds at most.

        `renewed`: whether they begin anew with each answer, and when a client has answered a question of the
        upstream. Return the URIs that it has agreed to.
        """
        wanted, arrival = self._wanted, trio.lowlevel.ParkingLot()
        asked = waiting = wanted.ask_again(uris)
        if waiting:
            self._act()
        for uri in asked:
            self._waiting.setdefault(uri, set()).add(arrival)
        try:
            with trio.move_on_after(seconds) as patience:
                while waiting:
                    is_asked = renewed and not self._answering.isdisjoint(waiting)
                    if is_asked:  # a person may be asked
                        patience.deadline = math.inf
                    await arrival.park()
                    count, waiting = len(waiting), wanted.unanswered(waiting)
                    # The upstream may answer for one URI after the other, and there may be many.
                    if is_asked or (renewed and len(waiting) < count):
                        patience.deadline = trio.current_time() + seconds
        finally:
            for uri in asked:
                self._waiting[uri].discard(arrival)
                if not self._waiting[uri]:
                    del self._waiting[uri]
        return frozenset(filter(wanted.is_agreed, uris))

    async def hears_lists(self, seconds: float) -> None:
        """Wait until list changes arrive, or are known not to, for so many seconds at most.

        Lists that are acknowledged later than that are reported as changed.
        """
        with trio.move_on_after(seconds):
            await self.settled.wait()
        if not self.settled.is_set():
            self._wanted.direct.has_gap = True

    # Asking

    async def run(
        self, connection: Connection, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Ask for what is wanted until cancelled."""
        wanted, replicas, facts = self._wanted, self._replicas, connection.facts
        modern = is_modern(facts.revision)
        self._connection, self.lists = connection, frozenset()
        self._lists = tuple(wish for wish, name in _LISTS if facts.announces(name)) if modern else ()
        owner = replicas.owner_of(self._key) if replicas is not None else None
        wanted.begin(owner, for_lists=bool(self._lists))
        self._newest = {way: trio.CancelScope() for way in (wanted.direct, wanted.shared)}
        self._asking.clear()
        self.settled = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                if replicas is not None:
                    nursery.start_soon(self._follow_owner, replicas)
                    nursery.start_soon(self._listen, wanted.shared)
                if modern:
                    nursery.start_soon(self._listen, wanted.direct)
                else:
                    self.settled.set()
                    nursery.start_soon(self._subscribe_each)
                task_status.started()
        finally:
            wanted.end()

    async def _follow_owner(self, replicas: Replicas) -> None:
        while True:
            owner = replicas.owner_of(self._key)
            if owner != self._wanted.owner:
                self._wanted.follow(owner)
                self._act()
            await replicas.owners_changed()

    async def _next_turn(self, way: Way, turn: int) -> None:
        """Wait until there may be something else to ask in `way` than in that turn."""
        asked_at = trio.current_time()
        while self._wanted.turn == turn:
            with trio.move_on_at(way.again_at) as patience:
                await self._askers.park()
            if patience.cancelled_caught:
                self._wanted.come_due(way)
        # A client that waits is served at once, unless something was asked a moment ago.
        seconds = GATHER_SECONDS * (1 + len(way.asked) / GATHER_URIS)
        await trio.sleep_until((asked_at if self._waiting else trio.current_time()) + seconds)

    # The modern way to ask

    async def _listen(self, way: Way) -> None:
        """Open another listen whenever `way` has to ask for other URIs."""
        wanted = self._wanted
        async with trio.open_nursery() as nursery:
            while True:
                turn = wanted.turn
                uris = wanted.next_listen(way, trio.current_time())
                if uris or (uris is not None and way.for_lists):
                    server = self._connection if way is wanted.direct else wanted.owner
                    await nursery.start(self._keep_listening, way, server, uris)
                elif uris is not None:
                    stays = self._settle_seconds if wanted.stop(way) else 0.0
                    self._newest[way].deadline = trio.current_time() + stays
                    self._newest[way] = trio.CancelScope()
                if way is wanted.direct:
                    self.settled.set()
                await self._next_turn(way, turn)

    async def _keep_listening(
        self,
        way: Way,
        server: Server,
        uris: frozenset[str],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen at `server` until another listen takes over. Started once that has answered or failed."""
        wanted = self._wanted
        is_direct = way is wanted.direct
        wish: Fields = {name: raw(True) for name in self._lists} if is_direct else {}
        if uris:
            wish["resourceSubscriptions"] = raw(sorted(uris))
        granted: frozenset[str] | None = None
        is_over = is_refused = False

        async def hear(event: Event) -> None:
            nonlocal granted
            if event.method == m.ACKNOWLEDGED and granted is None:
                # The time was for the acknowledgement: the listen itself has no end.
                patience.deadline = math.inf
                granted = self._take_over(way, server, uris, event.params, scope)
                task_status.started()
            elif event.method == m.RESOURCE_UPDATED and granted is not None:  # an owner's
                self._pass_on(text_of(event.params.get("uri")) or "")

        # An owner acknowledges when its upstream has: that has its own time there.
        with trio.CancelScope() as scope:
            with trio.move_on_after(AGREE_SECONDS if is_direct else math.inf) as patience:
                try:
                    await server.exchange(Call(m.LISTEN, {"notifications": raw(wish)}, {}), hear)
                    is_over = True
                except (RpcError, RemoteProtocolError, TransportError) as error:
                    is_refused = isinstance(error, RpcError)
                    log.debug("listen ended", direct=is_direct, reason=str(error))
                    # A server of the other era, in place of the former one, refuses every listen.
                    if is_direct:
                        await self._connection.holds()
            now = trio.current_time()
            if granted is None:
                is_refused = is_refused or patience.cancelled_caught
                wanted.fail_to_listen(way, server, uris, now, is_refused=is_refused)
                task_status.started()
            elif self._newest[way] is scope:
                wanted.break_off(way, server, now, is_over=is_over)
                if is_direct:
                    self.lists = frozenset()
                    self.on_lists()
            elif not is_direct:
                wanted.end_replaced(server, granted, is_over=is_over)
            self._act(uris)

    def _take_over(
        self, way: Way, server: Server, uris: frozenset[str], told: Fields, listen: trio.CancelScope
    ) -> frozenset[str]:
        """Make `listen` the newest one of `way`. Return the URIs that it grants.

        `told`: the parameters of its acknowledgement.
        """
        is_direct, has_gap = way is self._wanted.direct, way.has_gap
        settle_seconds = 0.0 if is_direct else self._settle_seconds
        acknowledged = value_of(told.get("notifications"))
        granted = _uris_in(acknowledged)
        self._wanted.acknowledge(
            way,
            server,
            uris,
            granted,
            trio.current_time(),
            settle_seconds=settle_seconds,
            goes_on=is_direct or REPLACES in told,
        )
        # Only now, so that there is no gap in which an update could be lost. The listen before may have some.
        self._newest[way].deadline = trio.current_time() + settle_seconds
        self._newest[way] = listen
        if is_direct:
            lists = frozenset([name for wish, name in _LISTS if value_at(acknowledged, (wish,)) is True])
            former_lists, self.lists = self.lists, lists
            if has_gap:  # no listen was open for a while: lists may have changed unnoticed
                self._tell_lists(lists)
            if lists != former_lists:  # most listens differ from the one before in their URIs only
                self.on_lists()
        self._act(uris)
        return granted

    # The legacy way to ask

    async def _subscribe_each(self) -> None:
        """Send requests for what differs, whenever that changes. No URI waits for the answer to another."""
        wanted = self._wanted
        async with trio.open_nursery() as nursery:
            while True:
                turn = wanted.turn
                for uri in wanted.differing(trio.current_time()):
                    if uri not in self._asking:
                        self._asking.add(uri)
                        nursery.start_soon(self._align, uri)
                await self._next_turn(wanted.direct, turn)

    async def _align(self, uri: str) -> None:
        """Send requests until `uri` is subscribed if and only if it is wanted, or the upstream refuses."""
        wanted, agreed = self._wanted, self._wanted.direct.agreed
        async with self._limit:
            # A loop, as the wanted URIs may change while a request is under way.
            while uri not in wanted.refused:
                if wanted.is_of_upstream(uri, trio.current_time()) == (uri in agreed):
                    break
                if uri in agreed:
                    await self._unsubscribe(uri)
                else:
                    await self._subscribe(uri)
        self._asking.discard(uri)
        self._act([uri])

    async def _subscribe(self, uri: str) -> None:
        wanted = self._wanted

        async def hear(event: Event) -> None:
            if event.method == m.ASKED:
                self._answering.add(uri)
                patience.deadline = math.inf  # the question to the client has its own deadline
            elif event.method == m.ANSWERED:
                self._answering.discard(uri)
                patience.deadline = trio.current_time() + AGREE_SECONDS
            self._act([uri])

        code, reason = UPSTREAM_TIMEOUT, "the upstream did not answer in time whether it tells about"
        call = Call(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, {}, self._whose(uri))
        with trio.move_on_after(AGREE_SECONDS) as patience:
            try:
                await self._connection.exchange(call, hear)
                wanted.agree(wanted.direct, [uri])
                return
            except RpcError as error:
                wanted.refuse_with(uri, error, trio.current_time())
                return
            except (RemoteProtocolError, TransportError) as error:
                code, reason = UPSTREAM_UNAVAILABLE, f"the upstream failed ({error.told}) to subscribe"
            finally:
                self._answering.discard(uri)
        wanted.refuse([uri], code, reason, trio.current_time())

    async def _unsubscribe(self, uri: str) -> None:
        self._wanted.leave(uri)  # first: updates may stop at any moment from now on
        with trio.move_on_after(AGREE_SECONDS):
            try:
                await self._connection.exchange(
                    Call(m.RESOURCES_UNSUBSCRIBE, {"uri": raw(uri)}, {}), ignore_event
                )
            except (RpcError, RemoteProtocolError, TransportError) as error:
                log.debug("unsubscribe refused", uri=uri, reason=str(error))


def uris_in(listen: Fields) -> frozenset[str]:
    """Return the URIs that the parameters of a listen ask for."""
    return _uris_in(value_of(listen.get("notifications")))


def _uris_in(wish: object) -> frozenset[str]:
    uris = value_at(wish, ("resourceSubscriptions",))
    return frozenset([uri for uri in uris if isinstance(uri, str)] if isinstance(uris, list) else ())
