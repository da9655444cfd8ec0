"""Rules that no tool checks: this project's own, and those for code that mypyc compiles to something else.

Layers, purity and circles are contracts of import-linter (`pyproject.toml`).
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mcpmux.protocol import method
from tests.static.test_tools import NOT_ON_WINDOWS, run

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MYPYC = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
COMPILED: list[str] = MYPYC["include"]
TRANSLATE = """\
import os, sys
from mypyc.build import mypyc_build
from mypyc.options import CompilerOptions

mypyc_build(sys.argv[2:], CompilerOptions(target_dir=sys.argv[1]))
os._exit(0)  # to free all trees one by one would take another 10 seconds
"""
PURE = ("errors.py", "printable.py", "lru.py", "config/", "protocol/", "mux/")
METHODS = frozenset(
    value for name, value in vars(method).items() if name.isupper() and isinstance(value, str)
)
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
PACKAGE_NAMES = frozenset({"__all__", "__version__"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
HARMLESS = {"len", "find", "start", "end"}  # calls that may be made twice

Found = Iterator[ast.AST]


# Of every module.


def async_code(tree: ast.AST) -> Found:
    """Yield what a pure room must not have."""
    for node in ast.walk(tree):
        if isinstance(node, ASYNC) or (isinstance(node, ast.comprehension) and node.is_async):
            yield node


def names_of_methods(tree: ast.AST) -> Found:
    """Yield MCP methods, which transports do not know."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in METHODS)


def contents_of_a_package(tree: ast.AST) -> Found:
    """Yield what stands in an `__init__` beside a docstring, imports, `__all__` and `__version__`."""
    for statement in tree.body if isinstance(tree, ast.Module) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                continue
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name in PACKAGE_NAMES:
                    continue
        yield statement


# Of modules that mypyc compiles: it means something else there, and mypyc does not report it.


def class_keywords(tree: ast.AST) -> Found:
    """Find keywords of classes. They are lost: a Struct is neither frozen nor tagged nor `gc=False`."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.keywords)


def cached_properties(tree: ast.AST) -> Found:
    """Find cached properties. Their value is the method itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (decorator for decorator in node.decorator_list if "cached" in ast.unparse(decorator))


def calls_in_bounds(tree: ast.AST) -> Found:
    """Find calls in the bounds of slices: `rest[send(rest):]` sends twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Slice):
            for call in ast.walk(node):
                is_call = isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] not in HARMLESS
                if is_call or isinstance(call, ast.NamedExpr | ast.Await):
                    yield call


def errors_of_one_name(tree: ast.AST) -> Found:
    """Find `except A as error` before `except B as error`, which raises TypeError, as its `error` is no A."""
    for function in ast.walk(tree):
        kinds: dict[str | None, str] = {}
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                    kind = ast.unparse(node.type)
                    if kinds.setdefault(node.name, kind) not in (kind, "BaseException", "Exception"):
                        yield node


def functions_that_name_each_other(tree: ast.AST) -> Found:
    """Find inner functions that name another, or themselves: a circle, left at each call."""
    for outer in ast.walk(tree):
        if isinstance(outer, FUNCTIONS):
            inner = [node for node in ast.walk(outer) if isinstance(node, FUNCTIONS) and node is not outer]
            names = {function.name for function in inner}
            for function in inner:
                named = {name.id for name in ast.walk(function) if isinstance(name, ast.Name)}
                if not names.isdisjoint(named):
                    yield function


def fields_that_are_objects(tree: ast.AST) -> Found:
    """Find fields of type `object` in a NamedTuple: the default in `field: object = None` is lost."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) == "object":
                    yield field


def constants_that_are_not_final(tree: ast.AST) -> Found:
    """Find constants that are looked up by name at each use. Times may be: tests shorten them."""
    for node in tree.body if isinstance(tree, ast.Module) else []:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_final = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Final")
            for name in (
                name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            ):
                if name.isupper() and len(name) > 1 and not name.endswith("_SECONDS") and not is_final:
                    yield node


def bare_raises_behind_awaits(tree: ast.AST) -> Found:
    """Find `raise` without an error after a wait: it raises what the coroutine's waker handles just then."""
    waits = ast.Await | ast.AsyncWith | ast.AsyncFor
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler):
            inside = list(ast.walk(handler))
            first = min((node.lineno for node in inside if isinstance(node, waits)), default=math.inf)
            raises = (node for node in inside if isinstance(node, ast.Raise) and node.exc is None)
            yield from (node for node in raises if node.lineno > first)


def generators_made_coroutines(tree: ast.AST) -> Found:
    """Find coroutines that interpreted code cannot await. Classes with `__await__` replace them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (
                decorator for decorator in node.decorator_list if "coroutine" in ast.unparse(decorator)
            )


def async_generators(tree: ast.AST) -> Found:
    """Find asynchronous generators, which are not compiled at all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            yield from (child for child in ast.walk(node) if isinstance(child, ast.Yield))


def is_pure(path: str) -> bool:
    return path.removeprefix("mcpmux/").startswith(PURE)


RULES: dict[Callable[[ast.AST], Found], Callable[[str], bool]] = {
    async_code: is_pure,
    names_of_methods: lambda path: path.startswith("mcpmux/transports/"),
    contents_of_a_package: lambda path: path.endswith("__init__.py"),
    **dict.fromkeys(
        [
            async_generators,
            bare_raises_behind_awaits,
            generators_made_coroutines,
            class_keywords,
            cached_properties,
            calls_in_bounds,
            errors_of_one_name,
            functions_that_name_each_other,
            fields_that_are_objects,
            constants_that_are_not_final,
        ],
        COMPILED.__contains__,
    ),
}


