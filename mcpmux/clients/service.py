"""The front door that every client comes through, whatever its era and transport.

Promises: a legacy client sees the revision that it negotiated; the core sees 2026-07-28. Its session ends
with its stream (stdio) or with DELETE (HTTP). Refuses to know which of the two it is on.

Source: "Lifecycle" of 2024-11-05 to 2025-11-25; `basic/utilities/ping`; `server/utilities/logging`;
`basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import trio

from mcpmux.channels.questions import seconds_to_answer, unanswered
from mcpmux.channels.tap import ORIGIN, Leg, Tap, identify, name_in, watched
from mcpmux.clients.http_answer import HttpNotify
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    LOG_LEVEL,
    LOG_LEVELS,
    META,
    SUBSCRIPTION_ID,
    Call,
    Event,
    Notify,
    is_heard,
)
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    Notification,
    Request,
    decode_any,
    decode_fields,
    first_byte,
    raw,
    text_of,
)
from mcpmux.protocol.era import (
    downgrade_content,
    downgrade_error,
    downgrade_question,
    downgrade_result,
    upgrade_answer,
    upgrade_call,
)
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.input_requests import STATE, Wish, error_response, offers, repeated, wishes_in
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import V_2025_11_25, negotiate_legacy
from mcpmux.protocol.tasks import TASK
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import EVERYTHING, SUBSCRIPTION_LIMIT, NotificationHub, OpenQuestion
from mcpmux.runtime.router import Router
from mcpmux.runtime.session_counter import SessionCounter
from mcpmux.runtime.session_facts import Interest, MadeTask, SessionFacts
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import KEEP_ALIVE, KEEP_ALIVE_SECONDS

AskClient = Callable[[str, Fields], Awaitable[Fields]]
"""Asks the client something (method, params) and gives its result; raises RpcError when it refuses."""

OnAgreed = Callable[[], Awaitable[None]]
"""Called when a session has agreed to something more, before its client hears of it."""

Elsewhere = Callable[[str, Call, Notify], Awaitable[Fields | None]]
"""Has the process with that id answer a call; None when it is this one, or not there. Raises RpcError."""

ELICITATION_BYTES: Final = 12  # of randomness in the name of a URL elicitation, which must be unique

_ABOUT_THE_SESSION: Final = frozenset({m.INITIALIZED, m.CANCELLED, m.PROGRESS})
"""Notifications of clients that mean this session, or a request in it."""

_AGREEING: Final = frozenset({m.SET_LEVEL, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})
_MODERN_ONLY: Final = frozenset({m.DISCOVER, m.LISTEN, m.TASKS_UPDATE})
_TASKS: Final = m.ABOUT_TASKS - {m.TOOLS_CALL}


class Session(Protocol):
    """One initialized legacy client. LegacySession says what each does."""

    revision: str
    outbox: ClientOutbox
    ask_unasked: AskClient
    principal: Principal

    async def answer(self, request: Request, notify: Notify, ask: AskClient) -> Fields: ...
    def take_notification(self, notification: Notification) -> None: ...
    def close(self) -> None: ...


class Service(Protocol):
    """Serves modern calls, and opens legacy sessions. MuxService says what each does."""

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
    """What mcpmux offers to clients: modern calls, and legacy sessions.

    `elsewhere`: for calls about what is in another process; None when there is none that can be asked.
    """

    def __init__(
        self, router: Router, hub: NotificationHub, tap: Tap | None, session_counter: SessionCounter
    ) -> None:
        """`tap` watches what clients do. `session_counter`: whoever opens a session has it counted first."""
        self.tap = tap
        self.session_counter = session_counter
        self.elsewhere: Elsewhere | None = None
        self.router = router
        self.hub = hub

    def answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited."""
        if self.tap is not None:
            identify(call)
            if not self.tap.passes:
                meant = self.router.search.meant(call)
                return watched(self.tap, meant, partial(self._answer, request_id, call, notify))
        return self._answer(request_id, call, notify)

    def _answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
        if call.method == m.LISTEN:
            return serve_listen(request_id, call, notify, self.router, self.hub)
        if call.method in m.REMOVED_IN_MODERN:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method} is not in this revision")

        wanted = _wanted(call, notify) if LOG_LEVEL in call.meta else notify
        return self.router.exchange(call, wanted)

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None:
        """Somebody in a view, as the query of its URL narrows it; None when there is no such view for it.

        Raises BadNarrowing when the query makes no sense.
        """
        return self.router.enter(principal, view, query)

    def judging(self, principal: Principal) -> Awaitable[list[str]] | None:
        """What raises BadNarrowing if a query selects nothing; None when it is known to select something."""
        return self.router.judging(principal)

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        self.router.leave(client)

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        self.router.roots_changed()

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
        return LegacySession(self, *read_client(request), principal), result

    def resume(self, facts: SessionFacts, principal: Principal) -> LegacySession:
        """Go on with a legacy session of another process that has gone. The caller closes it.

        Its client is told that everything may have changed meanwhile that it listens to.
        """
        client = ClientFacts(Raw(facts.info), Raw(facts.capabilities), facts.log_level)
        session = LegacySession(self, facts.revision, client, principal)
        session.go_on(facts)
        return session

    async def _agree(self, request: Request, principal: Principal) -> Fields:
        revision, client = read_client(request)
        capabilities, instructions = await self.router.introduce(legacy=True, principal=principal)
        if revision < V_2025_11_25:
            capabilities.pop("tasks", None)
        result = {
            "protocolVersion": raw(revision),
            "capabilities": raw(capabilities),
            "serverInfo": self.router.server_info,
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        if (origin := ORIGIN.get()) is not None:
            origin.leg.introduce(revision, name_in(client.info))
        return result


def _wanted(call: Call, notify: Notify) -> Notify:
    level = text_of(call.meta.get(LOG_LEVEL))

    async def pass_on(event: Event) -> None:
        if event.method != m.LOG_MESSAGE or is_heard(event, level):
            await notify(event)

    return pass_on


def _leg() -> Leg | None:
    origin = ORIGIN.get()
    return origin.leg if origin is not None else None


# Sessions of legacy clients


async def _keep_nothing() -> None:
    """Nobody but this process has to know what was agreed."""


class LegacySession:
    """One initialized client. `close` must follow. `outbox` holds the changes that it has to be told.

    `ask_unasked`, which the transport sets, asks the client something outside of its calls. `on_agreed` is
    called when `facts` say something more.
    """

    ask_unasked: AskClient
    on_agreed: OnAgreed

    def __init__(self, service: MuxService, revision: str, client: ClientFacts, principal: Principal) -> None:
        self._router = router = service.router
        self._hub = hub = service.hub
        self.outbox: ClientOutbox = hub.join(EVERYTHING, principal, client=self, leg=_leg())
        self._greeted = trio.Event()  # it knows that the session is open
        self.principal = principal
        self.revision = revision
        self.knows_tasks = revision >= V_2025_11_25
        self.capabilities = client.capabilities
        self._client = client
        self._tap = service.tap
        self.on_agreed = _keep_nothing
        self.epoch = 0  # rises with each process that goes on with it
        router.join(self)
        hub.personal.join(self, self.outbox)

    def __repr__(self) -> str:
        return f"<LegacySession {self.revision} {bytes(self._client.info).decode(errors='replace')[:80]}>"

    def facts(self) -> SessionFacts:
        """What another process has to know to go on with this session."""
        client, said_raw = self._client, self._hub.subscriptions.said_raw
        interests = tuple(
            Interest(key, uri, (self.outbox, key, uri) in said_raw)
            for key, uri in self._hub.subscriptions.held_by(self.outbox)
        )
        held, tool_of = self._hub.personal.tasks.held_by(self), self._router.access.tool_of
        made = tuple(
            MadeTask(key, task_id, tool_of(key, task_id), None if token is None else bytes(token))
            for (key, task_id), token in held
        )
        said = bytes(client.info), bytes(client.capabilities), client.log_level
        return SessionFacts(self.revision, *said, interests, self.epoch, made)

    def go_on(self, before: SessionFacts) -> None:
        """The session was another process's."""
        self.epoch = before.epoch
        self._greeted.set()
        call = Call(m.RESOURCES_SUBSCRIBE, {}, self._client.meta, self, None, True, self.principal)
        for key, uri, said_raw in before.interests:
            self._router.interests.go_on_listening(self.outbox, key, uri, call, said_raw=said_raw)
        for made in before.tasks:
            self._router.interests.go_on_with_task(self, made)
        self._router.interests.remind_of_lists(self.outbox)

    def catch_up(self) -> None:
        """The client may have missed that something has changed."""
        self._hub.remind(self.outbox)
        self._router.interests.remind_of_lists(self.outbox)

    async def ask(self, method: str, params: Fields) -> Fields:
        """Ask the client, once it is initialized, what no call of its own has caused. Raises RpcError."""
        await self._greeted.wait()
        return await self._ask(Wish(method, params), self.ask_unasked)

    def take_notification(self, notification: Notification) -> None:
        """Take what the client says outside of its calls."""
        self._greeted.set()
        if notification.method == m.ROOTS_CHANGED:
            self._router.roots_changed()
        elif notification.method not in _ABOUT_THE_SESSION:
            with suppress(ValueError):
                self._router.pass_on(
                    notification.method, decode_fields(notification.params), self, self.principal
                )

    def close(self) -> None:
        """The client has gone: nothing of its interest stays behind."""
        self._hub.leave(self.outbox)
        self._router.leave(self)

    async def answer(self, request: Request, notify: Notify, ask: AskClient) -> Fields:
        """Answer one request in the session's revision; `ask` asks the client back. Raises RpcError."""
        if self._tap is None or self._tap.passes:
            return await self._answer(request, notify, ask)
        call = self._router.search.meant(self._read(request))
        return await watched(self._tap, call, partial(self._answer, request, notify, ask))

    async def _answer(self, request: Request, notify: Notify, ask: AskClient) -> Fields:
        if request.method == m.PING:
            return {}
        self._greeted.set()
        if request.method in _AGREEING:
            answer = self._set_level if request.method == m.SET_LEVEL else self._subscribe
            result = await answer(request)
            await self.on_agreed()
            return result
        if request.method == m.INITIALIZE:
            raise RpcError(INVALID_REQUEST, "Invalid request: this session is initialized already")
        if request.method in _MODERN_ONLY or (request.method in _TASKS and not self.knows_tasks):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")
        return await self._forward(self._read(request), notify, ask)

    async def _forward(self, call: Call, notify: Notify, ask: AskClient) -> Fields:

        async def wanted(event: Event) -> None:
            # Before `logging/setLevel` the server may send any message.
            if event.method != m.LOG_MESSAGE or is_heard(event, self._client.log_level):
                await notify(event)

        try:
            result = await self._router.exchange(call, wanted)
            while (wishes := wishes_in(result)) is not None:
                await in_task()
                call = repeated(call, result, await self._gather(result, wishes, ask))
                result = await self._router.exchange(call, wanted)
            if TASK in call.params:
                await self.on_agreed()
            return downgrade_content(call.method, downgrade_result(result), self.revision)
        except RpcError as error:
            raise downgrade_error(call.method, error) from None

    def _read(self, request: Request) -> Call:
        return upgrade_call(request.method, request.payload, self._client, self, self.principal)

    async def _gather(self, result: Fields, wishes: dict[str, Wish], ask: AskClient) -> Fields:
        """Ask the client for everything, or for as long as the call that wants it waits. Raises RpcError."""
        responses: Fields = {}
        state = text_of(result.get(STATE)) or ""
        questions, question = self._hub.personal.questions, OpenQuestion(trio.CancelScope())
        done = False
        try:
            with question.scope:
                questions[state] = question
                # First what a program answers: a person may take longer than a server waits for that.
                for key, wish in sorted(wishes.items(), key=lambda item: seconds_to_answer(item[1].method)):
                    try:
                        responses[key] = raw(await self._ask(wish, ask))
                    except RpcError as error:
                        responses[key] = error_response(error)
            done = True  # answered, or not wanted any more
        finally:
            if questions.get(state) is question:  # a server of 2026-07-28 may say the same state twice
                del questions[state]
            if not done:
                self._router.abandon(state)
        if question.error is not None:
            raise question.error
        return responses

    async def _ask(self, wish: Wish, ask: AskClient) -> Fields:
        """Ask the client in the words of its revision, if that is what it offers. Raises RpcError.

        It has a while to answer, which is short where no person has to.
        """
        if not offers(self.capabilities, wish.method, wish.params):
            raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {wish.method} as it was asked")
        name = secrets.token_urlsafe(ELICITATION_BYTES)
        params = downgrade_question(wish.method, wish.params, self.revision, name)
        with trio.move_on_after(seconds_to_answer(wish.method)):
            return upgrade_answer(wish.method, wish.params, await ask(wish.method, params), self.revision)
        raise unanswered(wish.method)

    async def _subscribe(self, request: Request) -> Fields:
        call = self._read(request)
        uri = call.required("uri")
        try:
            if request.method == m.RESOURCES_SUBSCRIBE:
                await self._router.interests.subscribe(self.outbox, uri, call)
            else:
                await self._router.interests.unsubscribe(self.outbox, uri, call)
        except RpcError as error:
            raise downgrade_error(request.method, error) from None
        return {}

    async def _set_level(self, request: Request) -> Fields:
        level = text_of(decode_fields(request.payload).get("level"))
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f'Invalid params: "level" must be one of {", ".join(LOG_LEVELS)}')
        self._client = ClientFacts(self._client.info, self._client.capabilities, level)
        return {}


