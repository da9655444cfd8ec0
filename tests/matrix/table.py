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
    """Render the table, and the meaning of its notes."""
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
    """Return the results in a rendered table."""
    rows = re.findall(r"^\| \*\*(\S+)\*\* \| (.+) \|$", markdown, re.MULTILINE)
    shown = {
        (down, up): cell
        for down, cells in rows
        for up, cell in zip(REVISIONS, cells.split(" | "), strict=True)
    }
    return {cell: tuple(text.split()[1:]) for cell, text in shown.items()}


def in_readme() -> str:
    """Return the table that the README of protocol/ has between its markers."""
    return README.read_text().partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


async def outcomes(down: str, up: str) -> dict[str, str | None]:
    """Return what came of each feature in a cell: a note, or None when it is there; on a virtual clock."""
    async with open_cell(down, up) as cell:
        return {name: await feature(cell) for name, feature in FEATURES.items()}


async def run_matrix() -> Result:
    """Try every feature in every cell."""
    result = {}
    for down, up in CELLS:
        notes = set((await outcomes(down, up)).values())
        result[down, up] = tuple(note for note in NOTES if note in notes)
    return result


def main() -> None:
    """Print the table."""
    configure_logs("warning", "console")
    clock = trio.testing.MockClock(autojump_threshold=0)
    sys.stdout.write(render(trio.run(run_matrix, clock=clock)) + "\n")


if __name__ == "__main__":
    main()
