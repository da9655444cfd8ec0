"""The JavaScript of the inspector: eslint and tsc find no fault, its pure modules compute what they must."""

from __future__ import annotations

import subprocess

import pytest

from tests.real.parts import npm_env
from tests.static.test_tools import ROOT, TIMEOUT_SECONDS

HERE = ROOT / "tests" / "static"
PAGES = ROOT / "mcpmux" / "traffic" / "inspector"
VENDORED = {
    "preact.js": "preact/dist/preact.mjs", "preact.LICENSE": "preact/LICENSE",
    "htm.js": "htm/dist/htm.mjs", "htm.LICENSE": "htm/LICENSE",
}  # fmt: skip
PURE_TESTS = sorted(map(str, (ROOT / "tests" / "traffic" / "inspector").glob("*.test.mjs")))


@pytest.mark.parametrize(
    "command",
    [
        ("eslint/bin/eslint.js", "-c", str(HERE / "eslint.config.mjs"),
         str(PAGES), *PURE_TESTS),
        ("typescript/bin/tsc", "-p", str(HERE / "tsconfig.json")),
    ],
    ids=["lint", "types"],
)  # fmt: skip
def test_the_javascript_is_clean(command: tuple[str, ...]) -> None:
    modules = npm_env("javascript")
    run_node(str(modules / command[0]), *command[1:])


def test_what_pages_compute_without_a_browser_is_right() -> None:
    run_node("--test", *PURE_TESTS)


@pytest.mark.parametrize("name", VENDORED)
def test_a_vendored_file_is_that_of_its_package(name: str) -> None:
    package = npm_env("javascript") / VENDORED[name]
    assert (PAGES / "vendor" / name).read_bytes() == package.read_bytes()


def run_node(*arguments: str) -> None:
    """Run a script of the checkout in Node; what it prints is the reason of a failure."""
    node = npm_env("javascript") / ".bin" / "node"
    done = subprocess.run(
        [str(node), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)
