"""One initialized client of a legacy revision, as the core sees it: a client of 2026-07-28.

A call in the session's revision becomes a call of the core, and its answer one of the session's revision.
Where the answer is `input_required`, the client is asked, and the call is repeated with its answers: the
counterpart of `channels/questions`. Changes wait in the outbox; the transport delivers them.

Source: "Lifecycle" of 2024-11-05 to 2025-11-25; `basic/utilities/ping`; `server/utilities/logging`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import trio

from mcpmux.channels.questions import seconds_to_answer, unanswered
from mcpmux.channels.tap import Tap, current_leg, watched
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    LOG_LEVELS,
    Call,
    Event,
    Notify,
    is_complete,
    is_heard,
)
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    Notification,
    Request,
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
from mcpmux.protocol.input_requests import STATE, Wish, error_response, offers
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import V_2025_11_25, negotiate_legacy
from mcpmux.protocol.tasks import TASK
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import ALL_KINDS, NotificationHub, OpenQuestion
from mcpmux.runtime.round_trips import end_rounds
from mcpmux.runtime.router import Router
from mcpmux.runtime.sessions import Interest, MadeTask, SessionFacts

AskClient = Callable[[str, Fields], Awaitable[Fields]]
"""Send the client a request (method, params) and return its result. Raises RpcError when it refuses."""

OnAgreed = Callable[[], Awaitable[None]]
"""Called when a session has agreed to something more, before its client gets the answer."""

ELICITATION_BYTES: Final = 12  # of randomness in the name of a URL elicitation, which must be unique

_ABOUT_THE_SESSION: Final = frozenset({m.INITIALIZED, m.CANCELLED, m.PROGRESS})
"""Notifications of clients about this session, or a request in it: not for upstreams."""

_AGREEING: Final = frozenset({m.SET_LEVEL, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})
_MODERN_ONLY: Final = frozenset({m.DISCOVER, m.LISTEN, m.TASKS_UPDATE})
_TASKS: Final = m.ABOUT_TASKS - {m.TOOLS_CALL}


class Session(Protocol):
    """The interface of one initialized legacy client. LegacySession documents the methods."""

    revision: str
    outbox: ClientOutbox
    ask_unasked: AskClient
    principal: Principal

    def answer(self, call: Call, notify: Notify, ask: AskClient) -> Awaitable[Fields]: ...
    def take_notification(self, notification: Notification) -> None: ...
    def close(self) -> None: ...


def with_logs_of(level: Callable[[], str | None], notify: Notify) -> Notify:
    """Return a `notify` that passes on only log messages of a level and worse, and all other events.

    `level` returns the level: None, as before `logging/setLevel`, passes all messages.
    """

    async def pass_on(event: Event) -> None:
        if event.method != m.LOG_MESSAGE or is_heard(event, level()):
            await notify(event)

    return pass_on


async def _keep_nothing() -> None:
    """Keep an agreement local to this process."""


class LegacySession:
    """One initialized client. `close` must follow. `outbox` holds the changes to send to it.

    `ask_unasked`, which the transport sets, sends the client a request outside of its calls. `on_agreed` is
    called when `facts` have changed.
    """

    ask_unasked: AskClient
    on_agreed: OnAgreed

    def __init__(
        self,
        router: Router,
        hub: NotificationHub,
        tap: Tap | None,
        revision: str,
        client: ClientFacts,
        principal: Principal,
    ) -> None:
        self._router, self._hub, self._tap = router, hub, tap
        self.outbox = hub.join(ClientOutbox(ALL_KINDS, principal, client=self, leg=current_leg()))
        self.outbox.log_level = client.log_level
        self._greeted = trio.Event()  # set once the client knows that the session is open
        self.principal = principal
        self.revision = revision
        self.knows_tasks = revision >= V_2025_11_25
        self.capabilities = client.capabilities
        self._client = client
        self.on_agreed = _keep_nothing
        self.epoch = 0  # rises with each process that takes the session over
        router.join(self)
        hub.personal.join(self, self.outbox)

    def __repr__(self) -> str:
        return f"<LegacySession {self.revision} {bytes(self._client.info).decode(errors='replace')[:80]}>"

    def facts(self) -> SessionFacts:
        """Return the facts from which another process can continue this session."""
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
        introduction = bytes(client.info), bytes(client.capabilities), client.log_level
        return SessionFacts(self.revision, *introduction, interests, self.epoch, made)

    def go_on(self, before: SessionFacts) -> None:
        """Continue a session of another process: take over its subscriptions and tasks."""
        self.epoch = before.epoch
        self._greeted.set()  # the client was initialized by the other process
        call = Call(m.RESOURCES_SUBSCRIBE, {}, self._client.meta, self, None, True, self.principal)
        for key, uri, said_raw in before.interests:
            self._router.go_on_listening(self.outbox, key, uri, call, said_raw=said_raw)
        for made in before.tasks:
            self._router.go_on_with_task(self, made)
        # It may have missed changes between the two processes.
        self._router.remind_of_lists(self.outbox)

    def catch_up(self) -> None:
        """Notify the client of every change that it may have missed."""
        self._hub.remind(self.outbox)
        self._router.remind_of_lists(self.outbox)

    async def ask(self, method: str, params: Fields) -> Fields:
        """Send the client, once it is initialized, a request that no call has caused. Raises RpcError."""
        await self._greeted.wait()
        return await self._ask(Wish(method, params), self.ask_unasked)

    def take_notification(self, notification: Notification) -> None:
        """Take a notification of the client: changed roots, or one for upstreams."""
        self._greeted.set()
        if notification.method == m.ROOTS_CHANGED:
            self._router.roots_changed()
        elif notification.method not in _ABOUT_THE_SESSION:
            with suppress(ValueError):  # params that are no object: a notification cannot be refused
                self._router.pass_on(
                    notification.method, decode_fields(notification.params), self, self.principal
                )

    def close(self) -> None:
        """Drop the client's subscriptions and everything else that was held for it."""
        self._hub.leave(self.outbox)
        self._router.leave(self)

    def answer(self, call: Call, notify: Notify, ask: AskClient) -> Awaitable[Fields]:
        """Answer a call in the client's revision. `ask` sends the client requests. Raises RpcError."""
        call = upgrade_call(call, self._client, self, self.principal)
        if self._tap is None or self._tap.passes:
            return self._answer(call, notify, ask)
        # A call through the search tool is recorded as the call of the tool that it runs.
        shown_call = self._router.search.meant(call)
        return watched(self._tap, shown_call, partial(self._answer, call, notify, ask))

    async def _answer(self, call: Call, notify: Notify, ask: AskClient) -> Fields:
        if call.method == m.PING:  # which a client may send before `initialized`
            return {}
        # A client that calls knows that the session is open, also if its notification is still on its way.
        self._greeted.set()
        if call.method in _AGREEING:
            await self._agree(call)
            # Before the answer: what the client was promised must survive this process.
            await self.on_agreed()
            return {}
        if call.method == m.INITIALIZE:
            raise RpcError(INVALID_REQUEST, "Invalid request: this session is initialized already")
        if call.method in _MODERN_ONLY or (call.method in _TASKS and not self.knows_tasks):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        # The level is read for each message: `logging/setLevel` counts for calls under way, too.
        notify = with_logs_of(lambda: self._client.log_level, notify)
        try:
            result = await self._router.exchange(call, notify)
            if not is_complete(result):
                respond = partial(self._gather, ask)
                result = await end_rounds(result, self._router.exchange, call, notify, respond)
            if TASK in call.params:  # the call has made a task, which belongs to the session from now on
                await self.on_agreed()
            return downgrade_content(call.method, downgrade_result(result), self.revision)
        except RpcError as error:
            raise downgrade_error(call.method, error) from None

    async def _gather(self, ask: AskClient, result: Fields, wishes: dict[str, Wish]) -> Fields:
        """Return the client's answers to all questions of a call. Raises RpcError.

        It stops early when the call no longer waits for answers.
        """
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
            if questions.get(state) is question:  # a server of 2026-07-28 may repeat a state
                del questions[state]
            if not done:  # cancelled: the call that is parked at the server would wait in vain
                self._router.abandon(state)
        if question.error is not None:
            raise question.error
        return responses

    async def _ask(self, wish: Wish, ask: AskClient) -> Fields:
        """Send the client a question in its revision, and return the answer. Raises RpcError.

        It fails at once if the client does not offer that, and after `seconds_to_answer`, which is short if
        no person has to answer.
        """
        # A server may ask only what its client has declared ("Lifecycle", Capability Negotiation).
        if not offers(self.capabilities, wish.method, wish.params):
            raise RpcError(METHOD_NOT_FOUND, f"the client does not offer {wish.method} as it was asked")
        name = secrets.token_urlsafe(ELICITATION_BYTES)
        params = downgrade_question(wish.method, wish.params, self.revision, name)
        # The server waits meanwhile, and only a person needs minutes.
        with trio.move_on_after(seconds_to_answer(wish.method)):
            return upgrade_answer(wish.method, wish.params, await ask(wish.method, params), self.revision)
        raise unanswered(wish.method)

    async def _agree(self, call: Call) -> None:
        """Set the log level, or begin or end a subscription. Raises RpcError."""
        if call.method == m.SET_LEVEL:
            level = call.text("level")
            if level not in LOG_LEVELS:
                levels = ", ".join(LOG_LEVELS)
                raise RpcError(INVALID_PARAMS, f'Invalid params: "level" must be one of {levels}')
            self._client = ClientFacts(self._client.info, self._client.capabilities, level)
            self.outbox.log_level = level
            return
        uri, router = call.required("uri"), self._router
        change = router.subscribe if call.method == m.RESOURCES_SUBSCRIBE else router.unsubscribe
        try:
            await change(self.outbox, uri, call)
        except RpcError as error:
            raise downgrade_error(call.method, error) from None


def read_client(request: Request) -> tuple[str, ClientFacts]:
    """Return the revision to use after an `initialize`, and the facts about its client. Raises RpcError."""
    params = decode_fields(request.payload)
    requested = text_of(params.get("protocolVersion"))
    if requested is None:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "protocolVersion" must be a string')
    facts = {key: params.get(key, EMPTY_OBJECT) for key in ("clientInfo", "capabilities")}
    for key, value in facts.items():
        if first_byte(value) != b"{":
            raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be an object')
    # If the requested revision is not known, the answer names another ("Lifecycle", Version Negotiation).
    return negotiate_legacy(requested), ClientFacts(facts["clientInfo"], facts["capabilities"])
