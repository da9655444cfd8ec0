"""A legacy client's session: what `initialize` agreed, and its requests in the core's language.

Promises: the client sees the revision that it negotiated; the core sees 2026-07-28. The session ends with
its stream (stdio) or with DELETE (HTTP). Refuses to know which of the two it is on.

Source: "Lifecycle" of 2024-11-05 to 2025-11-25; `basic/utilities/ping`; `server/utilities/logging`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVELS, Call, Event, Notify, is_heard
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.content import downgrade_content, downgrade_question, upgrade_answer
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    Notification,
    Request,
    decode_fields,
    first_byte,
    raw,
    text_of,
)
from mcpmux.protocol.era import downgrade_error, downgrade_result, upgrade_call
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.input_requests import STATE, Wish, error_response, offers, repeated, wishes_in
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_11_25
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import ANYTHING, LIST_CHANGES, NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Tap, watched
from mcpmux.transports.inline import in_task

Ask = Callable[[str, Fields], Awaitable[Fields]]
"""Asks the client something (method, params) and gives its result; raises RpcError when it refuses."""

ELICITATION_BYTES: Final = 12  # of randomness in the name of a URL elicitation, which must be unique

_ABOUT_THE_SESSION: Final = frozenset({m.INITIALIZED, m.CANCELLED, m.PROGRESS})
"""Notifications of clients that mean this session, or a request in it."""

_MODERN_ONLY: Final = frozenset({m.DISCOVER, m.LISTEN, m.TASKS_UPDATE})
_TASKS: Final = m.ABOUT_TASKS - {m.TOOLS_CALL}


class LegacySession:
    """One initialized client. `close` must follow.

    `outbox` holds the changes that it has to be told; `ask_unasked` is set by the transport: how to ask the
    client something outside of its calls.
    """

    def __init__(
        self,
        router: Router,
        hub: NotificationHub,
        revision: str,
        client: ClientFacts,
        tap: Tap | None = None,
        principal: Principal = ANYONE,
    ) -> None:
        self._router = router
        self._hub = hub
        self.outbox: ClientOutbox = hub.join(LIST_CHANGES | {ANYTHING}, principal, client=self)
        self._greeted = trio.Event()  # it knows that the session is open
        self.revision = revision
        self.ask_unasked: Ask | None = None
        self._client = client
        self._tap = tap
        router.join(self)
        hub.personal.join(self, self.outbox)

    def __repr__(self) -> str:
        return f"<LegacySession {self.revision} {bytes(self._client.info).decode(errors='replace')[:80]}>"

    @property
    def principal(self) -> Principal:
        """Who the client is, with the scopes of whatever it showed last."""
        return self.outbox.principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self.outbox.principal = principal

    @property
    def capabilities(self) -> Raw:
        """What the client said that it offers."""
        return self._client.capabilities

    @property
    def knows_tasks(self) -> bool:
        """Whether the session's revision has tasks."""
        return self.revision >= V_2025_11_25

    async def ask(self, method: str, params: Fields) -> Fields:
        """Ask the client, once it is initialized, what no call of its own has caused. Raises RpcError."""
        await self._greeted.wait()
        if self.ask_unasked is None:
            raise RpcError(INVALID_REQUEST, "the client cannot be asked at the moment")
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

    async def answer(self, request: Request, notify: Notify, ask: Ask) -> Fields:
        """Answer one request in the session's revision; `ask` asks the client back. Raises RpcError."""
        if self._tap is None or self._tap.passes:
            return await self._answer(request, notify, ask)
        return await watched(self._tap, self._read(request), partial(self._answer, request, notify, ask))

    async def _answer(self, request: Request, notify: Notify, ask: Ask) -> Fields:
        if request.method == m.PING:
            return {}
        self._greeted.set()
        if request.method == m.SET_LEVEL:
            return self._set_level(request)
        if request.method in (m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE):
            return await self._subscribe(request)
        if request.method == m.INITIALIZE:
            raise RpcError(INVALID_REQUEST, "Invalid request: this session is initialized already")
        if request.method in _MODERN_ONLY or (request.method in _TASKS and not self.knows_tasks):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")
        return await self._forward(self._read(request), notify, ask)

    async def _forward(self, call: Call, notify: Notify, ask: Ask) -> Fields:

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
            return downgrade_content(call.method, downgrade_result(result), self.revision)
        except RpcError as error:
            raise downgrade_error(call.method, error) from None

    def _read(self, request: Request) -> Call:
        return upgrade_call(request.method, request.payload, self._client, self, self.principal)

    async def _gather(self, result: Fields, wishes: dict[str, Wish], ask: Ask) -> Fields:
        """The client's responses to what a server wants to know, asked one after the other."""
        responses: Fields = {}
        state = text_of(result.get(STATE)) or ""
        done = False
        try:
            with trio.CancelScope() as scope:
                self._hub.questions[state] = scope
                for key, wish in wishes.items():
                    try:
                        responses[key] = raw(await self._ask(wish, ask))
                    except RpcError as error:
                        responses[key] = error_response(error)
            done = True  # answered, or taken back by the server
        finally:
            del self._hub.questions[state]
            if not done:
                self._router.abandon(state)
        return responses

    async def _ask(self, wish: Wish, ask: Ask) -> Fields:
        """Ask the client in the words of its revision, if that is what it offers. Raises RpcError."""
        if not offers(self.capabilities, wish.method, wish.params):
            raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {wish.method} as it was asked")
        name = secrets.token_urlsafe(ELICITATION_BYTES)
        params = downgrade_question(wish.method, wish.params, self.revision, name)
        return upgrade_answer(wish.method, wish.params, await ask(wish.method, params), self.revision)

    async def _subscribe(self, request: Request) -> Fields:
        call = self._read(request)
        uri = call.required("uri")
        try:
            if request.method == m.RESOURCES_SUBSCRIBE:
                await self._router.subscribe(self.outbox, uri, call)
            else:
                await self._router.unsubscribe(self.outbox, uri, call)
        except RpcError as error:
            raise downgrade_error(request.method, error) from None
        return {}

    def _set_level(self, request: Request) -> Fields:
        level = text_of(decode_fields(request.payload).get("level"))
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f'Invalid params: "level" must be one of {", ".join(LOG_LEVELS)}')
        self._client = ClientFacts(self._client.info, self._client.capabilities, level)
        return {}


def read_client(request: Request) -> tuple[str, ClientFacts]:
    """The revision that an `initialize` asks for, and who asks. Raises RpcError."""
    params = decode_fields(request.payload)
    requested = text_of(params.get("protocolVersion"))
    if requested is None:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "protocolVersion" must be a string')
    facts = {key: params.get(key, EMPTY_OBJECT) for key in ("clientInfo", "capabilities")}
    for key, value in facts.items():
        if first_byte(value) != b"{":
            raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be an object')
    return requested, ClientFacts(facts["clientInfo"], facts["capabilities"])
