"""Keeps what one upstream is asked for equal to what is wanted of it.

What has been asked is what was asked on this very connection, so that a reconnect is nothing special: nothing
has been asked yet. Whoever was subscribed before the connection was (re)made hears one catch-up update,
because a change may have passed in between.

A legacy upstream is asked by `subscribing`, a modern one by `listening`. In a cluster one replica asks for
all, and the others listen there, see `shared_listening`; each asks by itself when that one does not answer.
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
    """One upstream's subscriptions. `run` has to run while a connection lasts.

    `settled`: the upstream has said what of its lists it tells, or that it does not. `on_lists` hears the
    capabilities whose lists a modern upstream tells of from now on; none when it does not any more.
    """

    def __init__(
        self,
        wanted: Callable[[], frozenset[str]],
        whose: Callable[[str], object],
        tell_update: Callable[[str], None],
        tell_lists: OnLists,
        share: Callable[[Wishes], SharedListening] | None = None,
    ) -> None:
        """`whose`: a client that wants to hear of a URI, and is asked what the upstream wants to know.

        `tell_update` says that a resource of it may have changed, `tell_lists` that its lists of these
        capabilities may have. `share` makes what asks another replica, if this is for several together.
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
        """What the upstream has been asked for and has agreed to, on the connection of now."""
        return self._wishes.agreed

    @property
    def is_needed(self) -> bool:
        """Whether some client wants to hear of a resource."""
        return bool(self._wishes.wanted())

    def poke(self) -> None:
        """Something else may be wanted."""
        self._wishes.poke()

    async def ensure(self, uri: str, seconds: float) -> bool:
        """Wait until the upstream has agreed to tell about `uri`; False when it has not in so many seconds.

        They begin anew when a client has answered what the upstream wanted to know before. Raises RpcError
        when it does not agree.
        """
        return await self._wishes.ensure(uri, seconds)

    async def ensure_all(self, uris: Collection[str], seconds: float) -> frozenset[str]:
        """Wait until the upstream has agreed or refused to tell about each of `uris`, for so long at most.

        Returns those that it has agreed to.
        """
        return await self._wishes.ensure_all(uris, seconds)

    def take_over(self, uris: frozenset[str]) -> None:
        """Whoever told of changes of `uris` so far has gone: they are wanted of this session now."""
        self._wishes.miss(uris)

    def catch_up(self) -> None:
        """What the upstream told for a while was lost: everything that it was asked for may have changed."""
        self._wishes.catch_up(self._wishes.direct)

    async def hears_lists(self, seconds: float) -> None:
        """Wait until changes of the lists are heard, or cannot be; for so long at most.

        What is acknowledged later than that counts as a change.
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
        wishes.refused.clear()
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
        """Ask the upstream itself for what is not expected of another replica."""
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
