"""Run `mcpmux bench`: measure several targets until a signal, with a live view on a terminal."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs
import trio
from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mcpmux.bench.assertion import find_lost
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import Results
from mcpmux.bench.run import Run
from mcpmux.bench.schedule import SleepUntil, open_timer
from mcpmux.bench.search import Search
from mcpmux.bench.tally import Snapshot
from mcpmux.channels.opener import ChannelOpener
from mcpmux.cli.console import ERR, plain_table
from mcpmux.config import Limits, Upstream
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.format import rate_text, share_text, sparkline, time_text
from mcpmux.printable import printable
from mcpmux.transports.process import StopLadder
from mcpmux.transports.wall import leaves_of

VIEW_SECONDS = 0.25  # between two updates of the live view
MANY = 4  # targets whose names would fill the line
BY_HAND = "interrupted"
ABORT_SECONDS = 1.0  # between two looks at conditions that may end a run
STOP = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
SPARE_CONNECTIONS = 1  # of a session over HTTP: a legacy server's own stream takes one


@define(eq=False, repr=False)
class Bench:
    """Measures several targets: at the same time, or in turns if each has several runs.

    In the end there are `results` of all runs in the order measured, and by name of a target: `failures`, why
    there are no (more) results; `knees`, what a search for the highest rate has found.
    """

    _upstreams: Sequence[Upstream]
    _plan: Plan
    _limits: Limits
    _runs: list[Run] = field(factory=list, init=False)  # under way
    _turn: int = field(default=0, init=False)  # their number, from 1
    results: list[Results] = field(factory=list)
    failures: dict[str, str] = field(factory=dict)
    knees: dict[str, str] = field(factory=dict)
    interrupted: bool = False

    async def measure(self) -> None:
        """Measure everything, with a live view on a terminal.

        The first SIGINT or SIGTERM ends it early, the second one at once. Raises ConfigError if a target does
        not have what the benchmark asks for.
        """
        # Runs to compare have the machine alone.
        groups = [[upstream] for upstream in self._upstreams] if self._plan.runs > 1 else [self._upstreams]
        with open_timer() as sleep_until:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._heed_signals)
                if ERR.is_terminal:
                    nursery.start_soon(self._watch, len(groups) * self._plan.runs)
                for number in range(self._plan.runs):
                    for group in groups:
                        await self._measure_all(group, number, sleep_until)
                nursery.cancel_scope.cancel()
        in_order = [upstream.name for upstream in self._upstreams if upstream.name in self.failures]
        self.failures = {name: self.failures[name] for name in in_order}

    async def _watch(self, turns: int) -> None:
        names, plan = [upstream.name for upstream in self._upstreams], self._plan
        title = " · ".join(names) if len(names) < MANY else f"{len(names)} targets"
        with LiveView(ERR, title, None if plan.find_max else plan.warm_up + plan.measured) as view:
            while True:
                await trio.sleep(VIEW_SECONDS)
                now = trio.current_time()
                snapshots = {
                    run.upstream.name: run.tally.snapshot(now, run.work.in_flight)
                    for run in self._runs
                    if run.tally is not None and run.work is not None
                }
                turn = f"{self._turn} of {turns}: {', '.join(snapshots)}" if turns > 1 else ""
                view.show(snapshots, turn)

    async def _measure_all(self, upstreams: Sequence[Upstream], number: int, sleep_until: SleepUntil) -> None:
        """Run number `number`, from 0, of these targets without those that have failed."""
        if self.interrupted:
            return
        plan = attrs.evolve(self._plan, seed=self._plan.seed + number)
        self._turn += 1
        self._runs = []
        for upstream in upstreams:
            if upstream.name not in self.failures:
                opener = ChannelOpener(
                    self._limits, STOP, plan.connections_each(upstream) + SPARE_CONNECTIONS
                )
                self._runs.append(Run(upstream, plan, opener.open, sleep_until))
        async with trio.open_nursery() as nursery:
            for run in self._runs:
                nursery.start_soon(self._measure, run, name=f"bench {run.upstream.name}")
        self.results += [run.results for run in self._runs if run.results is not None]
        for run in self._runs:
            if isinstance(run.work, Search):
                self.knees[run.upstream.name] = run.work.knee.describe()

    async def _measure(self, run: Run) -> None:
        try:
            async with trio.open_nursery() as nursery:
                if self._plan.abort_on_fail:
                    nursery.start_soon(self._abort, run)
                await run.measure()
                nursery.cancel_scope.cancel()
        except* ConfigError:
            raise
        except* McpmuxError as group:  # the wall around one target
            self.failures[run.upstream.name] = "; ".join(dict.fromkeys(map(str, leaves_of(group))))

    async def _abort(self, run: Run) -> None:
        """End a run when a condition is sure not to hold."""
        while True:
            await trio.sleep(ABORT_SECONDS)
            results = run.so_far()
            if results is not None and (reason := find_lost(self._plan.assert_, results)) is not None:
                run.stop(reason)
                return

    async def _heed_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self.interrupted:
                    raise KeyboardInterrupt
                self.interrupted = True
                for run in self._runs:
                    run.stop(BY_HAND)


# The live view of a run, on a terminal.

SPARKS = 60  # snapshots that the sparkline shows
RATE_WIDTH = 20  # columns of the rate of one target
LEAST_SPARKS = 8  # fewer are not readable
BAR_WIDTH = 30  # columns
NAME_WIDTH = 24  # columns of a target's name
LEAST_NAME_WIDTH = 8  # on a narrow screen
NUMBERS_WIDTH = 68  # columns of all numbers of a target, errors among them
ROWS_AROUND = 4  # lines of the screen that are not rows of targets


class LiveView(Live):
    """A few lines that change in place, gone when it is left. `planned`: seconds, when the end is known."""

    def __init__(self, console: Console, title: str, planned: float | None = None) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._title = title
        self._planned = planned
        self._tracks: dict[str, deque[tuple[float, int]]] = {}  # of each target: seconds, requests so far

    def show(self, snapshots: Mapping[str, Snapshot], remark: str = "") -> None:
        """Show how far each target is, by name, if there are snapshots."""
        if not snapshots:
            return
        self._tracks = {name: self._tracks.get(name, deque([(0.0, 0)], SPARKS + 1)) for name in snapshots}
        for name, snapshot in snapshots.items():
            if snapshot.elapsed < self._tracks[name][-1][0]:  # of the next run
                self._tracks[name] = deque([(0.0, 0)], SPARKS + 1)
            if snapshot.elapsed > self._tracks[name][-1][0]:
                self._tracks[name].append((snapshot.elapsed, snapshot.seen))
        furthest = max(snapshots.values(), key=lambda snapshot: snapshot.elapsed)
        body = self._table(snapshots) if len(snapshots) > 1 else self._lines(*snapshots.items())
        self.update(Group(self._heading(furthest, remark), body), refresh=True)

    def _rate(self, name: str, around: int) -> str:
        """Return the latest rate, and bars if the screen has room for them beside `around` columns."""
        steps = pairwise(self._tracks[name])
        rates = [(seen - former) / (at - since) for (since, former), (at, seen) in steps]
        room = min(SPARKS, self.console.width - around)
        bars = f"  {sparkline(rates, room)}" if room >= LEAST_SPARKS else ""
        return f"{rate_text(rates[-1] if rates else 0.0):>9}{bars}"

    def _lines(self, item: tuple[str, Snapshot]) -> Group:
        name, snapshot = item
        counts = {"requests": f"{snapshot.count:,}", "in flight": f"{snapshot.in_flight:,}"}
        times = zip(("p50", "p99", "p99.9", "max"), map(time_text, snapshot.times), strict=True)
        rate = _pairs({"rate": self._rate(name, RATE_WIDTH)})
        return Group(rate, _pairs({**counts, "errors": _errors(snapshot)}), _pairs(dict(times)))

    def _table(self, snapshots: Mapping[str, Snapshot]) -> Group:
        """Several targets, a row each; with more than the screen is high, the first ones."""
        table = plain_table(has_header=True)
        name_width = min(NAME_WIDTH, max(self.console.width - NUMBERS_WIDTH, LEAST_NAME_WIDTH))
        table.add_column("target", no_wrap=True, overflow="ellipsis", max_width=name_width)
        table.add_column("rate", no_wrap=True)
        for heading in ("requests", "errors", "p50", "p99", "max"):
            table.add_column(heading, justify="right", no_wrap=True)
        room = max(self.console.height - ROWS_AROUND, 1)
        for name, snapshot in list(snapshots.items())[:room]:
            p50, p99, _, most = map(time_text, snapshot.times)
            texts = f"{snapshot.count:,}", _errors(snapshot), p50, p99, most
            table.add_row(Text(printable(name)), Text(self._rate(name, NAME_WIDTH + NUMBERS_WIDTH)), *texts)
        hidden = len(snapshots) - room
        return Group(table, Text(f"and {hidden} more", style="bright_black")) if hidden > 0 else Group(table)

    def _heading(self, snapshot: Snapshot, remark: str) -> Text:
        parts = [
            (printable(self._title), "bold"),
            (f"  {remark}" if remark else "", "cyan"),
            (f"  {snapshot.elapsed:.0f} s", ""),
        ]
        if self._planned:
            full = round(min(snapshot.elapsed / self._planned, 1.0) * BAR_WIDTH)
            parts += [(f" of {self._planned:.0f} s ", ""), ("━" * full, "cyan")]
            parts.append(("━" * (BAR_WIDTH - full), "bright_black"))
        parts.append(("  warm-up, not counted" if snapshot.warming else "", "yellow"))
        parts.append((f"  {snapshot.step}" if snapshot.step else "", "cyan"))
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _errors(snapshot: Snapshot) -> Text:
    if not snapshot.errors:
        return Text("0")
    share = share_text(snapshot.errors / snapshot.count if snapshot.count else None)
    return Text(f"{snapshot.errors:,} ({share})", style="bold red")


def _pairs(pairs: Mapping[str, str | Text]) -> Text:
    parts = (part for name, value in pairs.items() for part in ((f"{name} ", "bright_black"), value, "   "))
    return Text.assemble("  ", *parts, no_wrap=True, overflow="ellipsis")
