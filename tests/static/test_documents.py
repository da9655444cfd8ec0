"""The documentation names tests, settings and files: each is there, with the default that is stated."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import pytest

from mcpmux.config import Limits, Upstream
from mcpmux.hosts.configuration import read_config

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(
        path
        for room in (".github", "benchmarks", "configs", "mcpmux", "tests")
        for path in sorted((ROOT / room).rglob("*.md"))
    ),
]
TABLES = {
    "faults": ROOT / "mcpmux" / "runtime" / "README.md",
    "attacks": ROOT / "mcpmux" / "auth" / "README.md",
    "costs": ROOT / "mcpmux" / "auth" / "README.md",
    "limits": ROOT / "configs" / "README.md",
}
PER_PRINCIPAL = "`limits.max_sessions_per_principal`, none"
UNITS = {"": 1, " KiB": 2**10, " MiB": 2**20, " s": 1, " min": 60}


def rows(table: str) -> list[list[str]]:
    """Return the cells of a table between its markers, without its head."""
    text = TABLES[table].read_text()
    text = text.partition(f"<!-- {table}: begin -->\n")[2].partition(f"<!-- {table}: end -->")[0]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in text.splitlines()[2:]]


PROMISES: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "static" / "promises.toml").read_text())
SETTINGS = [
    parts
    for row in rows("limits")
    for parts in re.findall(r"`(limits|upstreams\.\*)\.(\w+)`, ([\d,]+)( KiB| MiB| min| s|)", row[1])
]
CONSTANTS = [
    parts
    for row in rows("costs")
    for parts in re.findall(r"`([a-z_/]+)\.([A-Z_]+)` ([\d,.]+)( KiB| MiB|)", row[1])
]
LINKS = [
    (path, link)
    for path in DOCUMENTS
    for link in re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)', path.read_text())
    if not link.startswith("https://")
]
BLOCKS = [
    (path, block)
    for path in DOCUMENTS
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
]
ENVIRON = {
    "HOME": "/home/me",
    "SEARCH_TOKEN": "t",
    "MCPMUX_AUDIT_KEY": "0123456789abcdef",
    "GUARD_KEY": "0123456789abcdef",
    "REPORTS_KEY": "k",
    "SSO_SECRET": "s",
}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the tests in a file."""
    nodes = ast.parse(path.read_text()).body
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@cache
def anchors_in(path: Path) -> frozenset[str]:
    """Return the anchors of a document: its headings, as GitHub spells them in links."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("table", TABLES)
def test_every_promise_is_one_row_of_its_table(table: str) -> None:
    cells = [row[0] for row in rows(table)]
    assert [key for key in PROMISES[table] if sum(cell.startswith(key) for cell in cells) != 1] == []


@pytest.mark.parametrize("table", ["faults", "attacks", "costs"])
def test_every_row_has_a_test(table: str) -> None:
    keys = tuple(PROMISES[table])
    assert [row[0] for row in rows(table) if not row[0].startswith(keys)] == []


def is_there(name: str) -> bool:
    """Return whether `folder/test_module::test_name` is a test."""
    module, _, test = name.partition("::")
    path = HERE / f"{module}.py"
    return path.exists() and test in names_in(path)


def test_every_named_test_is_there() -> None:
    names = [name for table in PROMISES.values() for tests in table.values() for name in tests]
    assert [name for name in names if not is_there(name)] == []


def test_every_limit_has_the_default_that_is_stated() -> None:
    models = {"limits": attrs.fields_dict(Limits), "upstreams.*": attrs.fields_dict(Upstream)}
    defaults = {(group, setting): models[group][setting].default for group, setting, _, _ in SETTINGS}
    assert defaults == {
        (group, setting): int(number.replace(",", "")) * UNITS[unit]
        for group, setting, number, unit in SETTINGS
    }


def test_every_limit_of_the_configuration_is_in_the_table() -> None:
    stated = {setting for group, setting, _, _ in SETTINGS if group == "limits"}
    off = {
        "rate": "`[[limits.rate]]`, none",
        "max_sessions_per_principal": PER_PRINCIPAL,
        "max_connections_per_address": ", seven eighths of `max_connections`",
        "max_streams_per_client": "`limits.max_streams_per_client`, half of `max_connections`",
    }
    assert stated | off.keys() == set(attrs.fields_dict(Limits))
    for text in off.values():
        assert any(row[1].endswith(text) for row in rows("limits"))


def test_every_constant_has_the_value_that_is_stated() -> None:
    values = {
        (module, name): getattr(import_module(f"mcpmux.{module.replace('/', '.')}"), name)
        for module, name, _, _ in CONSTANTS
    }
    assert values == {
        (module, name): float(number.replace(",", "")) * UNITS[unit]
        for module, name, number, unit in CONSTANTS
    }


def test_every_constant_with_a_promise_is_there() -> None:
    for key in PROMISES["constants"]:
        path, _, names = key.partition(".")
        module = import_module(f"mcpmux.{path.replace('/', '.')}")
        assert [name for name in names.split(", ") if not hasattr(module, name)] == []


def test_every_cost_has_a_constant_or_a_setting_as_its_limit() -> None:
    settings = {f"{group}.{name}" for group, name, _, _ in SETTINGS} | {PER_PRINCIPAL.split("`")[1]}
    constants = {f"{module}.{name}" for module, name, _, _ in CONSTANTS}
    for row in rows("costs"):
        named = set(re.findall(r"`([\w/*.]+)`", row[1]))
        assert named, row
        assert named <= settings | constants, row


def leads_somewhere(path: Path, link: str) -> bool:
    """Return whether a link of a document names a file that exists, and a heading in it if it names one."""
    file, _, anchor = link.partition("#")
    target = (path.parent / file).resolve() if file else path
    return target.exists() and (not anchor or anchor in anchors_in(target))


def test_every_link_leads_somewhere() -> None:
    assert LINKS
    assert [(path.name, link) for path, link in LINKS if not leads_somewhere(path, link)] == []


@pytest.mark.parametrize(("path", "block"), BLOCKS, ids=lambda value: str(value)[-24:])
def test_every_configuration_that_is_shown_is_valid(path: Path, block: str) -> None:
    whole: dict[str, Any] = tomllib.loads(block)
    text = re.sub(r'"5c6a…"|"\$\{file:[^}]*\}"', f'"{"5c" * 32}"', block)
    if "upstreams" not in whole:
        text += "".join(f'\n[upstreams.{name}]\ncommand = "npx"\n' for name in ("docs", "hr", "search"))
    assert read_config("-", ENVIRON, text.encode).upstreams
