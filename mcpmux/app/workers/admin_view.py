"""The admin listener of the supervisor. It shows all workers as one.

A worker that does not answer is logged and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import trio

from mcpmux.app.control import Control
from mcpmux.app.listeners import Announce
from mcpmux.app.observers import new_run
from mcpmux.app.workers.shared_upstream import SharedUpstreams
from mcpmux.app.workers.traffic_forwarder import TrafficCollector
from mcpmux.app.workers.worker_pool import WorkerPool
from mcpmux.config import Config
from mcpmux.traffic.admin.listener import serve_admin
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.admin.upstreams import SessionState, UpstreamState
from mcpmux.traffic.admin.view import LiveView
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.scraping import Totals, metrics_route
from mcpmux.transports.tls.context import TlsContexts


class AdminView:
    """Of all workers. `collector` is given what they forward."""

    def __init__(self, config: Config, pool: WorkerPool, shared: SharedUpstreams) -> None:
        """For a configuration with an admin listener."""
        self._config = config.admin
        self._pool = pool
        self._shared = shared
        self._redactor = Redactor(config.redaction)
        self._ring = LiveRing(config.admin.keep_exchanges, config.admin.keep_bytes)
        self._totals = Totals()
        self.collector = TrafficCollector(self._ring, pool.count)

    def __repr__(self) -> str:
        return f"<AdminView {self._ring!r}>"

    def follow(self, config: Config) -> None:
        """The configuration has changed."""
        self._redactor.adopt(config.redaction)

    async def serve(
        self,
        control: Control,
        stopping: trio.Event,
        announce: Announce,
        certificates: TlsContexts,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the admin listener until we stop. Raises TransportError, ConfigError."""
        view = LiveView(self._ring, self._redactor, new_run())
        more = [metrics_route(self._metrics)]
        await serve_admin(
            self._config, view, self, stopping, announce, more, control, certificates, task_status=task_status
        )

    async def read_all(self) -> list[UpstreamState]:
        shared = self._shared.states(self._redactor)
        return merge_upstreams(await self._pool.ask("upstreams"), shared)

    async def read_states(self) -> dict[str, str]:
        return merge_states((await self._pool.ask("states")).values())

    async def _metrics(self) -> bytes:
        texts = await self._pool.ask("metrics")
        starts = self._pool.starts
        named: dict[object, str] = {(number, starts[number]): text.decode() for number, text in texts.items()}
        return self._totals.add_up(named, starts.items()).encode()


# The states of the upstreams for all workers together. Pure.
#
# Rules
#   * The state of an upstream is the worst that it has at any worker, and the trouble says at which. Numbers
#     are added up; sessions are listed side by side, and their `key` names the worker, as in `2/docs`.
#   * A shared upstream has one state, unless an administrator has drained it, which the workers do. Its
#     sessions are its own, with the listeners of all workers.

_BEST_FIRST = ("ready", "drained", "draining", "connecting", "failing", "crash-loop", "down")
_RANKS = {state: rank for rank, state in enumerate(_BEST_FIRST)}
_SUMMED = ("restarts", "in_flight", "unasked_logs", "more_sessions")
_HELD = frozenset({"draining", "drained"})

Said = Mapping[int, Sequence[UpstreamState]]
"""What each worker says of every upstream, by the worker's number."""


def merge_upstreams(said: Said, shared: Mapping[str, UpstreamState]) -> list[UpstreamState]:
    """One state for each upstream, in the order in which the workers have them."""
    found: dict[str, dict[int, UpstreamState]] = {}
    for worker, states in said.items():
        for state in states:
            found.setdefault(state.name, {})[worker] = state
    return [_merge(states, shared.get(name)) for name, states in found.items()]


def merge_states(said: Iterable[Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for states in said:
        for name, state in states.items():
            found.setdefault(name, []).append(state)
    return {name: worst(states) for name, states in found.items()}


def worst(states: Iterable[str]) -> str:
    """The worst of the states."""
    return max(states, key=lambda state: _RANKS.get(state, len(_RANKS)))


def _merge(states: Mapping[int, UpstreamState], shared: UpstreamState | None) -> UpstreamState:
    several = list(states.values())
    state = worst(each.state for each in several)
    example = next(each for each in several if each.state == state)
    merged = msgspec.structs.replace(
        example,
        trouble=_trouble(states, state),
        cache=_cache(several),
        sessions=[
            msgspec.structs.replace(each, key=f"{worker}/{each.key}")
            for worker, of in states.items()
            for each in of.sessions
        ],
        **{name: sum(getattr(each, name) for each in several) for name in _SUMMED},
    )
    return merged if shared is None else _merge_shared(merged, several, shared)


def _trouble(states: Mapping[int, UpstreamState], state: str) -> str | None:
    there = {worker: each.trouble for worker, each in states.items() if each.state == state}
    trouble = next((text for text in there.values() if text), None)
    if trouble is None or len(there) == len(states):
        return trouble
    return f"{trouble} (worker {', '.join(map(str, there))} of {len(states)})"


def _cache(states: Sequence[UpstreamState]) -> dict[str, int] | None:
    counts = [each.cache for each in states if each.cache is not None]
    return {name: sum(each.get(name, 0) for each in counts) for name in counts[0]} if counts else None


def _merge_shared(
    merged: UpstreamState, several: Sequence[UpstreamState], shared: UpstreamState
) -> UpstreamState:
    held = merged.state if all(each.state in _HELD for each in several) else None
    listeners: Counter[str] = Counter()
    for told in (told for each in several for session in each.sessions for told in session.subscriptions):
        listeners[told["uri"]] += told["listeners"]

    def heard(session: SessionState) -> SessionState:
        told = [
            {**each, "listeners": listeners.get(each["uri"], each["listeners"])}
            for each in session.subscriptions
        ]
        return msgspec.structs.replace(session, subscriptions=told)

    return msgspec.structs.replace(
        shared,
        prefix=merged.prefix,
        state=held or shared.state,
        since=merged.since if held else shared.since,
        cache=merged.cache,
        sessions=[heard(each) for each in shared.sessions],
    )
