"""The entry point for all clients, of both eras and on every transport.

MuxService answers modern calls; a `subscriptions/listen` is one that stays open and notifies its client of
changes. `initialize` opens a `LegacySession`, which answers the calls of its client.

Source: `basic/patterns/subscriptions`, 2026-07-28; "Lifecycle" of 2024-11-05 to 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from mcpmux.channels.tap import ORIGIN, Tap, current_leg, identify, name_in, watched
from mcpmux.clients.http_answer import HttpNotify
from mcpmux.clients.legacy_session import LegacySession, Session, read_client, with_logs_of
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, LOG_LEVEL, META, SUBSCRIPTION_ID, Call, Event, Notify
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Request, decode_any, raw, text_of
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import V_2025_11_25
from mcpmux.protocol.tasks import extension_missing, knows_extension
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import SUBSCRIPTION_LIMIT, NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.runtime.sessions import SessionCounter, SessionFacts
from mcpmux.transports.inline import in_task

Elsewhere = Callable[[str, Call, Notify], Awaitable[Fields | None]]
"""Have the process with that id answer a call; None when it is this one, or not there. Raises RpcError."""


class Service(Protocol):
    """An object that serves modern calls and opens legacy sessions. MuxService documents the methods."""

    tap: Tap | None
    session_counter: SessionCounter
    elsewhere: Elsewhere | None

    def answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]: ...
    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[Session, Fields]: ...
    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None: ...
    def judging(self, principal: Principal) -> Awaitable[list[str]] | None: ...
    def leave(self, client: object) -> None: ...
    def roots_changed(self) -> None: ...


class MuxService:
    """The service that mcpmux offers to clients: modern calls, and legacy sessions.

    `elsewhere` answers calls about parked calls and tasks of other processes; None when no other process can
    be asked.
    """

    def __init__(
        self, router: Router, hub: NotificationHub, tap: Tap | None, session_counter: SessionCounter
    ) -> None:
        """`tap` watches the traffic. `session_counter` must count a session before it is opened."""
        self.tap = tap
        self.session_counter = session_counter
        self.elsewhere: Elsewhere | None = None
        self.router = router
        self.hub = hub

    def answer(
        self, request_id: Id, call: Call, notify: Notify, is_watched: bool = False
    ) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited.

        `is_watched`: the tap has seen the call, and keeps its outcome.
        """
        if self.tap is not None and not is_watched:
            identify(call)
            if not self.tap.passes:
                # A call through the search tool is recorded as the call of the tool that it runs.
                work = partial(self.answer, request_id, call, notify, is_watched=True)
                return watched(self.tap, self.router.search.meant(call), work)
        if call.method == m.LISTEN:
            return serve_listen(request_id, call, notify, self.router, self.hub)
        if call.method in m.REMOVED_IN_MODERN:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method} is not in this revision")
        if LOG_LEVEL in call.meta:
            level = text_of(call.meta[LOG_LEVEL])
            notify = with_logs_of(lambda: level, notify)
        return self.router.exchange(call, notify)

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None:
        """Return the principal in a view, narrowed by the query of its URL; None if it may not use the view.

        Raises BadNarrowing when the query is malformed.
        """
        return self.router.enter(principal, view, query)

    def judging(self, principal: Principal) -> Awaitable[list[str]] | None:
        """Return an awaitable that raises BadNarrowing if the principal's query selects no item.

        None when the query is known to select some.
        """
        return self.router.resolver.visible.judging(principal)

    def leave(self, client: object) -> None:
        """Forget a client that has gone. `client`: the object that identified it in its calls."""
        self.router.leave(client)

    def roots_changed(self) -> None:
        """Pass on that a client's roots have changed."""
        self.router.roots_changed()

    async def initialize(
        self, request: Request, principal: Principal = ANYONE
    ) -> tuple[LegacySession, Fields]:
        """Open a legacy session. Return it and the answer. The caller closes the session. Raises RpcError."""
        agree = partial(self._agree, request, principal)
        if self.tap is None:
            result = await agree()
        else:
            call = Call.of(request.method, request.payload, principal=principal)
            result = await watched(self.tap, call, agree)
        return LegacySession(self.router, self.hub, self.tap, *read_client(request), principal), result

    def resume(self, facts: SessionFacts, principal: Principal) -> LegacySession:
        """Return a legacy session that continues one of a process that has gone. The caller closes it.

        The client is notified that everything it listens to may have changed meanwhile.
        """
        client = ClientFacts(Raw(facts.info), Raw(facts.capabilities), facts.log_level)
        session = LegacySession(self.router, self.hub, self.tap, facts.revision, client, principal)
        session.go_on(facts)
        return session

    async def _agree(self, request: Request, principal: Principal) -> Fields:
        revision, client = read_client(request)
        capabilities, instructions = await self.router.introduce(legacy=True, principal=principal)
        if revision < V_2025_11_25:  # the revision that introduced tasks
            capabilities.pop("tasks", None)
        result = {
            "protocolVersion": raw(revision),
            "capabilities": raw(capabilities),
            "serverInfo": self.router.server_info,
            META: self.router.instances(),
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        if (origin := ORIGIN.get()) is not None:
            origin.leg.introduce(revision, name_in(client.info))
        return result


_KINDS: Final = {f"{capability}ListChanged": method for capability, method in m.LIST_CHANGES.items()}


class Filter(NamedTuple):
    """The filter of a listen: `lists`, the names of list changes as in the request, and `uris`."""

    lists: Set[str]
    uris: tuple[str, ...]


def read_filter(call: Call) -> Filter:
    """Return the filter of a `subscriptions/listen`. Raises RpcError when it is malformed."""
    lists: list[str] = []
    try:
        wish: Any = decode_any(call.params["notifications"])
        uris = wish.get("resourceSubscriptions") or []
        sound = isinstance(uris, list) and set(map(type, uris)) <= {str}
        for name in _KINDS:
            flag = wish.get(name, False)
            sound = sound and isinstance(flag, bool)
            if flag:
                lists.append(name)
    except (KeyError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "notifications" must be a subscription filter')
    if wish.get("taskIds") and not knows_extension(call.meta.get(CLIENT_CAPABILITIES)):
        raise extension_missing()
    if len(uris) > SUBSCRIPTION_LIMIT:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: more than {SUBSCRIPTION_LIMIT} resourceSubscriptions"
        )
    return Filter(frozenset(lists), tuple(dict.fromkeys(uris)))


async def serve_listen(
    request_id: Id, call: Call, notify: Notify, router: Router, hub: NotificationHub
) -> Fields:
    """Acknowledge what can be honoured, then send every change until the client goes or we stop.

    Cancelling it leaves no subscription behind. Raises RpcError for a malformed filter.
    """
    await in_task()
    await router.count(call)
    wish = read_filter(call)
    tag, agreed, kinds = raw({SUBSCRIPTION_ID: request_id}), dict[str, Any](), list[str]()
    for name, kind in _KINDS.items():
        # Without lists in which the client may use no item; `subscribe_all` judges URIs one by one.
        if name in wish.lists and router.may_hear(call.principal, kind):
            agreed[name] = True
            kinds.append(kind)
    # Joined before the acknowledgement: a change between the two waits in the outbox.
    outbox = hub.join(ClientOutbox(frozenset(kinds), call.principal, is_granted=True, leg=current_leg()))
    try:
        refusals = await router.subscribe_all(outbox, wish.uris, call)
        # In the order of the request: a client may compare the two. What cannot be honoured is left out.
        honoured = [uri for uri in wish.uris if uri not in refusals]
        if honoured:
            agreed["resourceSubscriptions"] = honoured
        await notify(Event(m.ACKNOWLEDGED, {"notifications": raw(agreed), META: tag}))
        outlet = notify.outlet(tag) if isinstance(notify, HttpNotify) else None
        hub.greet(outbox)
        del wish, refusals, honoured, agreed  # this frame would keep them for as long as the client listens
        while (event := await outbox.take(outlet)) is not None:
            await notify(Event(event.method, {**event.params, META: tag}))
    finally:
        hub.leave(outbox)
    return {"resultType": raw("complete"), META: tag}
