"""Where the command line speaks: answers on stdout, everything about them on stderr.

What a server wrote is a stranger's text: it is made printable before a terminal sees it, and goes into a
pipe or a file as it is. Colours and progress appear on a terminal only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from mcpmux.printable import printable
from mcpmux.protocol.framing import encode_line
from mcpmux.protocol.raw_json import Raw

OUT = Console(markup=False, emoji=False, highlight=False)
ERR = Console(stderr=True, markup=False, emoji=False, highlight=False)

PIPE_WIDTH = 100_000  # columns where nobody looks on: no cell is folded
FOLDED_WIDTH = 30  # columns that a folded cell has at least; narrower ones cannot be read
PATIENCE_SECONDS = 1.0  # what is done sooner needs no progress display


def is_screen() -> bool:
    """Whether stdout is a terminal, where control characters would do harm."""
    out: TextIO | None = sys.stdout  # None when whoever started us has closed it
    return out is not None and out.isatty()


def wants_colour() -> bool:
    """Whether stdout is a terminal that colours are wanted on: see https://no-color.org."""
    return is_screen() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def make_table(headings: Sequence[str], right_aligned: Container[str] = ()) -> Table:
    """An empty table. Only its last column folds; cells have to be printable."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right" if heading in right_aligned else "left", no_wrap=True)
    table.add_column(headings[-1], overflow="fold", min_width=FOLDED_WIDTH)
    return table


def show_table(table: Table) -> None:
    """A table as wide as the terminal, or wider where it must be; one line a row in a pipe."""
    wide = Console(width=PIPE_WIDTH, markup=False, emoji=False, highlight=False)
    if is_screen():
        wide.width = max(OUT.width, wide.measure(table).minimum)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().split("\n")[:-1]:
        click.echo(line.rstrip())


def show_heading(text: str) -> None:
    """A heading between parts of an answer."""
    OUT.print(Text(printable(text), style="bold"), soft_wrap=True)


def show_text(text: str) -> None:
    """A stranger's text of any number of lines; on a terminal it ends with a newline."""
    if not is_screen():
        show_bytes(text.encode(errors="replace"))
        return
    for line in text.removesuffix("\n").split("\n"):
        click.echo("\t".join(map(printable, line.removesuffix("\r").split("\t"))))


def show_bytes(data: bytes) -> None:
    """Bytes as they are."""
    click.echo(data, nl=False)


def show_json(value: Raw) -> None:
    """One JSON value on a line of its own."""
    show_text(encode_line(bytes(value)).decode(errors="replace"))


def tell(text: str) -> None:
    """Something about the answer, for people."""
    ERR.print(Text(printable(text), style="yellow"), soft_wrap=True)


def tell_left_out(reasons: Mapping[str, str]) -> None:
    """Which upstreams are missing in the answer, and why."""
    for name, reason in reasons.items():
        tell(f"left out: {name}: {reason}")


class Activity:
    """What goes on at the moment. Made by `show_activity`."""

    def __init__(self, bar: Progress, text: str) -> None:
        self._bar = bar
        self._task = bar.add_task(printable(text), total=None)

    def report(self, progress: float, total: float | None, message: str) -> None:
        """How far it is, in the server's own units and words; shown at once."""
        self._bar.start()
        if message:
            self._bar.update(self._task, description=printable(message))
        self._bar.update(self._task, completed=progress, total=total)


@asynccontextmanager
async def show_activity(text: str) -> AsyncIterator[Activity]:
    """Show on a terminal's stderr that something goes on, once it takes longer than a moment."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        console=ERR,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_start_later, bar)
            yield Activity(bar, text)
            nursery.cancel_scope.cancel()
    finally:
        bar.stop()


async def _start_later(bar: Progress) -> None:
    await trio.sleep(PATIENCE_SECONDS)
    bar.start()
