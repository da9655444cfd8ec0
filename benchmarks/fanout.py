"""Rows: one change to many subscribers, and what an idle subscriber costs.

mcpmux has one core to itself; the notifier and the subscribers share another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from benchmarks.bench import Bench
from benchmarks.notifier import URI
from benchmarks.process import Child
from benchmarks.report import MICRO, Goal, Row, at_least, at_most, spread
from benchmarks.subscribers import Delivery
from benchmarks.upstream import LEGACY, MODERN
from mcpmux.traffic.reading.histogram import Histogram

SUBSCRIBERS = 1000
SESSIONS = 5000
RUNS = 3
CHANGES = 100
NAME = "s0"
SETTLE_SECONDS = 3.0  # after which a process whose clients have just come is idle
GRACE_SECONDS = 600
DELIVERED = at_most(50, " ms", absolute=True)
SUSTAINED = at_least(20_000, " /s", absolute=True)
SESSION = Goal("≤ 30 KB", most=30e3)
KINDS = {MODERN: "modern listens", LEGACY: "legacy sessions"}


def rows(bench: Bench) -> list[Row]:
    """Measure everything at its usual size."""
    table_rows: list[Row] = []
    for era, who in KINDS.items():
        bench.note(f"one update to {SUBSCRIBERS:,} {who}; {SESSIONS:,} idle {who}")
        table_rows += delivery_rows(bench, era, SUBSCRIBERS, min(bench.effort.runs, RUNS), CHANGES)
        table_rows.append(memory_row(bench, era, SESSIONS))
    return table_rows


def delivery_rows(bench: Bench, era: str, subscribers: int, runs: int, changes: int) -> list[Row]:
    """Measure the time of a change until the last subscriber has it, and the rate of notifications."""
    measured = [_deliver(bench, era, subscribers, changes) for _ in range(runs)]
    who = f"{subscribers:,} {KINDS[era]}"
    cpu = spread([cpu * MICRO for _, cpu in measured], " µs", 1)
    rates = [subscribers * len(run.changes) / run.seconds for run, _ in measured]
    table_rows = []
    for percent in (50, 99):
        times = [_percentile(run.changes, percent) * 1000 for run, _ in measured]
        measure = f"one update to {who}, until the last has it, p{percent}"
        table_rows.append(Row(measure, "", spread(times, " ms", 1), "", cpu).judged(DELIVERED, times))
    row = Row(f"notifications to {who}, update after update", "", spread(rates, " /s", 0), "", cpu)
    return [*table_rows, row.judged(SUSTAINED, rates)]


def _deliver(bench: Bench, era: str, subscribers: int, changes: int) -> tuple[Delivery, float]:
    """Do one run. Return it, and the CPU time of mcpmux for each notification in seconds."""
    with _notified(bench, subscribers) as (upstream, mux, url):
        options = [f"--uri={NAME}+{URI}", f"--era={era}", f"--count={subscribers}", f"--changes={changes}"]
        with Child(["benchmarks.subscribers", url, upstream, *options], bench.load_core) as load:
            load.lines(1, GRACE_SECONDS)
            used = mux.cpu_seconds()
            data = load.output(GRACE_SECONDS)
            used = mux.cpu_seconds() - used
    delivery = msgspec.json.decode(data, type=Delivery)
    return delivery, used / (subscribers * changes)


def memory_row(bench: Bench, era: str, sessions: int) -> Row:
    """Measure the resident memory that an idle client with an open stream takes in mcpmux."""
    with _notified(bench, sessions) as (_, mux, url):
        with _idle(bench, url, era, 1):
            pass  # so that everything is loaded
        time.sleep(SETTLE_SECONDS)
        start = mux.resident_bytes()
        with _idle(bench, url, era, sessions):
            time.sleep(SETTLE_SECONDS)
            grown = mux.resident_bytes() - start
            used = mux.cpu_seconds()
            time.sleep(SETTLE_SECONDS)
            idle = (mux.cpu_seconds() - used) / SETTLE_SECONDS
    return Row(
        f"resident memory of each of {sessions:,} idle {KINDS[era]} with an open stream",
        "",
        f"{grown / sessions / 1024:.1f} KiB",
        f"{idle * 100:.1f} % of a core while nothing happens",
    ).judged(SESSION, [grown / sessions])


@contextmanager
def _idle(bench: Bench, url: str, era: str, count: int) -> Iterator[None]:
    """Have so many clients with an open stream."""
    arguments = ["benchmarks.subscribers", url, f"--era={era}", f"--count={count}", "--idle"]
    with Child(arguments, bench.load_core) as load:
        load.lines(1, GRACE_SECONDS)
        yield


@contextmanager
def _notified(bench: Bench, clients: int) -> Iterator[tuple[str, Child, str]]:
    """Run the notifier and an mcpmux with room for so many clients: its URL, mcpmux, and the URL of that."""
    room = clients + 100
    with Child(["benchmarks.notifier"], bench.load_core) as notifier:
        (upstream,) = notifier.lines(1)
        config = (
            f"[limits]\nmax_sessions = {room}\nmax_connections = {room}\nmax_streams_per_client = {room}\n"
            f'[upstreams.{NAME}]\nurl = "{upstream}"\nprefix = "{NAME}"\n'
        )
        with bench.mux(config) as mux:
            yield upstream, mux, mux.lines(1)[0]


def _percentile(seconds: Sequence[float], percent: float) -> float:
    histogram = Histogram()
    for value in seconds:
        histogram.record(value)
    return histogram.percentiles((percent,))[0] or 0.0
