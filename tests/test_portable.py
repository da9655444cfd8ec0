"""What only some systems have is used in the modules that say so. The type checker knows what each has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 300  # mypy without its cache, on a slow machine

LINUX_ONLY = {"mcpmux/transports/waiting.py", "mcpmux/transports/handing.py", "mcpmux/app/workers/channel.py"}
NOT_ON_WINDOWS = LINUX_ONLY | {
    "mcpmux/app/hangup.py",
    "mcpmux/app/workers/pool.py",
    "mcpmux/app/workers/worker.py",
    "mcpmux/transports/orphan_guard.py",
    "mcpmux/transports/orphan_reaper.py",
}


@pytest.mark.parametrize(("platform", "missing"), [("darwin", LINUX_ONLY), ("win32", NOT_ON_WINDOWS)])
def test_what_a_system_lacks_is_used_only_where_it_is_known_to(platform: str, missing: set[str]):
    command = ["mypy", "--platform", platform, "--cache-dir", f".mypy_cache/{platform}"]
    checked = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert not checked.stderr
    found = {line: re.match(r"[^:]*", line)[0] for line in checked.stdout.splitlines() if ": error: " in line}
    assert {file: line for line, file in found.items() if file not in missing} == {}
    assert set(found.values()) <= missing
    assert platform != "win32" or set(found.values()) == missing  # else one is portable now


@pytest.mark.parametrize("module", sorted(NOT_ON_WINDOWS))
def test_a_module_says_where_it_does_not_run(module: str):
    path = PROJECT / module
    words = [each.read_text().split('"""')[1] for each in (path, path.with_name("__init__.py"))]
    assert re.search(r"\bLinux only\b|\bWindows\b", " ".join(words))
