"""Ruff, mypy and import-linter find nothing to complain about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 300  # mypy without its cache, on a slow machine

LINUX_ONLY = {"mcpmux/transports/waiting.py", "mcpmux/transports/handing.py", "mcpmux/app/workers/channel.py"}
NOT_ON_WINDOWS = LINUX_ONLY | {
    "mcpmux/app/sharing.py",
    "mcpmux/app/workers/pool.py",
    "mcpmux/app/workers/worker.py",
    "mcpmux/transports/orphan_guard.py",
    "mcpmux/transports/orphan_reaper.py",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this Python's environment in the checkout, and return what it printed."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "ruff", "check", "--output-format", "concise", "."),
        ("-m", "ruff", "format", "--diff", "."),
        ("-m", "mypy"),
        ("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"),
    ],
    ids=["lint", "format", "types", "imports"],
)
def test_the_tree_is_clean(command: tuple[str, ...]) -> None:
    checked = run(*command)
    if checked.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{checked.stdout}{checked.stderr}", pytrace=False)


@pytest.mark.parametrize(("platform", "missing"), [("darwin", LINUX_ONLY), ("win32", NOT_ON_WINDOWS)])
def test_what_a_system_lacks_is_used_only_where_it_is_known_to(platform: str, missing: set[str]) -> None:
    checked = run(
        "-m", "mypy", "-p", "mcpmux", "--platform", platform, "--cache-dir", f".mypy_cache/{platform}"
    )
    assert not checked.stderr
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if line.partition(":")[0] not in missing] == []
    files = {line.partition(":")[0] for line in errors}
    assert platform != "win32" or files == missing  # else one is portable now
