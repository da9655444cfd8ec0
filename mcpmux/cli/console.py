"""Print the results of commands on stdout, and remarks about them on stderr.

The text of a server is untrusted. It is made printable before it reaches a terminal, and goes into a pipe
or a file unchanged. Colours and progress are shown on a terminal only.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import click
import trio
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.framing import encode_line
from mcpmux.protocol.raw_json import Raw

OUT = Console(markup=False, emoji=False, highlight=False)
ERR = Console(stderr=True, markup=False, emoji=False, highlight=False)

GAP = 2  # columns between two cells
WORD_WIDTH = 24  # columns; only longer words are cut in a table, such as paths and URLs
PATIENCE_SECONDS = 1.0  # a shorter activity needs no progress bar


def is_screen() -> bool:
    """Return whether stdout is a terminal, where control characters would do harm."""
    return sys.stdout.isatty()


def paint(text: str, style: str) -> str:
    """Return text in a style, if stdout is a terminal and colours are wanted. See https://no-color.org."""
    has_colours = is_screen() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if has_colours else text


Columns = Mapping[str, Callable[[Any], Any]]
"""Headings -> the cell of an item."""


def member(key: str, form: Callable[[Any], Any] = lambda value: value) -> Callable[[Mapping[str, Any]], Any]:
    """Return what makes a cell of a member of an item, in a form for people; of None or no member None."""

    def cell(item: Mapping[str, Any]) -> Any:
        value = item.get(key)
        return None if value is None else form(value)

    return cell


def show_items(
    items: Iterable[Any], as_json: bool, columns: Columns, right_aligned: Container[str] = ()
) -> None:
    """Print items as JSON objects, one on a line, or as the rows of a table."""
    if as_json:
        for item in items:
            show_json(raw(item))
    else:
        rows = ([cell_of(item) for cell_of in columns.values()] for item in items)
        show_table(list(columns), rows, right_aligned)


