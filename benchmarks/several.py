"""Rows: several processes of mcpmux on two cores: workers, and replicas of a cluster.

Load generator, upstreams and a Redis need cores, too, so two processes never have two cores to themselves
here. The cores are shared with them on both sides. The rows compare the work of a core, by the CPU time of
each process of mcpmux: a core that has nothing else to do makes as many exchanges a second as its process
makes in a second of CPU time; the busiest of them, with the whole time of its keeper on top, determines when
all cores together are full. Two independent mcpmux show the cost of the cluster.

Linux may share the processor among sessions first (`sched_autogroup`), and each worker has its own session.
It would get more of the processor than the processes for which it waits, sleep whenever it has answered three
or four requests, and pay for being woken. The load generator and the process with the upstreams are of one
session; a worker's weighs half as much, so that each of the four processes counts the same.

A replica caches nothing in its first lease, so the load begins after that; reads here are answered by
upstreams anyway.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.bench import UPSTREAMS, Bench, mux_command
from benchmarks.naming import READ, Load, exposed_subjects, http_config
from benchmarks.process import Child, children_of, cores, cpu_seconds_of, open_store
from benchmarks.report import MICRO, Goal, Row, at_least, ratio_row, spread
from benchmarks.upstream import LEGACY

HALF = 3  # the niceness of a session that weighs half as much as others
TRIES, PAUSE_SECONDS = 20, 0.05
UNWEIGHED = "The sessions of the workers could not be given a weight: their row says too little."
PROGRAM = b"workers.worker import"  # in the command line of a worker
LEASE_SECONDS = 3.0
CLUSTER = """[merging]
cursor_key = "benchmark of a cluster"
[cluster]
url = "redis://127.0.0.1:{port}"
"""


class Muxes(NamedTuple):
    """A number of mcpmux, each with so many workers. A single process has one of the `cores`, workers all."""

    number: int = 1
    workers: int = 1
    is_cluster: bool = False
    cores: int = 2


ALONE, REPLICA, REPLICAS = Muxes(), Muxes(is_cluster=True), Muxes(2, is_cluster=True)


def two_workers(bench: Bench) -> list[Row]:
    """Measure small resources, without sessions."""
    measure = "modern: two workers, two cores (through), one process, one core (direct)"
    return [_compare(bench, measure, at_least(1.7), READ, Muxes(cores=1), Muxes(workers=2))]


def beside_one_alone(bench: Bench) -> list[Row]:
    """Measure a core's reads a second at one replica, beside an mcpmux without a cluster."""
    measure = "a replica of a cluster (through), mcpmux alone (direct)"
    legacy = READ._replace(era=LEGACY)
    return [
        _compare(bench, f"modern: {measure}", at_least(0.97), READ, ALONE, REPLICA),
        _compare(bench, f"legacy: {measure}", at_least(0.9), legacy, ALONE, REPLICA),
    ]


def two_replicas(bench: Bench) -> list[Row]:
    """Measure small resources at two replicas on two cores, beside one, and beside two without a cluster."""
    beside_one = "modern: two replicas, two cores (through), one replica (direct)"
    beside_two = "modern: two replicas (through), two mcpmux alone (direct)"
    return [
        _compare(bench, beside_one, at_least(1.7), READ, REPLICA, REPLICAS),
        _compare(bench, beside_two, at_least(0.95), READ, Muxes(2), REPLICAS),
    ]


def _compare(bench: Bench, what: str, goal: Goal, load: Load, direct: Muxes, through: Muxes) -> Row:
    measure = f"read 1 KB, 64 connections, {what}"
    bench.note(measure)
    pairs = [(_run(bench, load, direct), _run(bench, load, through)) for _ in range(bench.effort.runs)]
    direct_rates, rates = ([pair[side][0] for pair in pairs] for side in (0, 1))
    return ratio_row(measure, direct_rates, rates, "", goal)._replace(
        direct=f"{median(direct_rates):,.0f} /s of its cores",
        through=f"{median(rates):,.0f} /s of its cores",
        mux_cpu=spread([cost * MICRO for _, (_, cost) in pairs], " µs", 0),
    )


def _run(bench: Bench, load: Load, wanted: Muxes) -> tuple[float, float]:
    """Return (exchanges a second when its cores are full, CPU seconds of all processes for one exchange)."""
    places = sorted(set(cores()))[: wanted.cores]
    with ExitStack() as stack:
        arguments = ["benchmarks.upstream", *["--port=0"] * UPSTREAMS, "--era", load.era]
        upstream = stack.enter_context(Child(arguments, places))
        config = http_config(upstream.lines(UPSTREAMS))
        if wanted.is_cluster:
            port = stack.enter_context(open_store(stack.enter_context(TemporaryDirectory())))
            config = CLUSTER.format(port=port) + config
        more = [f"--workers={wanted.workers}"] if wanted.workers > 1 else []
        muxes = [
            stack.enter_context(
                Child(mux_command(*more), places if more else places[number % len(places)], config)
            )
            for number in range(wanted.number)
        ]
        urls = [url for mux in muxes for url in mux.lines(1)]
        if wanted.is_cluster:
            time.sleep(LEASE_SECONDS + 1)
        groups = [(mux.pid, children_of(mux.pid, PROGRAM) if more else []) for mux in muxes]
        weights = [_halves_weight(worker) for _, workers in groups for worker in workers]
        if not all(weights) and UNWEIGHED not in bench.remarks:
            bench.remarks.append(UNWEIGHED)
        pids = [pid for keeper, workers in groups for pid in (keeper, *workers)]
        start = {pid: cpu_seconds_of(pid) for pid in pids}
        tally = bench.load(load, urls, exposed_subjects(load, UPSTREAMS), cores=set(places))
        used = {pid: cpu_seconds_of(pid) - start[pid] for pid in pids}
    busiest = max(used[keeper] + max([0.0, *map(used.__getitem__, workers)]) for keeper, workers in groups)
    return tally.exchanges / busiest, sum(used.values()) / tally.exchanges


def _halves_weight(leader: int) -> bool:
    """Have its session weigh half as much as others; whether that was possible, or need not be."""
    for _ in range(TRIES):
        try:
            Path(f"/proc/{leader}/autogroup").write_text(str(HALF))
        except BlockingIOError:  # the system takes one in a tenth of a second
            time.sleep(PAUSE_SECONDS)
        except FileNotFoundError:
            return True  # it does not weigh sessions
        except OSError:
            return False
        else:
            return True
    return False
