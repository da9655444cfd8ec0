"""Row: two workers on two cores beside one process on one core.

Load generator and upstreams need cores, too, so two workers never have two cores to themselves here. The
cores are shared with them on both sides, one core and two: a process that has one to itself is hardly ever
taken from it, and would be compared with workers that are. The row compares the work of a core, by the CPU
time of each process of mcpmux. A core that has nothing else to do makes as many exchanges a second as its
worker makes in a second of CPU time; the busier of the two workers, with the whole of the keeper's time on
top, determines when both cores together are full.

Linux may share the processor among sessions first (`sched_autogroup`), and each worker has its own session.
It would get more of the processor than the processes for which it waits, sleep whenever it has answered three
or four requests, and pay for being woken. The load generator and the process with the upstreams are of one
session; a worker's weighs half as much, so that each of the four processes counts the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.bench import UPSTREAMS, Bench, mux_command
from benchmarks.goal import at_least, spread_of
from benchmarks.naming import READ, exposed_subjects, http_config
from benchmarks.process import Child, children_of, cpu_seconds_of
from benchmarks.report import MICRO, Row, shares, spread

WORKERS = 2
LEAST = at_least(1.7)
HALF = 3  # the niceness of a session that weighs half as much as others
TRIES, PAUSE_SECONDS = 20, 0.05
UNWEIGHED = "The sessions of the workers could not be given a weight: their row says too little."
PROGRAM = b"workers.worker import"  # in the command line of a worker


def two_workers(bench: Bench) -> list[Row]:
    """Measure small resources, without sessions: exchanges a second of CPU time."""
    measure = (
        "read 1 KB, 64 connections, modern: two workers, two cores (through), one process, one core (direct)"
    )
    bench.note(measure)
    single, pair, costs = [], [], []
    for _ in range(bench.effort.runs):
        single.append(_run(bench, 1)[0])
        rate, cost = _run(bench, WORKERS)
        pair.append(rate)
        costs.append(cost * MICRO)
    ratios = shares(single, pair)
    row = Row(
        measure,
        f"{median(single):,.0f} /s of a core",
        f"{median(pair):,.0f} /s of two cores",
        spread(ratios, "", 2),
        spread(costs, " µs", 0),
        ratio=spread_of(ratios),
        bound=LEAST.least,
    )
    return [row.judged(LEAST, ratios)]


def _run(bench: Bench, workers: int) -> tuple[float, float]:
    """Return (exchanges a second when its cores are full, CPU seconds of all processes for one exchange)."""
    cores = sorted({bench.mux_core, bench.load_core})[:workers]
    with Spread(["benchmarks.upstream", *["--port=0"] * UPSTREAMS], cores) as upstream:
        urls = upstream.lines(UPSTREAMS)
        with Spread(mux_command(f"--workers={workers}"), cores, http_config(urls)) as mux:
            (url,) = mux.lines(1)
            processes = children_of(mux.pid, PROGRAM) if workers > 1 else []
            weights = [_halves_weight(pid) for pid in processes]
            if not all(weights) and UNWEIGHED not in bench.remarks:
                bench.remarks.append(UNWEIGHED)
            start = [cpu_seconds_of(pid) for pid in (mux.pid, *processes)]
            tally = bench.load(READ, [url], exposed_subjects(READ, UPSTREAMS), cores=set(cores))
            used = [cpu_seconds_of(pid) for pid in (mux.pid, *processes)]
    keeper, *busy = (after - first for after, first in zip(used, start, strict=True))
    return tally.exchanges / (keeper + max(busy, default=0.0)), (keeper + sum(busy)) / tally.exchanges


class Spread(Child):
    """A child that may use several cores, as may everything that it starts."""

    def __init__(self, arguments: Sequence[str], cores: Sequence[int], stdin: str = "") -> None:
        super().__init__(arguments, cores[0], stdin)
        os.sched_setaffinity(self.pid, cores)  # long before it is ready to start anything


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
