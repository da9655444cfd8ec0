"""Answer the inspector's requests, and carry out the actions of administrators.

| path | answer |
| --- | --- |
| `/api/exchanges?filter=&before=&limit=` | `rows`, newest first; `before`: to go on; `messages`; `run` |
| `/api/exchanges?filter=&sort=&limit=` | the first `rows` in an order of `ORDERS`, such as `-duration` |
| `/api/exchanges/stream?filter=&since=` | events `rows`; `since`: `messages` of a list |
| `/api/exchanges/{row}` | `row`, and `messages` on both legs with their records |
| `/api/exchanges/{row}/{seq}` | one of its messages, uncut |
| `/api/exchanges/{row}/differences/{other}` | see `find_differences` |
| `POST /api/exchanges/{row}` | `{"row": …}`; the body is `{"marked": true}`, `{"note": "…"}` or both |
| `/api/filter` | `keys` of filters, each with its `values` where these are words of the language |
| `/api/capture?filter=` | the selected exchanges, as a capture file |
| `/api/har?filter=` | the same as HAR |
| `/api/traffic/stream?filter=` | events `record` (as in captures) and `missed` |
| `/api/upstreams` | each upstream with its sessions and subscriptions |
| `/api/subscriptions` | `subscriptions`: a `Subscription` for each list and resource that is listened to |
| `/api/replicas` | `replicas`: each with its state, this one first; none when mcpmux is alone |
| `/api/stats?window=&slots=&most=` | durations by upstream, method, name and time, of the last `seconds` |
| `/health/live` | 200 |
| `/health/ready` | 200; 503 while mcpmux stops, and as `admin.ready` says; `note` while the store is away |
| `/api/control` | `key` for `X-Mcpmux-Key`, `actions`, `pending`: settings for the next start; `endpoint` |
| `POST /api/upstreams/{name}/{action}` | `{"upstream": …, "action": …}`; 404, 409 with `error` |
| `POST /api/reload` | `{"changed": {…}, "pending": […]}`; 422 with `problems` when the file is broken |

Statistics are of the last `window` seconds, or of the `most` newest rows when those cover less time.
Exchanges take `after`, the number of the last row that is left out. Exchanges and traffic take `own=true`:
then exchanges are those of mcpmux itself (to connect, to check health), and traffic has these, too. A POST
carries a JSON object as `application/json`, which no form of a foreign page can send, and the token or the
key in a header (see `listener`). It has no members unless they are named here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Annotated

import msgspec
import trio

from mcpmux.cluster.letter import LEFT
from mcpmux.errors import ConfigError
from mcpmux.protocol import method as m
from mcpmux.traffic.admin.ring import LiveRing, Row
from mcpmux.traffic.admin.route import (
    NO_STORE,
    SECURITY,
    BadRequest,
    HttpExchange,
    Nothing,
    Route,
    whole_number,
)
from mcpmux.traffic.admin.selection import find_differences, read_filter, write_capture, write_har
from mcpmux.traffic.admin.upstreams import ACTIONS, Control, Replicas, Upstreams
from mcpmux.traffic.admin.view import ORDERS, PAGE_ROWS, LiveView, ShownRow
from mcpmux.traffic.outcome import MESSAGE_WORDS, OK
from mcpmux.traffic.reading.filters import LIVE_NAMES, NAMES, SORTS, Filter, Key
from mcpmux.traffic.reading.stats import TimedCall, measure
from mcpmux.traffic.record import encode_record
from mcpmux.transports.http.message import HeaderFields
from mcpmux.transports.sse import KEEP_ALIVE, STREAM_HEADERS, encode_event

DAY_SECONDS = 24 * 3600
STATS_SECONDS = 300
STATS_ROWS = 20_000  # that are read, the newest ones; enough for a picture
SLOTS = 60
GONE = "it is not here any more; newer traffic took its place"
AWAY = "the store of the cluster is away; `mcpmux ctl status --cluster` says why"
OWN = ""  # stands for the upstream in durations of whole exchanges

TICK_SECONDS = 0.1  # faster than a person sees
ROWS_AT_ONCE = 200  # of one tick, the newest ones
RECORDS_AT_ONCE = 500
BYTES_AT_ONCE = 256 * 2**10  # of records; the last of them may exceed it
BREATH = 25  # records that are encoded before other tasks run
NOTE_LENGTH = 500  # characters
CAPTURE: HeaderFields = (("Content-Type", "application/x-ndjson"), NO_STORE, *SECURITY)
HAR: HeaderFields = (("Content-Type", "application/json"), NO_STORE, *SECURITY)
Write = Callable[[LiveView, Filter, Callable[[bytes], Awaitable[None]]], Awaitable[None]]


class Mark(msgspec.Struct, forbid_unknown_fields=True):
    """A change of an exchange's mark or note; absent members stay."""

    marked: bool | None = None
    note: Annotated[str, msgspec.Meta(max_length=NOTE_LENGTH)] | None = None


