"""The entry point for all clients, of both eras and on every transport.

MuxService answers modern calls. `initialize` opens a `LegacySession`, which answers the calls of its client.

Source: "Lifecycle" of 2024-11-05 to 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from mcpmux.channels.tap import ORIGIN, Tap, identify, name_in, watched
from mcpmux.clients.legacy_session import LegacySession, Session, read_client, with_logs_of
from mcpmux.clients.listen import serve_listen
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    LOG_LEVEL,
    Call,
    Notify,
)
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    Request,
    raw,
    text_of,
)
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.protocol.revisions import V_2025_11_25
from mcpmux.runtime.notification_hub import NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.runtime.sessions import SessionCounter, SessionFacts

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

    def answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited."""
        if self.tap is not None:
            identify(call)
            if not self.tap.passes:
                # A call through the search tool is recorded as the call of the tool that it runs.
                meant = self.router.search.meant(call)
                return watched(self.tap, meant, partial(self._answer, request_id, call, notify))
        return self._answer(request_id, call, notify)

    def _answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
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
        """Return an awaitable that raises BadNarrowing if the principal's query selects nothing.

        None when the query is known to select something.
        """
        return self.router.judging(principal)

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
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        if (origin := ORIGIN.get()) is not None:
            origin.leg.introduce(revision, name_in(client.info))
        return result
