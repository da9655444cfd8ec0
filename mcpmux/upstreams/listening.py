"""Listen to a modern upstream: one `subscriptions/listen` for all lists and URIs.

When the wanted URIs change, the next listen is opened; once it is acknowledged, the one before is closed. A
refused listen changes nothing.

Source: `basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog
import trio

from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import raw, value_at, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.wishes import Wishes

log = structlog.get_logger()

GATHER_SECONDS = 0.02  # for gathering URIs that become wanted together, so that one listen asks for them
AGREE_SECONDS = 10.0  # for the upstream's answer to a subscription
RETRY_SECONDS = 5.0  # after a listen that broke off
REASK_SECONDS = 30.0  # until URIs that were agreed and are refused now are asked for again

_LISTS: Final = tuple((f"{capability}ListChanged", capability) for capability in m.LIST_CHANGES)
_REFUSED: Final = "the upstream does not tell about"

OnLists = Callable[[frozenset[str]], None]


class Listening:
    """The listens of one connection. `settled` is set once the first listen was acknowledged or refused.

    `tell_lists` reports that the lists of these capabilities may have changed. `on_lists` gets the
    capabilities whose list changes the upstream sends from now on; none after a listen has ended.
    """

    def __init__(
        self,
        connection: Connection,
        wishes: Wishes,
        settled: trio.Event,
        tell_lists: OnLists,
        on_lists: OnLists,
    ) -> None:
        self._connection = connection
        self._wishes = wishes
        self._settled = settled
        self._tell_lists = tell_lists
        self._on_lists = on_lists
        self._lists = tuple(wish for wish, name in _LISTS if connection.facts.announces(name))
        self._newest = trio.CancelScope()  # of the newest acknowledged listen
        self._listened: frozenset[str] | None = None  # the URIs that it asked for; None after its end
        self.is_deaf = False  # whether a listen broke off, or was late, and no other has taken over

    async def follow(self) -> None:
        """Follow the wishes until cancelled."""
        wishes = self._wishes
        async with trio.open_nursery() as nursery:
            while True:
                turn = wishes.turn
                wishes.prune()
                wanted = wishes.wanted_directly()
                if not self._is_settled(wanted):
                    if wanted or self._lists:
                        await nursery.start(self._keep_listening, wanted)
                    else:
                        self._take_over(trio.CancelScope(), wanted, wanted)
                self._settled.set()
                wishes.progressed()
                if wishes.wanted_directly() == wanted:
                    await self._next_wish(turn)

    def _is_settled(self, wanted: frozenset[str]) -> bool:
        """Return whether another listen would change nothing."""
        if self._listened != wanted or self.is_deaf:
            return False
        return all(uri in self._wishes.direct or uri in self._wishes.refused for uri in wanted)

    async def _next_wish(self, turn: int) -> None:
        """Wait until the wanted URIs change, or refused ones that were agreed once are to be retried."""
        withdrawn = self._wishes.withdrawn
        with trio.move_on_after(REASK_SECONDS if withdrawn or self.is_deaf else math.inf):
            await self._wishes.poked(turn)
        self._wishes.ask_again(withdrawn)
        await trio.sleep(GATHER_SECONDS)

    async def _keep_listening(
        self, wanted: frozenset[str], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until another listen takes over. Started once the upstream has acknowledged or refused it.

        When it breaks off the next one is opened a little later; a refusal is final until the wanted URIs
        change.
        """
        wish: Fields = {name: raw(True) for name in self._lists}
        if wanted:
            wish["resourceSubscriptions"] = raw(sorted(wanted))
        acknowledged = refused = False

        async def hear(event: Event) -> None:
            nonlocal acknowledged
            if event.method == m.ACKNOWLEDGED and not acknowledged:
                acknowledged = True
                patience.deadline = math.inf
                told = _lists_in(event.params)
                if self.is_deaf:  # no listen was open for a while: lists may have changed unnoticed
                    self.is_deaf = False
                    self._tell_lists(told)
                self._take_over(scope, wanted, uris_in(event.params))
                self._on_lists(told)
                task_status.started()

        with trio.CancelScope() as scope:
            with trio.move_on_after(AGREE_SECONDS) as patience:
                try:
                    await self._connection.exchange(Call(m.LISTEN, {"notifications": raw(wish)}, {}), hear)
                except (RpcError, RemoteProtocolError, TransportError) as error:
                    refused = isinstance(error, RpcError)
                    log.debug("listen ended", reason=str(error))
                    await self._connection.holds()
            if self._newest is scope:
                self.is_deaf = True
                self._listened = None
                self._wishes.lose(list(self._wishes.direct), self._wishes.direct)
                self._on_lists(frozenset())
            elif not acknowledged:
                self._wishes.refuse(wanted - self._wishes.direct, METHOD_NOT_FOUND, _REFUSED)
                task_status.started()
            if acknowledged or not (refused or patience.cancelled_caught):
                await trio.sleep(RETRY_SECONDS)
                self._wishes.poke()

    def _take_over(self, listen: trio.CancelScope, wanted: frozenset[str], honoured: frozenset[str]) -> None:
        """Make `listen`, which covers `honoured`, the newest one, and end the one before."""
        # Only now, so that there is no gap in which an update could be lost.
        self._newest.cancel(reason="another listen has taken over")
        self._newest, self._listened = listen, wanted
        wishes = self._wishes
        wishes.lose(wanted - honoured, wishes.direct)
        wishes.direct &= honoured
        wishes.agree(sorted(honoured & wanted), wishes.direct)
        wishes.refuse(wanted - honoured, METHOD_NOT_FOUND, _REFUSED)


def uris_in(acknowledgement: Fields) -> frozenset[str]:
    """Return the URIs that a listen honours, from the parameters of its acknowledgement."""
    uris = value_at(value_of(acknowledgement.get("notifications")), ("resourceSubscriptions",))
    return frozenset(uri for uri in uris if isinstance(uri, str)) if isinstance(uris, list) else frozenset()


def _lists_in(acknowledgement: Fields) -> frozenset[str]:
    agreed = value_of(acknowledgement.get("notifications"))
    return frozenset(capability for wish, capability in _LISTS if value_at(agreed, (wish,)) is True)
