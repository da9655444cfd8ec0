"""Subscribe at a legacy upstream: one `resources/subscribe` or `unsubscribe` for each difference.

A URI never waits for the answer about another one, up to SUBSCRIBES_AT_ONCE requests.

Source: `server/resources`, 2024-11-05 to 2025-11-25.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import raw
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.listening import AGREE_SECONDS, GATHER_SECONDS, REASK_SECONDS
from mcpmux.upstreams.wishes import Wishes

log = structlog.get_logger()

SUBSCRIBES_AT_ONCE = 16  # requests in flight; enough to hide latency, too few to flood


class Subscribing:
    """The subscriptions of one connection. `whose`: the client for the upstream's questions on a URI."""

    def __init__(self, connection: Connection, wishes: Wishes, whose: Callable[[str], object]) -> None:
        self._connection = connection
        self._wishes = wishes
        self._whose = whose
        self._busy: set[str] = set()  # URIs that the upstream is being asked about
        self._limit = trio.CapacityLimiter(SUBSCRIBES_AT_ONCE)

    async def follow(self) -> None:
        """Follow the wishes until cancelled."""
        wishes = self._wishes
        async with trio.open_nursery() as nursery:
            while True:
                turn = wishes.turn
                wishes.prune()
                for uri in sorted((wishes.wanted_directly() - wishes.refused.keys()) ^ wishes.direct):
                    if uri not in self._busy:
                        self._busy.add(uri)
                        nursery.start_soon(self._align, uri)
                withdrawn = wishes.withdrawn
                with trio.move_on_after(REASK_SECONDS if withdrawn else math.inf):
                    await wishes.poked(turn)
                wishes.ask_again(withdrawn)
                await trio.sleep(GATHER_SECONDS)  # clients often change several subscriptions at a time

    async def _align(self, uri: str) -> None:
        """Send requests until `uri` is subscribed if and only if it is wanted, or the upstream refuses."""
        wishes = self._wishes
        async with self._limit:
            # A loop, as the wanted URIs may change while a request is under way.
            while uri not in wishes.refused and wishes.is_wanted_directly(uri) != (uri in wishes.direct):
                if uri in wishes.direct:
                    await self._unsubscribe(uri)
                else:
                    await self._subscribe(uri)
        self._busy.discard(uri)
        wishes.progressed()
        if uri in wishes.withdrawn:  # so that `follow` sets the time to ask again
            wishes.poke()

    async def _subscribe(self, uri: str) -> None:
        wishes = self._wishes

        async def hear(event: Event) -> None:
            if event.method == m.ASKED:
                wishes.answering.add(uri)
                patience.deadline = math.inf  # the question to the client has its own deadline
            elif event.method == m.ANSWERED:
                wishes.answering.discard(uri)
                patience.deadline = trio.current_time() + AGREE_SECONDS
            wishes.progressed()

        call = Call(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}, {}, self._whose(uri))
        with trio.move_on_after(AGREE_SECONDS) as patience:
            try:
                await self._connection.exchange(call, hear)
            except RpcError as error:
                wishes.refused[uri] = error
            except (RemoteProtocolError, TransportError) as error:
                wishes.refuse([uri], UPSTREAM_UNAVAILABLE, f"the upstream failed ({error.told}) to subscribe")
            else:
                wishes.agree([uri], wishes.direct)
            finally:
                wishes.answering.discard(uri)
            return
        wishes.refuse([uri], UPSTREAM_TIMEOUT, "the upstream did not answer in time whether it tells about")

    async def _unsubscribe(self, uri: str) -> None:
        self._wishes.direct.discard(uri)  # first: updates may stop at any moment from now on
        with trio.move_on_after(AGREE_SECONDS):
            try:
                await self._connection.exchange(
                    Call(m.RESOURCES_UNSUBSCRIBE, {"uri": raw(uri)}, {}), ignore_event
                )
            except (RpcError, RemoteProtocolError, TransportError) as error:
                log.debug("unsubscribe refused", uri=uri, reason=str(error))
