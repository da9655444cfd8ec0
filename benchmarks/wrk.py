"""One run of `wrk` and one of `mcpmux bench` that ask the same, and what each says of it. One core each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.process import PROJECT
from benchmarks.question import encode_modern
from benchmarks.upstream import item_uri
from mcpmux.bench.results import decode_report
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.headers import method_headers, name_headers
from mcpmux.protocol.revisions import NEWEST

GRACE_SECONDS = 60  # for a tool beyond the time that it measures
URI = item_uri(0)

_SCRIPT = """
wrk.method = "POST"
wrk.body = [[{body}]]
{headers}
function done(summary, latency, requests)
  local bad = summary.errors
  io.write(string.format('{{"count":%d,"seconds":%f,"p50":%f,"errors":%d}}', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e6,
    bad.connect + bad.read + bad.write + bad.status + bad.timeout))
end
"""


class Effort(NamedTuple):
    """What both tools are told: so many connections for so many seconds, on one core."""

    connections: int
    seconds: float
    core: int


class Seen(NamedTuple):
    """What a tool says: exchanges a second, the median latency in seconds, CPU seconds per exchange."""

    rate: float
    p50: float
    cpu: float


class _Summary(msgspec.Struct):
    count: int
    seconds: float
    p50: float
    errors: int


class MeasurementFailed(Exception):
    """A tool did not run to its end, or saw errors."""


def find_wrk() -> str | None:
    """Where `wrk` is, a Debian package of that name; None where it is not."""
    return shutil.which("wrk")


def run_wrk(url: str, effort: Effort) -> Seen:
    """Closed loop with one thread. Whole seconds only. Raises MeasurementFailed."""
    params = {"uri": raw(URI)}
    fields = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        *method_headers(m.RESOURCES_READ, NEWEST),
        *name_headers(m.RESOURCES_READ, params),
    ]
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in fields)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(_SCRIPT.format(body=encode_modern(m.RESOURCES_READ, params).decode(), headers=headers))
        file.flush()
        seconds = max(round(effort.seconds), 1)
        options = ["-t1", f"-c{effort.connections}", f"-d{seconds}s", "-s", file.name]
        output, cpu = _run(["wrk", *options, url], effort)
    summary = msgspec.json.decode(output.splitlines()[-1], type=_Summary)
    if summary.errors or not summary.count:
        raise MeasurementFailed(f"wrk saw errors: {output.decode()}")
    return Seen(summary.count / summary.seconds, summary.p50, cpu / summary.count)


def run_bench(url: str, effort: Effort, *options: str) -> Seen:
    """Closed loop; every answer is checked. Raises MeasurementFailed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        command = [sys.executable, "-m", "mcpmux", "bench", url, "--do", f"read {URI}", "--check", "hash"]
        model = ["--clients", str(effort.connections), "--duration", f"{effort.seconds}s", "--warm-up", "0.3"]
        _run([*command, *model, "--count", "1000000000", "--json", str(file), *options], effort)
        (results,) = decode_report(file.read_bytes(), str(file)).results
    whole = results.overall()
    p50 = whole.latency.percentile(50)
    if whole.failed or p50 is None:
        raise MeasurementFailed(f"mcpmux bench saw errors: {whole.errors}")
    rate = results.rate(whole)
    return Seen(rate, p50, results.generator.cpu_share / rate)


def _run(command: Sequence[str], effort: Effort) -> tuple[bytes, float]:
    """What a tool prints, and the CPU seconds that it used."""
    before = os.times()
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=effort.seconds + GRACE_SECONDS,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, {effort.core}),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementFailed(str(error)) from None
    after = os.times()
    if done.returncode:
        raise MeasurementFailed(f"{command[0]} failed: {done.stderr.decode()}")
    return done.stdout, sum(after[2:4]) - sum(before[2:4])
