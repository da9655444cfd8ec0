"""Subscribe clients to resources, and continue subscriptions and tasks of clients of another process.

Promises: a subscription is confirmed only after its upstream has agreed to it; no client gets updates of a
URI that the access rules do not let it use; a client taken over is notified that it may have missed changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcpmux.channels.questions import Client
from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.access import as_refused, no_resource
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import METHOD_NOT_FOUND, UPSTREAM_TIMEOUT
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import NotificationHub, upstream_of
from mcpmux.runtime.resolver import Resolver
from mcpmux.runtime.sessions import MadeTask
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.limiter import RateCounter
from mcpmux.upstreams.registry import PRIVATE, UpstreamRegistry


class Interests:
    """The subscriptions of all clients, by way of the hub and the upstreams."""

    def __init__(
        self,
        registry: UpstreamRegistry,
        resolver: Resolver,
        hub: NotificationHub,
        access: AccessControl,
        rates: RateCounter,
        admit: Callable[[str, str, Call], Awaitable[None]],
    ) -> None:
        """`rates` limits the new subscriptions.

        `admit`: called with the upstream, its URI, and the request for one URI; raises RpcError to refuse it.
        """
        self._registry, self._resolver, self._hub = registry, resolver, hub
        self._access, self._rates, self._admit = access, rates, admit

    async def subscribe(self, outbox: ClientOutbox, uri: str, call: Call) -> None:
        """Subscribe `outbox`, of the client of `call`, to updates of `uri`. Raises RpcError."""
        await in_task()
        if call.method != m.LISTEN:  # a listen is counted once, not for each of its URIs
            await self._rates.begin(call)
        owner, own, _ = await self._resolver.resolve_uri(uri, call, m.RESOURCES_SUBSCRIBE)
        await self._admit(owner, own, call.on_behalf(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)}))
        refusal: RpcError | None = None
        for upstream in self._registry.tellers(owner, call):
            new = agreed = False
            try:
                await upstream.supervision.expect("resources", "subscribe")
                # The rules may have changed meanwhile. No await from here to the hub's tables, so that
                # `rules_changed` sees the subscription.
                rule = self._access.of(call.principal).refused_by(owner, m.RESOURCES_SUBSCRIBE, own)
                if rule is not None:
                    raise as_refused(no_resource(uri), rule)
                said_raw = uri == own and not upstream.space.transparent
                # Before the upstream agrees, so that an update right after its answer is not missed.
                new = self._hub.subscribe(outbox, upstream.key, own, said_raw=said_raw)
                agreed = await upstream.subscriber.ensure(own, upstream.config.list_timeout)
                if not agreed:
                    late = f"did not agree to tell about changes of {own} in time"
                    raise upstream.status.error(UPSTREAM_TIMEOUT, late)
                return
            except RpcError as error:
                # If it is the server's own, it has the server's own URI, and clients know another one.
                refusal = rewrite.expose_error(error, upstream.space)
                if error.code != METHOD_NOT_FOUND:
                    break
            finally:
                if new and not agreed:  # an earlier subscription of the client stays
                    self._hub.unsubscribe(outbox, upstream.key, own)
        assert refusal is not None
        raise refusal

    def go_on_listening(
        self, outbox: ClientOutbox, key: str, own: str, call: Call, *, said_raw: bool
    ) -> None:
        """Continue a subscription of another process. `key`: of the session with the upstream.

        The client is notified of one change, as it may have missed some. An upstream that refuses is asked
        again later.
        """
        name = upstream_of(key)
        if name in self._registry:
            upstream = self._registry[name] if key == name else self._registry.for_call(name, call)
            self._hub.subscribe(outbox, upstream.key, own, said_raw=said_raw)
            upstream.subscriber.take_over(frozenset((own,)))

    def go_on_with_task(self, client: Client, made: MadeTask) -> None:
        """Continue a task that a client made in another process, unless that was in a private session."""
        # A private session ended with its process, and its tasks with it.
        name, upstream = upstream_of(made.key), self._registry.by_key(made.key)
        if name in self._registry and PRIVATE not in made.key:
            space = upstream.space if upstream is not None else self._registry[name].space
            token = Raw(made.token) if made.token is not None else None
            self._access.tasks.note(made.key, made.task_id, client.principal.key, made.tool)
            self._hub.personal.own_task(made.key, space, made.task_id, client, token)

    def remind_of_lists(self, outbox: ClientOutbox) -> None:
        """Notify a client of another process of a change of every list, as it may have missed some."""
        judge = self._access.of(outbox.principal)
        offered = {name for _, facts in self._registry.facts(legacy=True) for name in facts.capabilities}
        for capability, change in m.LIST_CHANGES.items():
            if capability in offered and judge.may_hear(change, self._registry):
                outbox.put(Event(change, {}))

    async def unsubscribe(self, outbox: ClientOutbox, uri: str, call: Call) -> None:
        """End a subscription of `outbox` to `uri`. Raises RpcError when no upstream can be meant."""
        owner, own, _ = await self._resolver.resolve_uri(uri, call, m.RESOURCES_SUBSCRIBE)
        for key in self._registry.keys_of(owner, call):
            self._hub.unsubscribe(outbox, key, own)
