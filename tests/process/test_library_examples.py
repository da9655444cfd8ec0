"""The programs of configs/library in real processes, and what the documentation shows of them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.running import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "library"
SAID = """\
['clock__now', 'library__find_chapters', 'library__build_index']
   page 1 of 20
   page 20 of 20
5 × the
tools/call library__build_index asked library: ok
-32602 Resource not found: library+book:///nowhere
resources/read library+book:///nowhere asked library: invalid_params
given up
"""


@pytest.mark.parametrize("name", ["on_trio.py", "on_asyncio.py"])
def test_an_example_runs_as_it_is(name: str):
    command = [sys.executable, "-X", "dev", "-W", "error", str(FOLDER / name)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in SAID.splitlines() if line not in lines] == []


def test_what_the_documentation_shows_is_from_an_example():
    text = (ROOT / "mcpmux" / "library" / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        assert textwrap.indent(block, "    ") in (FOLDER / "on_trio.py").read_text()


def test_what_the_readme_shows_can_be_imported_and_called():
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    names: dict[str, object] = {}
    exec(block, names)
    assert {"open_mux", "ask"} <= names.keys()
