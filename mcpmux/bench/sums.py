"""The running sums behind a tally: of an operation, of a row in time, of a step, of connections. Pure."""

from __future__ import annotations

from mcpmux.bench.histogram import Histogram
from mcpmux.bench.results import OK, WAITED, Connections, Operation, Series, Step

MOST_KINDS = 50  # of errors; codes come from the server
OTHERS = "others"

Columns = tuple[int, int, float | None, float | None, float | None]  # count, errors, p50, p99, most
EMPTY: Columns = (0, 0, None, None, None)


class Row:
    """What one operation had in one stretch of time.

    `prompt`: latencies of what was sent when it was meant to be, which are its service times as well;
    `late` and `service`: the latencies and the service times of the others. So a closed loop records once.
    """

    __slots__ = ("count", "errors", "late", "number", "prompt", "service")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.count = 0
        self.errors = 0
        self.prompt = Histogram()
        self.late = Histogram()
        self.service = Histogram()

    def __repr__(self) -> str:
        return f"<Row of {self.count}, {self.errors} errors>"

    def merge(self, other: Row) -> None:
        """Count all that another one has counted."""
        self.count += other.count
        self.errors += other.errors
        self.prompt.merge(other.prompt)
        self.late.merge(other.late)


class OperationSums:
    """Of one operation. `row`: the last one in which it had anything, not yet in the histograms.

    That one may be over. Rows that held nothing may be missing in the list of those that are over: `rows`
    fills them in.
    """

    __slots__ = (
        "_late",
        "_prompt",
        "_rows",
        "_service",
        "count",
        "errors",
        "received_bytes",
        "row",
        "sent_bytes",
    )

    def __init__(self, number: int) -> None:
        """`number`: of the row that is open."""
        self.count = 0
        self.errors: dict[str, int] = {}
        self.sent_bytes = 0
        self.received_bytes = 0
        self.row = Row(number)
        self._rows: list[Columns] = []
        self._prompt = Histogram()
        self._late = Histogram()
        self._service = Histogram()

    def __repr__(self) -> str:
        return f"<OperationSums of {self.count}>"

    def close_row(self, number: int) -> Row | None:
        """The open row is over, returned if it held anything; the one with this number is open now."""
        row = self.row
        if not row.count:
            row.number = number
            return None
        self.rows(row.number).append(columns_of([row]))
        self._prompt.merge(row.prompt)
        self._late.merge(row.late)
        self._service.merge(row.service)
        self.row = Row(number)
        return row

    def rows(self, count: int) -> list[Columns]:
        """Those that are over, of which there are `count`."""
        self._rows += [EMPTY] * (count - len(self._rows))
        return self._rows

    def latency(self) -> Histogram:
        """All latencies so far."""
        return _sum(self._prompt, self._late, self.row.prompt, self.row.late)

    def service(self) -> Histogram:
        """All service times so far."""
        return _sum(self._prompt, self._service, self.row.prompt, self.row.service)

    def freeze(self, rows: int, seconds: float, last_seconds: float) -> Operation:
        """What is kept of it. `rows`: how many are over."""
        return Operation(
            count=self.count,
            errors=dict(self.errors),
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            latency=self.latency().freeze(),
            service=self.service().freeze(),
            series=series_of([*self.rows(rows), columns_of([self.row])], seconds, last_seconds),
        )


class StepSums:
    """Of one step. Open until `ended` is known."""

    __slots__ = (
        "arrived",
        "began",
        "clients",
        "count",
        "ended",
        "errors",
        "held",
        "latency",
        "name",
        "offered",
        "why",
    )

    def __init__(self, began: float, name: str, offered: float | None, clients: int | None) -> None:
        self.began = began
        self.ended: float | None = None
        self.name = name
        self.offered = offered
        self.clients = clients
        self.arrived = 0
        self.count = 0
        self.errors: dict[str, int] = {}
        self.latency = Histogram()
        self.held: bool | None = None
        self.why: str | None = None

    def __repr__(self) -> str:
        return f"<StepSums {self.name!r} of {self.count}>"

    def add(self, latency: float, outcome: str) -> None:
        """One request more."""
        self.count += 1
        if outcome != OK:
            add_kind(self.errors, outcome)
        if outcome == OK or outcome in WAITED:
            self.latency.record(latency)

    def arrive(self, at: float) -> None:
        """An answer without error, to whichever step's request; none counts after the end."""
        if self.ended is None or at < self.ended:
            self.arrived += 1

    def freeze(self, now: float) -> Step:
        """What is kept of it; an open step lasts until now."""
        ended = now if self.ended is None else self.ended
        return Step(
            name=self.name,
            offered=self.offered,
            clients=self.clients,
            seconds=max(ended - self.began, 0.0),
            count=self.count,
            arrived=self.arrived,
            errors=dict(self.errors),
            latency=self.latency.freeze(),
            held=self.held,
            why=self.why,
        )


class ConnectionSums:
    """Of all connections of a run."""

    __slots__ = ("count", "errors", "lost", "times")

    def __init__(self) -> None:
        self.count = 0
        self.lost = 0
        self.errors: dict[str, int] = {}
        self.times = Histogram()

    def __repr__(self) -> str:
        return f"<ConnectionSums of {self.count}>"

    def add(self, seconds: float, outcome: str) -> None:
        """One connection more."""
        self.count += 1
        if outcome == OK:
            self.times.record(seconds)
        else:
            add_kind(self.errors, outcome)

    def freeze(self) -> Connections:
        """What is kept of them."""
        errors = dict(self.errors)
        return Connections(count=self.count, errors=errors, times=self.times.freeze(), lost=self.lost)


def add_kind(errors: dict[str, int], kind: str) -> None:
    """One error more of a kind; when there are too many kinds already, of the others."""
    if kind not in errors and len(errors) >= MOST_KINDS:
        kind = OTHERS
    errors[kind] = errors.get(kind, 0) + 1


def columns_of(rows: list[Row]) -> Columns:
    """What is kept of the rows of one time."""
    parts = [part for row in rows for part in (row.prompt, row.late) if part.count]
    latency = parts[0] if len(parts) == 1 else _sum(*parts)
    p50, p99, most = latency.percentiles((50, 99, 100))
    return (sum(row.count for row in rows), sum(row.errors for row in rows), p50, p99, most)


def _sum(*histograms: Histogram) -> Histogram:
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole


def series_of(rows: list[Columns], seconds: float, last_seconds: float) -> Series:
    """Rows as columns. The last row is left out when it is empty and lasts no time."""
    if last_seconds <= 0 and rows[-1] == EMPTY:
        rows, last_seconds = rows[:-1], seconds
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return Series(
        seconds=seconds,
        last_seconds=last_seconds,
        count=columns[0],
        errors=columns[1],
        p50=columns[2],
        p99=columns[3],
        most=columns[4],
    )
