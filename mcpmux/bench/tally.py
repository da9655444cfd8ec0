"""Counts what a benchmark sees while it runs. Pure: every time is handed in, as seconds on one clock.

Rules
- What was meant to be sent before the end of the warm-up is not counted, whenever its answer arrives.
- A row of the series counts what arrives while it is open. It is closed by the first thing that arrives
  after its end; what is recorded late counts in the row that is open then.
- An operation's part of a closed row is summed up when that operation is next recorded, or one row later:
  so no request waits for the sums of all operations.
- A request belongs to the step in which it was meant to be sent.
- Memory is bounded by the number of rows (fixed by `longest`), of operations, of kinds of errors and of
  buckets, not by the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mcpmux.bench.results import OK, WAITED, About, Connections, Generator, Results, Step
from mcpmux.bench.sums import OTHERS, Columns, Counts, OperationSums, StepCounts, Sums, add_kind, series_of
from mcpmux.traffic.redaction.redactor import Redactor

MOST_ROWS = 3600  # of a series; longer runs get longer rows
MOST_OPERATIONS = 200  # more are counted together: a capture may hold any number of names
MOST_EXAMPLES = 50  # of errors in words
MOST_STEPS = 1000  # more than any ramp or search makes; each has a histogram
EXAMPLE_CHARACTERS = 200
REDACTOR = Redactor()  # results are handed around; what servers say may have secrets in it


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is. `elapsed`: seconds since load began; `warming`: whether the warm-up is still on.

    `seen`: requests that have ended, with the warm-up; `count` and `errors`: those that count.
    `times`: p50, p99, p99.9 and the most in seconds, of all that counts so far. `step`: the last one's name.
    """

    elapsed: float
    warming: bool
    seen: int
    count: int
    errors: int
    in_flight: int
    times: Sequence[float | None]
    step: str | None = None


