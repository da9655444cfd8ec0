"""The tree is formatted, and the linter and the type checker have nothing to say about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 300  # mypy without its cache, on a slow machine


@pytest.mark.parametrize(
    "command",
    ["ruff check --output-format concise .", "ruff format --diff .", "mypy"],
    ids=["lint", "format", "types"],
)
def test_the_tree_is_clean(command: str):
    checked = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if checked.returncode != 0:
        pytest.fail(f"`{command}` in {PROJECT.name}:\n{checked.stdout}{checked.stderr}", pytrace=False)
