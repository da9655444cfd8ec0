"""Counts what a benchmark sees while it runs. Pure: every time is handed in, as seconds on one clock.

Rules
- What was meant to be sent before the end of the warm-up is not counted, whenever its answer arrives.
- A row of the series counts what arrives while it is open. It is closed by the first thing that arrives
  after its end; what is recorded late counts in the row that is open then.
- A closed row is summed up by one operation with each request that follows: none waits for all of them.
- A request belongs to the step in which it was meant to be sent.
- Memory is bounded by the number of rows (fixed by `longest`), of operations, of kinds of errors and of
  buckets, not by the number of requests.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from attrs import define, field

from mcpmux.bench.results import (
    COLUMNS,
    WAITED,
    About,
    Connections,
    Generator,
    OperationResult,
    Results,
    Series,
    Step,
)
from mcpmux.traffic.outcome import OK
from mcpmux.traffic.reading.histogram import Histogram
from mcpmux.traffic.redaction.redactor import Redactor

MOST_ROWS = 3600  # of a series; longer runs get longer rows
MOST_OPERATIONS = 200  # more are counted together: a capture may hold any number of names
MOST_KINDS = 50  # of errors; codes come from the server
MOST_EXAMPLES = 50  # of errors in words
MOST_STEPS = 1000  # more than any ramp or search makes; each has a histogram
EXAMPLE_CHARACTERS = 200
OTHERS = "others"
TIMES = (50, 99, 99.9, 100)  # percentiles of a snapshot
REDACTOR = Redactor()  # results are handed around; what servers say may have secrets in it

Row = tuple[int, int, float | None, float | None, float | None]
"""Of a series, in the order of COLUMNS."""

EMPTY: Row = (0, 0, None, None, None)


class Sums:
    """Of some requests. Latencies and service times are one histogram until the first two that differ."""

    __slots__ = ("count", "errors", "latency", "received_bytes", "sent_bytes", "service")

    def __init__(self, parts: Iterable[Sums] = ()) -> None:
        """Add up all `parts`."""
        self.count = self.sent_bytes = self.received_bytes = 0
        self.errors: dict[str, int] = {}  # by kind
        self.latency = self.service = Histogram()
        for part in parts:
            self.merge(part)

    def add(
        self, outcome: str, latency: float, service: float, sent_bytes: int = 0, received_bytes: int = 0
    ) -> None:
        """Count one request."""
        self.count += 1
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        if outcome != OK:
            self._add_kind(outcome)
            if outcome not in WAITED:
                return
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
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        for kind, count in other.errors.items():
            self._add_kind(kind, count)
        if other.service is not other.latency and self.service is self.latency:
            self._split()
        if self.service is not self.latency:
            self.service.merge(other.service)
        self.latency.merge(other.latency)

    def _add_kind(self, kind: str, count: int = 1) -> None:
        if kind not in self.errors and len(self.errors) >= MOST_KINDS:
            kind = OTHERS
        self.errors[kind] = self.errors.get(kind, 0) + count

    def _split(self) -> None:
        self.service = Histogram()
        self.service.merge(self.latency)

    def row(self) -> Row:
        """Return the row of a series."""
        p50, p99, most = self.latency.percentiles((50, 99, 100))
        return self.count, sum(self.errors.values()), p50, p99, most

    def freeze(self, series: Series) -> OperationResult:
        """Return the result of an operation."""
        counts = {name: getattr(self, name) for name in ("count", "sent_bytes", "received_bytes")}
        latency = self.latency.freeze()
        service = latency if self.service is self.latency else self.service.freeze()
        errors = dict(self.errors)
        return OperationResult(**counts, errors=errors, latency=latency, service=service, series=series)


NOTHING = Sums()


@define
class OpenStep:
    """A step so far, which lasts until it has `ended`. `sums`: of the requests meant to be sent in it."""

    began: float
    name: str
    offered: float | None
    ended: float = math.inf
    arrived: int = 0
    held: bool | None = None
    why: str | None = None
    sums: Sums = field(factory=Sums)

    def end(self, now: float) -> None:
        """End a run, if it has not ended before. Later answers to its requests still count in it."""
        self.ended = min(self.ended, now)

    def freeze(self, ended: float) -> Step:
        """Return the result of the step. `ended`: of the run."""
        same = {name: getattr(self, name) for name in ("name", "offered", "arrived", "held", "why")}
        seconds = max((ended if math.isinf(self.ended) else self.ended) - self.began, 0.0)
        count, errors, latency = self.sums.count, dict(self.sums.errors), self.sums.latency.freeze()
        return Step(seconds=seconds, count=count, errors=errors, latency=latency, **same)


class Snapshot(msgspec.Struct, frozen=True):
    """State of a run. `seen`: requests that have ended, with those of the warm-up; `times`: see TIMES."""

    elapsed: float  # seconds since load began
    warming: bool
    seen: int
    count: int  # of those that count, as `errors` and `times` are
    errors: int
    in_flight: int
    times: Sequence[float | None]
    step: str | None = None  # the name of the last one


class Tally:
    """Of one run against one target. `warm_up`: seconds left out from `started` on.

    `longest`: seconds that it may last, which fixes the length of rows; what comes later is in the last one.
    """

    def __init__(self, started: float, warm_up: float = 0.0, longest: float = 3600.0) -> None:
        self.warm_up = warm_up
        self.row_seconds = float(max(1, math.ceil(longest / MOST_ROWS)))
        self.seen = 0  # with the warm-up
        self._number = 0  # of the open row
        self._open: dict[str, Sums] = {}  # by operation
        self._closing: dict[str, Sums] = {}  # of the row before, what is not summed up yet,
        self._closed = Sums()  # and what is
        self._wholes: dict[str, Sums] = {}  # by operation, without these two rows
        self._rows: defaultdict[str | None, dict[int, Row]] = defaultdict(dict)  # by operation; None: of all
        self._connections = Sums()
        self._lost = 0  # connections
        self._steps: list[OpenStep] = []
        self._examples: dict[str, str] = {}
        self.start(started)

    def start(self, started: float) -> None:
        """Begin the load; nothing but connections was counted before."""
        self.started = started
        self.begun = self._counted_from = self._last = started + self.warm_up
        self._row_ends = self.begun + self.row_seconds

    def record(
        self,
        operation: str,
        intended: float,
        sent: float,
        done: float,
        outcome: str,
        sent_bytes: int,
        received_bytes: int,
    ) -> None:
        """Count a request that has ended and was meant to be sent at `intended`; `outcome`: OK or what went
        wrong, in a few words such as "rpc -32602", "timeout" or "wrong answer".
        """
        self.seen += 1
        if intended < self._counted_from:
            return
        if done >= self._row_ends:
            self._close_rows(done)
        elif self._closing:
            self._sum_up(1)
        if done > self._last:
            self._last = done
        row = self._open.get(operation)
        if row is None:
            if operation not in self._wholes and len(self._wholes) >= MOST_OPERATIONS:
                operation = OTHERS
            self._wholes.setdefault(operation, Sums())
            row = self._open.setdefault(operation, Sums())
        row.add(outcome, done - intended, done - sent, sent_bytes, received_bytes)
        if self._steps:
            self._step_at(intended).sums.add(outcome, done - intended, done - intended)
            step = self._step_at(done)
            if outcome == OK and done < step.ended:
                step.arrived += 1

    def count_from(self, moment: float) -> None:
        """Count only requests that are due from now on: earlier ones warm up what comes next."""
        self._counted_from = moment

    def connected(self, seconds: float, outcome: str = OK) -> None:
        """Count a connection: how long it took to be ready, or what it failed of. Counts in the warm-up."""
        self._connections.add(outcome, seconds, seconds)

    def lost_connection(self) -> None:
        """Count a session that broke off while it was in use."""
        self._lost += 1

    def explain(self, operation: str, kind: str, words: Callable[[], str]) -> None:
        """Keep the description of the first error of a kind, for which `words` is called."""
        key = f"{operation}: {kind}"
        if key not in self._examples and len(self._examples) < MOST_EXAMPLES:
            text, _ = REDACTOR.redact_text(" ".join(words().split()))
            self._examples[key] = text[:EXAMPLE_CHARACTERS]

    def begin_step(self, now: float, name: str, offered: float | None = None) -> OpenStep:
        """Begin a step of requests from now on, `offered` a second. Raises ValueError for too many."""
        if len(self._steps) >= MOST_STEPS:
            raise ValueError(f"a run has at most {MOST_STEPS} steps")
        if self._steps:
            self._steps[-1].end(now)
        self._steps.append(step := OpenStep(now, name, offered))
        return step

    def snapshot(self, now: float, in_flight: int = 0) -> Snapshot:
        """Return the values of a live view. Costs more than counting: call it a few times a second."""
        whole = Sums((*self._wholes.values(), *self._closing.values(), *self._open.values()))
        elapsed, warming, times = now - self.started, now < self.begun, whole.latency.percentiles(TIMES)
        step, errors = self._steps[-1].name if self._steps else None, sum(whole.errors.values())
        return Snapshot(elapsed, warming, self.seen, whole.count, errors, in_flight, times, step)

    def results(self, about: About, ended: float, generator: Generator, **more: Any) -> Results:
        """Return the counts. The run lasts until `ended`, or its last answer. `more`: what else is known."""
        ended = max(ended, self._last)
        self._close_rows(ended)
        self._sum_up(len(self._closing))
        began = self.begun + self._number * self.row_seconds
        cut_short = ended > began or bool(self._open)
        last_seconds = ended - began if cut_short else self.row_seconds
        together = Sums(self._open.values())

        def series(name: str | None) -> Series:
            rows = [self._rows[name].get(number, EMPTY) for number in range(self._number)]
            if cut_short:
                rows.append((together if name is None else self._open.get(name, NOTHING)).row())
            columns = dict(zip(COLUMNS, zip(*rows, strict=True) if rows else [()] * 5, strict=True))
            return Series(seconds=self.row_seconds, last_seconds=last_seconds, **columns)

        opened, times = self._connections, self._connections.latency.freeze()
        errors = dict(opened.errors)
        return Results(
            about=about,
            seconds=ended - self.begun,
            warm_up=self.warm_up,
            operations={
                name: Sums((whole, self._open.get(name, NOTHING))).freeze(series(name))
                for name, whole in sorted(self._wholes.items())
            },
            series=series(None),
            connections=Connections(count=opened.count, errors=errors, times=times, lost=self._lost),
            generator=generator,
            steps=tuple(step.freeze(ended) for step in self._steps),
            examples=dict(self._examples),
            **more,
        )

    def _step_at(self, time: float) -> OpenStep:
        return next((step for step in reversed(self._steps) if step.began <= time), self._steps[0])

    def _close_rows(self, now: float) -> None:
        """Close every row that is over; those after the first are empty."""
        while now >= self._row_ends and self._number < MOST_ROWS:
            self._sum_up(len(self._closing))
            self._closing, self._open = self._open, {}
            self._number += 1
            self._row_ends = self.begun + (self._number + 1) * self.row_seconds

    def _sum_up(self, count: int) -> None:
        """Add up so many operations of the last closed row."""
        place = self._number - 1
        for _ in range(count):
            name, row = self._closing.popitem()
            self._rows[name][place] = row.row()
            self._wholes[name].merge(row)
            self._closed.merge(row)
        if self._closed.count and not self._closing:
            self._rows[None][place] = self._closed.row()
            self._closed = Sums()
