"""Listen to an upstream through its owner, the replica that asks it for all replicas.

Changed URIs open the next listen at the owner, which replaces the one before once it is acknowledged. URIs
that the owner does not honour, and all URIs when it does not answer, are asked of the upstream itself at
once, so no subscription waits until replicas agree on an owner. A URI that moves from one way to the other,
or to another owner, keeps both for a while after the new one has agreed: the old one may have updates on
their way.

    no owner but this replica   the upstream itself is asked for all URIs
    trusted                     new URIs wait for the owner's answer
    failed                      the owner is not asked for a while; the upstream is asked for the missing URIs
    tried again                 as before, until the owner acknowledges: then it is trusted
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog
import trio

from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import text_of
from mcpmux.upstreams.listening import GATHER_SECONDS, REASK_SECONDS, uris_in
from mcpmux.upstreams.wishes import Wishes

log = structlog.get_logger()

NAME_BYTES = 8  # of randomness in the name of a stream
REPLACES = "replaces"  # a parameter of an acknowledgement: the listen continues the one that it replaces
RETRY_SECONDS = 2.0  # after an owner did not answer, or did not know yet that it is the owner


class OwnerListen(NamedTuple):
    """A listen at an owner. `stream`: its name. `replaces`: the name of the listen that it replaces.

    That one sends its waiting updates and ends when this is acknowledged, unless it is at another replica.
    `upstream`: the key of a session.
    """

    upstream: str
    uris: list[str]
    stream: str
    replaces: str


class Replicas(Protocol):
    """The interface to the replicas of a cluster that ask upstreams for each other."""

    def owner_of(self, upstream: str) -> str | None:
        """Return the id of the replica that asks `upstream` for this one; None when this one asks itself.

        `upstream`: the key of a session that serves clients of all replicas.
        """

    async def owners_changed(self) -> None:
        """Wait until the results of `owner_of` may have changed."""

    @property
    def settle_seconds(self) -> float:
        """The longest time that an update may wait at an owner before it is sent, in seconds."""

    async def listen(self, owner: str, wish: OwnerListen, hear: Callable[[Event], None]) -> None:
        """Listen at `owner` until it ends the listen.

        `hear` gets an acknowledgement of the honoured URIs, then updates, like those of a modern listen. An
        acknowledgement with REPLACES means that the replaced listen has sent all earlier updates. Raises
        TransportError, RemoteProtocolError.
        """


class SharedListening:
    """The listens for one upstream at its owner. Call `begin`, then `run`, for each connection.

    `pass_on` gets URIs that have changed, after all replicas have dropped their caches for them.
    """

    def __init__(
        self, upstream: str, replicas: Replicas, pass_on: Callable[[str], None], wishes: Wishes
    ) -> None:
        self._upstream = upstream
        self._replicas = replicas
        self._pass_on = pass_on
        self._wishes = wishes
        self._owner: str | None = None
        self._is_trusted = self._has_failed = False
        self._again_at = math.inf  # when a failed owner is tried again, with the URIs that it has declined
        self._declined: set[str] = set()
        self._newest = trio.CancelScope()  # of the newest acknowledged listen
        self._stream = ""  # the name of that listen
        self._is_asking = False  # a listen that replaces it is not acknowledged yet
        self._both_until = -math.inf  # until when URIs that the owner has agreed to stay at the upstream, too
        self._listened: tuple[str, frozenset[str]] | None = None  # its owner and URIs; None after its end
        wishes.is_expected = self._expects

    def begin(self) -> None:
        """Reset the state for a new connection, without any listen."""
        self._newest, self._listened, self._both_until = trio.CancelScope(), None, -math.inf
        self._is_asking = False
        self._owner = self._replicas.owner_of(self._upstream)
        self._trust()

    async def run(self) -> None:
        """Follow the wishes until cancelled."""
        wishes = self._wishes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_owner)
            while True:
                turn, wish = wishes.turn, self._wish()
                if self._owner is None or not wish:
                    self._end_if_unneeded()
                elif not self._has_failed and (self._owner, wish) != self._listened:
                    # One at a time: it names the acknowledged listen that it replaces.
                    await nursery.start(self._keep_listening, self._owner, wish)
                with trio.move_on_at(self._next_at()) as waiting:
                    await wishes.poked(turn)
                if waiting.cancelled_caught:
                    if trio.current_time() >= self._again_at:
                        self._declined.clear()
                        self._has_failed, self._again_at = False, math.inf
                    wishes.poke()
                await trio.sleep(GATHER_SECONDS)

    def _next_at(self) -> float:
        """Return the time of the next action without a change of the wanted URIs."""
        both_until = self._both_until
        return min(self._again_at, both_until) if both_until > trio.current_time() else self._again_at

    def _expects(self, uri: str) -> bool:
        """Return whether the upstream need not be asked for `uri`."""
        if self._owner is None:
            return False
        if uri in self._wishes.shared:
            return uri not in self._wishes.direct or trio.current_time() >= self._both_until
        return self._is_trusted and uri not in self._declined and uri not in self._wishes.direct

    def _wish(self) -> frozenset[str]:
        wanted = self._wishes.wanted()
        self._declined &= wanted
        return wanted - self._declined - self._wishes.refused.keys()

    def _trust(self) -> None:
        self._is_trusted, self._has_failed, self._again_at = True, False, math.inf
        self._declined.clear()

    async def _follow_owner(self) -> None:
        while True:
            owner = self._replicas.owner_of(self._upstream)
            if owner != self._owner:
                self._owner = owner
                self._trust()
                self._wishes.poke()
            await self._replicas.owners_changed()

    def _end_if_unneeded(self) -> None:
        """End the listen, unless a wanted URI has no other way yet."""
        wishes = self._wishes
        wanted = wishes.shared & wishes.wanted()
        if wanted <= wishes.direct:
            # The owner may still have updates from before the upstream agreed to send them here.
            self._newest.deadline = trio.current_time() + (self._replicas.settle_seconds if wanted else 0)
            self._newest, self._listened = trio.CancelScope(), None
            wishes.shared.clear()

    async def _keep_listening(
        self,
        owner: str,
        wish: frozenset[str],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until another listen takes over. Started once the owner has acknowledged or failed."""
        acknowledged = is_over = False
        stream, honoured = secrets.token_hex(NAME_BYTES), frozenset[str]()

        def hear(event: Event) -> None:
            nonlocal acknowledged, honoured
            if event.method == m.ACKNOWLEDGED and not acknowledged:
                acknowledged, honoured = True, uris_in(event.params) & wish
                self._take_over(scope, owner, wish, honoured, goes_on=REPLACES in event.params)
                self._stream = stream
                task_status.started()
            elif event.method == m.RESOURCE_UPDATED and acknowledged:
                self._pass_on(text_of(event.params.get("uri")) or "")

        with trio.CancelScope() as scope:
            self._is_asking = True
            try:
                asked = OwnerListen(self._upstream, sorted(wish), stream, self._stream)
                await self._replicas.listen(owner, asked, hear)
                is_over = True
            except (TransportError, RemoteProtocolError) as error:
                log.debug("a replica does not tell of updates", owner=owner, reason=str(error))
            if not acknowledged:
                self._is_asking = False
                self._has_failed_at(owner)
                task_status.started()
            elif self._newest is scope:
                self._listened = None
                # An orderly end while the next listen is asked for: its acknowledgement decides.
                if not is_over or not self._is_asking:
                    self._has_failed_at(owner)
            elif not is_over or self._listened is None or self._listened[0] != owner:
                self._wishes.catch_up(honoured)  # updates of the replaced listen may be lost

    def _take_over(
        self,
        listen: trio.CancelScope,
        owner: str,
        wish: frozenset[str],
        honoured: frozenset[str],
        *,
        goes_on: bool,
    ) -> None:
        """Make `listen` the newest one, and let the one before end.

        `goes_on`: no update is lost between the two.
        """
        now, settle_seconds = trio.current_time(), self._replicas.settle_seconds
        # An update may have passed between the two listens: `agree` below reports each lost URI as changed.
        if not goes_on and (self._listened is None or self._listened[0] == owner):
            self._lose_shared()
        self._newest.deadline = now + settle_seconds
        self._newest, self._listened, self._is_asking = listen, (owner, honoured), False
        self._is_trusted, self._has_failed = True, False
        wishes, declined = self._wishes, wish - honoured
        if honoured & wishes.direct:
            self._both_until = now + settle_seconds
        wishes.lose(declined, wishes.shared)
        wishes.shared &= honoured
        wishes.agree(sorted(honoured), wishes.shared)
        if declined:
            self._declined |= declined
            self._again_at = min(self._again_at, now + REASK_SECONDS)
            wishes.poke()
        wishes.progressed()

    def _has_failed_at(self, owner: str) -> None:
        """Handle a listen that was refused or broke off: ask the upstream itself, and later the owner."""
        if self._listened is None:
            self._lose_shared()
        if owner == self._owner:
            self._is_trusted, self._has_failed = False, True
            self._again_at = min(self._again_at, trio.current_time() + RETRY_SECONDS)
        self._wishes.poke()

    def _lose_shared(self) -> None:
        self._wishes.lose(list(self._wishes.shared), self._wishes.shared)