class Tally:
    """Of one run against one target.

    `started`: when load began; `warm_up`: seconds left out from then on; `longest`: seconds that the run
    may last, which fixes how long the rows of its series are. What arrives later counts in the last row.
    """

    def __init__(self, started: float, warm_up: float = 0.0, longest: float = 3600.0) -> None:
        self.warm_up = warm_up
        self.row_seconds = float(max(1, math.ceil(longest / MOST_ROWS)))
        self.seen = 0  # with the warm-up
        self._rows: list[Columns] = []  # closed ones of all operations, but for the last:
        self._closing: Sums | None = None  # what is summed up of that so far
        self._number = 0  # of the open row
        self._operations: dict[str, OperationSums] = {}
        self._connections = Counts()
        self._lost = 0  # connections
        self._steps: list[StepCounts] = []
        self._examples: dict[str, str] = {}
        self.start(started)

    def start(self, started: float) -> None:
        """Load begins only now; nothing but connections was counted before."""
        self.started = started
        self.begun = self._counted_from = self._last = self._row_began = started + self.warm_up
        self._row_ends = self.begun + self.row_seconds

    def __repr__(self) -> str:
        return f"<Tally of {self.seen} in {len(self._operations)} operations>"

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
        """Count a request that has ended. `intended`: when it should have been sent; equal to `sent` in a
        closed loop. `outcome`: "ok", or what went wrong in a few words: "rpc -32602", "tool error",
        "timeout", "connection lost", "wrong answer".
        """
        self.seen += 1
        if intended < self._counted_from:
            return
        if done >= self._row_ends:
            self._close_rows(done)
        if done > self._last:
            self._last = done
        sums = self._operations.get(operation) or self._add_operation(operation)
        sums.sent_bytes += sent_bytes
        sums.received_bytes += received_bytes
        if sums.number != self._number:
            self._close_row(sums)
        row = sums.row
        row.count += 1
        latency = done - intended
        if outcome != OK:
            row.errors += 1
            add_kind(sums.errors, outcome)
        if outcome == OK or outcome in WAITED:
            if sent == intended and row.service is row.latency:  # as `Sums.record`, one call less
                row.latency.record(latency)
            else:
                row.record(latency, done - sent)
        if self._steps:
            self._step_at(intended).add(latency, outcome)
            if outcome == OK:
                self._step_at(done).arrive(done)

    def count_from(self, moment: float) -> None:
        """Do not count what was meant to be sent before, from now on: it warms up what comes next."""
        self._counted_from = moment

    def connected(self, seconds: float, outcome: str = OK) -> None:
        """Count a connection: how long it took to be ready, or what it failed of. Counts in the warm-up."""
        self._connections.add(seconds, outcome)

    def lost_connection(self) -> None:
        """Count a session that broke off while it was in use."""
        self._lost += 1

    def explain(self, operation: str, kind: str, words: Callable[[], str]) -> None:
        """What was said of the first error of a kind; `words` is asked then only."""
        key = f"{operation}: {kind}"
        if key not in self._examples and len(self._examples) < MOST_EXAMPLES:
            text, _ = REDACTOR.redact_text(" ".join(words().split()))
            self._examples[key] = text[:EXAMPLE_CHARACTERS]

    def begin_step(self, now: float, name: str, offered: float | None = None) -> None:
        """What is meant to be sent from now on belongs to a new step. `offered`: requests per second.

        Raises ValueError when there are too many.
        """
        if len(self._steps) >= MOST_STEPS:
            raise ValueError(f"a run has at most {MOST_STEPS} steps")
        self.end_step(now)
        self._steps.append(StepCounts(began=now, name=name, offered=offered))

    def end_step(self, now: float) -> None:
        """The open step ends, if there is one. Later answers to what it has sent still count in it."""
        if self._steps and self._steps[-1].ended is None:
            self._steps[-1].ended = now

    def judge_step(self, held: bool, why: str | None = None) -> None:
        """Whether the last step held its load, and if not, what broke first. There has to be a step."""
        self._steps[-1].held, self._steps[-1].why = held, why

    def last_step(self) -> Step:
        """The last step so far, as it will be in the results. There has to be a step."""
        return self._steps[-1].freeze(self._last)

    def snapshot(self, now: float, in_flight: int = 0) -> Snapshot:
        """What a live view shows. Costs more than counting: for a few times a second."""
        whole = Sums(sums.whole() for sums in self._operations.values())
        return Snapshot(
            elapsed=now - self.started,
            warming=now < self.begun,
            seen=self.seen,
            count=whole.count,
            errors=whole.errors,
            in_flight=in_flight,
            times=whole.latency.percentiles((50, 99, 99.9, 100)),
            step=self._steps[-1].name if self._steps else None,
        )

    def results(self, about: About, ended: float, generator: Generator, **more: Any) -> Results:
        """Everything that was counted. The run lasted until `ended`, or until its last answer if later.

        May be called before the end too, such as when the run is interrupted. `more`: what else is known.
        """
        ended = max(ended, self._last)
        self._close_rows(ended)
        self._close_parts()
        open_row = Sums(sums.row for sums in self._operations.values())
        last_seconds = ended - self._row_began if ended > self._row_began or open_row.count else None
        closed = [*self._rows, *([self._closing.columns()] if self._closing is not None else [])]
        return Results(
            about=about,
            seconds=ended - self.begun,
            warm_up=self.warm_up,
            operations={
                name: sums.freeze(self._number, self.row_seconds, last_seconds)
                for name, sums in sorted(self._operations.items())
            },
            series=series_of(closed, open_row, self.row_seconds, last_seconds),
            connections=Connections(
                count=self._connections.count,
                errors=dict(self._connections.errors),
                times=self._connections.times.freeze(),
                lost=self._lost,
            ),
            generator=generator,
            steps=tuple(step.freeze(ended) for step in self._steps),
            examples=dict(self._examples),
            **more,
        )

    def _add_operation(self, operation: str) -> OperationSums:
        if len(self._operations) >= MOST_OPERATIONS:
            operation = OTHERS
        return self._operations.setdefault(operation, OperationSums(self._number))

    def _step_at(self, time: float) -> StepCounts:
        """The last step that began by then."""
        for step in reversed(self._steps):
            if step.began <= time:
                return step
        return self._steps[0]

    def _close_row(self, sums: OperationSums) -> None:
        """An operation's last row is closed; another one is open now."""
        closed = sums.close_row(self._number)
        if self._closing is not None:
            self._closing.merge(closed)

    def _close_parts(self) -> None:
        """Sum up what is left of the last closed row."""
        for sums in self._operations.values():
            if sums.number != self._number:
                self._close_row(sums)

    def _close_rows(self, now: float) -> None:
        """Close every row that is over; nothing arrived in those after the first."""
        while now >= self._row_ends and self._number < MOST_ROWS:
            if self._closing is not None:
                self._close_parts()
                self._rows.append(self._closing.columns())
            self._closing = Sums()
            self._number += 1
            self._row_began = self._row_ends
            self._row_ends = self.begun + (self._number + 1) * self.row_seconds
