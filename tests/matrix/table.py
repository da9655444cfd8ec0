"""The matrix as Markdown, for the README of protocol/. `python -m tests.matrix.table` runs and prints it.

A cell tells how many features are there as such, and the notes on those for which something else comes.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import trio
import trio.testing

from mcpmux.logs import configure_logs
from tests.matrix.cell import REVISIONS, open_cell
from tests.matrix.features import FEATURES
from tests.matrix.notes import NOTES

README = Path(__file__).resolve().parents[2] / "mcpmux" / "protocol" / "README.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
CELLS = list(itertools.product(REVISIONS, REVISIONS))
"""Every (revision of the client, revision of the server)."""

Row = tuple[str, ...]
Result = dict[tuple[str, str], Row]
"""Cell → the notes on it, in order; empty when every feature is there as such."""


def render(result: Result) -> str:
    """The table, and what its notes mean."""
    lines = ["| client \\ server | " + " | ".join(REVISIONS) + " |", "| --- " * (len(REVISIONS) + 1) + "|"]
    for down in REVISIONS:
        cells = [_shown(result[down, up]) for up in REVISIONS]
        lines.append(f"| **{down}** | " + " | ".join(cells) + " |")
    notes = [f"{mark}: {meaning}" for mark, meaning in NOTES.items()]
    return "\n".join([*lines, "", "<br>\n".join(notes)])


def _shown(notes: Row) -> str:
    count = f"{len(FEATURES) - len(notes)}/{len(FEATURES)}"
    return " ".join([count, *notes])


def parse(markdown: str) -> Result:
    """The result that a rendered table tells."""
    rows = re.findall(r"^\| \*\*(\S+)\*\* \| (.+) \|$", markdown, re.MULTILINE)
    shown = {
        (down, up): cell
        for down, cells in rows
        for up, cell in zip(REVISIONS, cells.split(" | "), strict=True)
    }
    return {cell: tuple(text.split()[1:]) for cell, text in shown.items()}


def in_readme() -> str:
    """The table that the README of protocol/ has between its markers."""
    return README.read_text().partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


async def outcome(down: str, up: str, feature: str) -> str | None:
    """What came of a feature in a cell: a note, or None when it is there as such; on a virtual clock."""
    async with open_cell(down, up) as cell:
        return await FEATURES[feature](cell)


async def run_matrix() -> Result:
    """Every feature in every cell."""
    result = {}
    for down, up in CELLS:
        notes = {await outcome(down, up, feature) for feature in FEATURES}
        result[down, up] = tuple(note for note in NOTES if note in notes)
    return result


def main() -> None:
    """Print the table."""
    configure_logs("warning", "console")
    clock = trio.testing.MockClock(autojump_threshold=0)
    sys.stdout.write(render(trio.run(run_matrix, clock=clock)) + "\n")


if __name__ == "__main__":
    main()
