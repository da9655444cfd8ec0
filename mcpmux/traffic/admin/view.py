"""Show the ring as JSON, with everything redacted.

Promises: no text of a message leaves unredacted; a large message does not delay others: it is cut, or
redacted in a thread. Times are milliseconds since 1970.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Any

import msgspec
import trio

from mcpmux.protocol.envelope import decode_any
from mcpmux.protocol.principal import NARROWED
from mcpmux.traffic.admin.ring import NOTE, LiveRing, Row, StoredMessage
from mcpmux.traffic.capture.line import fingerprint, to_record
from mcpmux.traffic.outcome import CANCELLED, OK, OPEN, TOOL_ERROR, words_of
from mcpmux.traffic.reading.filters import Filter
from mcpmux.traffic.reading.summary import ExchangeSummary
from mcpmux.traffic.record import VERSION, Record, Run, cut
from mcpmux.traffic.recorder import method_id_target
from mcpmux.traffic.redaction.redactor import Redactor

PAGE_ROWS = 500  # of one answer
PARTS = 8  # of a row; more are hardly visible
BREATH_SECONDS = 0.01  # of searching before other tasks run
SCAN_SECONDS = 1.0  # of a search; then it answers with its results and the place to continue
BODY_BYTES = 256 * 2**10  # of one message among others; `whole` returns all of it
CUT_BYTES = 16 * 2**10  # that are shown of a longer one
DETAIL_BYTES = 8 * 2**20  # of all messages in one answer; later ones are cut to CUT_BYTES
LARGE = 64 * 2**10  # bytes; from here on a message is redacted in a thread
SHORT = 160  # characters of the arguments of a row, and of the words of its failure
SHORT_VALUE = 60  # characters of one of these arguments
NO_ARGUMENTS = frozenset({"_meta", "name", "uri"})  # members of a request's parameters that say no more


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One message of a row: its record, its time, and whether its text is `cut` or was not kept (`gone`)."""

    at: float
    record: Record
    cut: bool = False
    gone: bool = False


