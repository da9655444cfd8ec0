"""The two cores, and the pairs of runs that are measured on them.

mcpmux has one core to itself; load generator and upstreams share the other, in the direct runs too. A pair is
a direct run and one through mcpmux right after or before it; which one begins changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple, Protocol

from benchmarks.asking import Headers
from benchmarks.load import Tally, requests_of, run_wrk
from benchmarks.naming import READ, Load, exposed_subjects, http_config
from benchmarks.process import Child, cores
from benchmarks.report import Pair
from benchmarks.upstream import LEGACY

UPSTREAMS = 5
LONG_RUNS = 3
QUIET = ("--log-level", "error")

Note = Callable[[str], None]


class Used(Protocol):
    """A process whose CPU time can be read."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that it has used so far."""
        ...


class Effort(NamedTuple):
    """Extent of a measurement: `runs` pairs of `seconds` each.

    `long_seconds`: of a run that has to be longer than what the measured one buffers.
    """

    runs: int
    seconds: float
    long_seconds: float = 30.0


def mux_command(*more: str) -> list[str]:
    """Return arguments of `python -m` for an mcpmux that reads its configuration on stdin."""
    return ["mcpmux", "serve", "-", "--http", "127.0.0.1:0", *QUIET, *more]


class Bench:
    """Starts what is measured, and measures it. `note` is called with the name of each row."""

    def __init__(
        self, effort: Effort, note: Note, hurry_seconds: float = math.inf, peers: Sequence[str] = ()
    ) -> None:
        """Rows that begin later than `hurry_seconds` from now are measured once only.

        `peers`: names of the other proxies that are measured; all of them when it is empty.
        """
        self.mux_core, self.load_core = cores()
        self._effort = effort
        self._hurry_at = time.monotonic() + hurry_seconds
        self.note = note
        self.peers = peers
        self.remarks: list[str] = []

    def __repr__(self) -> str:
        return f"<Bench cores {self.mux_core} and {self.load_core}, {self.effort}>"

    @property
    def hurried(self) -> bool:
        """True if no time is left for more than one run."""
        return time.monotonic() >= self._hurry_at

    @property
    def effort(self) -> Effort:
        """Effort for a row that begins now."""
        return self._effort._replace(runs=1) if self.hurried else self._effort

    def lasting(self) -> Bench:
        """Return the same with long runs, and three pairs of them at most."""
        other = copy(self)
        other._effort = self._effort._replace(
            runs=min(self._effort.runs, LONG_RUNS), seconds=self._effort.long_seconds
        )
        return other

    def upstream(self, count: int, *more: str, server: str = "benchmarks.upstream") -> Child:
        """Run one process that serves `count` upstreams and prints their URLs. `server`: its module."""
        return Child([server, *["--port=0"] * count, *more], self.load_core)

    def mux(self, config: str, core: int | None = None, *more: str) -> Child:
        """Start mcpmux with this configuration, on its own core by default."""
        return Child(mux_command(*more), self.mux_core if core is None else core, config)

    def load(
        self,
        load: Load,
        urls: Sequence[str],
        subjects: Sequence[str],
        *,
        sessions: int = 0,
        headers: Headers = (),
        cores: set[int] | None = None,
    ) -> Tally:
        """Put load on servers once. `sessions`: how many all connections share; 0: as many as connections."""
        opened = (sessions or load.connections) if load.era == LEGACY else 1
        requests = requests_of(load, urls[0], subjects, opened, headers)
        cores = cores or {self.load_core}
        return run_wrk(urls, requests, load.size, load.connections, self.effort.seconds, cores)

    def pairs(self, load: Load, *more: str, core: int | None = None) -> list[Pair]:
        """Measure the upstreams directly, and through mcpmux. `more`: options of the upstreams."""
        with self.upstream(UPSTREAMS, "--era", load.era, *more) as upstream:
            urls = upstream.lines(UPSTREAMS)
            with self.mux(http_config(urls), core) as mux:
                (url,) = mux.lines(1)
                subjects = exposed_subjects(load, len(urls))
                return self.alternate(
                    lambda: self.load(load, urls[:1], load.subjects),
                    lambda: self.load(load, [url], subjects),
                    mux,
                    upstream,
                )

    def side_by_side(self, mux: Child, other: Child, headers: Headers = ()) -> list[Pair]:
        """Measure two processes of mcpmux in front of equal upstreams; the other one's CPU time counts.

        `headers`: of the requests to the other one.
        """
        subjects = exposed_subjects(READ, UPSTREAMS)
        (url,), (other_url,) = mux.lines(1), other.lines(1)
        return self.alternate(
            lambda: self.load(READ, [url], subjects),
            lambda: self.load(READ, [other_url], subjects, headers=headers),
            other,
        )

    def alternate(
        self,
        direct: Callable[[], Tally],
        through: Callable[[], Tally],
        mux: Used | None = None,
        upstream: Used | None = None,
    ) -> list[Pair]:
        """Return all pairs of runs. The CPU time is that of `mux`, and of `upstream` in direct runs."""
        pairs = []
        for number in range(self.effort.runs):
            if number % 2:
                second, mux_cpu = measured(through, mux)
                first, upstream_cpu = measured(direct, upstream)
            else:
                first, upstream_cpu = measured(direct, upstream)
                second, mux_cpu = measured(through, mux)
            pairs.append(Pair(first, second, mux_cpu, upstream_cpu))
        return pairs


def measured(run: Callable[[], Tally], child: Used | None) -> tuple[Tally, float]:
    """Return the results of a run, and the CPU seconds that `child` used for each of its exchanges."""
    used = child.cpu_seconds() if child else 0.0
    tally = run()
    return tally, (child.cpu_seconds() - used) / tally.exchanges if child else 0.0
