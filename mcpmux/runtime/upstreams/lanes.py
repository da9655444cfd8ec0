"""Second sessions with servers of both eras, so that a legacy client is served in its own era.

A server that speaks 2026-07-28 is spoken to in it. Many of these serve legacy clients too, and otherwise:
they push what they ask (sampling, elicitation) instead of answering `input_required`. So while such a server
has legacy clients, it has a legacy session beside the modern one: its lane.

State of an upstream's lane

    none --open--> opening --connected--> ready --lost and not regained--> none
    opening --refused--> none          (then not opened again for a while)

Promises: a call never waits for a lane; without one it is served by the shared session. When a lane ends,
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

MakeLane = Callable[[str, str], Upstream]
"""Makes the upstream for a lane: (configured name, key)."""

MoveInterest = Callable[[str, str], None]
"""Called with the keys (of the lane that ended, of the shared session that takes over)."""


def mirrors(config: UpstreamConfig) -> bool:
    """Whether clients of both eras are to reach an upstream in their own."""
    # A second session with a child process is a second process, which knows nothing of what the first did.
    return config.era == "mirror" or (config.era == "auto" and not isinstance(config.target, Stdio))


def lane_key(name: str) -> str:
    """The key of an upstream's lane."""
    return f"{name}@legacy"  # no upstream can have this name


class Lanes:
    """The lanes of all upstreams. `run` has to run."""

    def __init__(self, make: MakeLane, sessions: dict[str, Upstream], move_interest: MoveInterest) -> None:
        """`sessions`: every session by its key; lanes are put there and taken out again."""
        self._make = make
        self._sessions = sessions
        self._move_interest = move_interest
        self._lanes: dict[str, Upstream] = {}
        self._not_before: dict[str, float] = {}
        self._scopes: dict[Upstream, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the lanes connected until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def of(self, shared: Upstream) -> Upstream:
        """The session that serves a legacy client of an upstream: its lane when that is ready."""
        lane = self._lanes.get(shared.name)
        if lane is not None:
            return lane if lane.connection is not None else shared
        self._open(shared)
        return shared

    async def settled(self, shared: Upstream) -> None:
        """A legacy client is about to come: open the lane, and wait for the first attempt."""
        self._open(shared)
        if (lane := self._lanes.get(shared.name)) is not None:
            await lane.settled()

    def _open(self, shared: Upstream) -> None:
        """Start a lane, if there is none, the server may have one and it is time to ask."""
        facts = shared.facts
        if shared.name in self._lanes or self._nursery is None or facts is None:
            return
        if not is_modern(facts.revision) or not mirrors(shared.config):
            return
        if trio.current_time() < self._not_before.get(shared.name, 0):
            return
        lane = self._make(shared.name, lane_key(shared.name))
        self._lanes[shared.name] = self._sessions[lane.key] = lane
        self._scopes[lane] = trio.CancelScope()
        self._nursery.start_soon(self._keep, lane, name=f"upstream {lane.key}")

    def retire(self, name: str) -> tuple[Upstream, trio.CancelScope] | None:
        """The upstream gets another session, or none: its lane serves no new call; how to end it."""
        self._not_before.pop(name, None)
        lane = self._lanes.pop(name, None)
        if lane is None:
            return None
        self._move_interest(lane.key, name)
        return lane, self._scopes[lane]

    async def _keep(self, lane: Upstream) -> None:
        try:
            with self._scopes[lane]:
                await lane.run_while_it_lasts()
                log.info("legacy clients are served in 2026-07-28", upstream=lane.key, reason=lane.trouble)
        finally:
            del self._scopes[lane]
            if self._lanes.get(lane.name) is lane:
                self._not_before[lane.name] = trio.current_time() + PAUSE_SECONDS
                self._move_interest(lane.key, lane.name)
                del self._lanes[lane.name]
            if self._sessions.get(lane.key) is lane:
                del self._sessions[lane.key]
