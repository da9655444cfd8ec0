"""Shows the progress of a run on a terminal; anywhere else it is quiet.

Whoever runs it calls `update` a few times a second: it has no task, no clock and no timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Self

from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcpmux.bench.formatting import rate_text, share_text, sparkline, time_text
from mcpmux.bench.tally import Snapshot
from mcpmux.printable import printable

SPARKS = 60  # snapshots that the sparkline shows
BAR_WIDTH = 30  # columns
NAME_WIDTH = 24  # columns of a target's name
ROWS_AROUND = 4  # lines of the screen that are not rows of targets


@define
class _Row:
    """What is remembered of one target: its last snapshot, and its rates."""

    last: Snapshot | None = None
    rates: deque[float] = field(factory=lambda: deque(maxlen=SPARKS))

    def update(self, snapshot: Snapshot) -> None:
        last = self.last
        passed = snapshot.elapsed - (last.elapsed if last else 0.0)
        if passed > 0:
            self.rates.append((snapshot.seen - (last.seen if last else 0)) / passed)
            self.last = snapshot

    def rate(self, sparks: int) -> str:
        latest = self.rates[-1] if self.rates else 0.0
        return f"{rate_text(latest):>9}  {sparkline(list(self.rates), sparks)}"


@define(eq=False, repr=False)
class LiveView:
    """A few lines that change in place, gone when it is left. `planned`: seconds, when the end is known."""

    _console: Console
    title: str
    planned: float | None = None
    _rows: dict[str, _Row] = field(factory=dict)
    _live: Live | None = None

    def __attrs_post_init__(self) -> None:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, snapshots: Mapping[str, Snapshot], remark: str = "") -> None:
        """Show how far each target is, by name. Does nothing without a terminal, or without snapshots."""
        if self._live is None or not snapshots:
            return
        self._rows = {name: self._rows.get(name) or _Row() for name in snapshots}
        for name, snapshot in snapshots.items():
            self._rows[name].update(snapshot)
        furthest = max(snapshots.values(), key=lambda snapshot: snapshot.elapsed)
        body = self._table(snapshots) if len(snapshots) > 1 else self._lines(*snapshots.items())
        self._live.update(Group(self._heading(furthest, remark), body), refresh=True)

    def _lines(self, item: tuple[str, Snapshot]) -> Group:
        """One target, with all that is known."""
        name, snapshot = item
        width = min(SPARKS, max(self._console.width - 40, 8))
        rate = ("rate", self._rows[name].rate(width))
        counts = ("requests", f"{snapshot.count:,}"), ("in flight", f"{snapshot.in_flight:,}")
        times = zip(("p50", "p99", "p99.9", "max"), map(time_text, snapshot.times), strict=True)
        return Group(_pairs(rate), _pairs(*counts, ("errors", _errors(snapshot))), _pairs(*times))

    def _table(self, snapshots: Mapping[str, Snapshot]) -> Group:
        """Several targets, a row each; with more than the screen is high, the first ones."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
        table.add_column("target", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
        table.add_column("rate", no_wrap=True)
        for heading in ("requests", "errors", "p50", "p99", "max"):
            table.add_column(heading, justify="right", no_wrap=True)
        sparks = min(SPARKS, max((self._console.width - 100), 8))
        room = max(self._console.height - ROWS_AROUND, 1)
        for name, snapshot in list(snapshots.items())[:room]:
            p50, p99, _, most = map(time_text, snapshot.times)
            texts = f"{snapshot.count:,}", _errors(snapshot), p50, p99, most
            table.add_row(Text(printable(name)), Text(self._rows[name].rate(sparks)), *texts)
        hidden = len(snapshots) - room
        return Group(table, Text(f"and {hidden} more", style="bright_black")) if hidden > 0 else Group(table)

    def _heading(self, snapshot: Snapshot, remark: str) -> Text:
        text = Text(printable(self.title), style="bold", no_wrap=True, overflow="ellipsis")
        if remark:
            text.append(f"  {remark}", style="cyan not bold")
        text.append(f"  {snapshot.elapsed:.0f} s", style="default not bold")
        if self.planned:
            share = min(snapshot.elapsed / self.planned, 1.0)
            full = round(share * BAR_WIDTH)
            text.append(f" of {self.planned:.0f} s ", style="default not bold")
            text.append("━" * full, style="cyan")
            text.append("━" * (BAR_WIDTH - full), style="bright_black")
        if snapshot.warming:
            text.append("  warm-up, not counted", style="yellow not bold")
        if snapshot.step:
            text.append(f"  {snapshot.step}", style="cyan not bold")
        return text


def _errors(snapshot: Snapshot) -> Text:
    if not snapshot.errors:
        return Text("0")
    share = share_text(snapshot.errors / snapshot.count if snapshot.count else None)
    return Text(f"{snapshot.errors:,} ({share})", style="bold red")


def _pairs(*pairs: tuple[str, str | Text]) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    for name, value in pairs:
        line.append(f"{name} ", style="bright_black").append(value).append("   ")
    return line