@dataclass(eq=False)
class Api:
    """Answers the inspector and administrators.

    `ready_when`: see `Admin.ready`. `key`: see `AccessCheck.key`. `replicas`: None when mcpmux is alone.
    """

    _view: LiveView
    _upstreams: Upstreams
    _control: Control
    _stopping: trio.Event
    _ready_when: str
    _key: str
    _replicas: Replicas | None = None

    @property
    def routes(self) -> tuple[Route, ...]:
        return (
            Route("/api/exchanges", self._exchanges),
            Route("/api/exchanges/stream", self._stream_exchanges),
            Route("/api/exchanges/{row}", self._exchange),
            Route("/api/exchanges/{row}/{seq}", self._message),
            Route("/api/exchanges/{row}/differences/{other}", self._differences),
            Route("/api/exchanges/{row}", self._mark, method="POST"),
            Route("/api/filter", self._show_filter_keys),
            Route("/api/capture", partial(self._save, CAPTURE, write_capture)),
            Route("/api/har", partial(self._save, HAR, write_har)),
            Route("/api/traffic/stream", self._stream_traffic),
            Route("/api/upstreams", self._show_upstreams),
            Route("/api/subscriptions", self._show_subscriptions),
            Route("/api/replicas", self._show_replicas),
            Route("/api/stats", self._stats),
            Route("/upstreams", self._show_upstreams),  # beside /health/…, for scripts
            Route("/health/live", self._live, open=True),
            Route("/health/ready", self._ready, open=True),
            Route("/api/control", self._show_control),
            Route("/api/reload", self._reload, method="POST"),
            Route("/api/upstreams/{name}/{action}", self._act, method="POST"),
        )

    async def _view_for(self, http: HttpExchange) -> LiveView:
        return await (self._view.own if http.query.get("own") == "true" else self._view).caught_up()

    async def _exchanges(self, http: HttpExchange) -> None:
        view = await self._view_for(http)
        ring = view.ring
        bound = whole_number(http.query, "before", 0, 2**53, ring.last + 1)
        most = whole_number(http.query, "limit", 1, PAGE_ROWS, PAGE_ROWS)
        after = whole_number(http.query, "after", 0, 2**53, 0)
        order = http.query.get("sort", "")
        messages = ring.position  # a stream goes on from here
        rest: int | None = None
        if not order:
            rows, rest = await view.find(_filter(http), bound, most, after)
        elif order.removeprefix("-") in ORDERS:
            rows = await view.rank(_filter(http), order, most, after)
        else:
            raise BadRequest(f"sort is one of {', '.join(ORDERS)}, with a - in front for the last ones")
        counts = {
            "first": max(ring.first, after + 1),
            "last": ring.last,
            "messages": messages,
            "run": view.run.name,
        }
        await http.send({"rows": rows, "before": rest, **counts})

    async def _exchange(self, http: HttpExchange) -> None:
        view, row = await self._row(http)
        messages = await view.messages(row)
        await http.send({"row": view.summary(row), "messages": messages})

    async def _message(self, http: HttpExchange) -> None:
        view, row = await self._row(http)
        message = await view.whole(row, whole_number(http.path, "seq", 1, 2**53, 0))
        if message is None:
            raise BadRequest(GONE, 404)
        await http.send(message)

    async def _row(self, http: HttpExchange, name: str = "row") -> tuple[LiveView, Row]:
        view = await self._view_for(http)
        row = view.ring.row(whole_number(http.path, name, 1, 2**53, 0))
        if row is None:
            raise BadRequest(GONE, 404)
        return view, row

    async def _differences(self, http: HttpExchange) -> None:
        (view, row), (_, other) = await self._row(http), await self._row(http, "other")
        await http.send(await find_differences(view, row, other))

    async def _mark(self, http: HttpExchange) -> None:
        mark = http.body(Mark)
        view, row = await self._row(http)
        marked = row.marked if mark.marked is None else mark.marked
        view.ring.mark(row, marked, row.note if mark.note is None else mark.note)
        await http.send({"row": view.summary(row)})

    async def _show_filter_keys(self, http: HttpExchange) -> None:
        keys = [
            {
                "name": key.name,
                "about": key.about,
                "operator": "".join(SORTS[key.sort].operators[:1]),
                "values": MESSAGE_WORDS if key.sort == "status" else key.words,
            }
            for key in dict.fromkeys(LIVE_NAMES.values())
        ]
        await http.send({"keys": keys})

    async def _save(self, fields: HeaderFields, write: Write, http: HttpExchange) -> None:
        _check_get(http)
        view, filter_ = await self._view_for(http), _filter(http)
        await http.reply.open(200, fields)
        await write(view, filter_, http.reply.write)

    async def _stream_exchanges(self, http: HttpExchange) -> None:
        """Send events `rows`: the newest rows changed after the messages `since`, where a list ended.

        `gone`: numbers of rows that no longer match. `first`, `last`: of all rows. `skipped`: number of
        changed rows that are not sent, as there were too many.
        """
        view, filter_ = await self._view_for(http), _filter(http)
        ring = view.ring
        since = whole_number(http.query, "since", 0, 2**53, ring.position)
        position = min(since, ring.position)  # it may be of another run

        async def read_news() -> tuple[bytes, bool]:
            nonlocal position
            ring.settle()
            if ring.position == position:
                return b"", True
            rows, missed = ring.changed_since(position)
            position, counts = ring.position, _counts_of(ring)  # before other tasks run
            newest = sorted(rows, key=attrgetter("number"))[-ROWS_AT_ONCE:]
            matching = [row for row in newest if await view.matches(filter_, row)]
            gone = sorted({row.number for row in newest} - {row.number for row in matching})
            skipped = len(rows) - len(newest) + missed
            return _rows_event(counts, list(map(view.summary, matching)), gone, skipped), True

        await self._stream(read_news, _rows_event(_counts_of(ring)), http)

    async def _stream_traffic(self, http: HttpExchange) -> None:
        """Send events `record`: each message as in a capture. `missed`: number that a slow reader missed."""
        filter_ = _filter(http, NAMES)
        views = await self._view.caught_up(), await self._view_for(http)
        positions = {view: view.ring.position for view in views}

        async def read_news() -> tuple[bytes, bool]:
            events = []
            for view in positions:
                news, end, missed = view.ring.messages_since(positions[view], RECORDS_AT_ONCE)
                if missed:
                    events.append(encode_event(b'{"missed":%d}' % missed, event="missed"))
                size = 0
                for index, stored in enumerate(news):
                    record = await view.read(stored)
                    if filter_.matches(record):
                        events.append(encode_event(encode_record(record).rstrip(b"\n"), event="record"))
                        size += len(events[-1])
                    if size > BYTES_AT_ONCE:  # a slow reader has all of it kept, beside the ring
                        end = stored.position
                        break
                    if index % BREATH == 0:
                        await trio.lowlevel.checkpoint()
                positions[view] = end
            is_all = all(position == view.ring.position for view, position in positions.items())
            return b"".join(events), is_all

        await self._stream(read_news, KEEP_ALIVE, http)

    async def _stream(
        self, read_news: Callable[[], Awaitable[tuple[bytes, bool]]], opening: bytes, http: HttpExchange
    ) -> None:
        """Send what `read_news` returns (events, and whether they are all) until mcpmux or the reader stops.

        The ring is polled, so that messages wake no task. A slow reader delays nothing and costs no memory:
        it misses the messages that the ring drops, and learns their number.
        """
        _check_get(http)
        await http.reply.open(200, (*STREAM_HEADERS, *SECURITY), opening)
        while True:
            over = self._stopping.is_set()  # read first, so that messages before it are still sent
            news, is_all = await read_news()
            if news:
                await http.reply.write(news)
            if is_all:
                if over:
                    return
                await trio.sleep(TICK_SECONDS)

    async def _show_upstreams(self, http: HttpExchange) -> None:
        await http.send({"upstreams": await self._upstreams.read_all()})

    async def _show_subscriptions(self, http: HttpExchange) -> None:
        await http.send({"subscriptions": await self._upstreams.read_subscriptions()})

    async def _show_replicas(self, http: HttpExchange) -> None:
        await http.send(
            {"replicas": await self._replicas.describe_all() if self._replicas is not None else []}
        )

    async def _stats(self, http: HttpExchange) -> None:
        window = whole_number(http.query, "window", 1, DAY_SECONDS, STATS_SECONDS) * 1000.0
        slots = whole_number(http.query, "slots", 1, 500, SLOTS)
        most = whole_number(http.query, "most", 1, STATS_ROWS, STATS_ROWS)
        now = time.time() * 1000
        calls, since = await self._timed_calls(now - window, most)
        seconds = max(0.001, (now - since) / 1000)
        await http.send(measure(calls, now, window, slots, seconds))

    async def _timed_calls(self, since: float, most: int) -> tuple[list[TimedCall], float]:
        """Return durations in the newest rows: of whole exchanges (upstream "") and at each upstream.

        Return also the time since when they are complete: later than `since` when rows were left out.
        """
        view, begin = await self._view.caught_up(), since
        calls: list[TimedCall] = []
        async with aclosing(view.walk(view.ring.last - most)) as rows:
            async for row in rows:
                at = view.when(row.first.at)
                if at < since:
                    return calls, since
                begin = at if row.number > 1 else since
                if row.first.method == m.LISTEN:  # its duration is the client's choice
                    continue
                if row.ms is not None and row.exchange:
                    method, name = view.texts(row)
                    calls.append(TimedCall(at, OWN, method or "", row.ms, row.status != OK, name, row.number))
                for seen in (stored.observed for stored in row.messages):
                    if seen.ms is not None and seen.leg.upstream is not None and seen.direction == "in":
                        method = view.redactor.clean(seen.method) or ""
                        failed = seen.kind == "error" or seen.failed is True
                        calls.append(TimedCall(at, seen.leg.upstream, method, seen.ms, failed))
        return calls, begin

    async def _live(self, http: HttpExchange) -> None:
        await http.send({"live": True})

    async def _ready(self, http: HttpExchange) -> None:
        states = await self._upstreams.read_states()
        replica = self._replicas.describe() if self._replicas is not None else None
        has_left = replica is not None and replica.state == LEFT
        stops = self._stopping.is_set() or has_left
        ready = not stops and is_ready(self._ready_when, states.values())
        # An absent store affects all replicas alike, and they go on without it: none must be taken out.
        note = {"note": AWAY} if replica is not None and replica.store_away and not stops else {}
        await http.send({"ready": ready, **note}, 200 if ready else 503)

    # Actions of administrators

    async def _show_control(self, http: HttpExchange) -> None:
        state = {"pending": self._control.pending, "endpoint": self._control.endpoint}
        await http.send({"key": self._key, "actions": ACTIONS, **state})

    async def _reload(self, http: HttpExchange) -> None:
        http.body(Nothing)
        try:
            changed = await self._control.reload()
        except ConfigError as error:
            await http.send({"error": "the configuration is as it was", "problems": error.problems}, 422)
        else:
            await http.send({"changed": dict(changed), "pending": self._control.pending})

    async def _act(self, http: HttpExchange) -> None:
        http.body(Nothing)
        name, action = http.path["name"], http.path["action"]
        if action not in ACTIONS:
            raise BadRequest(f"{action} is none of {', '.join(ACTIONS)}", 404)
        await self._control.act(action, name)
        await http.send({"upstream": name, "action": action})


def _filter(http: HttpExchange, names: Mapping[str, Key] = LIVE_NAMES) -> Filter:
    return read_filter(http.query.get("filter", ""), names)


def is_ready(when: str, states: Collection[str]) -> bool:
    """Return whether upstreams in these states are enough; see `Admin.ready`."""
    if when == "listening":
        return True
    if "connecting" in states:
        return False
    enough = all if when == "all" else any
    return enough(state == "ready" for state in states)


def _counts_of(ring: LiveRing) -> dict[str, int]:
    return {"first": ring.first, "last": ring.last, "messages": ring.position}


def _rows_event(
    counts: Mapping[str, int], rows: Sequence[ShownRow] = (), gone: Sequence[int] = (), skipped: int = 0
) -> bytes:
    data = {"rows": rows, "gone": gone, "skipped": skipped, **counts}
    return encode_event(msgspec.json.encode(data), event="rows")


def _check_get(http: HttpExchange) -> None:
    """Raise BadRequest for HEAD, which no stream can answer."""
    if http.request.method != "GET":
        raise BadRequest("a stream has to be asked for with GET")
