"""The generator's own memory stays flat, however much it has asked: a process at full speed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.test_many_clients import counting_server

SETTLED_SECONDS = 15.0  # after which everything is imported and each table has its size
MEASURED_SECONDS = 30.0
REQUESTS_LEAST = 20_000  # in that time, on a machine that does much else
GROWTH_BYTES = 3 * 2**20  # a hundred bytes kept of each request would be more


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_stays_flat_at_full_speed(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    load = ["--clients", "64", "--duration", "10m", "--count", "1000000000", "--warm-up", "0"]
    mix = ["--check", "hash", "--do", "8 read", "--do", "1 list resources"]
    with counting_server() as (url, _):
        command = [sys.executable, "-m", "mcpmux", "bench", url, *load, *mix, "--json", str(file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                time.sleep(SETTLED_SECONDS)
                start = resident_bytes(process)
                time.sleep(MEASURED_SECONDS)
                after = resident_bytes(process)
                process.terminate()
                process.wait(timeout=20)
            finally:
                process.kill()
    (results,) = json.loads(file.read_text())["results"]
    counts = [part["count"] for part in results["operations"].values()]
    assert len(counts) == 2
    assert sum(counts) > REQUESTS_LEAST
    assert after - start < GROWTH_BYTES
