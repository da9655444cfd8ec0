"""Serve one client on a duplex stream: standard input and output, or any other stream of messages.

A request with modern `_meta` is served statelessly; `initialize` opens the stream's one legacy session.
Both may be used on the same stream. Source: "Versioning and Compatibility" (dual-era servers), 2026-07-28.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.channels.duplex_channel import DuplexChannel
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.channels.tap import Watch, tapped
from mcpmux.clients.legacy_session import Session
from mcpmux.clients.service import Elsewhere, Service
from mcpmux.config import Limits
from mcpmux.errors import RpcError, TransportError
from mcpmux.mux.rewrite import owner_of
from mcpmux.protocol import method as m
from mcpmux.protocol.call import VERSION, Call, Notify, check_call
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST
from mcpmux.protocol.envelope import Notification, Request
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import allows_batch
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.transports.body_budget import BodyBudget, LargeRequests
from mcpmux.transports.inline import in_task
from mcpmux.transports.message_stream import MessageStream

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()

_NEED_NO_SESSION = frozenset({m.PING, m.DISCOVER})

DEFAULT_LIMITS = Limits()
ID_BYTES = 16  # of randomness in the id under which a stream's session is counted
EARLY_LIMIT = 16  # notifications that are kept while initializing; clients send one, or two
LINGER_SECONDS = 10.0  # for answering the requests that came before the client closed its side


@dataclass(eq=False, repr=False)
class DuplexClient:
    """The client at the other end of one stream."""

    _service: Service
    _stall: float
    _principal: Principal
    _gate: Gate | None
    _is_counted: bool
    watch: Watch | None = None
    channel: DuplexChannel = field(init=False)
    nursery: trio.Nursery = field(init=False)
    _session: Session | None = field(default=None, init=False)
    _initializing: trio.Event | None = field(default=None, init=False)
    _early: list[Notification] = field(default_factory=list, init=False)  # came while initializing
    _id: str = field(default_factory=partial(secrets.token_hex, ID_BYTES), init=False)
    _listens: set[trio.CancelScope] = field(default_factory=set, init=False)

    def answer(self, request: Request, notify: Notify) -> Awaitable[Fields]:
        """Answer one request. Raises RpcError, at once or when it is awaited."""
        if self.watch is not None:
            self.watch.begin(request.id)
        if self._gate is not None:
            # For each request, as the scopes that a method needs may change while the stream is open.
            turned = self._gate.scopes_missing(request.method, self._principal)
            if turned is not None:
                raise turned.as_error()
        return self._answer(request, notify)

    def _answer(self, request: Request, notify: Notify) -> Awaitable[Fields]:
        # A second one waits like the rest, instead of opening a session that is closed again.
        if request.method == m.INITIALIZE and self._session is None and self._initializing is None:
            self._initializing = trio.Event()
            return self._initialize(request, self._initializing)
        call = Call.of(request.method, request.payload, self, principal=self._principal)
        if VERSION not in call.meta:
            if self._session is not None:
                return self._session.answer(call, notify, self._ask)
            # Programs that pipe their whole conversation do not wait for the answer to `initialize`.
            if self._initializing is not None and request.method not in _NEED_NO_SESSION:
                return self._answer_later(self._initializing, request, notify)
            if request.method == m.PING:  # which a client may send before `initialize`
                return _pong()
            if request.method != m.DISCOVER:  # by which a client finds out the era
                raise RpcError(INVALID_REQUEST, "Invalid request: send `initialize` first, or modern `_meta`")
        check_call(call)
        if request.method == m.LISTEN:
            return self._listen(request, call, notify)
        # The connection stays here, so only the call goes to the process that has what it is about.
        elsewhere = self._service.elsewhere
        if elsewhere is not None and (STATE in call.params or TASK_ID in call.params):
            return self._find_and_answer(elsewhere, request, call, notify)
        return self._service.answer(request.id, call, notify)

    async def _find_and_answer(
        self, elsewhere: Elsewhere, request: Request, call: Call, notify: Notify
    ) -> Fields:
        """Answer a call about a parked call or a task, in the process that has it if that can be asked."""
        owner = owner_of(call.text(STATE)) or owner_of(call.text(TASK_ID))
        result = await elsewhere(owner, call, notify) if owner is not None else None
        return result if result is not None else await self._service.answer(request.id, call, notify)

    async def _initialize(self, request: Request, done: trio.Event) -> Fields:
        try:
            if self._is_counted:  # `leave` ends the count, even if the session is refused below
                await self._service.session_counter.begin(self._id, self._principal)
            session, result = await self._service.initialize(request, self._principal)
            self._session = session
            session.ask_unasked = self._ask
            self.channel.batches = allows_batch(session.revision)
            self.nursery.start_soon(self._deliver, session, name="deliver changes")
            # A client may send `initialized` without waiting for the answer to `initialize`.
            for notification in self._early:
                session.take_notification(notification)
            return result
        finally:
            # Also after a failure: the client may send another `initialize`, and requests must not wait.
            self._early.clear()
            self._initializing = None
            done.set()

    async def _answer_later(self, initialized: trio.Event, request: Request, notify: Notify) -> Fields:
        """Answer a request that came during `initialize`, once that is answered."""
        # The number that wait here is bounded: the channel limits the requests in flight.
        await in_task()
        await initialized.wait()
        return await self._answer(request, notify)

    async def _ask(self, method: str, params: Fields) -> Fields:
        try:
            return await self.channel.exchange(Call(method, params, {}), ignore_event)
        except TransportError as error:
            raise RpcError(INTERNAL_ERROR, f"the client has gone: {error}") from None

    async def _listen(self, request: Request, call: Call, notify: Notify) -> Fields:
        """Answer a listen. Raises RpcError when it ends because the client closed its side."""
        await in_task()
        with trio.CancelScope() as scope:
            self._listens.add(scope)
            try:
                return await self._service.answer(request.id, call, notify)
            finally:
                self._listens.discard(scope)
        raise RpcError(INVALID_REQUEST, "the client has closed its side of the stream")

    async def hang_up(self) -> None:
        """End the listens of a client once it has closed its side of the stream."""
        # It can no longer cancel them, and they would hold the stream open for ever.
        await self.channel.closed.wait()
        for scope in list(self._listens):
            scope.cancel(reason="the client has closed its side")

    async def _deliver(self, session: Session) -> None:
        """Send a legacy client the changes in its outbox, until it goes, we stop, or it stops reading."""
        try:
            while (event := await session.outbox.take()) is not None:
                # A client may be quiet for ever; it counts as gone only if it leaves one change unread.
                with trio.fail_after(self._stall):
                    await self.channel.notify(event.method, event.params)
        except (TransportError, trio.TooSlowError):
            log.warning("client does not read any more; closing it", client=repr(session))
            self.nursery.cancel_scope.cancel(reason="the client does not read")

    async def drain_after(self, stopping: trio.Event) -> None:
        """Refuse new requests once `stopping` is set."""
        await stopping.wait()
        self.channel.drain()

    def leave(self) -> None:
        """Drop the client's session and everything else that was held for it."""
        if self._session is not None:
            self._session.close()
        if self._is_counted:
            self._service.session_counter.end(self._id)
        self._service.leave(self)
        if self.watch is not None:
            self.watch.tap.gone(self.watch.leg)

    def hear(self, notification: Notification) -> None:
        """Take a notification that belongs to no exchange."""
        if self._session is not None:
            self._session.take_notification(notification)
        elif self._initializing is not None:  # kept for the session
            if len(self._early) < EARLY_LIMIT:
                self._early.append(notification)
        elif notification.method == m.ROOTS_CHANGED:
            self._service.roots_changed()