def test_every_module_keeps_the_rules() -> None:
    broken = []
    for path in sorted((ROOT / "mcpmux").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(), name)
        for rule, applies in RULES.items():
            if applies(name):
                broken += [f"{name}:{getattr(node, 'lineno', 0)}: {rule.__name__}" for node in rule(tree)]
    assert broken == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (async_code, "async def f(): pass"),
        (async_code, "f = lambda x: [y async for y in x]"),
        (names_of_methods, 'x = {"tools/call", "tools/unheard-of"}'),
        (names_of_methods, '"""Carries tools/call."""\ndef f(m):\n    return m == "ping"'),
        (
            contents_of_a_package,
            '"""Names."""\nfrom a import b\n__all__ = ["b"]\n__version__: str = "1"\nX = 3',
        ),
        (contents_of_a_package, "def f(): pass"),
        (contents_of_a_package, "if True:\n    import os"),
        (async_generators, "async def f():\n yield 1\n\ndef g():\n yield 1"),
        (bare_raises_behind_awaits, "try: pass\nexcept A:\n f()\n raise\nexcept B:\n await f()\n raise"),
        (generators_made_coroutines, "class A:\n @coroutine\n def a(self): yield"),
        (class_keywords, "class A(Struct, frozen=True): pass\nclass B(Struct): pass"),
        (class_keywords, "class A(metaclass=B): pass"),
        (cached_properties, "class A:\n @cached_property\n def a(self): pass"),
        (calls_in_bounds, "rest[self.send(rest):]"),
        (errors_of_one_name, "def f():\n try: pass\n except A as e: pass\n except B as e: pass"),
        (functions_that_name_each_other, "def f():\n def g(): pass\n def h(): g()"),
        (functions_that_name_each_other, "def f():\n def g(n): return n and g(n - 1)"),
        (fields_that_are_objects, "class A(NamedTuple):\n a: object = None"),
        (constants_that_are_not_final, "LIMIT = 4\nA_SECONDS = 1.0\nT = TypeVar('T')\nB: Final = 1"),
        (constants_that_are_not_final, "LIMIT: int = 4\nC: Final[int] = 1\nHeaders = tuple[str]"),
        (constants_that_are_not_final, "NEW, open_ = 1, 2"),
    ],
)
def test_a_rule_finds_what_it_is_for(rule: Callable[[ast.AST], Found], source: str) -> None:
    assert len(list(rule(ast.parse(source)))) == 1


def test_the_names_of_modules_say_what_they_are_about() -> None:
    parts = {part.removesuffix(".py") for path in (ROOT / "mcpmux").rglob("*.py") for part in path.parts}
    assert parts.isdisjoint(VAGUE)


def test_a_module_says_where_it_does_not_run() -> None:
    silent = []
    for module in sorted(NOT_ON_WINDOWS):
        path = ROOT / module
        words = [file.read_text().split('"""')[1] for file in (path, path.with_name("__init__.py"))]
        if not re.search(r"\bLinux only\b|\bWindows\b", " ".join(words)):
            silent.append(module)
    assert silent == []


def read_by(module: str) -> set[Path]:
    """Return the files that define the constants which a module imports, and the file of method names."""
    paths = {ROOT / "mcpmux/protocol/method.py"}
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.ImportFrom) and any(alias.name.isupper() for alias in node.names):
            paths.add(ROOT / ((node.module or "").replace(".", "/") + ".py"))
    return {path for path in paths if path.is_relative_to(ROOT / "mcpmux") and path.exists()}


def test_what_a_compiled_module_reads_of_others_is_final() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in sorted(set[Path]().union(*map(read_by, COMPILED)))
        for node in constants_that_are_not_final(ast.parse(path.read_text()))
    ]
    assert broken == []


def patches(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module of mcpmux, name) of each attribute that tests set, but for those of interpreted code."""
    tree = ast.parse(path.read_text())
    tree.body = [
        node
        for node in tree.body
        if "pytest.mark.interpreted" not in map(ast.unparse, getattr(node, "decorator_list", []))
    ]
    modules = {
        alias.asname or alias.name: f"{(node.module or '').replace('.', '/')}/{alias.name}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=name), ast.Constant(value=str(text)), _]
            ):
                yield modules.get(name, ""), text
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(dotted)), _]):
                module, _, name = dotted.rpartition(".")
                yield f"{module.replace('.', '/')}.py", name


def test_no_test_sets_a_constant_whose_value_is_compiled() -> None:
    """mypyc writes a `Final` number into the code that uses it, where no test can change it."""
    patched = {(module, name) for path in (ROOT / "tests").rglob("*.py") for module, name in patches(path)}
    assert len(patched) > 10
    broken = [
        f"{module}: {name}"
        for module, name in sorted(patched)
        if module in COMPILED and re.search(rf"^{name}: Final\b", (ROOT / module).read_text(), re.MULTILINE)
    ]
    assert broken == []


def test_mypyc_translates_all_modules_that_a_wheel_compiles() -> None:
    # A wheel takes minutes to build, most of them in the C compiler, which does not report these errors.
    pytest.importorskip("mypyc")
    with TemporaryDirectory() as directory:  # for 100 MB of C; `tmp_path` would keep those of three runs
        options = [*MYPYC["mypy-args"], "--cache-dir", directory]
        translated = run("-c", TRANSLATE, directory, *options, *COMPILED)
    if translated.returncode != 0:
        errors = [line for line in translated.stdout.splitlines() if ": warning: " not in line]
        pytest.fail("\n".join([*errors, translated.stderr]), pytrace=False)
