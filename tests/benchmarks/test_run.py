"""The benchmark runs from end to end. What it measures is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 120

MEASURES = (
    "read 1 KB, 64 connections, modern",
    "read 1 KB, 64 connections, legacy",
    "call a tool, 64 connections, modern",
    "read 2 MB, 4 connections, modern",
    "latency of a 1 KB read, 1 connection, all on one core, p50",
    "latency of a 1 KB read, 1 connection, all on one core, p99",
    "latency of a 1 KB read, 1 connection, mcpmux on its own core, p50",
    "latency of a 1 KB read, 1 connection, mcpmux on its own core, p99",
    "list 5 × 1,000 resources, pages of 100 at 0 ms, cold",
    "list 5 × 1,000 resources, pages of 100 at 10 ms, cold",
    "first 1,000 of 5 × 1,000 resources, remembered",
    "read 1 KB, 64 connections, modern, 100 public URIs of a server that takes 20 ms",
    "read 1 KB from a stdio upstream, 64 at a time",
    "read 1 KB, 64 connections, modern, full capture (direct: without)",
    "read 1 KB, 64 connections, modern, audit log (direct: without)",
    "start to first answer, 5 upstreams",
    "resident memory, idle, 10 upstreams",
)


@pytest.mark.slow
def test_report_has_a_row_for_every_measure(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--runs=1", "--seconds=0.2"]
    ran = subprocess.run(
        [*command, f"--output={report}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(" | ") for line in report.read_text().splitlines() if line.startswith("| ")]
    measured = [row[0].removeprefix("| ") for row in rows[2:]]
    assert len(measured) == len(MEASURES)
    assert all(found.startswith(wanted) for found, wanted in zip(measured, MEASURES, strict=True)), measured
    assert all(row[1].strip() and row[2].strip() for row in rows)
    assert report.read_text() == ran.stdout
