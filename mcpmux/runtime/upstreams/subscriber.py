"""Keeps what one upstream is asked for equal to what is wanted of it.

Level-triggered: `wanted` is compared with what has been asked on this very connection, whenever either
changes, so that a reconnect is nothing special: nothing has been asked yet. Whoever was subscribed before
the connection was (re)made hears one catch-up update, because a change may have passed in between.

    legacy upstream: one `resources/subscribe` or `unsubscribe` for each difference; one URI never waits
                     for another
    modern upstream: one `subscriptions/listen` with everything; a changed wish opens the next one and,
                     once that is acknowledged, closes the one before; one that is refused changes nothing

Source: `server/resources` of 2024-11-05 to 2025-11-25; `basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
import trio

from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import raw, value_at, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.calls import unheard
from mcpmux.runtime.upstreams.connection import Connection

log = structlog.get_logger()

GATHER_SECONDS = 0.02  # wishes that come together are asked for together
AGREE_SECONDS = 10.0  # for the upstream's word on a subscription
RETRY_SECONDS = 5.0  # after a listen that broke off
REASK_SECONDS = 30.0  # for what is refused now and was agreed once: somebody still relies on it
SUBSCRIBES_AT_ONCE = 16  # legacy requests in flight; enough to hide latency, too few to flood

_LISTS = tuple((f"{capability}ListChanged", capability) for capability in m.LIST_CHANGES)


@dataclass(eq=False, repr=False)
class Subscriber:
    """One upstream's subscriptions. `run` has to run while a connection lasts.

    `_whose`: a client that wants to hear of a URI, and is asked what the upstream wants to know. `settled`:
    the upstream has said what of its lists it tells, or that it does not. `_tell_update` says that a resource
    of it may have changed, `_tell_lists` that its lists of these capabilities may have. `on_lists` hears the
    capabilities whose lists a modern upstream tells of from now on; none when it does not any more.
    """

    _wanted: Callable[[], frozenset[str]]
    _whose: Callable[[str], object]
    _tell_update: Callable[[str], None]
    _tell_lists: Callable[[frozenset[str]], None]
    _answering: set[str] = field(default_factory=set)  # URIs about which a client is being asked
    settled: trio.Event = field(default_factory=trio.Event)
    _deaf: bool = False  # a listen broke off, or was late, and no other has taken over
    on_lists: Callable[[frozenset[str]], None] = lambda _lists: None
    _asked: set[str] = field(default_factory=set)
    _refused: dict[str, RpcError] = field(default_factory=dict)
    _missed: frozenset[str] = frozenset()  # whose changes may have passed unheard
    _busy: set[str] = field(default_factory=set)  # URIs that a legacy upstream is being asked about
    _listen: trio.CancelScope = field(default_factory=trio.CancelScope)  # of the newest acknowledged listen
    _wish: trio.Event = field(default_factory=trio.Event)
    _progress: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def __repr__(self) -> str:
        return f"<Subscriber {len(self._asked)} asked, {len(self._refused)} refused>"

    @property
    def asked(self) -> frozenset[str]:
        """What the upstream has been asked for and has agreed to, on the connection of now."""
        return frozenset(self._asked)

    def poke(self) -> None:
        self._wish.set()

    async def ensure(self, uri: str, seconds: float) -> bool:
        """Wait until the upstream has agreed to tell about `uri`; False when it has not in so many seconds.

        They begin anew when a client has answered what the upstream wanted to know before. Raises RpcError
        when it does not agree.
        """
        if uri in self._asked:
            return True
        self._refused.pop(uri, None)
        self.poke()
        until = trio.current_time() + seconds
        while uri not in self._asked:
            if uri in self._refused:
                raise self._refused[uri]
            if uri in self._answering:
                await self._progress.park()
                until = trio.current_time() + seconds
            else:
                with trio.move_on_at(until) as patience:
                    await self._progress.park()
                if patience.cancelled_caught:
                    return False
        return True

    def take_over(self, uris: frozenset[str]) -> None:
        """Whoever told of changes of `uris` so far has gone: they are wanted of this session now."""
        for uri in sorted(uris & self._asked):
            self._tell_update(uri)
        self._missed |= uris - self._asked
        self.poke()

    def catch_up(self) -> None:
        """What the upstream told for a while was lost: everything that it was asked for may have changed."""
        for uri in sorted(self._asked):
            self._tell_update(uri)

    async def hears_lists(self, seconds: float) -> None:
        """Wait until changes of the lists are heard, or cannot be; for so long at most.

        What is acknowledged later than that counts as a change.
        """
        with trio.move_on_after(seconds):
            await self.settled.wait()
        self._deaf = not self.settled.is_set()

    async def run(
        self, connection: Connection, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the wishes until cancelled."""
        self._refused.clear()
        self.settled = trio.Event()
        task_status.started()
        try:
            if is_modern(connection.facts.revision):
                await self._follow_by_listening(connection)
            else:
                await self._follow_by_subscribing(connection)
        finally:
            self._lose()

    def _agreed(self, uri: str) -> None:
        self._asked.add(uri)
        self._refused.pop(uri, None)
        if uri in self._missed:
            self._missed -= {uri}
            self._tell_update(uri)

    def _refuse(self, uris: Iterable[str], code: int, reason: str) -> None:
        for uri in uris:
            self._refused[uri] = RpcError(code, f"{reason} {uri}")

    def _lose(self) -> None:
        """The upstream tells nothing any more: what it agreed to has to be asked for and caught up again."""
        self._missed |= self._asked
        self._asked.clear()

    def _take_wish(self) -> frozenset[str]:
        """What is wanted now. What nobody wants any more is neither refused nor missed."""
        self._wish = trio.Event()
        wanted = self._wanted()
        self._missed &= wanted
        for uri in self._refused.keys() - wanted:
            del self._refused[uri]
        return wanted

    async def _next_wish(self) -> None:
        """Wait until something else is wanted, or until what was agreed once is to be asked for again."""
        withdrawn = self._missed & self._refused.keys()
        with trio.move_on_after(REASK_SECONDS if withdrawn or self._deaf else math.inf):
            await self._wish.wait()
        for uri in withdrawn:
            self._refused.pop(uri, None)
        await trio.sleep(GATHER_SECONDS)

    # Legacy

    async def _follow_by_subscribing(self, connection: Connection) -> None:
        limit = trio.CapacityLimiter(SUBSCRIBES_AT_ONCE)
        self._busy.clear()
        self.settled.set()
        async with trio.open_nursery() as nursery:
            while True:
                wanted = self._take_wish()
                for uri in sorted((wanted - self._refused.keys()) ^ self._asked):
                    if uri not in self._busy:
                        self._busy.add(uri)
                        nursery.start_soon(self._align, connection, uri, limit)
                await self._next_wish()

    async def _align(self, connection: Connection, uri: str, limit: trio.CapacityLimiter) -> None:
        """Ask until `uri` is subscribed exactly when it is wanted, or until the upstream refuses."""
        async with limit:
            while uri not in self._refused and (uri in self._wanted()) != (uri in self._asked):
                if uri in self._asked:
                    await self._unsubscribe(connection, uri)
                else:
                    await self._subscribe(connection, uri)
        self._busy.discard(uri)
        self._progress.unpark_all()
        if uri in self._refused and uri in self._missed:
            self.poke()

    async def _subscribe(self, connection: Connection, uri: str) -> None:
        async def hear(event: Event) -> None:
            if event.method == m.ASKED:
                self._answering.add(uri)
                patience.deadline = math.inf  # whoever asks the client has an end to that
            elif event.method == m.ANSWERED:
                self._answering.discard(uri)
                patience.deadline = trio.current_time() + AGREE_SECONDS
            self._progress.unpark_all()

        call = Call(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, {}, self._whose(uri))
        with trio.move_on_after(AGREE_SECONDS) as patience:
            try:
                await connection.exchange(call, hear)
            except RpcError as error:
                self._refused[uri] = error
            except (RemoteProtocolError, TransportError) as error:
                self._refuse([uri], UPSTREAM_UNAVAILABLE, f"the upstream failed ({error}) to subscribe")
            else:
                self._agreed(uri)
            finally:
                self._answering.discard(uri)
            return
        self._refuse([uri], UPSTREAM_TIMEOUT, "the upstream did not answer in time whether it tells about")

    async def _unsubscribe(self, connection: Connection, uri: str) -> None:
        self._asked.discard(uri)
        with trio.move_on_after(AGREE_SECONDS):
            try:
                await connection.exchange(Call(m.RESOURCES_UNSUBSCRIBE, {"uri": raw(uri)}, {}), unheard)
            except (RpcError, RemoteProtocolError, TransportError) as error:
                log.debug("unsubscribe refused", uri=uri, reason=str(error))

    # Modern

    async def _follow_by_listening(self, connection: Connection) -> None:
        lists = tuple(wish for wish, name in _LISTS if connection.facts.announces(name))
        async with trio.open_nursery() as nursery:
            while True:
                wanted = self._take_wish()
                if wanted or lists:
                    await nursery.start(self._keep_listening, connection, wanted, lists)
                else:
                    self._take_over(trio.CancelScope(), wanted, wanted)
                self.settled.set()
                self._progress.unpark_all()
                if self._wanted() == wanted:
                    await self._next_wish()

    async def _keep_listening(
        self,
        connection: Connection,
        wanted: frozenset[str],
        lists: tuple[str, ...],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """One listen until another takes over. Started once the upstream has acknowledged or refused it.

        When it breaks off the next one is opened a little later; a refusal is final, until the next wish.
        """
        wish: Fields = {name: raw(True) for name in lists}
        if wanted:
            wish["resourceSubscriptions"] = raw(sorted(wanted))
        acknowledged = refused = False

        async def hear(event: Event) -> None:
            nonlocal acknowledged
            if event.method == m.ACKNOWLEDGED and not acknowledged:
                acknowledged = True
                patience.deadline = math.inf
                honoured, told = _honoured(event.params)
                if self._deaf:
                    self._deaf = False
                    self._tell_lists(told)
                self._take_over(scope, wanted, honoured)
                self.on_lists(told)
                task_status.started()

        with trio.CancelScope() as scope:
            with trio.move_on_after(AGREE_SECONDS) as patience:
                try:
                    await connection.exchange(Call(m.LISTEN, {"notifications": raw(wish)}, {}), hear)
                except (RpcError, RemoteProtocolError, TransportError) as error:
                    refused = isinstance(error, RpcError)
                    log.debug("listen ended", reason=str(error))
                    await connection.holds()
            if self._listen is scope:
                self._deaf = True
                self._lose()
                self.on_lists(frozenset())
            elif not acknowledged:
                self._refuse(wanted - self._asked, METHOD_NOT_FOUND, "the upstream does not tell about")
                task_status.started()
            if acknowledged or not (refused or patience.cancelled_caught):
                await trio.sleep(RETRY_SECONDS)
                self.poke()

    def _take_over(self, listen: trio.CancelScope, wanted: frozenset[str], honoured: frozenset[str]) -> None:
        """`listen` is the one from now on, and covers `honoured`: the one before is not needed any more."""
        self._listen.cancel(reason="another listen has taken over")
        self._listen = listen
        self._missed |= wanted & self._asked - honoured
        self._asked &= honoured
        for uri in sorted(honoured & wanted):
            self._agreed(uri)
        self._refuse(wanted - honoured, METHOD_NOT_FOUND, "the upstream does not tell about")


def _honoured(params: Fields) -> tuple[frozenset[str], frozenset[str]]:
    agreed = value_of(params.get("notifications"))
    uris = value_at(agreed, ("resourceSubscriptions",))
    told = frozenset(uri for uri in uris if isinstance(uri, str)) if isinstance(uris, list) else frozenset()
    return told, frozenset(capability for wish, capability in _LISTS if value_at(agreed, (wish,)) is True)