def show_table(
    headings: Sequence[str], rows: Iterable[Iterable[Any]], right_aligned: Container[str] = ()
) -> None:
    """Print a table with all of its text. In a pipe each row is one line.

    On a terminal no line is longer than the screen is wide. Columns that are not `right_aligned` fold,
    between words if possible. A table that is still too wide is turned: headings become the first column,
    and the rows stand beside each other, as many as fit.

    A cell is text, a number, or a pair of one and its style. It is made printable. None becomes a dash.
    """
    heads = [Text(heading, "dim") for heading in headings]
    cells = [[_text_of(cell) for cell in row] for row in rows]
    whole = [heading in right_aligned for heading in headings]
    room = shutil.get_terminal_size().columns if is_screen() else math.inf
    widths = _fit(list(zip(heads, *cells, strict=True)), whole, room)
    if widths is not None:
        _print_cells([heads, *cells], widths, whole)
        return
    while cells:
        columns = [heads, *cells[: max(int(room) // GAP, 1)]]  # more cannot fit
        while (widths := _fit(columns, [True] * len(columns), room)) is None and len(columns) > 2:
            columns.pop()
        if widths is None:
            label = max(head.cell_len for head in heads)
            widths = [label, max(int(room) - label - GAP, 1)]
        _print_cells(list(zip(*columns, strict=True)), widths, [False] * len(columns))
        del cells[: len(columns) - 1]
        if cells:
            click.echo()


def _text_of(cell: Any) -> Text:
    value, style = cell if isinstance(cell, tuple) else (cell, "")
    return Text("-" if value is None else printable(str(value)), style)


def _fit(columns: Sequence[Sequence[Text]], whole: Sequence[bool], room: float) -> list[int] | None:
    """Return widths with which the columns, each with its heading, fit into `room`. None if there are none.

    The widest columns give way first, and words are cut only where it does not work without. Cells of `whole`
    columns stay on one line.
    """
    room -= GAP * (len(columns) - 1)
    widest = [max(cell.cell_len for cell in column) for column in columns]
    if sum(widest) <= room:
        return widest
    words = [
        max([_longest_word(head), *(cell.cell_len if is_whole else _longest_word(cell) for cell in cells)])
        for (head, *cells), is_whole in zip(columns, whole, strict=True)
    ]
    for uncut in (max(words), WORD_WIDTH):
        least = [word if is_whole else min(word, uncut) for word, is_whole in zip(words, whole, strict=True)]
        for most in range(int(room), 0, -1):
            widths = [max(low, min(wide, most)) for low, wide in zip(least, widest, strict=True)]
            if sum(widths) <= room:
                return widths
    return None


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def _print_cells(rows: Iterable[Iterable[Text]], widths: Sequence[int], whole: Sequence[bool]) -> None:
    table = plain_table(has_header=False)
    for width, is_whole in zip(widths, whole, strict=True):
        table.add_column(width=width, justify="right" if is_whole else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = sum(widths) + GAP * len(widths)  # which rich heeds on a dumb terminal only with a height
    page = Console(width=width, height=1, markup=False, emoji=False, highlight=False)
    with page.capture() as captured:
        page.print(table)
    for line in captured.get().split("\n")[:-1]:
        click.echo(line.rstrip())


_ON_THE_WAY = dict.fromkeys(("connecting", "draining", "drained", "left"), "yellow")
_STATE_STYLES = {"ready": "green", "inside": "green", "disabled": "dim", **_ON_THE_WAY}


def state_cell(state: str, *, is_wrong: bool = False) -> tuple[str, str]:
    """Return the state of an upstream or a replica in a table, with its colour."""
    return state, "red" if is_wrong else _STATE_STYLES.get(state, "red")


def plain_table(*, has_header: bool) -> Table:
    """Return an empty table without lines."""
    padding = (0, GAP, 0, 0)
    return Table(box=None, show_header=has_header, header_style="dim", pad_edge=False, padding=padding)


def show_line(text: str, style: str = "bold") -> None:
    """Print one line of our own or of a server, by default a heading."""
    OUT.print(Text(printable(text), style=style), soft_wrap=True)


def show_text(text: str) -> None:
    """Print untrusted text of any number of lines. On a terminal it ends with a newline."""
    if not is_screen():
        show_bytes(text.encode(errors="replace"))
        return
    click.echo(for_screen(text.removesuffix("\n")))


def for_screen(text: str) -> str:
    """Return untrusted text as a terminal can show it: its lines and tabs stay."""
    lines = (line.removesuffix("\r").split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(printable, parts)) for parts in lines)


def show_bytes(data: bytes) -> None:
    click.echo(data, nl=False)


def show_json(value: Raw) -> None:
    """Print one JSON value on its own line."""
    show_text(encode_line(bytes(value)).decode(errors="replace"))


def tell(text: str) -> None:
    """Print a remark about the result on stderr."""
    ERR.print(Text(printable(text), style="yellow"), soft_wrap=True)


ReportProgress = Callable[[float, float | None, str], None]
"""Shows (progress, total, message) at once, in the server's own units and words."""


class Activity:
    """A progress bar about `text` on a terminal's stderr."""

    def __init__(self, text: str) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        self._bar = Progress(
            *columns,
            console=ERR,
            transient=True,
            disable=not sys.stderr.isatty(),
            redirect_stdout=False,  # which would send it to stderr
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(printable(text), total=None)
        self._is_paused = False

    def start(self) -> None:
        """Show the bar, unless it is paused."""
        if not self._is_paused:
            self._bar.start()

    def report(self, progress: float, total: float | None, message: str) -> None:
        """Show how far the activity is, and `message`, unless it is empty."""
        description = printable(message) if message else None  # None keeps the old one
        self._bar.update(self._task, completed=progress, total=total, description=description)
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar, so that a person can be asked something."""
        self._is_paused = True
        self._bar.stop()
        try:
            yield
        finally:
            self._is_paused = False

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()


@asynccontextmanager
async def show_activity(text: str) -> AsyncIterator[Activity]:
    """Show a progress bar on a terminal's stderr once it takes longer than PATIENCE_SECONDS."""
    activity = Activity(text)

    async def start_later() -> None:
        await trio.sleep(PATIENCE_SECONDS)
        activity.start()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_later)
            yield activity
            nursery.cancel_scope.cancel()
    finally:
        activity.stop()


@contextmanager
def show_reading(has_bar: bool) -> Iterator[ReportProgress]:
    """Yield what shows the progress of work without tasks, by the same rule. `has_bar`: it is wanted."""
    activity, began = Activity(""), time.monotonic()

    def report(progress: float, total: float | None, message: str) -> None:
        if has_bar and time.monotonic() - began > PATIENCE_SECONDS:
            activity.report(progress, total, message)

    try:
        yield report
    finally:
        activity.stop()
