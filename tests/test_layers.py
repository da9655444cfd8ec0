"""The house as the architecture draws it: who may import whom, and what each room must not know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from mcpmux.protocol import method

PACKAGE = Path(__file__).resolve().parents[1] / "mcpmux"

ROOMS = (  # lowest first; a room may import itself and those before it
    "errors",
    "printable",
    "lru",
    "config",
    "protocol",
    "mux",
    "transports",
    "auth",
    "runtime",
    "cluster",
    "traffic",
    "hosts",
    "demo",
    "bench",
    "logs",
    "app",
    "library",
    "cli",
    "__main__",
)
PURE = frozenset({"errors", "printable", "lru", "config", "protocol", "mux"})
IMPURE_MODULES = frozenset(
    {"trio", "anyio", "asyncio", "time", "random", "secrets", "uuid", "logging", "structlog"}
)
ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
METHODS = frozenset(
    value for name, value in vars(method).items() if name.isupper() and isinstance(value, str)
)
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
PACKAGE_NAMES = frozenset({"__all__", "__version__"})


def problems_of(package: Path) -> list[str]:
    """Every place in the tree that breaks a rule, as `file:line: what is wrong`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        tree = ast.parse(path.read_text(), str(path))
        room = inside.parts[0].removesuffix(".py")
        checks = (check_name(inside), check_arrows(room, inside, tree), check_contents(room, inside, tree))
        found += [f"{inside}:{line}: {problem}" for check in checks for line, problem in check]
    return found


def check_name(inside: Path) -> Iterator[tuple[int, str]]:
    for part in inside.parts:
        if part.removesuffix(".py") in VAGUE:
            yield 1, f"{part} does not say what it is about"


def check_arrows(room: str, inside: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if room == "__init__":
        return
    if room not in ROOMS:
        yield 1, f"{room} has no place in the house"
        return
    for line, target in imports_in(tree, inside):
        if target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
            yield line, f"{room} imports {target}, which is above it"
        elif room in PURE and target in IMPURE_MODULES:
            yield line, f"{room} is pure, but imports {target}"


def imports_in(tree: ast.Module, inside: Path) -> Iterator[tuple[int, str]]:
    """(line, what is imported): a room's name for our own modules, the top-level name for all others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, top_of(alias.name)
        elif isinstance(node, ast.ImportFrom):
            package = ["mcpmux", *inside.parent.parts]
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            source = (base + (node.module or "")).rstrip(".")
            for alias in node.names:
                yield node.lineno, top_of(f"{source}.{alias.name}")


def top_of(name: str) -> str:
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "mcpmux" and rest else first


def check_contents(room: str, inside: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if room in PURE and isinstance(node, ASYNC):
            yield node.lineno, f"{room} is pure, but has {type(node).__name__}"
        elif room in PURE and isinstance(node, ast.comprehension) and node.is_async:
            yield node.target.lineno, f"{room} is pure, but has an async comprehension"
        elif room == "transports" and isinstance(node, ast.Constant) and node.value in METHODS:
            yield node.lineno, f"transports know the MCP method {node.value}"
    if inside.name == "__init__.py":
        for statement in tree.body:
            if not is_name_only(statement):
                yield statement.lineno, "a package's __init__ holds names only"


def is_name_only(statement: ast.stmt) -> bool:
    """A docstring, an import, or `__all__` or `__version__`."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in PACKAGE_NAMES
    return False


def corners_of(room: Path) -> dict[str, set[str]]:
    """What imports what inside one room: its sub-packages as a whole, and its modules beside them."""
    arrows: dict[str, set[str]] = {}
    for path in room.rglob("*.py"):
        inside = path.relative_to(room)
        corner = inside.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"mcpmux.{room.name}"):
                for alias in node.names:
                    target = f"{node.module}.{alias.name}".split(".")[2]
                    arrows.setdefault(corner, set()).update({target} - {corner})
    return arrows


def test_every_module_keeps_to_its_room():
    assert problems_of(PACKAGE) == []


CORNERED = ["runtime", "traffic", "transports", "protocol", "mux", "bench", "hosts", "app", "library"]


