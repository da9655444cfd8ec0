"""Answer a client's request for updates: of one URI in `resources/subscribe`, of any number in a listen.

    URI: named --resolve, admit--> joined at the hub --the upstream agrees--> subscribed
                                                     --it refuses, is late--> refused
         refused because the session does not offer it --> joined for the next session with that server

Promises: an upstream is asked for all URIs of a request at once; a URI that is refused takes nothing from the
others; a request that is cancelled leaves no new subscription behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from mcpmux.errors import RpcError, forget_frames
from mcpmux.mux import rewrite
from mcpmux.mux.access import as_refused, no_resource
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_TIMEOUT
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.interception import Interception
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.runtime.resolver import Resolver
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream

T = TypeVar("T")

JOINED_AT_ONCE: Final = 32  # URIs of one request at a time, so that other exchanges have their turn


class _Wish:
    """A URI of which the client wants updates. `own`: the upstream's own URI.

    `tellers`: the sessions that may still be asked for it. `upstream`: the one that is being asked. `is_new`:
    whether the client was not subscribed to it there. `refusal`: the last error.
    """

    def __init__(self, uri: str) -> None:
        self.uri = self.own = uri
        self.tellers: list[Upstream] = []
        self.upstream: Upstream | None = None
        self.is_new = False
        self.refusal: RpcError | None = None

    @property
    def is_open(self) -> bool:
        """Whether another session is to be asked for it."""
        # Some servers offer subscriptions in one era only: then the session of the other era is asked.
        refusal = self.refusal
        return refusal is not None and refusal.code == METHOD_NOT_FOUND and bool(self.tellers)


class SubscriptionRequest:
    """One request of a client for updates. `outbox`: the client's. `call`: its request."""

    def __init__(
        self,
        registry: UpstreamRegistry,
        resolver: Resolver,
        access: AccessControl,
        hub: NotificationHub,
        outbox: ClientOutbox,
        call: Call,
    ) -> None:
        self._registry, self._resolver, self._access, self._hub = registry, resolver, access, hub
        self._outbox, self._call = outbox, call

    async def answer(self, uris: Collection[str], interception: Interception | None) -> dict[str, RpcError]:
        """Subscribe the client to `uris`. Return the errors of those that are refused."""
        open_wishes = wishes = [_Wish(uri) for uri in uris]
        try:
            while open_wishes:
                await _side_by_side(open_wishes, partial(self._join, interception))
                asked: dict[Upstream, list[_Wish]] = {}
                for wish in open_wishes:
                    if wish.upstream is not None:
                        asked.setdefault(wish.upstream, []).append(wish)
                await _side_by_side(list(asked.items()), self._agree)
                open_wishes = [wish for wish in open_wishes if wish.is_open]
        finally:
            for wish in wishes:
                self._leave(wish)
        return {wish.uri: wish.refusal for wish in wishes if wish.refusal is not None}

    async def _resolve(self, interception: Interception | None, wish: _Wish) -> None:
        """Find the sessions that may be asked for a wish. Sets its refusal if there are none."""
        call = self._call
        try:
            owner, wish.own, _ = await self._resolver.resolve_uri(wish.uri, call, m.RESOURCES_SUBSCRIBE)
            # Interceptors judge each URI, in a listen too.
            chain = interception.chain(m.RESOURCES_SUBSCRIBE, owner) if interception is not None else None
            if interception is not None and chain is not None:
                request = call.on_behalf(m.RESOURCES_SUBSCRIBE, {"uri": raw(wish.uri)})
                await interception.admit(chain, self._registry[owner], wish.own, request)
            wish.tellers = self._registry.tellers(owner, call)
        except RpcError as error:
            forget_frames(error)  # those of thousands of URIs would take much memory
            wish.refusal = error

    async def _join(self, interception: Interception | None, wish: _Wish) -> None:
        """Subscribe at the hub to a wish, before its next session is asked. Sets its refusal otherwise."""
        if wish.refusal is None:  # no session was asked yet
            await self._resolve(interception, wish)
        if not wish.tellers:
            return
        upstream = wish.tellers.pop(0)
        try:
            await upstream.supervision.expect("resources", "subscribe")
            # The rules may have changed meanwhile. No await from here to the hub's tables, so that
            # `rules_changed` sees the subscription.
            judge = self._access.of(self._call.principal)
            rule = judge.refused_by(upstream.name, m.RESOURCES_SUBSCRIBE, wish.own)
            if rule is not None:
                raise as_refused(no_resource(wish.uri), rule)
            said_raw = wish.uri == wish.own and not upstream.space.transparent
            # Before the upstream agrees, so that an update right after its answer is not missed.
            wish.is_new = self._hub.subscribe(self._outbox, upstream.key, wish.own, said_raw=said_raw)
            wish.upstream = upstream
        except RpcError as error:
            forget_frames(error)
            wish.refusal = rewrite.expose_error(error, upstream.space)

    async def _agree(self, asked: tuple[Upstream, list[_Wish]]) -> None:
        """Wait until an upstream has agreed to wishes or refused them. Sets, or clears, their refusals."""
        upstream, wishes = asked
        subscriber, seconds = upstream.subscriber, upstream.config.list_timeout
        agreed = await subscriber.ensure_all([wish.own for wish in wishes], seconds, renewed=True)
        for wish in wishes:
            if wish.own in agreed:
                wish.upstream, wish.refusal = None, None
                continue
            error = subscriber.refusal(wish.own)
            if error is None:
                late = f"did not agree to tell about changes of {wish.own} in time"
                error = upstream.status.error(UPSTREAM_TIMEOUT, late)
            # If it is the server's own, it has the server's own URI, and clients know another one.
            wish.refusal = rewrite.expose_error(error, upstream.space)
            self._leave(wish)

    def _leave(self, wish: _Wish) -> None:
        """End the subscription of a wish to which its upstream has not agreed."""
        upstream, wish.upstream = wish.upstream, None
        if upstream is not None and wish.is_new:  # an earlier subscription of the client stays
            self._hub.unsubscribe(self._outbox, upstream.key, wish.own)


async def _side_by_side(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Await `work` for each of `items`, for JOINED_AT_ONCE of them at a time."""
    # Most listens name one resource, which needs no further task.
    if len(items) == 1:
        await work(items[0])
        return
    waiting = iter(items)

    async def run() -> None:
        for item in waiting:
            await work(item)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in items[:JOINED_AT_ONCE]:
            nursery.start_soon(run)
