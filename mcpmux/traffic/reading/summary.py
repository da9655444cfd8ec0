"""Whole exchanges out of single messages. Pure.

    a client's request              begins a summary
    any message of the exchange     adds its upstream, target, sizes
    the answer to the client        ends it: `add` returns it
    its client takes it back        ends it, too; what comes later is not told
    it is given up at all upstreams and not answered within GRACE seconds: its client has gone (over HTTP a
                                    request of 2026-07-28 is taken back by closing its stream), so ends it
    a reading that is over          `rest` returns those that have no answer

No message is kept, and at most OPEN_LIMIT exchanges; of more the oldest are returned as they are. An exchange
whose beginning was not read is none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mcpmux.protocol import method as m
from mcpmux.traffic.reading.status import CANCELLED, OPEN, is_answer, statuses_of
from mcpmux.traffic.record import Record

OPEN_LIMIT = 20_000  # exchanges; some 20 MB
GRACE = 1.0  # seconds; an upstream that took too long is given up, too, and then the client is answered
VALUES_LIMIT = 16  # different upstreams or targets of one exchange that are told

T = TypeVar("T")


class Summary:
    """One exchange. Members are named like those of Record; tuples hold the values of both legs.

    `size` is of the client's request, `answer_size` of what it got, `messages` how many were seen. `heard`:
    which of the Summarizer's watches said yes to one of its messages.
    """

    __slots__ = (
        "_asked",
        "_withdrawn",
        "answer_size",
        "at",
        "client",
        "code",
        "direction",
        "exchange",
        "failed",
        "heard",
        "id",
        "kind",
        "leg",
        "messages",
        "method",
        "ms",
        "own",
        "peer",
        "redacted",
        "revision",
        "run",
        "seq",
        "session",
        "size",
        "status",
        "statuses",
        "target",
        "time",
        "transport",
        "upstream",
        "withdrawn_at",
    )

    def __init__(self, asked: Record) -> None:
        self.kind = "exchange"
        self.own = False
        self.run, self.seq, self.exchange = asked.run, asked.seq, asked.exchange
        self.time, self.at, self.method, self.id = asked.time, asked.at, asked.method, asked.id
        self.client, self.session, self.revision = asked.client, asked.session, asked.revision
        self.leg: tuple[str, ...] = ("client",)
        self.direction: tuple[str, ...] = ()
        self.peer: tuple[str, ...] = ()
        self.transport: tuple[str, ...] = ()
        self.target: tuple[str, ...] = ()
        self.upstream: tuple[str, ...] = ()
        self.code: int | None = None
        self.status: int | None = None
        self.failed: bool | None = None
        self.redacted: int | None = None
        self.ms: float | None = None
        self.size = asked.size
        self.answer_size: int | None = None
        self.messages = 0
        self.statuses: tuple[str, ...] = (OPEN,)
        self.heard: frozenset[int] = frozenset()
        self.withdrawn_at = 0.0
        self._asked: set[tuple[object, object]] = set()  # what upstreams have not answered
        self._withdrawn = 0
        self.add(asked)

    def __repr__(self) -> str:
        return f"<Summary {self.exchange} {self.method} {self.statuses}>"

    def add(self, record: Record) -> None:
        """One more of its messages."""
        self.messages += 1
        self.leg = _with(self.leg, record.leg)
        self.direction = _with(self.direction, record.direction)
        self.peer = _with(self.peer, record.peer)
        self.transport = _with(self.transport, record.transport)
        self.upstream = _with(self.upstream, record.upstream)
        if record.method == self.method:
            self.target = _with(self.target, record.target)
        if record.redacted:
            self.redacted = (self.redacted or 0) + record.redacted
        if record.leg == "client" and self.client is None:
            self.client = record.client
        if record.leg == "client" and self.revision is None:
            self.revision = record.revision

        if record.leg == "upstream":
            self._follow(record)

    def _follow(self, record: Record) -> None:
        if record.method == m.CANCELLED:
            if record.direction == "out":
                self._withdrawn += 1
                self.withdrawn_at = record.at
        elif record.kind == "request":
            if record.direction == "out":
                self._asked.add((record.peer, record.id))
        elif is_answer(record) and record.direction == "in":
            self._asked.discard((record.peer, record.id))

    @property
    def given_up(self) -> bool:
        """Whether mcpmux waits for no upstream any more, as it has taken back what is not answered."""
        return 0 < self._withdrawn >= len(self._asked) and self.method != m.LISTEN

    def end(self, answer: Record) -> None:
        """What the client got."""
        self.add(answer)
        self.ms, self.code, self.status, self.failed = answer.ms, answer.code, answer.status, answer.failed
        self.answer_size = answer.size
        self.statuses = statuses_of(answer)


def _with(values: tuple[T, ...], value: T | None) -> tuple[T, ...]:
    if value is None or value in values or len(values) >= VALUES_LIMIT:
        return values
    return (*values, value)


class Summarizer:
    """See the module. `watches` are asked about every message of an exchange, until they say yes."""

    def __init__(self, watches: Sequence[Callable[[Record], bool]] = ()) -> None:
        self._watches = tuple(watches)
        self._open: OrderedDict[tuple[str, int], Summary] = OrderedDict()
        self._fading: dict[tuple[str, int], Summary] = {}  # perhaps given up

    def __repr__(self) -> str:
        return f"<Summarizer {len(self._open)} open>"

    def add(self, record: Record) -> Iterator[Summary]:
        """The exchanges that are over with this message."""
        if self._fading:
            yield from self._given_up(record)
        if record.exchange is None:
            return
        key = (record.run, record.exchange)
        known = self._open.get(key)
        if known is None:
            if not _begins(record):
                return
            known = self._open[key] = Summary(record)
        elif _ends(record):
            known.end(record)
            del self._open[key]
        else:
            known.add(record)
            if record.method == m.CANCELLED and record.leg == "client" and record.direction == "in":
                known.statuses = (CANCELLED,)
                del self._open[key]
            elif record.method == m.CANCELLED and record.direction == "out":
                self._fading[key] = known
        if self._watches:
            self._listen(known, record)
        if key not in self._open:
            yield known
        elif len(self._open) > OPEN_LIMIT:
            yield self._open.popitem(last=False)[1]

    def rest(self) -> list[Summary]:
        """The exchanges without an answer, oldest first; they are forgotten."""
        left = list(self._open.values())
        self._open.clear()
        self._fading.clear()
        for each in left:
            if each.given_up:
                each.statuses = (CANCELLED,)
        return left

    def _given_up(self, record: Record) -> Iterator[Summary]:
        """Those that had their time to be answered, the first ones first."""
        for key, known in list(self._fading.items()):
            if known.run != record.run or record.at - known.withdrawn_at <= GRACE:
                return
            del self._fading[key]
            if known.given_up and self._open.get(key) is known:
                known.statuses = (CANCELLED,)
                del self._open[key]
                yield known

    def _listen(self, known: Summary, record: Record) -> None:
        heard = {
            number
            for number, watch in enumerate(self._watches)
            if number not in known.heard and watch(record)
        }
        if heard:
            known.heard |= heard


def _begins(record: Record) -> bool:
    return record.kind == "request" and record.leg == "client" and record.direction == "in"


def _ends(record: Record) -> bool:
    """Whether this is the answer to the client's request: what mcpmux asks, the client answers itself."""
    return is_answer(record) and record.leg == "client" and record.direction == "out"
