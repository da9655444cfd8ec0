"""The legacy sessions of one endpoint over Streamable HTTP.

Promises: an id alone neither opens a session nor confirms that it exists; there are at most
`limits.max_sessions`, and no principal keeps all others out; a session that is idle for
`limits.session_idle`, or whose principal is no longer admitted, ends. A session whose process has gone is
taken over, each once.

Source: "Session Management" in "Transports" of 2025-03-26 to 2025-11-25; "Session Hijacking" in the Security
Best Practices.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from mcpmux.clients.http_answer import NoSession
from mcpmux.clients.http_session import HttpSession
from mcpmux.clients.legacy_session import Session
from mcpmux.clients.service import Service
from mcpmux.clients.session_records import Recovered, Recoveries, SessionRecords, Trouble
from mcpmux.config import Limits
from mcpmux.mux.rewrite import Marks
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.envelope import Request
from mcpmux.protocol.headers import SESSION_HEADER
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.waiting import DeadlineSweeper

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()

SESSION_BYTES: Final = 18  # of randomness in a session id: it is a bearer's proof, so it must not be guessed
SWEEP_SECONDS = 1.0  # between two looks for idle sessions


class HttpSessions(dict[str, HttpSession]):
    """The sessions by id. `run` must run as long as there are any."""

    def __init__(
        self,
        service: Service,
        limits: Limits,
        gate: Gate | None,
        marks: Marks,
        records: SessionRecords | None,
        count_streams: Callable[[], int],
    ) -> None:
        """`gate` knows which principals are admitted. `marks`: the prefix of every id.

        `records` keep sessions beyond the life of this process. `count_streams` returns the number of other
        sessions that count for the limit.
        """
        super().__init__()
        self._service, self._limits, self._gate = service, limits, gate
        self._marks, self._records, self._count_streams = marks, records, count_streams
        self._recoveries = Recoveries(records, self._go_on) if records is not None else None
        self._nursery: trio.Nursery
        self._deadlines = DeadlineSweeper()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the calls that outlive their connections, and end idle sessions, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._deadlines.run, name="calls' time")
            task_status.started()
            try:
                while True:
                    await trio.sleep(SWEEP_SECONDS)
                    self._end_idle()
            finally:
                # Inside the nursery: a call that goes on without its client is cancelled by a task of it.
                for session in self.values():
                    session.close()

    def new_id(self) -> str:
        """Return an id for another session."""
        return self._marks.current + secrets.token_urlsafe(SESSION_BYTES)

    def is_full(self) -> bool:
        """Return whether there are as many sessions as are allowed."""
        return len(self) + self._count_streams() >= self._limits.max_sessions

    # The session of a request

    def find(self, request: HttpRequest) -> HttpSession | None:
        """Return the session that a request names; None when there is none, or another principal has it."""
        session = self.get(request.headers.get(SESSION_HEADER, ""))
        if session is None:
            return None
        legacy, principal = session.session, request.principal
        # As if there were none: an id alone must neither open a session nor confirm that it exists.
        if legacy.principal.name != principal.name or legacy.principal.view != principal.view:
            return None
        # The same principal, but the new token may have other scopes: they count from now on.
        legacy.principal = legacy.outbox.principal = principal
        return session

    def find_existing(self, request: HttpRequest) -> HttpSession:
        """Return the session that a request must have. Raises NoSession."""
        # 400 without the header, 404 for a session that has ended.
        if SESSION_HEADER not in request.headers:
            raise NoSession(400, "send `initialize` first, then its Mcp-Session-Id with every request")
        session = self.find(request)
        if session is None:
            raise NoSession(404, "Session not found: it has ended; send `initialize` again")
        return session

    def may_recover(self, request: HttpRequest) -> bool:
        """Return whether a request that names a session may be in one of a process that has gone."""
        return self._recoveries is not None and request.headers[SESSION_HEADER] not in self

    async def recover(self, request: HttpRequest) -> Trouble | None:
        """Take over the session of a request, if it exists. Return why that is impossible, or None."""
        assert self._recoveries is not None
        return await self._recoveries.recover(request.headers[SESSION_HEADER], request.principal)

    # Beginning and end

    async def open(self, message: Request, principal: Principal) -> tuple[str, HttpSession, Fields]:
        """Open a session by `initialize`. Return (its id, the session, the answer). Raises RpcError."""
        session_id, counter = self.new_id(), self._service.session_counter
        await counter.begin(session_id, principal, lasting=self._records is not None)
        session: Session | None = None
        try:
            if self.is_full() and not self._make_room(principal):
                raise Busy(f"{self._limits.max_sessions} sessions are open; end one", "limits.max_sessions")
            session, result = await self._service.initialize(message, principal)
            if self._records is not None:
                await self._records.begin(session_id, session)
        except BaseException:  # cancelling too must not leave a session that no client knows, or its count
            if session is not None:
                session.close()
            counter.end(session_id)
            raise
        return session_id, self._hold(session_id, session), result

    def end(self, session_id: str, event: str, **facts: str) -> None:
        """End a session. `event`, with `facts`: for the log."""
        self._service.session_counter.end(session_id)
        if self._records is not None:
            self._records.forget(session_id)
        self.pop(session_id).close()
        log.info(event, **facts, sessions=len(self))

    def lose(self, session_id: str) -> None:
        """Give up a session that another process has taken over."""
        if (session := self.pop(session_id, None)) is not None:
            self._service.session_counter.lose(session_id)
            session.close()

    def _hold(self, session_id: str, session: Session) -> HttpSession:
        """Register a session under its id, and return it."""
        keeper = self._records.keeper_of(session_id) if self._records is not None else None
        in_flight = self._limits.max_in_flight
        held = HttpSession(session, self._nursery, self._deadlines, in_flight, keeper)
        self[session_id] = held
        return held

    def _go_on(self, session_id: str, principal: Principal, recovered: Recovered) -> None:
        self._service.session_counter.go_on(session_id, principal)
        self._hold(session_id, recovered.session).go_on(recovered)
        log.info("session taken over", revision=recovered.session.revision, sessions=len(self))

    def _end_idle(self) -> None:
        """End sessions that are idle for too long, and sessions of principals that are no longer admitted."""
        last = trio.current_time() - self._limits.session_idle
        for session_id, session in list(self.items()):
            orphaned = self._gate is not None and not self._gate.knows(session.session.principal)
            if orphaned or (session.idle and session.last_used < last):
                self.end(session_id, "session of nobody ended" if orphaned else "idle session ended")

    def _make_room(self, principal: Principal) -> bool:
        """End a session of the principal that has most, if it has more than `principal` will have.

        The least recently used of its idle sessions ends; sessions in use stay. Return whether one ended.
        """
        # Otherwise one principal could take every place and keep all others out.
        counts = Counter(session.session.principal.name for session in self.values())
        greedy, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
        idle = [
            (session.last_used, session_id)
            for session_id, session in self.items()
            if session.idle and session.session.principal.name == greedy
        ]
        if not principal or most <= counts[principal.name] + 1 or not idle:
            return False
        self.end(min(idle)[1], "session ended for another principal", principal=greedy)
        return True
