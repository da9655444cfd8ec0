"""Keeps what one upstream is asked for equal to what is wanted of it.

Level-triggered: `wanted` is compared with what has been asked on this very connection, whenever either
changes, so that a reconnect is nothing special: nothing has been asked yet. Whoever was subscribed before
the connection was (re)made hears one catch-up update, because a change may have passed in between.

    legacy upstream: one `resources/subscribe` or `unsubscribe` for each difference
    modern upstream: one `subscriptions/listen` with everything; a changed wish opens the next one and,
                     once that is acknowledged, closes the one before

Source: `server/resources` of 2024-11-05 to 2025-11-25; `basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import trio

from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Fields, decode_any, decode_fields, raw
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.connection import Connection, unheard

log = structlog.get_logger()

GATHER_SECONDS = 0.02  # wishes that come together are asked for together
ACKNOWLEDGE_SECONDS = 10.0  # for the first word on a listen
RETRY_SECONDS = 5.0  # after a listen that ended by itself
SUBSCRIBES_AT_ONCE = 16  # legacy requests in flight; enough to hide latency, too few to flood

_LISTS = (
    ("toolsListChanged", "tools"),
    ("promptsListChanged", "prompts"),
    ("resourcesListChanged", "resources"),
)

Tell = Callable[[str], None]
"""Says that a resource of the upstream may have changed."""


class Subscriber:
    """One upstream's subscriptions. `run` has to run while a connection lasts."""

    def __init__(self, wanted: Callable[[], frozenset[str]], tell_update: Tell) -> None:
        self._wanted = wanted
        self._tell_update = tell_update
        self._asked: set[str] = set()
        self._refused: dict[str, RpcError] = {}
        self._missed: frozenset[str] = frozenset()  # whose changes may have passed unheard
        self._wish = trio.Event()
        self._progress = trio.Event()

    def __repr__(self) -> str:
        return f"<Subscriber {len(self._asked)} asked, {len(self._refused)} refused>"

    @property
    def asked(self) -> frozenset[str]:
        """What the upstream has been asked for and has agreed to, on the connection of now."""
        return frozenset(self._asked)

    def poke(self) -> None:
        """What is wanted has changed."""
        self._wish.set()

    async def ensure(self, uri: str) -> None:
        """Wait until the upstream has agreed to tell about `uri`. Raises RpcError when it does not."""
        self._refused.pop(uri, None)
        self.poke()
        while uri not in self._asked:
            if uri in self._refused:
                raise self._refused.pop(uri)
            await self._progress.wait()

    async def run(self, connection: Connection) -> None:
        """Follow the wishes until cancelled, or until the connection is lost."""
        self._refused.clear()
        try:
            if is_modern(connection.facts.revision):
                await self._follow_by_listening(connection)
            else:
                await self._follow_by_subscribing(connection)
        except TransportError as error:
            log.debug("subscriptions interrupted", reason=str(error))
        finally:
            self._lose()

    def _agreed(self, uri: str) -> None:
        self._asked.add(uri)
        if uri in self._missed:
            self._missed -= {uri}
            self._tell_update(uri)

    def _lose(self) -> None:
        """The upstream tells nothing any more: what it agreed to has to be asked for and caught up again."""
        self._missed |= self._asked
        self._asked.clear()

    def _report(self) -> None:
        """Wake whoever waits in `ensure`."""
        self._progress.set()
        self._progress = trio.Event()

    async def _next_wish(self) -> None:
        await self._wish.wait()
        await trio.sleep(GATHER_SECONDS)
        self._wish = trio.Event()

    # Legacy

    async def _follow_by_subscribing(self, connection: Connection) -> None:
        limit = trio.CapacityLimiter(SUBSCRIBES_AT_ONCE)
        while True:
            wanted = self._wanted()
            async with trio.open_nursery() as nursery:
                for uri in sorted(wanted - self._asked - self._refused.keys()):
                    nursery.start_soon(self._subscribe, connection, uri, limit)
                for uri in sorted(self._asked - wanted):
                    nursery.start_soon(self._unsubscribe, connection, uri, limit)
            self._report()
            if self._wanted() == wanted:
                await self._next_wish()

    async def _subscribe(self, connection: Connection, uri: str, limit: trio.CapacityLimiter) -> None:
        async with limit:
            try:
                await connection.exchange(Call(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, {}), unheard)
            except RpcError as error:
                self._refused[uri] = error
            except RemoteProtocolError as error:
                self._refused[uri] = RpcError(INTERNAL_ERROR, str(error))
            else:
                self._agreed(uri)

    async def _unsubscribe(self, connection: Connection, uri: str, limit: trio.CapacityLimiter) -> None:
        async with limit:
            self._asked.discard(uri)
            try:
                await connection.exchange(Call(m.RESOURCES_UNSUBSCRIBE, {"uri": raw(uri)}, {}), unheard)
            except (RpcError, RemoteProtocolError) as error:
                log.debug("unsubscribe refused", uri=uri, reason=str(error))

    # Modern

    async def _follow_by_listening(self, connection: Connection) -> None:
        lists = _list_wishes(connection)
        async with trio.open_nursery() as nursery:
            current: trio.CancelScope | None = None
            scope: trio.CancelScope | None
            while True:
                wanted = self._wanted()
                if wanted or lists:
                    scope = trio.CancelScope()
                    await nursery.start(self._listen, connection, wanted, lists, scope)
                else:
                    scope = None
                    self._asked.clear()
                previous, current = current, scope
                if previous is not None:
                    previous.cancel(reason="another listen has taken over")
                self._report()
                if self._wanted() == wanted:
                    await self._next_wish()

    async def _listen(
        self,
        connection: Connection,
        wanted: frozenset[str],
        lists: tuple[str, ...],
        scope: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """One listen until its end. Started once the upstream has acknowledged or refused it."""
        wish: Fields = {name: raw(True) for name in lists}
        if wanted:
            wish["resourceSubscriptions"] = raw(sorted(wanted))
        acknowledged = False

        async def hear(event: Event) -> None:
            nonlocal acknowledged
            if event.method == m.ACKNOWLEDGED and not acknowledged:
                acknowledged = True
                patience.deadline = math.inf
                self._settle(wanted, _honoured(event.params))
                task_status.started()

        with scope, trio.move_on_after(ACKNOWLEDGE_SECONDS) as patience:
            try:
                await connection.exchange(Call(m.LISTEN, {"notifications": raw(wish)}, {}), hear)
            except (RpcError, RemoteProtocolError) as error:
                log.debug("listen refused", reason=str(error))
            if acknowledged:
                self._lose()
                await trio.sleep(RETRY_SECONDS)
                self.poke()
        if not acknowledged:
            self._settle(wanted, frozenset())
            task_status.started()

    def _settle(self, wanted: frozenset[str], honoured: frozenset[str]) -> None:
        """What the newest listen covers, and what the upstream would not have in it."""
        self._asked &= honoured
        for uri in sorted(honoured & wanted):
            self._agreed(uri)
        for uri in wanted - honoured:
            self._refused[uri] = RpcError(
                METHOD_NOT_FOUND, f"the upstream does not tell about changes of {uri}"
            )


def _list_wishes(connection: Connection) -> tuple[str, ...]:
    """The list changes that a modern upstream offers to tell."""
    capabilities = connection.facts.capabilities
    return tuple(wish for wish, name in _LISTS if (capabilities.get(name) or {}).get("listChanged") is True)


def _honoured(params: Fields) -> frozenset[str]:
    """The URIs that an acknowledgement agrees to."""
    try:
        uris = decode_any(decode_fields(params["notifications"]).get("resourceSubscriptions", b"[]"))
    except (KeyError, ValueError):
        return frozenset()
    return frozenset(uri for uri in uris if isinstance(uri, str)) if isinstance(uris, list) else frozenset()