def read_client(request: Request) -> tuple[str, ClientFacts]:
    """The revision that an `initialize` leads to, and who asks. Raises RpcError."""
    params = decode_fields(request.payload)
    requested = text_of(params.get("protocolVersion"))
    if requested is None:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "protocolVersion" must be a string')
    facts = {key: params.get(key, EMPTY_OBJECT) for key in ("clientInfo", "capabilities")}
    for key, value in facts.items():
        if first_byte(value) != b"{":
            raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be an object')
    return negotiate_legacy(requested), ClientFacts(facts["clientInfo"], facts["capabilities"])


# Listens: exchanges that stay open and tell what changes.

SUBSCRIBED_AT_ONCE: Final = 32  # URIs of one listen: all others have their turn between so many
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
    await router.count(call)
    wish = read_filter(call)
    # Without lists of which the client may use nothing; URIs are judged one by one.
    wish = wish._replace(lists={name for name in wish.lists if router.may_hear(call.principal, _KINDS[name])})
    tag = raw({SUBSCRIPTION_ID: request_id})
    kinds = frozenset(_KINDS[name] for name in wish.lists)
    outbox = hub.join(kinds, call.principal, is_granted=True, leg=_leg())
    try:
        honoured = await _subscribe_all(router, outbox, wish.uris, call)
        agreed: dict[str, Any] = {name: True for name in _KINDS if name in wish.lists}
        if honoured:
            agreed["resourceSubscriptions"] = honoured
        await notify(Event(m.ACKNOWLEDGED, {"notifications": raw(agreed), META: tag}))
        outlet = notify.outlet(tag) if isinstance(notify, HttpNotify) else None
        hub.greet(outbox)
        del wish, honoured, agreed  # which this would keep for as long as the client listens
        seconds = KEEP_ALIVE_SECONDS if outlet is not None else math.inf
        while True:
            event: Event | None = None
            with trio.move_on_after(seconds) as patience:
                event = await outbox.take(outlet)
            if event is not None:
                await notify(Event(event.method, {**event.params, META: tag}))
            elif outlet is not None and patience.cancelled_caught:
                await outlet.reply.write(KEEP_ALIVE)
            else:
                break
    finally:
        hub.leave(outbox)
    return {"resultType": raw("complete"), META: tag}


async def _subscribe_all(
    router: Router, outbox: ClientOutbox, uris: tuple[str, ...], call: Call
) -> list[str]:
    honoured: set[str] = set()
    waiting = iter(uris)

    async def subscribe() -> None:
        for uri in waiting:
            with suppress(RpcError):  # what cannot be honoured is left out of the acknowledgement
                await router.interests.subscribe(outbox, uri, call)
                honoured.add(uri)

    async with trio.open_nursery() as nursery:
        for _ in uris[:SUBSCRIBED_AT_ONCE]:
            nursery.start_soon(subscribe)
    return [uri for uri in uris if uri in honoured]
