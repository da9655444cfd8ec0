"""The README names tests that show what it promises: each of them has to be there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
README = (HERE.parent / "README.md").read_text()
TABLES = ("faults", "attacks")


def rows(table: str) -> list[list[str]]:
    """The cells of a table between its markers, without its head."""
    text = README.partition(f"<!-- {table}: begin -->\n")[2].partition(f"<!-- {table}: end -->")[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


NAMED = [name for table in TABLES for row in rows(table) for name in re.findall(r"`([\w/]+::\w+)`", row[-1])]


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of the tests in a file."""
    nodes = ast.parse(path.read_text()).body
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_says_what_happens_and_names_a_test(table: str) -> None:
    assert rows(table)
    for row in rows(table):
        assert len(row) == 3, row
        assert "::" in row[2], row


@pytest.mark.parametrize("name", NAMED)
def test_every_named_test_is_there(name: str) -> None:
    module, _, test = name.partition("::")
    assert test in names_in(HERE / f"{module}.py")
