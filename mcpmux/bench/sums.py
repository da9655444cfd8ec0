"""The running sums behind a tally: of an operation, of a row in time, of a step, of connections. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from mcpmux.bench.results import COLUMNS, OK, WAITED, OperationResult, Series, Step
from mcpmux.traffic.reading.histogram import Histogram

MOST_KINDS = 50  # of errors; codes come from the server
OTHERS = "others"

Columns = tuple[int, int, float | None, float | None, float | None]
"""A row of a series, in the order of COLUMNS."""

EMPTY: Columns = (0, 0, None, None, None)


class Sums:
    """Of some requests. Latencies and service times are one histogram until the first two that differ."""

    __slots__ = ("count", "errors", "latency", "service")

    def __init__(self, parts: Iterable[Sums] = ()) -> None:
        """All `parts` together."""
        self.count = 0
        self.errors = 0
        self.latency = self.service = Histogram()
        for part in parts:
            self.merge(part)

    def __repr__(self) -> str:
        return f"<Sums of {self.count}, {self.errors} errors>"

    def record(self, latency: float, service: float) -> None:
        """Count the times of one request."""
        if self.service is self.latency:
            if latency == service:
                self.latency.record(latency)
                return
            self._split()
        self.latency.record(latency)
        self.service.record(service)

    def merge(self, other: Sums) -> None:
        """Count all that another one has counted."""
        self.count += other.count
        self.errors += other.errors
        if other.service is not other.latency and self.service is self.latency:
            self._split()
        if self.service is not self.latency:
            self.service.merge(other.service)
        self.latency.merge(other.latency)

    def _split(self) -> None:
        self.service = Histogram()
        self.service.merge(self.latency)

    def columns(self) -> Columns:
        """What a series keeps of them."""
        p50, p99, most = self.latency.percentiles((50, 99, 100))
        return self.count, self.errors, p50, p99, most


@define(eq=False, repr=False)
class OperationSums:
    """Of one operation. `row`: of the row with `number`, the last in which it had anything.

    That row may be closed already; `closed` has those before it.
    """

    number: int
    errors: dict[str, int] = field(factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    row: Sums = field(factory=Sums)
    _closed: list[Columns] = field(factory=list)
    _whole: Sums = field(factory=Sums)

    def __repr__(self) -> str:
        return f"<OperationSums of {self.whole().count}>"

    def close_row(self, number: int) -> Sums:
        """Its last row, which is closed; the one with this number is open now."""
        closed = self.row
        if closed.count:
            self.closed(self.number).append(closed.columns())
            self._whole.merge(closed)
            self.row = Sums()
        self.number = number
        return closed

    def closed(self, count: int) -> list[Columns]:
        """The closed rows, of which there are `count`."""
        self._closed += [EMPTY] * (count - len(self._closed))
        return self._closed

    def whole(self) -> Sums:
        """All requests so far."""
        return Sums((self._whole, self.row))

    def freeze(self, rows: int, seconds: float, last_seconds: float | None) -> OperationResult:
        """What is kept of it. `rows`: how many are closed. `last_seconds`: of the open row, if it is kept."""
        whole = self.whole()
        latency = whole.latency.freeze()
        return OperationResult(
            count=whole.count,
            errors=dict(self.errors),
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            latency=latency,
            service=latency if whole.service is whole.latency else whole.service.freeze(),
            series=series_of(self.closed(rows), self.row, seconds, last_seconds),
        )


@define(kw_only=True)
class Counts:
    """Requests or connections: how many, what those failed of that failed, and how long they took."""

    count: int = 0
    errors: dict[str, int] = field(factory=dict)
    times: Histogram = field(factory=Histogram)

    def add(self, seconds: float, outcome: str) -> None:
        """Count one."""
        self.count += 1
        if outcome != OK:
            add_kind(self.errors, outcome)
        if outcome == OK or outcome in WAITED:
            self.times.record(seconds)


@define(kw_only=True)
class StepCounts(Counts):
    """Of the requests that were meant to be sent in one step. It is open until `ended` is known."""

    began: float
    name: str
    offered: float | None
    ended: float | None = None
    arrived: int = 0
    held: bool | None = None
    why: str | None = None

    def arrive(self, done: float) -> None:
        """Count an answer without error that came while it lasts, to a request of whichever step."""
        if self.ended is None or done < self.ended:
            self.arrived += 1

    def freeze(self, ended: float) -> Step:
        """What is kept of it. `ended`: of the run."""
        same = ("name", "offered", "count", "arrived", "held", "why")
        return Step(
            seconds=max((self.ended if self.ended is not None else ended) - self.began, 0.0),
            errors=dict(self.errors),
            latency=self.times.freeze(),
            **{name: getattr(self, name) for name in same},
        )


def add_kind(errors: dict[str, int], kind: str) -> None:
    """Count an error of a kind; when there are too many kinds already, under others."""
    if kind not in errors and len(errors) >= MOST_KINDS:
        kind = OTHERS
    errors[kind] = errors.get(kind, 0) + 1


def series_of(closed: list[Columns], row: Sums, seconds: float, last_seconds: float | None) -> Series:
    """Rows as columns. `row`: the open one, which is left out when `last_seconds` is None."""
    rows = closed if last_seconds is None else [*closed, row.columns()]
    columns = dict(zip(COLUMNS, zip(*rows, strict=True) if rows else [()] * 5, strict=True))
    return Series(seconds=seconds, last_seconds=seconds if last_seconds is None else last_seconds, **columns)
