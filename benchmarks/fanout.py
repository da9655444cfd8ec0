"""`python -m benchmarks.fanout`: one change to many subscribers, and what an idle subscriber costs.

mcpmux has one core to itself; the notifier and the subscribers share another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click
import msgspec

from benchmarks.bench import Bench, mux_command
from benchmarks.goal import Goal, at_least, at_most
from benchmarks.notifier import URI
from benchmarks.process import Child
from benchmarks.report import MICRO, Row, describe_machine, spread, table
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


class Fanout:
    """The cores, and what is measured on them."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.mux_core, self.load_core = cores[0], cores[-1]

    def __repr__(self) -> str:
        return f"<Fanout cores {self.mux_core} and {self.load_core}>"

    def delivery_rows(self, era: str, subscribers: int, runs: int, changes: int) -> list[Row]:
        """Measure the time of a change until the last subscriber has it, and the rate of notifications."""
        measured = [self._deliver(era, subscribers, changes) for _ in range(runs)]
        who = f"{subscribers:,} {KINDS[era]}"
        cpu = spread([cpu * MICRO for _, cpu in measured], " µs", 1)
        p50s, p99s = ([_percentile(run.changes, part) * 1000 for run, _ in measured] for part in (50, 99))
        rates = [subscribers * len(run.changes) / run.seconds for run, _ in measured]
        return [
            Row(
                f"one update to {who}, until the last has it, p50", "", spread(p50s, " ms", 1), "", cpu
            ).judged(DELIVERED, p50s),
            Row(
                f"one update to {who}, until the last has it, p99", "", spread(p99s, " ms", 1), "", cpu
            ).judged(DELIVERED, p99s),
            Row(f"notifications to {who}, update after update", "", spread(rates, " /s", 0), "", cpu).judged(
                SUSTAINED, rates
            ),
        ]

    def _deliver(self, era: str, subscribers: int, changes: int) -> tuple[Delivery, float]:
        """Do one run. Return it, and the CPU time of mcpmux for each notification in seconds."""
        with Child(["benchmarks.notifier"], self.load_core) as upstream:
            url = upstream.lines(1)[0]
            with self._mux(url, subscribers) as mux:
                arguments = [mux.lines(1)[0], url, f"--uri={NAME}+{URI}", f"--era={era}"]
                arguments += [f"--count={subscribers}", f"--changes={changes}"]
                with Child(["benchmarks.subscribers", *arguments], self.load_core) as load:
                    load.lines(1, GRACE_SECONDS)
                    start = mux.cpu_seconds()
                    report = msgspec.json.decode(load.output(GRACE_SECONDS), type=Delivery)
                    used = mux.cpu_seconds() - start
        return report, used / (subscribers * changes)

    def memory_row(self, era: str, sessions: int) -> Row:
        """Measure the resident memory that an idle client with an open stream takes in mcpmux."""
        with Child(["benchmarks.notifier"], self.load_core) as upstream:
            url = upstream.lines(1)[0]
            with self._mux(url, sessions) as mux:
                address = mux.lines(1)[0]
                start = self._settled(mux, address, era)
                arguments = [address, f"--era={era}", f"--count={sessions}", "--idle"]
                with Child(["benchmarks.subscribers", *arguments], self.load_core) as load:
                    load.lines(1, GRACE_SECONDS)
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

    def _settled(self, mux: Child, address: str, era: str) -> int:
        """Return the memory of mcpmux after one client, so that everything is loaded."""
        with Child(
            ["benchmarks.subscribers", address, f"--era={era}", "--count=1", "--idle"], self.load_core
        ) as subscriber:
            subscriber.lines(1)
        time.sleep(SETTLE_SECONDS)
        return mux.resident_bytes()

    def _mux(self, upstream: str, clients: int) -> Child:
        room = clients + 100
        config = (
            f"[limits]\nmax_sessions = {room}\nmax_connections = {room}\nmax_streams_per_client = {room}\n"
            f'[upstreams.{NAME}]\nurl = "{upstream}"\nprefix = "{NAME}"\n'
        )
        return Child(mux_command(), self.mux_core, config)


def _percentile(seconds: Sequence[float], percent: float) -> float:
    histogram = Histogram()
    for value in seconds:
        histogram.record(value)
    return histogram.percentiles((percent,))[0] or 0.0


def rows(bench: Bench) -> list[Row]:
    """Measure everything at its usual size."""
    fanout = Fanout()
    table_rows: list[Row] = []
    for era, who in KINDS.items():
        bench.note(f"one update to {SUBSCRIBERS:,} {who}; {SESSIONS:,} idle {who}")
        table_rows += fanout.delivery_rows(era, SUBSCRIBERS, RUNS, CHANGES)
        table_rows.append(fanout.memory_row(era, SESSIONS))
    return table_rows


@click.command()
@click.option("--subscribers", type=click.IntRange(1, 100_000), default=SUBSCRIBERS, show_default=True)
@click.option("--sessions", type=click.IntRange(1, 100_000), default=SESSIONS, show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=RUNS, show_default=True)
@click.option("--changes", type=click.IntRange(1, 10_000), default=CHANGES, show_default=True)
@click.option("--only", type=click.Choice(["delivery", "memory"]), help="One kind of measurement.")
@click.option("--era", "eras", type=click.Choice([MODERN, LEGACY]), multiple=True, help="Of the clients.")
def main(
    subscribers: int, sessions: int, runs: int, changes: int, only: str | None, eras: Sequence[str]
) -> None:
    """Measure what many subscribers cost, and print a table."""
    fanout = Fanout()
    rows: list[Row] = []
    for era in eras or (MODERN, LEGACY):
        if only != "memory":
            rows += fanout.delivery_rows(era, subscribers, runs, changes)
        if only != "delivery":
            rows.append(fanout.memory_row(era, sessions))
    click.echo(table(rows))
    click.echo()
    click.echo(describe_machine((fanout.mux_core, fanout.load_core)))


if __name__ == "__main__":
    main()
