"""Tables on a terminal of any width: no text is lost, no line is too long, no short word is cut."""

from __future__ import annotations

import fcntl
import importlib
import io
import json
import os
import pkgutil
import pty
import re
import struct
import subprocess
import termios
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from subprocess import DEVNULL

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import mcpmux.cli
from mcpmux.cli.client.listing import KINDS
from mcpmux.cli.console import WORD_WIDTH, show_table
from mcpmux.cli.traffic.report import columns_by
from mcpmux.printable import printable
from tests.cli.homes import home as home
from tests.process.running import COMMAND, WAIT_SECONDS, demo_command

WIDTHS = (60, 80, 100, 200)
URL = "https://docs.example.com/a/rather/long/path/of/a/server/behind/a/gateway/mcp"
CELLS = (
    "ok", "2026-11-28T01:31:51.500Z", "12.0 ms", "-32602", "every__simulate-research-query", URL,
    "Streamable HTTP, 2026-07-28; it speaks HTTP over a socket or a pipe, an extension of Zed starts it",
    "two  blanks", "日本語の説明文 " * 9, "x" * 300, "", "1,234,567 (12.3 %)",
)  # fmt: skip


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[str], width: int | None
) -> list[str]:
    file = io.StringIO() if width is None else Screen()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(file):
        patch.setenv("COLUMNS", str(width or 80))
        patch.setenv("TERM", "dumb")
        show_table(headings, rows, right_aligned=numbers)
    return file.getvalue().splitlines()


def tables() -> Iterator[tuple[str, ...]]:
    """Yield the headings of all tables whose columns a module of the commands declares."""
    for module in pkgutil.walk_packages(mcpmux.cli.__path__, "mcpmux.cli."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Mapping) and value and all(map(str.isupper, map(str, value))):
                yield tuple(value)
    yield from (tuple(kind.columns) for kind in KINDS.values())
    yield tuple(columns_by("method", has_runs=False))


TABLES = sorted(set(tables()))
assert len(TABLES) > 10


def characters(texts: Iterable[str]) -> Counter[str]:
    return Counter("".join("".join(texts).split()))


@given(st.data(), st.sampled_from(TABLES), st.sampled_from(WIDTHS))
def test_no_table_loses_text_on_a_terminal(
    data: st.DataObject, headings: tuple[str, ...], width: int
) -> None:
    cell = st.sampled_from(CELLS) | st.text(max_size=40)
    rows = data.draw(st.lists(st.tuples(*(cell for _ in headings)), min_size=1, max_size=4))
    numbers = data.draw(st.sets(st.sampled_from(headings)))
    lines = printed(headings, rows, numbers, width)
    assert max(map(cell_len, lines)) <= width
    texts = [printable(text) for row in rows for text in row]
    times = range(1, len(rows) + 1)  # that the headings are printed; more than once in a table that is turned
    assert characters(lines) in [characters([*texts, *headings * count]) for count in times]
    short = (word for text in [*texts, *headings] for word in text.split() if cell_len(word) <= WORD_WIDTH)
    assert all(any(word in line for line in lines) for word in short)


@given(st.data(), st.sampled_from(TABLES))
def test_a_row_in_a_pipe_is_one_line(data: st.DataObject, headings: tuple[str, ...]) -> None:
    rows = data.draw(st.lists(st.tuples(*(st.sampled_from(CELLS) for _ in headings)), max_size=4))
    lines = printed(headings, rows, headings[-1:], None)
    assert [line.split() for line in lines] == [" ".join(row).split() for row in [headings, *rows]]


def test_a_table_too_wide_is_turned_with_its_rows_side_by_side() -> None:
    headings = [f"MEASURE {number}" for number in range(20)]
    lines = printed(headings, [["a"] * 20, ["b"] * 20], headings, 80)
    assert [line.split() for line in lines] == [[*heading.split(), "a", "b"] for heading in headings]


def test_a_table_that_fits_is_not_folded_on_a_dumb_terminal() -> None:
    headings = [f"MEASURE{number:02}" for number in range(8)]  # 86 columns; rich takes such a terminal for 80
    assert len(printed(headings, [["a"] * 8], (), 100)) == 2


def test_only_one_module_makes_tables() -> None:
    folder = Path(mcpmux.cli.__path__[0]).parent
    assert [path.name for path in folder.rglob("*.py") if "rich.table" in path.read_text()] == ["console.py"]


def on_terminal(width: int, *args: str, env: dict[str, str]) -> list[str]:
    """Run a command on a terminal of that width, and return the lines that it prints."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *args], stdin=terminal, stdout=terminal, stderr=DEVNULL, env=env
    ) as child:
        os.close(terminal)
        text = b""
        with suppress(OSError):  # so a terminal ends
            while data := os.read(controller, 2**16):
                text += data
        os.close(controller)
        child.wait(WAIT_SECONDS)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()


@pytest.mark.process
@pytest.mark.parametrize("width", [60, 80, 100])
def test_commands_print_whole_words_at_usual_widths(home: Path, width: int) -> None:
    servers = {"files": {"command": "npx", "args": ["${workspaceFolder}/x"]}, "s": {"url": "http+unix:///x"}}
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERM")}
    env["TERM"] = "xterm"
    bench = ("bench", demo_command("notes"), "--count", "20", "--warm-up", "0", "--do", "list tools")
    lines = on_terminal(width, "import", env=env)
    assert max(map(len, lines)) <= width
    lines += on_terminal(width, *bench, env=env)
    words = {word for line in lines for word in line.split()}
    assert words >= {
        "cursor",
        "${workspaceFolder}",
        "project",
        "wss://",
        "generator",
        "received",
        "p99.9",
        "20",
    }
