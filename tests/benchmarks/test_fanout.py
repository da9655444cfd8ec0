"""The measurement of many subscribers runs from end to end. Its values are not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 300
SMALL = ("--subscribers=20", "--sessions=20", "--runs=1", "--changes=3")


@pytest.mark.slow
def test_every_row_is_measured_in_both_eras() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.fanout", *SMALL],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(" | ") for line in ran.stdout.splitlines() if line.startswith("| ")][2:]
    for who in ("modern listens", "legacy sessions"):
        mine = [row for row in rows if who in row[0]]
        assert len(mine) == 4
        assert all(row[2].strip() for row in mine)