@pytest.mark.parametrize("room", CORNERED)
def test_corners_of_a_room_do_not_import_each_other_in_circles(room: str):
    TopologicalSorter(corners_of(PACKAGE / room)).prepare()


BAD = [
    ("errors.py", "import mcpmux.mux.seal", "1: errors imports mux, which is above it"),
    ("protocol/x.py", "from mcpmux.mux.seal import Position", "1: protocol imports mux, which is above it"),
    ("protocol/x.py", "from mcpmux.mux import seal", "1: protocol imports mux, which is above it"),
    ("protocol/x.py", "from mcpmux import mux", "1: protocol imports mux, which is above it"),
    ("protocol/x.py", "from .. import mux", "1: protocol imports mux, which is above it"),
    ("protocol/deep/x.py", "from ...mux import cursor", "1: protocol imports mux, which is above it"),
    ("config/__init__.py", "from ..mux.seal import Position", "1: config imports mux, which is above it"),
    (
        "mux/x.py",
        "def f():\n    import mcpmux.runtime.duplex_channel",
        "2: mux imports runtime, which is above it",
    ),
    ("transports/x.py", "import mcpmux.runtime", "1: transports imports runtime, which is above it"),
    ("runtime/x.py", "from mcpmux.app import run_app", "1: runtime imports app, which is above it"),
    ("runtime/x.py", "import mcpmux.traffic.tap as t", "1: runtime imports traffic, which is above it"),
    ("logs.py", "import mcpmux.cli.main", "1: logs imports cli, which is above it"),
    ("gadgets/x.py", "", "1: gadgets has no place in the house"),
    ("mux/x.py", "import trio", "1: mux is pure, but imports trio"),
    ("mux/x.py", "import os, time", "1: mux is pure, but imports time"),
    ("protocol/x.py", "from random import choice", "1: protocol is pure, but imports random"),
    ("config/x.py", "import logging.handlers", "1: config is pure, but imports logging"),
    ("mux/x.py", "async def f(): pass", "1: mux is pure, but has AsyncFunctionDef"),
    ("mux/x.py", "f = lambda x: [y async for y in x]", "1: mux is pure, but has an async comprehension"),
    ("transports/x.py", 'x = {"tools/call"}', "1: transports know the MCP method tools/call"),
    ("transports/x.py", 'def f(m):\n    return m == "ping"', "2: transports know the MCP method ping"),
    ("runtime/helpers.py", "", "1: helpers.py does not say what it is about"),
    ("runtime/common/x.py", "", "1: common does not say what it is about"),
    ("mux/__init__.py", "LIMIT = 3", "1: a package's __init__ holds names only"),
    ("__init__.py", "def f(): pass", "1: a package's __init__ holds names only"),
    ("runtime/__init__.py", "if True:\n    import os", "1: a package's __init__ holds names only"),
]


@pytest.mark.parametrize(("file", "source", "problem"), BAD)
def test_a_module_that_leaves_its_room_is_found(tmp_path: Path, file: str, source: str, problem: str):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert problems_of(tmp_path) == [f"{file}:{problem}"]


GOOD = [
    (
        "protocol/x.py",
        "import msgspec\nfrom mcpmux.config import Upstream\nfrom mcpmux.protocol import method",
    ),
    (
        "runtime/x.py",
        "import trio\nfrom mcpmux.transports import sse\nfrom . import link\nfrom mcpmux import __version__",
    ),
    ("protocol/x.py", 'METHOD = "tools/call"'),
    (
        "transports/x.py",
        '"""Carries tools/call and initialize."""\nimport trio, time\nasync def f(): await g()',
    ),
    ("mux/x.py", "from collections.abc import Awaitable"),
    ("__init__.py", '"""Names."""\nfrom mcpmux.app import run\n__all__ = ["run"]\n__version__: str = "1"'),
    ("__main__.py", "from mcpmux.cli.main import main\nmain()"),
]


@pytest.mark.parametrize(("file", "source"), GOOD)
def test_a_module_that_keeps_to_its_room_is_left_alone(tmp_path: Path, file: str, source: str):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert problems_of(tmp_path) == []