async def _pong() -> Fields:
    return {}


async def serve_messages(
    messages: MessageStream,
    service: Service,
    limits: Limits = DEFAULT_LIMITS,
    transport: str = "stdio",
    principal: Principal = ANYONE,
    gate: Gate | None = None,
    stopping: trio.Event | None = None,
    linger: float = LINGER_SECONDS,
    is_counted: bool = False,
    bodies: BodyBudget | None = None,
    holder: str = "",
) -> None:
    """Serve one client until its stream ends, or until it has not read for too long.

    `principal`: the client's; `gate` knows which scopes a method needs. Once `stopping` is set, pending
    requests are answered and new ones are refused. `linger`: seconds for answering requests after the stream
    ended. `is_counted`: its session counts for its principal's limit. `bodies`: the budget for large requests
    until they are answered, `holder`: the client that they count for. `messages` stays open.
    """
    client = DuplexClient(service, limits.client_stall, principal, gate, is_counted)
    if service.tap is not None:
        client.watch = Watch(service.tap, service.tap.client(transport))
        client.watch.leg.view = principal.view or None
        messages = tapped(messages, client.watch)
    try:
        async with (
            trio.open_nursery() as client.nursery,
            open_duplex_channel(messages, client.hear, client.answer, linger=linger) as client.channel,
        ):
            client.channel.incoming_limit = limits.max_in_flight
            client.channel.large = LargeRequests(bodies, holder) if bodies is not None else None
            if transport == "stdio":
                client.channel.source = "standard input"
            client.nursery.start_soon(client.hang_up, name="hang up")
            if stopping is not None:
                client.nursery.start_soon(client.drain_after, stopping, name="drain")
            await client.channel.ended.wait()
            client.nursery.cancel_scope.cancel()
    finally:
        client.leave()
