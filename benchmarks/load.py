"""Load of one run: `wrk` where a record is wanted, `mcpmux bench` for everything that wrk cannot speak.

wrk checks the status and the length of each answer. `mcpmux bench` checks ids and contents.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from benchmarks.asking import Client, Headers
from benchmarks.naming import Load
from benchmarks.process import PROJECT, MeasurementFailed
from mcpmux.bench.results import Results, decode_report

GRACE_SECONDS = 60  # for a tool beyond the time that it measures
IDS = range(1000, 5000)
"""Of the requests that wrk repeats: no session may have one of them in flight twice."""
NO_WRK = "wrk is missing: apt-get install wrk"

_SCRIPT = """
local requests = {%s}
local size = %d
local targets = {%s}
local threads = {}
local n = 0
wrong = 0
function setup(thread)
  table.insert(threads, thread)
  local target = targets[#threads]
  thread.addr = wrk.lookup(target[1], target[2])[1]
end
function init() end
function request()
  n = n %% #requests + 1
  return requests[n]
end
function response(status, headers, body)
  if status ~= 200 or #body < size then wrong = wrong + 1 end
end
function done(summary, latency)
  local bad = summary.errors
  local count = bad.connect + bad.read + bad.write + bad.timeout
  for _, thread in ipairs(threads) do count = count + thread:get("wrong") end
  io.write(string.format('{"exchanges":%%d,"seconds":%%f,"p50":%%f,"p99":%%f,"errors":%%d}', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, count))
end
"""


class Tally(NamedTuple):
    """Result of one run. Times in seconds; `cpu_seconds` are those of the load generator."""

    exchanges: int
    seconds: float
    cpu_seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Exchanges a second."""
        return self.exchanges / self.seconds

    @property
    def cpu(self) -> float:
        """CPU seconds of the load generator for an exchange."""
        return self.cpu_seconds / self.exchanges


class _Summary(msgspec.Struct):
    exchanges: int
    seconds: float
    p50: float
    p99: float
    errors: int


def requests_of(
    load: Load, url: str, subjects: Sequence[str], sessions: int, headers: Headers
) -> list[bytes]:
    """Return requests for all subjects, in turn those of each of `sessions`, which are opened for that."""
    clients = [Client(url, load.era).open() for _ in range(sessions)]
    requests = [
        client.frame(load.method, subject, number, headers)
        for number, client, subject in zip(IDS, cycle(clients), cycle(subjects), strict=False)
    ]
    for client in clients:
        client.close()
    return requests


def run_wrk(
    urls: Sequence[str],
    requests: Sequence[bytes],
    size: int,
    connections: int,
    seconds: float,
    cores: set[int],
) -> Tally:
    """Send requests in turn, as soon as an answer is there, with one thread for each URL.

    An answer has at least `size` bytes. wrk measures whole seconds. Raises MeasurementFailed.
    """
    if shutil.which("wrk") is None:
        raise MeasurementFailed(NO_WRK)
    places = [urlsplit(url) for url in urls]
    targets = ",".join(f'{{"{place.hostname}","{place.port}"}}' for place in places)
    texts = ",".join(json.dumps(request.decode()) for request in requests)
    seconds = max(round(seconds), 1)
    with TemporaryDirectory() as folder:
        script = Path(folder, "script.lua")
        script.write_text(_SCRIPT % (texts, size, targets))
        options = [f"-t{len(urls)}", f"-c{connections}", f"-d{seconds}s", f"--timeout={GRACE_SECONDS}s"]
        output, cpu = _run(["wrk", *options, "-s", str(script), urls[0]], seconds, cores)
    summary = msgspec.json.decode(output.splitlines()[-1], type=_Summary)
    if not summary.exchanges and seconds <= GRACE_SECONDS:  # a busy machine gives a bad number, not none
        return run_wrk(urls, requests, size, connections, 4 * seconds, cores)
    if not summary.exchanges:
        raise MeasurementFailed(f"no answer came within {seconds} s")
    if summary.errors:
        raise MeasurementFailed(f"{summary.errors} of {summary.exchanges} answers were wrong")
    return Tally(summary.exchanges, summary.seconds, cpu, summary.p50, summary.p99)


def bench_command(target: str, clients: int, seconds: float, file: Path, *options: str) -> list[str]:
    """Return the arguments of a closed loop of `mcpmux bench`."""
    model = ["--clients", str(clients), "--duration", f"{seconds}s", "--count", "1000000000"]
    return ["mcpmux", "bench", target, *model, "--warm-up", "0", "--json", str(file), *options]


def results_in(file: Path) -> Results:
    """Return the results in a file of `mcpmux bench`. Raises MeasurementFailed if it saw errors."""
    (results,) = decode_report(file.read_bytes(), str(file)).results
    whole = results.overall()
    if whole.failed or not whole.count or results.stopped:
        raise MeasurementFailed(f"mcpmux bench saw errors: {dict(whole.errors)} {results.stopped or ''}")
    return results


def tally_of(results: Results) -> Tally:
    """Return what `mcpmux bench` has shown."""
    whole = results.overall()
    p50, p99 = whole.latency.percentiles((50, 99))
    assert p50 is not None
    assert p99 is not None
    return Tally(whole.count, results.seconds, results.generator.cpu_share * results.seconds, p50, p99)


def run_bench(target: str, clients: int, seconds: float, cores: set[int], *options: str) -> Tally:
    """Put load on a server by `mcpmux bench`, which checks every answer. Raises MeasurementFailed."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        command = bench_command(target, clients, seconds, file, "--check", "hash", *options)
        _run([sys.executable, "-m", *command], seconds, cores)
        return tally_of(results_in(file))


def _run(command: Sequence[str], seconds: float, cores: set[int]) -> tuple[bytes, float]:
    """Run a tool; return what it prints and the CPU seconds that it uses. Raises MeasurementFailed."""
    start = os.times()
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds + GRACE_SECONDS,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementFailed(str(error)) from None
    end = os.times()
    if done.returncode:
        raise MeasurementFailed(f"{command[0]} failed: {done.stderr.decode()}")
    return done.stdout, sum(end[2:4]) - sum(start[2:4])
