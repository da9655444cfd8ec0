"""Second sessions with servers of both eras, so that a legacy client is served in its own era.

A server that speaks 2026-07-28 is spoken to in it. Many of these serve legacy clients too, and otherwise:
they push what they ask (sampling, elicitation) instead of answering `input_required`. So while such a server
has legacy clients, it has a legacy session beside the modern one, its era session.

State of an upstream's era session

    none --open--> opening --connected--> ready --lost and not regained--> none
    opening --refused--> none          (then not opened again for a while)

Promises: a call never waits for an era session; without one it is served by the shared session. When it ends,
the interest of its subscribers moves to the shared session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from mcpmux.config import Stdio
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.upstreams.upstream import Upstream

log = structlog.get_logger()

PAUSE_SECONDS: Final = 60.0  # after a server had no legacy session for us; asking again costs it one request

MakeEraSession = Callable[[str, str], Upstream]
"""Makes the upstream for an era session: (configured name, key)."""

MoveInterest = Callable[[str, str], None]
"""Called with the keys (of the era session that ended, of the shared session that takes over)."""


def mirrors(config: UpstreamConfig) -> bool:
    """Whether clients of both eras are to reach an upstream in their own."""
    # A second session with a child process is a second process, which knows nothing of what the first did.
    return config.era == "mirror" or (config.era == "auto" and not isinstance(config.target, Stdio))


def era_session_key(name: str) -> str:
    """The key of an upstream's era session."""
    return f"{name}@legacy"  # no upstream can have this name


class EraSessions:
    """The era sessions of all upstreams. `run` has to run."""

    def __init__(
        self, make: MakeEraSession, sessions: dict[str, Upstream], move_interest: MoveInterest
    ) -> None:
        """`sessions`: every session by its key; era sessions are put there and taken out again."""
        self._make = make
        self._sessions = sessions
        self._move_interest = move_interest
        self._era_sessions: dict[str, Upstream] = {}
        self._not_before: dict[str, float] = {}
        self._scopes: dict[Upstream, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<EraSessions {list(self._era_sessions.values())}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the era sessions connected until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def of(self, shared: Upstream) -> Upstream:
        """The session that serves a legacy client of an upstream: its era session when that is ready."""
        era_session = self._era_sessions.get(shared.name)
        if era_session is not None:
            return era_session if era_session.connection is not None else shared
        self._open(shared)
        return shared

    async def settled(self, shared: Upstream) -> None:
        """A legacy client is about to come: open the era session, and wait for the first attempt."""
        self._open(shared)
        if (era_session := self._era_sessions.get(shared.name)) is not None:
            await era_session.settled()

    def _open(self, shared: Upstream) -> None:
        """Start an era session, if there is none, the server may have one and it is time to ask."""
        facts = shared.facts
        if shared.name in self._era_sessions or self._nursery is None or facts is None:
            return
        if not is_modern(facts.revision) or not mirrors(shared.config):
            return
        if trio.current_time() < self._not_before.get(shared.name, 0):
            return
        era_session = self._make(shared.name, era_session_key(shared.name))
        self._era_sessions[shared.name] = self._sessions[era_session.key] = era_session
        self._scopes[era_session] = trio.CancelScope()
        self._nursery.start_soon(self._keep, era_session, name=f"upstream {era_session.key}")

    def retire(self, name: str) -> tuple[Upstream, trio.CancelScope] | None:
        """The upstream gets another session, or none: its era session serves no new call; how to end it."""
        self._not_before.pop(name, None)
        era_session = self._era_sessions.pop(name, None)
        if era_session is None:
            return None
        self._move_interest(era_session.key, name)
        return era_session, self._scopes[era_session]

    async def _keep(self, era_session: Upstream) -> None:
        try:
            with self._scopes[era_session]:
                await era_session.run_while_it_lasts()
                log.info(
                    "legacy clients are served in 2026-07-28",
                    upstream=era_session.key,
                    reason=era_session.trouble,
                )
        finally:
            del self._scopes[era_session]
            if self._era_sessions.get(era_session.name) is era_session:
                self._not_before[era_session.name] = trio.current_time() + PAUSE_SECONDS
                self._move_interest(era_session.key, era_session.name)
                del self._era_sessions[era_session.name]
            if self._sessions.get(era_session.key) is era_session:
                del self._sessions[era_session.key]
