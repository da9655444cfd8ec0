"""The front door that every client comes through, whatever its era and transport."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Set
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.rewrite import ForeignMark, own_part
from mcpmux.mux.seal import ForeignState, StateSeal
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    LOG_LEVEL,
    META,
    SUBSCRIPTION_ID,
    Call,
    Event,
    Notify,
    Tagged,
    is_heard,
)
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Notification, Request, decode_any, raw, text_of
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import V_2025_11_25, negotiate_legacy
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.runtime.access_control import no_task
from mcpmux.runtime.calls import unknown_state
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.downstreams.http_answer import HttpNotify
from mcpmux.runtime.downstreams.session import Ask, LegacySession, read_client
from mcpmux.runtime.notification_hub import SUBSCRIPTION_LIMIT, NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import ORIGIN, Tap, identify, name_in, watched
from mcpmux.transports.inline import in_task

STATE_KEY_BYTES: Final = 32


class Session(Protocol):
    """One initialized legacy client; see `runtime.downstreams.session.LegacySession`."""

    revision: str
    outbox: ClientOutbox
    ask_unasked: Ask | None
    principal: Principal

    async def answer(self, request: Request, notify: Notify, ask: Ask) -> Fields:
        """Answer one request in the session's revision; `ask` asks the client back. Raises RpcError."""
        ...

    def take_notification(self, notification: Notification) -> None:
        """Take what the client says outside of its calls."""
        ...

    def close(self) -> None:
        """The client has gone."""
        ...


