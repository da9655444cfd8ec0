"""The front door that every client comes through, whatever its era and transport.

A modern call is answered here. `initialize` opens a `LegacySession`, which answers the calls of its client.

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
from mcpmux.runtime.session_counter import SessionCounter
from mcpmux.runtime.session_facts import SessionFacts

Elsewhere = Callable[[str, Call, Notify], Awaitable[Fields | None]]
"""Has the process with that id answer a call; None when it is this one, or not there. Raises RpcError."""


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
        if LOG_LEVEL in call.meta:
            level = text_of(call.meta[LOG_LEVEL])
            notify = with_logs_of(lambda: level, notify)
        return self.router.exchange(call, notify)

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
        return LegacySession(self.router, self.hub, self.tap, *read_client(request), principal), result

    def resume(self, facts: SessionFacts, principal: Principal) -> LegacySession:
        """Go on with a legacy session of another process that has gone. The caller closes it.

        Its client is told that everything may have changed meanwhile that it listens to.
        """
        client = ClientFacts(Raw(facts.info), Raw(facts.capabilities), facts.log_level)
        session = LegacySession(self.router, self.hub, self.tap, facts.revision, client, principal)
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
