"""What passes, as server-sent events: looked up ten times a second, so that traffic itself wakes nobody.

Promises: a reader that is slow holds up nothing and costs no memory: it misses what the ring gives up
meanwhile, and is told how much. A stream ends when we stop, or when its reader has gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mcpmux.runtime.downstreams.http_answer import STREAM_HEADERS
from mcpmux.traffic.live.ring import Kept, Row
from mcpmux.traffic.live.view import LARGE, LiveView, Matches, Summary, encode
from mcpmux.traffic.reading.filters import Filter
from mcpmux.traffic.record import Record, encode_record
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.sse import encode_event

TICK_SECONDS = 0.1  # as fast as a person sees
QUIET_SECONDS = 15.0  # after which something is sent, to notice a reader that has gone
ROWS_AT_ONCE = 200  # of one tick; more is a flood, and the newest count
RECORDS_AT_ONCE = 500
BREATH = 25  # records that are encoded before others may do something
COMMENT = b":\n\n"


async def stream_rows(
    view: LiveView,
    matches: Matches | None,
    since: int,
    reply: HttpReply,
    fields: Fields,
    stopping: trio.Event,
) -> None:
    """Events `rows`: the rows that changed, the newest of them; those that match no more; how many there are.

    `since`: messages that had passed when the list was asked for; what came after them is told.
    `first`, `last`: of all rows. `skipped`: rows that changed and are not told, for there were too many.
    """
    ring = view.ring
    position, quiet = min(since, ring.seq), 0.0  # more had passed in another run
    await reply.open(200, (*STREAM_HEADERS, *fields), _rows_event(view, [], [], 0))
    over = False
    while not over:
        await trio.sleep(TICK_SECONDS)
        over = stopping.is_set()  # what has passed by now is told
        if ring.seq == position:
            quiet += TICK_SECONDS
            if quiet >= QUIET_SECONDS:
                quiet = 0.0
                await reply.write(COMMENT)
            continue
        quiet = 0.0
        rows, missed = ring.touched_since(position)
        position = ring.seq
        rows.sort(key=_number)
        newest = rows[-ROWS_AT_ONCE:]
        kept = [row for row in newest if matches is None or matches(row)]
        wanted = {row.number for row in kept}
        gone = [row.number for row in newest if row.number not in wanted]
        told = [view.summary(row) for row in kept]
        await reply.write(_rows_event(view, told, gone, len(rows) - len(newest) + missed))


def _number(row: Row) -> int:
    return row.number


def _rows_event(view: LiveView, rows: list[Summary], gone: list[int], skipped: int) -> bytes:
    ring = view.ring
    data = {
        "rows": rows,
        "gone": gone,
        "skipped": skipped,
        "first": ring.first,
        "last": ring.last,
        "messages": ring.seq,
    }
    return encode_event(encode(data), event="rows")


async def stream_records(
    views: Sequence[LiveView], wanted: Filter | None, reply: HttpReply, fields: Fields, stopping: trio.Event
) -> None:
    """Events `record`: each message as a capture has it. `missed`: how many a slow reader has not got."""
    positions, quiet = [view.ring.seq for view in views], 0.0
    await reply.open(200, (*STREAM_HEADERS, *fields), COMMENT)
    while True:
        over = stopping.is_set()  # what has passed by now is told
        parts = []
        for number, view in enumerate(views):
            found, positions[number], missed = view.ring.messages_since(positions[number], RECORDS_AT_ONCE)
            if missed:
                parts.append(encode_event(b'{"missed":%d}' % missed, event="missed"))
            parts += await _events_of(view, found, wanted)
        if parts:
            quiet = 0.0
            await reply.write(b"".join(parts))
        elif quiet >= QUIET_SECONDS:
            quiet = 0.0
            await reply.write(COMMENT)
        if all(position == view.ring.seq for position, view in zip(positions, views, strict=True)):
            if over:
                return
            quiet += TICK_SECONDS
            await trio.sleep(TICK_SECONDS)


async def _events_of(view: LiveView, found: Sequence[Kept], wanted: Filter | None) -> list[bytes]:
    events = []
    for index, kept in enumerate(found):
        record = await _read(view, kept)
        if wanted is None or wanted.matches(record):
            events.append(encode_event(encode_record(record).rstrip(b"\n"), event="record"))
        if index % BREATH == 0:
            await trio.lowlevel.checkpoint()
    return events


async def _read(view: LiveView, kept: Kept) -> Record:
    if len(kept.seen.data) > LARGE:
        return await trio.to_thread.run_sync(view.record, kept)
    return view.record(kept)