class Service(Protocol):
    """Serves modern calls, and opens legacy sessions; see `runtime.downstreams.service.MuxService`."""

    tap: Tap | None

    def answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited."""
        ...

    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[Session, Fields]:
        """Open a legacy session of `principal`: it, and the answer. The caller closes it. Raises RpcError."""
        ...

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        ...

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        ...


class MuxService:
    """What mcpmux offers to clients: modern calls, and legacy sessions."""

    def __init__(
        self,
        router: Router,
        hub: NotificationHub,
        server_info: Raw,
        tap: Tap | None = None,
        state_seal: StateSeal | None = None,
        mark: str = "",
    ) -> None:
        """`tap` watches what clients do; `state_seal` binds a server's states to principals.

        `mark` stands in front of states and task ids, so that they come back to this worker.
        """
        self._mark = mark
        self._state_seal = state_seal or StateSeal(secrets.token_bytes(STATE_KEY_BYTES))
        self.tap = tap
        self._router = router
        self._hub = hub
        self.server_info = server_info

    def answer(
        self, request_id: Id, call: Call, notify: Notify, *, watched_already: bool = False
    ) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited."""
        if self.tap is not None and not watched_already:
            identify(call)
            if not self.tap.passes:
                work = partial(self.answer, request_id, call, notify, watched_already=True)
                return watched(self.tap, call, work)
        if call.method == m.LISTEN:
            return serve_listen(request_id, call, notify, self._router, self._hub)
        if call.method in m.REMOVED_IN_MODERN:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method} is not in this revision")

        wanted = _wanted(call, notify) if LOG_LEVEL in call.meta else notify
        if not call.principal.name and not self._mark:
            return self._router.exchange(call, wanted)
        return self._exchange_sealed(call, wanted)

    async def _exchange_sealed(self, call: Call, notify: Notify) -> Fields:
        return self._sealed(await self._router.exchange(self._opened(call), notify), call.principal.name)

    def _opened(self, call: Call) -> Call:
        """The call with the state that its server gave, and the task id.

        Raises RpcError for those of another principal or worker.
        """
        state, task_id = call.text(STATE), call.text(TASK_ID) if self._mark else None
        if state is None and task_id is None:
            return call
        params = {**call.params}
        try:
            if state is not None:
                state = own_part(self._mark, state)
                principal = call.principal.name
                params[STATE] = raw(self._state_seal.open(principal, state) if principal else state)
        except (ForeignState, ForeignMark):
            raise unknown_state() from None
        try:
            if task_id is not None:
                params[TASK_ID] = raw(own_part(self._mark, task_id))
        except ForeignMark:
            raise no_task() from None
        return call.with_params(params)

    def _sealed(self, result: Fields, principal: str) -> Fields:
        state, task_id = text_of(result.get(STATE)), text_of(result.get(TASK_ID)) if self._mark else None
        if state is not None:
            state = self._state_seal.seal(principal, state) if principal else state
            result = {**result, STATE: raw(self._mark + state)}
        return result if task_id is None else {**result, TASK_ID: raw(self._mark + task_id)}

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        self._router.leave(client)

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        self._router.roots_changed()

    async def initialize(
        self, request: Request, principal: Principal = ANYONE
    ) -> tuple[LegacySession, Fields]:
        """Open a legacy session of `principal`: it, and the answer. The caller closes it. Raises RpcError."""
        agree = partial(self._agree, request, principal)
        if self.tap is None:
            result = await agree()
        else:
            call = Call.of(request.method, request.payload, principal=principal)
            result = await watched(self.tap, call, agree)
        requested, client = read_client(request)
        revision = negotiate_legacy(requested)
        return LegacySession(self._router, self._hub, revision, client, self.tap, principal), result

    async def _agree(self, request: Request, principal: Principal) -> Fields:
        requested, client = read_client(request)
        capabilities, instructions = await self._router.introduce(legacy=True, principal=principal)
        revision = negotiate_legacy(requested)
        if revision < V_2025_11_25:
            capabilities.pop("tasks", None)
        result = {
            "protocolVersion": raw(revision),
            "capabilities": raw(capabilities),
            "serverInfo": self.server_info,
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        if (origin := ORIGIN.get()) is not None:
            origin.leg.introduce(revision, name_in(client.info))
        return result


def _wanted(call: Call, notify: Notify) -> Notify:
    """`notify` for what the call has asked to hear, which has asked for log messages."""
    level = text_of(call.meta.get(LOG_LEVEL))

    async def pass_on(event: Event) -> None:
        if event.method != m.LOG_MESSAGE or is_heard(event, level):
            await notify(event)

    return pass_on


# Listens: exchanges that stay open and tell what changes.
#
# Source: `basic/patterns/subscriptions`, 2026-07-28.

_KINDS: Final = {f"{capability}ListChanged": method for capability, method in m.LIST_CHANGES.items()}


class Filter(NamedTuple):
    """What a listen asks for: names of list changes as in the request, and URIs."""

    lists: Set[str]
    uris: tuple[str, ...]


def read_filter(call: Call) -> Filter:
    """The filter of a `subscriptions/listen`. Raises RpcError when it is malformed."""
    try:
        wish: Any = decode_any(call.params["notifications"])
        uris = wish.get("resourceSubscriptions") or []
        flags = {name: wish.get(name, False) for name in _KINDS}
        sound = isinstance(uris, list) and all(isinstance(uri, str) for uri in uris)
        sound = sound and all(isinstance(flag, bool) for flag in flags.values())
    except (KeyError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "notifications" must be a subscription filter')
    if len(uris) > SUBSCRIPTION_LIMIT:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: more than {SUBSCRIPTION_LIMIT} resourceSubscriptions"
        )
    return Filter(frozenset(name for name, flag in flags.items() if flag), tuple(dict.fromkeys(uris)))


async def serve_listen(
    request_id: Id, call: Call, notify: Notify, router: Router, hub: NotificationHub
) -> Fields:
    """Acknowledge what can be honoured, then tell every change until the client goes or we stop.

    Cancelling it leaves no interest behind. Raises RpcError for a malformed filter.
    """
    await in_task()
    wish = read_filter(call)
    # Without lists of which the client may use nothing; URIs are judged one by one.
    wish = wish._replace(lists={name for name in wish.lists if router.may_hear(call.principal, _KINDS[name])})
    tag = raw({SUBSCRIPTION_ID: request_id})
    kinds = frozenset(_KINDS[name] for name in wish.lists)
    outbox = hub.join(kinds, call.principal, is_granted=True)
    try:
        honoured = await _subscribe_all(router, outbox, wish.uris, call)
        agreed: dict[str, Any] = {name: True for name in _KINDS if name in wish.lists}
        if honoured:
            agreed["resourceSubscriptions"] = honoured
        await notify(Event(m.ACKNOWLEDGED, {"notifications": raw(agreed), META: tag}))
        outlet = notify.outlet(Tagged(tag)) if isinstance(notify, HttpNotify) else None
        while (event := await outbox.take(outlet)) is not None:
            await notify(Event(event.method, {**event.params, META: tag}))
    finally:
        hub.leave(outbox)
    return {"resultType": raw("complete"), META: tag}


async def _subscribe_all(
    router: Router, outbox: ClientOutbox, uris: tuple[str, ...], call: Call
) -> list[str]:
    """Those of `uris` that can be listened to, in their order."""
    honoured: set[str] = set()

    async def subscribe(uri: str) -> None:
        try:
            await router.subscribe(outbox, uri, call)
        except RpcError:
            return  # what cannot be honoured is left out of the acknowledgement
        honoured.add(uri)

    async with trio.open_nursery() as nursery:
        for uri in uris:
            nursery.start_soon(subscribe, uri)
    return [uri for uri in uris if uri in honoured]
