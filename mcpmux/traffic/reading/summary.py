"""Build exchanges from single messages. Pure.

    a client's request              begins a summary
    any message of the exchange     adds its upstream, target, sizes
    the answer to the client        ends it: `add` returns it
    its client cancels it           ends it, too; later messages are not counted
    it is cancelled at all upstreams and not answered within GRACE seconds: its client has gone (over HTTP a
                                    request of 2026-07-28 is cancelled by closing its stream), so ends it
    the end of the capture          `rest` returns those that have no answer

No message is kept, and at most OPEN_LIMIT exchanges; of more the oldest are returned unfinished. An exchange
whose beginning was not read is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, TypeAlias

import msgspec
from attrs import define, field

from mcpmux.lru import Lru, weigh
from mcpmux.protocol import method as m
from mcpmux.traffic.outcome import CANCELLED, OPEN, statuses_of
from mcpmux.traffic.record import ANSWERS, Record

OPEN_LIMIT = 20_000  # exchanges, requests or targets; some 20 MB
OPEN_BYTES = 256 * 2**20  # of those: exchanges without bodies, requests with theirs
SUMMARY_BYTES = 1000  # that an exchange takes besides its target
GRACE = 1.0  # seconds; an upstream that took too long is cancelled, too, and then the client is answered
VALUES_LIMIT = 16  # different upstreams or targets of one exchange that are kept
VALUES_CHARS = 1024  # of all but the first of them

Test: TypeAlias = Callable[[Record], bool]


@define(eq=False, kw_only=True)
class ExchangeSummary:
    """One exchange. Members are named like those of Record; tuples hold the values of both legs.

    Other members (`method`, `time`, `size` beside `answer_size`) are those of `first`, the client's request
    without its body. `view`, `marked`, `note`: of a live exchange; captures do not have them. `passed_tests`:
    the Summarizer's body tests that one of its messages has passed.
    """

    first: Record
    kind: str = "exchange"
    client: str | None = None
    revision: str | None = None
    view: tuple[str, ...] = ()
    marked: bool = False
    note: str = ""
    leg: tuple[str, ...] = ()
    direction: tuple[str, ...] = ()
    peer: tuple[str, ...] = ()
    transport: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    code: int | None = None
    status: int | None = None
    failed: bool | None = None
    redacted: int | None = None
    ms: float | None = None
    answer_size: int | None = None
    statuses: tuple[str, ...] = (OPEN,)
    passed_tests: set[Test] = field(factory=set)
    withdrawn_at: float = inf  # the last time when mcpmux cancelled a request
    _waits_for: int = 0  # requests to upstreams that are neither answered nor cancelled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    def add(self, record: Record) -> None:
        """Add a message of the exchange."""
        self.leg = _with(self.leg, record.leg)
        self.direction = _with(self.direction, record.direction)
        self.peer = _with(self.peer, record.peer)
        self.transport = _with(self.transport, record.transport)
        self.upstream = _with(self.upstream, record.upstream)
        if record.method == self.first.method:
            self.target = _with(self.target, record.target)
        if record.redacted:
            self.redacted = (self.redacted or 0) + record.redacted
        if record.leg == "client":
            self.client = record.client if self.client is None else self.client
            self.revision = record.revision if self.revision is None else self.revision
        elif record.direction == "out":
            if record.method == m.CANCELLED:
                self._waits_for -= 1
                self.withdrawn_at = record.at
            elif record.kind == "request":
                self._waits_for += 1
        elif record.kind in ANSWERS:
            self._waits_for -= 1

    @property
    def given_up(self) -> bool:
        """Whether mcpmux waits for no upstream any more, as it has cancelled all unanswered requests."""
        return self.withdrawn_at < inf and self._waits_for <= 0 and self.first.method != m.LISTEN

    def run_tests(self, body_tests: Sequence[Test], record: Record) -> None:
        """Run the tests that no message has passed yet on a message."""
        self.passed_tests.update(test for test in {*body_tests} - self.passed_tests if test(record))

    def end(self, answer: Record) -> None:
        """Add the answer to the client."""
        self.add(answer)
        self.ms, self.code, self.status, self.failed = answer.ms, answer.code, answer.status, answer.failed
        self.answer_size = answer.size
        self.statuses = statuses_of(answer)


def _with(values: tuple[str, ...], value: str | None) -> tuple[str, ...]:
    if value is None or value in values or len(values) >= VALUES_LIMIT:
        return values
    if values and sum(map(len, values[1:])) + len(value) > VALUES_CHARS:
        return values
    return (*values, value)


class Summarizer:
    """Builds exchanges, see the module. `body_tests` run on each message of an exchange until one passes."""

    def __init__(self, body_tests: Sequence[Test] = ()) -> None:
        self._body_tests = tuple(body_tests)
        self._open: Lru[tuple[str, int], ExchangeSummary] = Lru(OPEN_LIMIT, OPEN_BYTES)
        # Perhaps given up, by run: the last ones of a run that has ended have no later message to fade by.
        self._fading: dict[str, dict[tuple[str, int], ExchangeSummary]] = {}

    def add(self, record: Record) -> Iterator[ExchangeSummary]:
        """Add a message. Yield the exchanges that end with it."""
        fading = self._fading.get(record.run, {})
        while fading:
            faded_key, faded = next(iter(fading.items()))
            if record.at - faded.withdrawn_at <= GRACE:
                break
            del fading[faded_key]
            if faded.given_up and self._open.peek(faded_key) is faded:
                faded.statuses = (CANCELLED,)
                self._open.discard(faded_key)
                yield faded
        if record.exchange is None:
            return
        key = (record.run, record.exchange)
        forgotten: Sequence[ExchangeSummary] = ()
        summary = self._open.peek(key)
        if summary is None:
            if record.kind != "request" or record.leg != "client" or record.direction != "in":
                return
            first = msgspec.structs.replace(record, message=None, text=None)
            summary = ExchangeSummary(first=first)
            summary.add(record)
            forgotten = self._open.keep(
                key, summary, SUMMARY_BYTES + weigh((record.target, record.method, record.id))
            )
        elif record.kind in ANSWERS and record.leg == "client" and record.direction == "out":
            summary.end(record)  # a client's answer to a question comes in: only this one goes out
            self._open.discard(key)
        else:
            summary.add(record)
            if record.method == m.CANCELLED and record.direction == "out":
                self._fading.setdefault(record.run, {})[key] = summary
            elif record.method == m.CANCELLED and record.leg == "client" and record.direction == "in":
                summary.statuses = (CANCELLED,)
                self._open.discard(key)
        if self._body_tests:
            summary.run_tests(self._body_tests, record)
        if key not in self._open and not forgotten:
            yield summary
        yield from forgotten

    def rest(self) -> list[ExchangeSummary]:
        """Return the exchanges without an answer, oldest first, and forget them."""
        left = list(self._open.values())
        self._open.clear()
        self._fading.clear()
        for summary in left:
            if summary.given_up:
                summary.statuses = (CANCELLED,)
        return left


# Pairs of requests and answers on one leg, from single messages; memory is bounded.

Pair: TypeAlias = tuple[Record, Record | None]
"""A request and its answer, or a single message: a notification, an answer without a request."""


def pair_up(records: Iterable[Record]) -> Iterator[Pair]:
    """Yield every message once, requests with their answers, in the order in which pairs become complete."""
    waiting: Lru[tuple[str, int], Record] = Lru(OPEN_LIMIT, OPEN_BYTES)
    for record in records:
        if record.kind == "request":
            for unanswered in waiting.keep((record.run, record.seq), record, weigh(record)):
                yield unanswered, None
        elif record.answers and (question := waiting.pop((record.run, record.answers))) is not None:
            yield question, record
        elif record.kind != "start":
            yield record, None
    yield from ((request, None) for request in waiting.values())


class Targets:
    """Adds to answers the target of their requests."""

    def __init__(self) -> None:
        self._known: Lru[tuple[str, int], str] = Lru(OPEN_LIMIT, OPEN_BYTES)

    def fill(self, record: Record) -> Record:
        """Return the same message. An answer gets its request's target, as it has none itself."""
        if record.kind == "request" and record.target is not None:
            self._known[record.run, record.seq] = record.target
        elif record.answers and record.target is None:
            target = self._known.pop((record.run, record.answers))
            if target is not None:
                return msgspec.structs.replace(record, target=target)
        return record


