"""What the inspector asks for.

| path | answer |
| --- | --- |
| `/api/exchanges?filter=&before=&limit=` | `rows`, newest first; `before`: to go on, or null; `messages` |
| `/api/exchanges/stream?filter=&since=` | events `rows`, see `stream_rows`; `since`: `messages` of a list |
| `/api/exchanges/{row}` | `row`, and `messages` on both legs with their records |
| `/api/exchanges/{row}/{seq}` | one of its messages, uncut |
| `/api/traffic/stream?filter=` | events `record` (as in captures) and `missed` |
| `/api/upstreams` | each upstream with its sessions and subscriptions |
| `/api/stats?window=&slots=` | durations per upstream and method, and over time; `window` in seconds |
| `/health/live` | 200 |
| `/health/ready` | 200; 503 while mcpmux stops, and as `admin.ready` says |

What is about exchanges and traffic takes `own=true`: what mcpmux asks by itself (to connect, to see who
lives), which is not shown otherwise. Exchanges are these alone then, traffic is these, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import trio

from mcpmux.protocol import method as m
from mcpmux.traffic.admin.route import BadQuestion, Route, Visit, whole_number
from mcpmux.traffic.admin.stream import stream_records, stream_rows
from mcpmux.traffic.admin.upstreams import UpstreamState
from mcpmux.traffic.live.filter import FilterError, RowFilter, read_filter
from mcpmux.traffic.live.ring import Row
from mcpmux.traffic.live.stats import Timed, measure
from mcpmux.traffic.live.view import PAGE_ROWS, LiveView, Matches, encode
from mcpmux.traffic.reading.filters import Filter
from mcpmux.transports.http.message import Fields

DAY_SECONDS = 24 * 3600
STATS_SECONDS = 300
STATS_ROWS = 20_000  # that are looked at, the newest; enough for a picture
STATS_AT_ONCE = 1000
SLOTS = 60
OWN = ""  # upstream of what mcpmux answers a client as a whole


class Upstreams(Protocol):
    """Who tells how the upstreams are; see `UpstreamView`."""

    async def told(self) -> list[UpstreamState]:
        """All of them."""
        ...

    async def told_states(self) -> Mapping[str, str]:
        """The state of each that is enabled."""
        ...


class Api:
    """Answers the inspector. `fields` go with every answer."""

    def __init__(
        self,
        view: LiveView,
        upstreams: Upstreams,
        stopping: trio.Event,
        fields: Fields,
        ready: str = "any",
    ) -> None:
        """`ready`: see `Admin.ready`."""
        self._view = view
        self._upstreams = upstreams
        self._stopping = stopping
        self._ready_when = ready
        self._fields = fields
        self._stream_fields = tuple(
            field for field in fields if field[0] not in ("Content-Type", "Cache-Control")
        )
        self.routes: tuple[Route, ...] = (
            Route("/api/exchanges", self._exchanges),
            Route("/api/exchanges/stream", self._stream_exchanges),
            Route("/api/exchanges/{row}", self._exchange),
            Route("/api/exchanges/{row}/{seq}", self._message),
            Route("/api/traffic/stream", self._stream_traffic),
            Route("/api/upstreams", self._show_upstreams),
            Route("/api/stats", self._stats),
            Route("/upstreams", self._show_upstreams),  # beside /health/…, for scripts
            Route("/health/live", self._live, open=True),
            Route("/health/ready", self._ready, open=True),
        )

    def __repr__(self) -> str:
        return f"<Api {self._view!r}>"

    def _now(self) -> float:
        return time.time() * 1000

    async def _send(self, visit: Visit, value: Any, status: int = 200) -> None:
        await visit.reply.send(status, self._fields, encode(value))

    def _filter(self, visit: Visit) -> Filter | None:
        try:
            return read_filter(visit.query.get("filter", ""), self._now())
        except FilterError as error:
            raise BadQuestion(str(error)) from None

    def _matches(self, visit: Visit, view: LiveView) -> Matches | None:
        wanted = self._filter(visit)
        return RowFilter(view, wanted).matches if wanted is not None else None

    def _view_for(self, visit: Visit) -> LiveView:
        return self._view.own if _wants_own(visit) else self._view

    async def _exchanges(self, visit: Visit) -> None:
        view = self._view_for(visit)
        ring = view.ring
        before = whole_number(visit.query, "before", 0, 2**53, ring.last + 1)
        most = whole_number(visit.query, "limit", 1, PAGE_ROWS, PAGE_ROWS)
        await self._send(visit, await view.find(self._matches(visit, view), before, most))

    async def _exchange(self, visit: Visit) -> None:
        view = self._view_for(visit)
        row = self._row(visit, view)
        if row is None:
            await self._gone(visit)
            return
        messages = await view.messages(row)
        await self._send(visit, {"row": view.summary(row), "messages": messages})

    async def _message(self, visit: Visit) -> None:
        view = self._view_for(visit)
        row = self._row(visit, view)
        seq = whole_number(visit.path, "seq", 1, 2**53, 0)
        message = await view.whole(row, seq) if row is not None else None
        await (self._send(visit, message) if message is not None else self._gone(visit))

    def _row(self, visit: Visit, view: LiveView) -> Row | None:
        return view.ring.row(whole_number(visit.path, "row", 1, 2**53, 0))

    async def _gone(self, visit: Visit) -> None:
        await self._send(visit, {"error": "it is not here any more; newer traffic took its place"}, 404)

    async def _stream_exchanges(self, visit: Visit) -> None:
        self._only_get(visit)
        view = self._view_for(visit)
        since = whole_number(visit.query, "since", 0, 2**53, view.ring.seq)
        matches = self._matches(visit, view)
        await stream_rows(view, matches, since, visit.reply, self._stream_fields, self._stopping)

    async def _stream_traffic(self, visit: Visit) -> None:
        self._only_get(visit)
        views = [self._view, self._view.own] if _wants_own(visit) else [self._view]
        await stream_records(views, self._filter(visit), visit.reply, self._stream_fields, self._stopping)

    def _only_get(self, visit: Visit) -> None:
        if visit.request.method != "GET":
            raise BadQuestion("a stream has to be asked for with GET")

    async def _show_upstreams(self, visit: Visit) -> None:
        await self._send(visit, {"upstreams": await self._upstreams.told()})

    async def _stats(self, visit: Visit) -> None:
        window = whole_number(visit.query, "window", 1, DAY_SECONDS, STATS_SECONDS) * 1000.0
        slots = whole_number(visit.query, "slots", 1, 500, SLOTS)
        now = self._now()
        timed = await self._timed(now - window)
        await self._send(visit, measure(timed, now, window, slots))

    async def _timed(self, since: float) -> list[Timed]:
        """What took time, of the newest rows: whole exchanges (upstream "") and what each upstream did."""
        found: list[Timed] = []
        for index, row in enumerate(self._view.ring.before(self._view.ring.last + 1)):
            if index >= STATS_ROWS:
                break
            at = self._view.when(row.first.at)
            # A listen goes on for days: that says nothing of how fast anything is.
            if at >= since and row.first.method != m.LISTEN:
                found += self._timed_in(row, at)
            if index % STATS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return found

    def _timed_in(self, row: Row, at: float) -> list[Timed]:
        found = []
        if row.ms is not None and row.exchange:
            method = self._view.summary(row).method or ""
            found.append(Timed(at, OWN, method, row.ms, row.status != "ok"))
        for kept in row.messages:
            seen = kept.seen
            if seen.ms is not None and seen.leg.upstream is not None and seen.direction == "in":
                method = self._view.redactor.redact_name(seen.method) or ""
                failed = seen.kind == "error" or seen.failed is True
                found.append(Timed(at, seen.leg.upstream, method, seen.ms, failed))
        return found

    async def _live(self, visit: Visit) -> None:
        await self._send(visit, {"live": True})

    async def _ready(self, visit: Visit) -> None:
        states = await self._upstreams.told_states()
        ready = not self._stopping.is_set() and is_ready(self._ready_when, states.values())
        await self._send(visit, {"ready": ready}, 200 if ready else 503)


def _wants_own(visit: Visit) -> bool:
    return visit.query.get("own") == "true"


def is_ready(when: str, states: Collection[str]) -> bool:
    """Whether upstreams in these states are enough; see `Admin.ready`."""
    if when == "listening":
        return True
    if "connecting" in states:
        return False
    there = [state == "ready" for state in states]
    return all(there) if when == "all" else any(there)