class ShownRow(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A row of the list, see Row. `leg`, `peer`, `transport`: where it began.

    `arguments`: of its request, in short; `words`: of its failure. `view`: as in the audit log, with the
    client's narrowing behind a `?`. `messages`: their number, `left_out` of them dropped. `parts`: the first
    PARTS requests to upstreams, each as the upstream's name, milliseconds after `at`, and its duration.
    """

    row: int
    at: float
    leg: str
    peer: str
    transport: str
    status: str
    kind: str
    exchange: int = 0
    client: str | None = None
    revision: str | None = None
    view: str | None = None
    method: str | None = None
    target: str | None = None
    arguments: str = ""
    words: str = ""
    upstreams: tuple[str, ...] = ()
    code: int | None = None
    http: int | None = None
    ms: float | None = None
    messages: int
    left_out: int = 0
    size: int = 0
    marked: bool = False
    note: str = ""
    parts: list[tuple[str, float, float]] = []


@dataclass(eq=False)
class LiveView:
    """Reads a ring for the inspector. `own`: the view of mcpmux's own requests.

    `run`: this one; rows have their numbers within it.
    """

    _ring: LiveRing
    redactor: Redactor
    run: Run

    def __post_init__(self) -> None:
        self.own = LiveView(self._ring.own, self.redactor, self.run) if self._ring.own is not None else self

    async def caught_up(self) -> LiveView:
        """Return this view, once most messages are in rows: without a reader they may be many."""
        await self._ring.catch_up()
        return self

    @property
    def ring(self) -> LiveRing:
        """The ring, with all messages so far. Call `caught_up` first."""
        self._ring.settle()
        return self._ring

    def when(self, clock: float) -> float:
        """Return a reading of the recorder's clock as milliseconds since 1970."""
        return round(self.run.wall_at(clock) * 1000, 3)

    def summary(self, row: Row) -> ShownRow:
        """Return the row as in the list, redacted."""
        if row.brief[0] != row.status:
            has_failed = row.first.kind == "request" and row.status not in (OPEN, OK, NOTE, CANCELLED)
            # Neither is there when the ring has dropped the row in the meantime.
            arguments = self._read_short(next(iter(row.messages), None), arguments_text)
            words = self._read_short(row.answer if has_failed else None, failure_text)
            row.brief = row.status, arguments, words
        shown = self._summary(row)
        _, shown.arguments, shown.words = row.brief
        return shown

    def _read_short(self, stored: StoredMessage | None, read: Callable[[Any], str]) -> str:
        """Return what `read` makes of a message, on one line and cut; "" without one, or of a large one."""
        if stored is None or len(stored.observed.data) > LARGE:
            return ""
        message = self.record(stored).message
        return cut(" ".join(read(msgspec.json.decode(message)).split()), SHORT) if message is not None else ""

    def _summary(self, row: Row) -> ShownRow:
        method, target = self.texts(row)
        leg, clean = row.first.leg, self.redactor.clean
        parts = (
            (seen.leg.upstream, round((seen.at - row.first.at) * 1000 - seen.ms, 3), round(seen.ms, 3))
            for seen in (stored.observed for stored in row.messages)
            if seen.ms is not None and seen.leg.upstream is not None and seen.direction == "in"
        )
        return ShownRow(
            row=row.number,
            at=self.when(row.first.at),
            leg=leg.side,
            peer=leg.peer,
            transport=leg.transport,
            status=row.status,
            kind=row.first.kind,
            exchange=row.exchange,
            client=clean(leg.name) if leg.side == "client" else None,
            revision=clean(leg.revision),
            view=clean(row.view or None),
            method=method,
            target=target,
            upstreams=row.upstreams,
            code=row.code,
            http=row.http,
            ms=round(row.ms, 3) if row.ms is not None else None,
            messages=row.count,
            left_out=row.left_out,
            size=row.size,
            marked=row.marked,
            note=row.note,
            parts=list(islice(parts, PARTS)),
        )

    def texts(self, row: Row) -> tuple[str | None, str | None]:
        """Return the method and the target of the row, redacted."""
        if row.shown is None:  # redacted once
            first = row.first
            method, target = first.method, None
            if len(first.data) <= LARGE:
                body, count = self.redactor.redact(first.method, first.data)
                row.redacted = count > 0
                clean_method, _, target = method_id_target(body) if count else (None, None, first.target)
                method = clean_method or first.method
            row.shown = self.redactor.clean(method), target
        return row.shown

    async def rank(self, wanted: Filter, order: str, most: int, after: int = 0) -> list[ShownRow]:
        """Return the first of all selected rows in an order of ORDERS; with a `-`, the last ones.

        Rows without that value are left out, as are those up to the number `after`.
        """
        value = ORDERS[order.removeprefix("-")]
        now, keys = time.time() * 1000, {}
        async with aclosing(self.walk(after)) as walk:
            async for row in walk:
                if await self.matches(wanted, row) and (key := value(self, row, now)) is not None:
                    keys[row] = key
        rows: list[ShownRow] = []
        for row in (nlargest if order.startswith("-") else nsmallest)(most, keys, keys.__getitem__):
            rows.append(self.summary(row))
            await trio.lowlevel.checkpoint()
        return rows

    async def walk(self, after: int = 0, before: int | None = None) -> AsyncGenerator[Row, None]:
        """Yield all rows between two numbers, newest first. Other tasks run meanwhile."""
        breath = time.perf_counter() + BREATH_SECONDS
        for row in self.ring.before(self.ring.last + 1 if before is None else before):
            if row.number <= after:
                return
            yield row
            if time.perf_counter() > breath:
                await trio.lowlevel.checkpoint()
                breath = time.perf_counter() + BREATH_SECONDS

    async def find(
        self, wanted: Filter, position: int, most: int, after: int = 0
    ) -> tuple[list[ShownRow], int | None]:
        """Return selected rows before a row number, newest first, and the number to continue at, or None.

        Searches for SCAN_SECONDS at most, and no row up to the number `after`.
        """
        ring = self.ring
        rows: list[ShownRow] = []
        until = trio.current_time() + SCAN_SECONDS
        async with aclosing(self.walk(after, position)) as walk:
            async for row in walk:
                position = row.number
                if await self.matches(wanted, row):
                    rows.append(self.summary(row))
                if len(rows) >= most or trio.current_time() > until:
                    break
            else:
                position = 0
        return rows, position if position > max(ring.first, after + 1) else None

    async def messages(self, row: Row) -> list[Message]:
        """Return all messages of a row, the long ones cut."""
        messages, total = [], 0
        for stored in list(row.messages):
            message = await self._message(stored, BODY_BYTES if total < DETAIL_BYTES else CUT_BYTES)
            total += len(message.record.message or message.record.text or "")
            messages.append(message)
            await trio.lowlevel.checkpoint()
        return messages

    async def whole(self, row: Row, seq: int) -> Message | None:
        """Return one message of a row, uncut; None when it was dropped."""
        stored = next((stored for stored in row.messages if stored.observed.number == seq), None)
        return await self._message(stored, sys.maxsize) if stored is not None else None

    async def _message(self, stored: StoredMessage, limit: int) -> Message:
        record = await self.read(stored)
        body = record.message or b""
        if is_cut := len(body) > limit:
            beginning = bytes(body)[:CUT_BYTES].decode("utf-8", "ignore")
            record = msgspec.structs.replace(record, message=None, text=beginning)
        return Message(at=self.when(stored.observed.at), record=record, cut=is_cut, gone=stored.too_large)

    async def read(self, stored: StoredMessage) -> Record:
        """Return `record`; a large message is redacted in a thread."""
        if len(stored.observed.data) > LARGE:
            return await trio.to_thread.run_sync(self.record, stored)
        return self.record(stored)

    def record(self, stored: StoredMessage) -> Record:
        """Return the message as in a capture; `message` is absent when it was too large to keep."""
        observed, context = stored.observed, (self.run, self.redactor)
        if stored.too_large:
            return msgspec.structs.replace(to_record(observed, *context, "metadata"), size=stored.size)
        try:  # whether it is valid inside other JSON: the decoder of envelopes does not check payloads
            record = to_record(observed, *context)
            decode_any(record.message or b"null")
        except ValueError:
            body, _ = self.redactor.redact(observed.method, observed.data)
            text = body.decode("utf-8", "replace")
            record = msgspec.structs.replace(to_record(observed, *context, "metadata"), text=text)
        return record

    async def matches(self, wanted: Filter, row: Row) -> bool:
        """Return whether a filter selects a row. It sees redacted text only, so it cannot find a secret."""
        if not wanted:
            return True
        summary = self._exchange_summary(row)
        for stored in list(row.messages):  # the ring may drop some meanwhile
            if len(summary.passed_tests) == len(wanted.body_tests):
                break
            summary.run_tests(wanted.body_tests, await self.read(stored))
        return wanted.matches(summary)

    def _exchange_summary(self, row: Row) -> ExchangeSummary:
        shown, first = self._summary(row), row.first
        seen = [stored.observed for stored in row.messages]
        session = first.leg.session
        word = row.status if row.status != NOTE else None
        view = shown.view or ""
        begun = Record(
            v=VERSION,
            run=self.run.name,
            time=self.run.time_of(first.at),
            at=first.at,
            kind=first.kind,
            exchange=row.exchange,
            own=first.own,
            method=shown.method,
            id=first.id,
            session=fingerprint(session) if session is not None else None,
            size=row.messages[0].size if row.messages else 0,
        )
        return ExchangeSummary(
            first=begun,
            kind="exchange" if row.exchange else first.kind,
            client=shown.client,
            revision=shown.revision,
            # A narrowed view is found by the name of the whole view, too.
            view=tuple(filter(None, (view.partition(NARROWED)[0], view))),
            target=(shown.target,) if shown.target is not None else (),
            upstream=row.upstreams,
            leg=tuple({message.leg.side: None for message in seen}),
            direction=tuple({message.direction: None for message in seen}),
            peer=tuple({message.leg.peer: None for message in seen}),
            transport=tuple({message.leg.transport: None for message in seen}),
            status=row.http,
            statuses=words_of(word, row.code, row.http),
            code=row.code,
            failed=row.status == TOOL_ERROR,
            ms=row.ms,
            redacted=1 if row.redacted else None,
            marked=row.marked,
            note=row.note,
        )


def _duration(view: LiveView, row: Row, now: float) -> float | None:
    """Return the milliseconds that the row took, or has taken so far."""
    return now - view.when(row.first.at) if row.status == OPEN else row.ms


def _name(view: LiveView, row: Row, _now: float) -> str | None:
    method, target = view.texts(row)
    return target or method


ORDERS: Mapping[str, Callable[[LiveView, Row, float], Any]] = {
    "time": lambda _view, row, _now: row.number,
    "duration": _duration,
    "size": lambda _view, row, _now: row.size,
    "name": _name,
}
"""The values by which rows are sorted, at the present time in milliseconds since 1970."""


def arguments_text(message: Any) -> str:
    """Return the arguments of a request in short: its parameters, or those for its tool or prompt."""
    params = message.get("params") if isinstance(message, dict) else None
    if not isinstance(params, dict):
        return ""
    arguments = params.get("arguments")
    members = arguments if isinstance(arguments, dict) else params
    shown = (
        f"{name}: {cut(msgspec.json.encode(value).decode(), SHORT_VALUE)}"
        for name, value in members.items()
        if members is arguments or name not in NO_ARGUMENTS
    )
    return ", ".join(islice(shown, SHORT))


def failure_text(message: Any) -> str:
    """Return the words of an error, or the first text of a tool's failure."""
    match message:
        case {"error": {"message": str(words)}}:
            return words
        case {"result": {"content": [*blocks]}}:
            texts = (block.get("text") for block in blocks if isinstance(block, dict))
            return next((text for text in texts if isinstance(text, str)), "")
    return ""
