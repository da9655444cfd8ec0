"""Keep the subscriptions at one upstream equal to the URIs that clients want.

Only subscriptions on the present connection count, so a reconnect is no special case: there are none yet.
Clients that subscribed before the connection was (re)made get one catch-up update, because a change may have
passed in between.

`subscribing` asks a legacy upstream, `listening` a modern one. In a cluster one replica asks for all, and the
others listen there, see `shared_listening`; when it does not answer, each asks the upstream directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from mcpmux.protocol.revisions import is_modern
from mcpmux.upstreams.connection import Connection
from mcpmux.upstreams.listening import Listening, OnLists
from mcpmux.upstreams.shared_listening import SharedListening
from mcpmux.upstreams.subscribing import Subscribing
from mcpmux.upstreams.wishes import Wishes


class Subscriber:
    """One upstream's subscriptions. `run` must run while a connection lasts.

    `settled` is set once it is known which list changes the upstream sends. `on_lists` gets the capabilities
    whose list changes a modern upstream sends from now on; none after a listen has ended.
    """

    def __init__(
        self,
        wanted: Callable[[], frozenset[str]],
        whose: Callable[[str], object],
        tell_update: Callable[[str], None],
        tell_lists: OnLists,
        share: Callable[[Wishes], SharedListening] | None = None,
    ) -> None:
        """`wanted` returns the wanted URIs. `whose` returns a client of a URI, for the upstream's questions.

        `tell_update` reports that a resource may have changed, `tell_lists` that the lists of these
        capabilities may have. `share` makes the object that listens at another replica; None outside of a
        cluster.
        """
        self._wishes = Wishes(wanted, tell_update)
        self._sharing = share(self._wishes) if share is not None else None
        self._whose = whose
        self._tell_lists = tell_lists
        self.on_lists: OnLists = lambda _lists: None
        self.settled = trio.Event()
        self._listening: Listening | None = None

    def __repr__(self) -> str:
        return f"<Subscriber {len(self.asked)} asked, {len(self._wishes.refused)} refused>"

    @property
    def asked(self) -> frozenset[str]:
        """The URIs that are agreed on the present connection."""
        return self._wishes.agreed

    @property
    def is_needed(self) -> bool:
        """Whether any client has subscribed to a resource."""
        return bool(self._wishes.wanted())

    def poke(self) -> None:
        """Look again at the wanted URIs, which may have changed."""
        self._wishes.poke()

    async def ensure(self, uri: str, seconds: float) -> bool:
        """Wait until the upstream has agreed to a subscription of `uri`; False when time is up.

        `seconds` begin anew when a client has answered a question of the upstream. Raises RpcError when the
        upstream refuses.
        """
        return await self._wishes.ensure(uri, seconds)

    async def ensure_all(self, uris: Collection[str], seconds: float) -> frozenset[str]:
        """Wait until the upstream has agreed to or refused each of `uris`, for so many seconds at most.

        Return the URIs that it has agreed to.
        """
        return await self._wishes.ensure_all(uris, seconds)

    def take_over(self, uris: frozenset[str]) -> None:
        """Take over `uris` from another session or process, whose updates may have been missed."""
        self._wishes.miss(uris)

    def catch_up(self) -> None:
        """Report all URIs that the upstream sends updates of as changed, as some updates were lost."""
        self._wishes.catch_up(self._wishes.direct)

    async def hears_lists(self, seconds: float) -> None:
        """Wait until list changes arrive, or are known not to, for so many seconds at most.

        Lists that are acknowledged later than that are reported as changed.
        """
        with trio.move_on_after(seconds):
            await self.settled.wait()
        if self._listening is not None:
            self._listening.is_deaf = not self.settled.is_set()

    async def run(
        self, connection: Connection, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the wishes until cancelled."""
        wishes, sharing = self._wishes, self._sharing
        wishes.refused.clear()  # a refusal is for one connection: a restarted server may agree
        self.settled = trio.Event()
        try:
            if sharing is None:
                await self._follow(connection, task_status)
            else:
                sharing.begin()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sharing.run)
                    await self._follow(connection, task_status)
        finally:
            for held in (wishes.direct, wishes.shared):
                wishes.lose(list(held), held)

    async def _follow(self, connection: Connection, task_status: trio.TaskStatus[None]) -> None:
        """Ask the upstream itself for the URIs that no other replica passes on."""
        if is_modern(connection.facts.revision):
            self._listening = Listening(
                connection, self._wishes, self.settled, self._tell_lists, lambda lists: self.on_lists(lists)
            )
            task_status.started()
            await self._listening.follow()
        else:
            self._listening = None
            self.settled.set()
            task_status.started()
            await Subscribing(connection, self._wishes, self._whose).follow()
