"""Results and comparisons as tables for people: colours on a terminal, plain text anywhere else.

Texts come from strangers (servers name their operations): they are made printable, and never taken as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mcpmux.bench.assertion import Judgement
from mcpmux.bench.compare import Comparison
from mcpmux.bench.pool import by_name
from mcpmux.bench.report_rows import (
    Table,
    circumstances,
    comparison_table,
    headline,
    notes_on,
    tables_of,
)
from mcpmux.bench.results import Results
from mcpmux.printable import printable

PIPE_WIDTH = 10_000  # columns where nobody looks on, so that nothing is cut
_STYLES = {
    "": "default",
    "strong": "bold",
    "dim": "bright_black",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
}


def render_results(results: Sequence[Results], console: Console) -> None:
    """Everything about every target, and what to know before trusting it."""
    for runs in by_name(results).values():
        _show(console, headline(runs[0]), "strong")
        _show(console, f"  {circumstances(runs)}", "dim")
    console.print()
    for table in tables_of(results):
        _show_table(console, table)
    for note in notes_on(results):
        _show(console, f"note: {note}", "warn")


def render_comparisons(comparisons: Iterable[Comparison], console: Console) -> None:
    """What has changed, and what is not shown to have changed."""
    for one in comparisons:
        _show_table(console, comparison_table(one))
        for note in one.notes:
            _show(console, f"note: {note}", "warn")


def render_judgements(judgements: Iterable[Judgement], console: Console) -> None:
    """A sentence for each condition."""
    for one in judgements:
        _show(console, f"{'✓' if one.held else '✗'} {one.sentence}", "good" if one.held else "bad")


def _show(console: Console, text: str, tone: str) -> None:
    console.print(Text(printable(text), style=_STYLES[tone]), soft_wrap=True)


def _show_table(console: Console, table: Table) -> None:
    """As wide as it needs where nobody looks on, and no blanks at the ends of lines there."""
    _show(console, table.title, "strong")
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for place, heading in enumerate(table.headings):
        words = place in table.left
        shown.add_column(
            heading,
            justify="left" if words else "right",
            no_wrap=not words,
            overflow="fold" if words else "ellipsis",
        )
    for row in table.rows:
        shown.add_row(*(Text(printable(cell.text), style=_STYLES[cell.tone]) for cell in row))
    if console.is_terminal:
        console.print(shown)
    else:
        plain = Console(width=PIPE_WIDTH, color_system=None, markup=False, emoji=False, highlight=False)
        with plain.capture() as captured:
            plain.print(shown)
        for line in captured.get().splitlines():
            console.print(Text(line.rstrip()), soft_wrap=True)
    console.print()
