"""What commands print: the result on stdout, everything about it on stderr.

What a server wrote is untrusted text. It is made printable before it reaches a terminal, and goes into a pipe
or a file unchanged. Colours and progress are shown on a terminal only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TextIO

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.framing import encode_line
from mcpmux.protocol.raw_json import Raw

OUT = Console(markup=False, emoji=False, highlight=False)
ERR = Console(stderr=True, markup=False, emoji=False, highlight=False)

PIPE_WIDTH = 100_000  # columns away from a terminal, so that no cell is folded
FOLDED_WIDTH = 30  # least columns of a folded cell; narrower ones cannot be read
PATIENCE_SECONDS = 1.0  # what is done sooner needs no progress bar


def is_screen() -> bool:
    """Whether stdout is a terminal, where control characters would do harm."""
    out: TextIO | None = sys.stdout  # None if it was closed by the process that started this one
    return out is not None and out.isatty()


def paint(text: str, **style: Any) -> str:
    """`text` in a style of click, if stdout is a terminal and colours are wanted. See https://no-color.org."""
    wanted = is_screen() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return click.style(text, **style) if wanted else text


Columns = Mapping[str, Callable[[Any], Any]]
"""Headings -> the cell of an item."""


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
    """Print a table. Only its last column folds.

    A cell is text, a number, or a pair of one and its style. It is made printable. None becomes a dash.
    """
    table = plain_table("dim")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right" if heading in right_aligned else "left", no_wrap=True)
    table.add_column(headings[-1], overflow="fold", min_width=FOLDED_WIDTH)
    for row in rows:
        cells = (cell if isinstance(cell, tuple) else (cell, "") for cell in row)
        table.add_row(*(Text("-" if cell is None else printable(str(cell)), style) for cell, style in cells))
    print_table(table)


_ON_THE_WAY = dict.fromkeys(("connecting", "draining", "drained", "left"), "yellow")
_STATE_STYLES = {"ready": "green", "inside": "green", "disabled": "dim", **_ON_THE_WAY}


def state_cell(state: str, *, is_wrong: bool = False) -> tuple[str, str]:
    """The state of an upstream or a replica in a table, with its colour."""
    return state, "red" if is_wrong else _STATE_STYLES.get(state, "red")


def plain_table(header_style: str) -> Table:
    """An empty table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=header_style)


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or wider if it must be. In a pipe each row is one line."""
    wide = Console(width=PIPE_WIDTH, markup=False, emoji=False, highlight=False)
    if is_screen():
        wide.width = max(OUT.width, wide.measure(table).minimum)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().split("\n")[:-1]:
        click.echo(line.rstrip())


def show_line(text: str, style: str = "bold") -> None:
    """Print one line of our own or of a server, by default a heading."""
    OUT.print(Text(printable(text), style=style), soft_wrap=True)


def show_text(text: str) -> None:
    """Print untrusted text of any number of lines. On a terminal it ends with a newline."""
    if not is_screen():
        show_bytes(text.encode(errors="replace"))
        return
    for line in text.removesuffix("\n").split("\n"):
        click.echo("\t".join(map(printable, line.removesuffix("\r").split("\t"))))


def show_bytes(data: bytes) -> None:
    click.echo(data, nl=False)


def show_json(value: Raw) -> None:
    """Print one JSON value on a line of its own."""
    show_text(encode_line(bytes(value)).decode(errors="replace"))


def tell(text: str) -> None:
    """Print a remark about the result on stderr."""
    ERR.print(Text(printable(text), style="yellow"), soft_wrap=True)


ReportProgress = Callable[[float, float | None, str], None]
"""Shows (progress, total, message) at once, in the server's own units and words."""


@asynccontextmanager
async def show_activity(text: str) -> AsyncIterator[ReportProgress]:
    """Show a progress bar on a terminal's stderr once it takes longer than PATIENCE_SECONDS."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    bar = Progress(*columns, console=ERR, transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task(printable(text), total=None)

    def report(progress: float, total: float | None, message: str) -> None:
        bar.start()
        description = printable(message) if message else None  # None leaves it as it is
        bar.update(task, completed=progress, total=total, description=description)

    async def start_later() -> None:
        await trio.sleep(PATIENCE_SECONDS)
        bar.start()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_later)
            yield report
            nursery.cancel_scope.cancel()
    finally:
        bar.stop()
