"""A thousand clients, each with its own session, as a process beside a server that counts them."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mcpmux.bench.results import BUSY_SHARE

pytestmark = pytest.mark.slow

CLIENTS = 1000
SOFT_LIMIT = 512  # open files: the generator has to raise the limit
LEAST_FILES = 4 * CLIENTS
TIMEOUT_SECONDS = 90  # on a machine that does other work; alone it takes ten
READS_AT_RATE = 1200
SERVER = Path(__file__).with_name("counting_server.py")


@contextmanager
def counting_server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def counts_of(process: subprocess.Popen[str]) -> list[int]:
    """Stop the server, and return the number of reads on each connection that had any."""
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    return [count for count in json.loads(out) if count]


def measure(url: str, file: Path, *load: str) -> tuple[dict[str, Any], str]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < LEAST_FILES:
        pytest.skip("too few open files are allowed here")
    command = [sys.executable, "-m", "mcpmux", "bench", url, "--sessions", str(CLIENTS), "--check", "hash"]
    done = subprocess.run(
        [*command, *load, "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, hard)),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(file.read_text())["results"][0], done.stdout


def test_every_one_of_a_thousand_clients_gets_its_share(tmp_path: Path) -> None:
    with counting_server() as (url, server):
        load = ["--clients", str(CLIENTS), "--duration", "2s", "--warm-up", "1s"]
        results, shown = measure(url, tmp_path / "results.json", *load)
        counts = counts_of(server)
    assert results["operations"]["read"]["errors"] == {}
    assert results["connections"]["count"] == CLIENTS
    assert results["connections"]["errors"] == {}
    assert results["unfinished"] == 0
    assert len(counts) == CLIENTS
    assert min(counts) >= 1
    assert min(counts) >= median(counts) / 2
    if results["generator"]["cpu_share"] >= BUSY_SHARE:
        assert "the load generator used" in shown


def test_a_thousand_sessions_keep_an_open_rate_or_a_warning_appears(tmp_path: Path) -> None:
    with counting_server() as (url, server):
        load = ["--rate", "300", "--even", "--in-flight", str(CLIENTS), "--warm-up", "1s", "--duration", "4s"]
        results, shown = measure(url, tmp_path / "results.json", *load)
        counts = counts_of(server)
    assert results["operations"]["read"]["errors"] == {}
    assert results["operations"]["read"]["count"] == READS_AT_RATE
    assert len(counts) == CLIENTS  # they take turns
    rate = READS_AT_RATE / results["seconds"]
    if results["generator"]["warning"] is None:
        assert rate == pytest.approx(300, rel=0.02)
    else:
        assert "load generator" in shown
