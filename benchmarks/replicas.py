"""Rows: a replica of a cluster beside an mcpmux that is alone; two replicas beside one, and beside two alone.

As in `workers.py`, the rows compare the work of a core, by the CPU time of each process of mcpmux: load
generator, upstreams and the Redis need cores, too. Where there are two cores for all, any two mcpmux do less
than twice the work of one; two independent ones show the cost of the cluster. A replica caches nothing in its
first lease, so the load begins after that; reads here are answered by upstreams anyway.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.bench import UPSTREAMS, Bench, mux_command
from benchmarks.goal import Goal, at_least, spread_of
from benchmarks.instructions import open_store
from benchmarks.naming import READ, Load, exposed_subjects, http_config
from benchmarks.process import cpu_seconds_of
from benchmarks.report import Row, shares, spread
from benchmarks.upstream import LEGACY
from benchmarks.workers import Spread

LEASE_SECONDS = 3.0
CLUSTER = """[merging]
cursor_key = "benchmark of a cluster"
[cluster]
url = "redis://127.0.0.1:{port}"
"""
READS = {
    "modern": (READ, at_least(0.97)),
    "legacy": (READ._replace(era=LEGACY), at_least(0.9)),
}
TWO = at_least(1.7)
TWO_ALONE = at_least(0.95)


class Muxes(NamedTuple):
    """A number of mcpmux processes, each on its own core if there are enough."""

    processes: int
    is_cluster: bool = False


ALONE = Muxes(1)
REPLICA, REPLICAS = Muxes(1, True), Muxes(2, True)


def beside_one_alone(bench: Bench) -> list[Row]:
    """Measure a core's reads a second at one replica, beside an mcpmux without a cluster."""
    rows = []
    for era, (load, goal) in READS.items():
        measure = f"read 1 KB, 64 connections, {era}: a replica of a cluster (through), mcpmux alone (direct)"
        rows.append(_compare(bench, measure, goal, load, ALONE, REPLICA))
    return rows


def two_replicas(bench: Bench) -> list[Row]:
    """Measure small resources at two replicas on two cores, beside one, and beside two without a cluster."""
    load = "read 1 KB, 64 connections, modern"
    beside_one = f"{load}: two replicas, two cores (through), one replica (direct)"
    beside_two = f"{load}: two replicas (through), two mcpmux alone (direct)"
    return [
        _compare(bench, beside_one, TWO, READ, REPLICA, REPLICAS),
        _compare(bench, beside_two, TWO_ALONE, READ, Muxes(2), REPLICAS),
    ]


def _compare(bench: Bench, measure: str, goal: Goal, load: Load, direct: Muxes, through: Muxes) -> Row:
    bench.note(measure)
    direct_rates, through_rates = [], []
    for _ in range(bench.effort.runs):
        direct_rates.append(_run(bench, load, direct))
        through_rates.append(_run(bench, load, through))
    ratios = shares(direct_rates, through_rates)
    row = Row(
        measure,
        f"{median(direct_rates):,.0f} /s of its cores",
        f"{median(through_rates):,.0f} /s of its cores",
        spread(ratios, "", 2),
        "",
        ratio=spread_of(ratios),
        bound=goal.least,
    )
    return row.judged(goal, ratios)


def _run(bench: Bench, load: Load, wanted: Muxes) -> float:
    """Return the exchanges a second when the cores of all mcpmux are full."""
    cores = sorted({bench.mux_core, bench.load_core})
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        arguments = ["benchmarks.upstream", *["--port=0"] * UPSTREAMS, "--era", load.era]
        upstream = stack.enter_context(Spread(arguments, cores))
        config = http_config(upstream.lines(UPSTREAMS))
        if wanted.is_cluster:
            config = CLUSTER.format(port=stack.enter_context(open_store(folder))) + config
        muxes = [
            stack.enter_context(Spread(mux_command(), [cores[number % len(cores)]], config))
            for number in range(wanted.processes)
        ]
        urls = [url for mux in muxes for url in mux.lines(1)]
        if wanted.is_cluster:
            time.sleep(LEASE_SECONDS + 1)
        start = [cpu_seconds_of(mux.pid) for mux in muxes]
        tally = bench.load(load, urls, exposed_subjects(load, UPSTREAMS), cores=set(cores))
        used = [cpu_seconds_of(mux.pid) - first for mux, first in zip(muxes, start, strict=True)]
    return tally.exchanges / max(used)
