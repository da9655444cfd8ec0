"""Shows how a run goes on, on a terminal; anywhere else it is quiet.

Driven from outside, a few times a second, with snapshots of a tally: it has no task, no clock and no timer.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mcpmux.bench.snapshot import Snapshot
from mcpmux.bench.wording import count_text, percent_name, rate_text, share_text, sparkline, time_text

SPARKS = 60  # snapshots that the sparkline shows
BAR_WIDTH = 30  # columns


class LiveView:
    """A few lines that change in place, gone when it is left. `planned`: seconds, when the end is known."""

    def __init__(self, console: Console, title: str, planned: float | None = None) -> None:
        self.title = title
        self.planned = planned
        self._rates: deque[float] = deque(maxlen=SPARKS)
        self._last: Snapshot | None = None
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )

    def __repr__(self) -> str:
        return f"<LiveView {self.title!r}{'' if self._live else ', quiet'}>"

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Show how far it is. Does nothing where nobody looks on."""
        if self._live is None:
            return
        last = self._last
        passed = snapshot.elapsed - (last.elapsed if last else 0.0)
        if passed > 0:
            self._rates.append((snapshot.seen - (last.seen if last else 0)) / passed)
            self._last = snapshot
        self._live.update(self._lines(snapshot), refresh=True)

    def _lines(self, snapshot: Snapshot) -> Group:
        latest = self._rates[-1] if self._rates else 0.0
        width = min(SPARKS, max(self._live.console.width - 40, 8)) if self._live else SPARKS
        lines = [
            self._heading(snapshot),
            _pairs(
                ("rate", f"{rate_text(latest):>9}  {sparkline(list(self._rates), width)}"),
            ),
            _pairs(
                ("requests", count_text(snapshot.count)),
                ("in flight", count_text(snapshot.in_flight)),
                ("errors", _errors(snapshot)),
            ),
            _pairs(
                (percent_name(50), time_text(snapshot.p50)),
                (percent_name(99), time_text(snapshot.p99)),
                (percent_name(99.9), time_text(snapshot.p999)),
                ("max", time_text(snapshot.most)),
            ),
        ]
        return Group(*lines)

    def _heading(self, snapshot: Snapshot) -> Text:
        text = Text(self.title, style="bold", no_wrap=True, overflow="ellipsis")
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
    share = snapshot.errors / snapshot.count if snapshot.count else None
    if not snapshot.errors:
        return Text("0")
    return Text(f"{count_text(snapshot.errors)} ({share_text(share)})", style="bold red")


def _pairs(*pairs: tuple[str, str | Text]) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    for name, value in pairs:
        line.append(f"{name} ", style="bright_black")
        line.append_text(Text(value) if isinstance(value, str) else value)
        line.append("   ")
    return line
