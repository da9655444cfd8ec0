"""Compare two exchanges, and write several, selected by a filter, as a capture.

Everything is redacted first, as in `view`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import trio

from mcpmux import __version__
from mcpmux.protocol.envelope import members_of, value_of
from mcpmux.traffic.admin.ring import Row, StoredMessage
from mcpmux.traffic.admin.route import BadRequest
from mcpmux.traffic.admin.view import LiveView
from mcpmux.traffic.reading.export import to_har
from mcpmux.traffic.reading.filters import LIVE_NAMES, Filter, FilterError, Key, parse_filter
from mcpmux.traffic.record import VERSION, Record, encode_record, micros_of, rfc3339
from mcpmux.traffic.replay.report import compare

WRITTEN_BYTES = 64 * 2**10  # of a capture that are sent together
READ_TOGETHER = 100  # messages that a thread is given together

COMPARED = ("method", "params", "result", "error")  # members of messages


def read_filter(text: str, names: Mapping[str, Key] = LIVE_NAMES) -> Filter:
    """Return the filter in a request. Raises BadRequest."""
    try:
        return parse_filter(text, datetime.now(UTC), names)
    except FilterError as error:
        raise BadRequest(str(error)) from None


async def find_differences(view: LiveView, left: Row, right: Row) -> dict[str, Any]:
    """Return the differences of two rows in their requests and answers, by the rules of a replay.

    `differences`: as `Difference.as_json`, with `captured` for the left row and `now` for the right one.
    `incomplete`: a message was too large to be kept, and is not compared.
    """
    firsts = [next(iter(row.messages), None) for row in (left, right)]
    return await trio.to_thread.run_sync(_compare, view, [firsts, [left.answer, right.answer]])


def _compare(view: LiveView, pairs: list[list[StoredMessage | None]]) -> dict[str, Any]:
    differences: list[dict[str, Any]] = []
    incomplete = False
    for pair in pairs:
        left, right = (_members(view, stored) for stored in pair)
        if left is None or right is None:
            incomplete = True
        else:
            differences += [difference.as_json() for difference in compare(left, right)]
    return {"differences": differences, "incomplete": incomplete}


def _members(view: LiveView, stored: StoredMessage | None) -> dict[str, Any] | None:
    """Return COMPARED members of a message, {} if there was none; None when its text was not kept."""
    if stored is None:
        return {}
    message = view.record(stored).message
    if message is None:
        return None
    members = members_of(message)
    return {name: value_of(members[name]) for name in COMPARED if name in members}


async def write_capture(view: LiveView, wanted: Filter, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Write the messages of the selected rows as a capture file, the oldest first.

    Messages that are dropped meanwhile are missing, as a gap in `seq`. Holds no message in memory.
    """
    now = rfc3339(micros_of(time.time()))
    data = encode_record(Record(v=VERSION, run=view.run.name, time=now, kind="start", version=__version__))
    async with aclosing(chosen_records(view, wanted)) as records:
        async for record in records:
            data += encode_record(record)
            if len(data) > WRITTEN_BYTES:
                await write(data)
                data = b""
    await write(data)


async def write_har(view: LiveView, wanted: Filter, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Write the same messages as HAR, as `mcpmux traffic export` does. It is made in a thread."""
    async with aclosing(chosen_records(view, wanted)) as records:

        async def read() -> list[Record]:
            several: list[Record] = []
            async for record in records:
                several.append(record)
                if len(several) == READ_TOGETHER:
                    break
            return several

        def make() -> None:
            data, batches = "", iter(partial(trio.from_thread.run, read), [])
            for piece in to_har(chain.from_iterable(batches), __version__):
                data += piece
                if len(data) > WRITTEN_BYTES:
                    trio.from_thread.run(write, data.encode())
                    data = ""
            trio.from_thread.run(write, data.encode())

        await trio.to_thread.run_sync(make)


async def chosen_records(view: LiveView, wanted: Filter) -> AsyncGenerator[Record, None]:
    """Yield the messages of the selected rows, the oldest first; see `write_capture`."""
    await view.caught_up()
    places: list[tuple[int, Row]] = []
    async with aclosing(view.walk()) as rows:
        async for row in rows:
            if await view.matches(wanted, row):
                places += [(stored.position, row) for stored in row.messages]
    for position, row in sorted(places, key=itemgetter(0)):
        # The ring may have dropped the message meanwhile.
        index = bisect_left(row.messages, position, key=attrgetter("position"))
        if index < len(row.messages) and row.messages[index].position == position:
            yield await view.read(row.messages[index])
