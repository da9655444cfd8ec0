"""Rows: the one pipe of a stdio upstream, with many clients over HTTP or one client over another pipe."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.bench import QUIET, Bench
from benchmarks.load import GRACE_SECONDS, Tally, bench_command, results_in, run_bench, tally_of
from benchmarks.naming import READ, exposed_subjects, exposed_uri, stdio_config, stdio_upstream
from benchmarks.process import Child, children_of, cpu_seconds_of
from benchmarks.report import MICRO, Pair, Row, at_least, rate_row, spread
from benchmarks.upstream import item_uri

LEAST = at_least(25_000, " /s", absolute=True)
LOOK_SECONDS = 0.05  # between two looks at the CPU time of mcpmux
SERVE = b"serve"  # in the command line of mcpmux


def stdio(bench: Bench) -> list[Row]:
    """Measure many clients over HTTP. A pipe without mcpmux has one client, so there is no direct side."""
    measure = "read 1 KB from a stdio upstream, 64 at a time, modern"
    bench.note(measure)
    rates, costs = [], []
    with bench.mux(stdio_config(stdio_upstream(bench.load_core))) as mux:
        urls = mux.lines(1)
        for _ in range(bench.effort.runs):
            used = mux.cpu_seconds()
            tally = bench.load(READ, urls, exposed_subjects(READ, 1)[:1])
            costs.append((mux.cpu_seconds() - used) / tally.exchanges * MICRO)
            rates.append(tally.rate)
    row = Row(measure, "", f"{median(rates):,.0f} /s", "", spread(costs, " µs", 0))
    return [row.judged(LEAST, rates)]


def client(bench: Bench) -> list[Row]:
    """Measure mcpmux as a host application starts it: with a pipe on either side.

    `mcpmux bench` is the client, directly and through mcpmux. It is slower than the pipes, so what a core of
    mcpmux does in a second is judged.
    """
    measure = "read 1 KB from a stdio upstream for a stdio client, 64 in flight, modern"
    bench.note(measure)
    command, seconds = stdio_upstream(bench.load_core), bench.effort.seconds
    ask = ["--do", f"read {item_uri(0)}"]
    pairs = []
    for _ in range(bench.effort.runs):
        direct = run_bench(shlex.join(command), READ.connections, seconds, {bench.load_core}, *ask)
        pairs.append(Pair(direct, *_through(bench, stdio_config(command)), 0.0))
    return [rate_row(measure, pairs).judged(LEAST, [1 / pair.mux_cpu for pair in pairs])]


def _through(bench: Bench, config: str) -> tuple[Tally, float]:
    """Return what `mcpmux bench` shows of a mcpmux that it starts, and the CPU time of an exchange."""
    looks: list[tuple[float, float]] = []  # at the clock and the CPU time of mcpmux
    with TemporaryDirectory() as folder:
        file, results = Path(folder, "mcpmux.toml"), Path(folder, "results.json")
        file.write_text(config)
        mux = shlex.join([sys.executable, "-m", "mcpmux", "serve", str(file), "--stdio", *QUIET])
        ask = ["--check", "hash", "--do", f"read {exposed_uri(0)}"]
        command = bench_command(mux, READ.connections, bench.effort.seconds, results, *ask)
        with Child(command, bench.load_core) as child:
            until = child.started + bench.effort.seconds + GRACE_SECONDS
            while time.perf_counter() < until and not (results.exists() and results.stat().st_size):
                with suppress(OSError):
                    for process in children_of(child.pid, SERVE):
                        os.sched_setaffinity(process, {bench.mux_core})
                        looks.append((time.perf_counter(), cpu_seconds_of(process)))
                time.sleep(LOOK_SECONDS)
            child.output(GRACE_SECONDS)
        tally = tally_of(results_in(results))
    # In the second half of the time mcpmux has started, and everything is as in the rest of the run.
    (first, used), (last, all_used) = looks[len(looks) // 2], looks[-3]
    return tally, (all_used - used) / (last - first) / tally.rate
