"""Sections: `mcpmux bench` beside `wrk`, and its memory as a run gets older.

Two arrangements. Agreement: the server takes READ_MS for every answer, so it decides how much is asked, and
both tools have to see the same. Most load: the server answers as fast as C can, so the tool on its one core
decides. Tool and server have a core each; the tools take turns, and which one begins changes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.asking import Client
from benchmarks.bench import Bench
from benchmarks.load import Tally, run_bench, run_wrk
from benchmarks.process import PROJECT, Child, Process
from benchmarks.report import Pair, markdown, shares, spread
from benchmarks.upstream import TEXT_BYTES, item_uri
from mcpmux.protocol import method as m

CONNECTIONS = 64
AGREED_CONNECTIONS = 32
READ_MS = 20
MEMORY_RATE = 500  # a second
MEMORY_MINUTES = (1, 2, 5, 10)
URI = item_uri(0)


def compared(bench: Bench) -> str:
    """Return the table of both arrangements. Raises MeasurementFailed."""
    with serve_slowly(bench) as url:
        pairs = measure_pairs(bench, url, AGREED_CONNECTIONS)
    load = f"{AGREED_CONNECTIONS} connections, {READ_MS} ms for an answer"
    rows = [
        _line(f"throughput, {load}", pairs, lambda seen: seen.rate, "{:,.0f} /s"),
        _line(f"median latency, {load}", pairs, lambda seen: seen.p50 * 1000, "{:.2f} ms"),
    ]
    with serve_fast(bench) as (url, server):
        pairs = measure_pairs(bench, url, CONNECTIONS)
    load = f"{CONNECTIONS} connections, {server}"
    rows += [
        _line(f"most load of one core, {load}", pairs, lambda seen: seen.rate, "{:,.0f} /s"),
        _line(f"the same in a second of the tool's CPU time, {load}", pairs, lambda s: 1 / s.cpu, "{:,.0f}"),
    ]
    return markdown(("measure", "wrk", "mcpmux bench", "bench / wrk"), rows)


def _line(measure: str, pairs: Sequence[Pair], of: Callable[[Tally], float], form: str) -> Sequence[str]:
    wrk, bench = [of(pair.direct) for pair in pairs], [of(pair.through) for pair in pairs]
    return measure, form.format(median(wrk)), form.format(median(bench)), spread(shares(wrk, bench), "", 2)


def measure_pairs(bench: Bench, url: str, connections: int) -> list[Pair]:
    """Run `wrk` (direct) and `mcpmux bench` (through) in turns. Raises MeasurementFailed."""
    core, seconds = {bench.mux_core}, bench.effort.seconds
    with closing(Client(url)) as client:
        requests = [client.frame(m.RESOURCES_READ, URI)]
    return bench.alternate(
        lambda: run_wrk([url], requests, TEXT_BYTES, connections, seconds, core),
        lambda: run_bench(url, connections, seconds, core, "--sessions=1", "--do", f"read {URI}"),
    )


@contextmanager
def serve_slowly(bench: Bench) -> Iterator[str]:
    """Run the reference server, which takes READ_MS for a read, and yield its URL."""
    with bench.upstream(1, f"--read-ms={READ_MS}") as child:
        yield child.lines(1)[0]


@contextmanager
def serve_fast(bench: Bench) -> Iterator[tuple[str, str]]:
    """Run the fastest server that can be had here, and yield (its URL, what it is)."""
    compiler = shutil.which("cc")
    if compiler is None:
        with bench.upstream(1) as child:
            yield child.lines(1)[0], "reference server in Python, for there is no C compiler"
        return
    with TemporaryDirectory() as folder:
        program = str(Path(folder, "responder"))
        source = PROJECT / "benchmarks" / "responder.c"
        subprocess.run([compiler, "-O2", "-o", program, str(source)], check=True)
        with Process([program], {bench.load_core}) as process:
            yield process.lines(1)[0], "server in C"


def memory(bench: Bench) -> str:
    """Return the resident memory of `mcpmux bench` as a run gets older."""
    load = ["--do", "8 read", "--do", "1 list tools", "--do", "1 tool report", "--check", "hash"]
    seconds = MEMORY_MINUTES[-1] * 60 + 10
    model = ["--rate", str(MEMORY_RATE), "--duration", f"{seconds}s", "--count", "1000000000"]
    with bench.upstream(1) as server:
        url = server.lines(1)[0]
        with Child(["mcpmux", "bench", url, *model, *load], bench.mux_core) as tool:
            sizes = []
            for minute in MEMORY_MINUTES:
                time.sleep(max(tool.started + minute * 60 - time.perf_counter(), 0))
                sizes.append(f"{tool.resident_bytes() / 2**20:.1f} MiB")
    head = (f"resident memory, {MEMORY_RATE} a second", *(f"{minute} min" for minute in MEMORY_MINUTES))
    return markdown(head, [("`mcpmux bench`", *sizes)])