# The messages of an exchange that came in, and those that went out for them:
#
# | came in | went out |
# | --- | --- |
# | a client's request | requests to upstreams with the same method |
# | answers of upstreams | the answer to the client |
# | an upstream's question, the client's answer | the same on the other leg |
# | notifications | the same, one by one |


Passage: TypeAlias = tuple[list[Record], Record]
"""Messages that came in, and the one that went out for them on the other leg; several are merged into one."""


def passages(records: Sequence[Record]) -> list[Passage]:
    """Return passages in the order in which they went out, without messages that mcpmux made itself."""
    passages: list[Passage] = []
    arrived: list[Record] = []
    for record in records:
        if record.direction == "in":
            arrived.append(record)
        elif record.direction == "out":
            origins = [origin for origin in arrived if _fits(origin, record)]
            if record.kind == "request":
                origins = origins[-1:]  # several requests may go out for one, so it stays
            else:
                origins = origins[:1] if record.kind == "notification" else origins
                arrived = [origin for origin in arrived if origin not in origins]
            if origins:
                passages.append((origins, record))
    return passages


def _fits(before: Record, after: Record) -> bool:
    if before.leg == after.leg or before.method != after.method or before.method is None:
        return False
    return before.kind == after.kind or ANSWERS.issuperset((before.kind, after.kind))
