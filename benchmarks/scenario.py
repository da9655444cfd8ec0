"""The measurements, each beside its own baseline: the same load on the upstream directly, right before.

mcpmux has one core to itself; load generator and upstreams share the other, in the direct runs too. Only one
latency is measured with everything on one core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from benchmarks.connection import Connection, WrongAnswer
from benchmarks.load import Tally
from benchmarks.process import PROJECT, Child
from benchmarks.question import FIRST_ID, Client
from benchmarks.report import Pair, Row, bystanders, latency_row, memory_row, rate_row, time_row
from benchmarks.upstream import LARGE_BYTES, LARGE_URI, LEGACY, MODERN, TEXT_BYTES, TOOL, item_uri
from mcpmux.protocol import method as m

UPSTREAMS = 5
IDLE_UPSTREAMS = 10
READ_ITEMS = 1000  # many, for what a proxy remembers of one URI must not be what is measured
CONNECTIONS = 64
LARGE_CONNECTIONS = 4
FRESH = "--ttl-ms=600000"  # longer than any run: what is remembered stays good
SLOW_READ = "--read-ms=20"  # a server that has to fetch what it answers from somewhere
LISTS = 300  # first pages in one run of the warm list
SLOW_PAGE_MS = 10  # a page of a list at a server that has to fetch it from somewhere
GRACE_SECONDS = 60  # for a load generator beyond the time that it measures
SETTLE_SECONDS = 1.0  # after which a process that has started is idle
WATCHING = {
    "full capture": '[capture]\nlevel = "full"\ndirectory = "{folder}/capture"\ncompress = false\n',
    "audit log": '[audit]\ndirectory = "{folder}/audit"\n',
}
"""What is kept, and the settings that keep it."""

QUIET = ("--log-level", "error")


class Effort(NamedTuple):
    """How much is measured: `runs` pairs of `seconds` each, after `warm_up` seconds that do not count."""

    runs: int
    seconds: float
    warm_up: float


class Load(NamedTuple):
    """What the load generator does in both runs of a pair. `subjects`: what it asks each upstream for."""

    era: str
    method: str
    subjects: Sequence[str]
    size: int = TEXT_BYTES
    connections: int = CONNECTIONS


READ = Load(MODERN, m.RESOURCES_READ, [item_uri(number) for number in range(READ_ITEMS)])
Note = Callable[[str], None]


class Bench:
    """The two cores, and the pairs that are measured on them. `note` hears what is being done."""

    def __init__(self, effort: Effort, note: Note) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.mux_core, self.load_core = cores[0], cores[-1]
        self._effort = effort
        self._note = note
        self.remarks: list[str] = []

    def __repr__(self) -> str:
        return f"<Bench cores {self.mux_core} and {self.load_core}, {self._effort}>"

    def rows(self) -> list[Row]:
        """Every measurement, in the order in which they are taken."""
        os.sched_setaffinity(0, {self.load_core})  # this process asks too
        return [
            *self._rates(),
            *self._latencies(),
            self._list(0),
            self._list(SLOW_PAGE_MS),
            self._warm_list(),
            self._slow_read(),
            self._stdio(),
            *self._watching(),
            self._start(),
            self._memory(),
        ]

    def _rates(self) -> list[Row]:
        loads = {
            "read 1 KB, 64 connections, modern": READ,
            "read 1 KB, 64 connections, legacy": READ._replace(era=LEGACY),
            "call a tool, 64 connections, modern": READ._replace(method=m.TOOLS_CALL, subjects=[TOOL]),
            "read 2 MB, 4 connections, modern": Load(
                MODERN, m.RESOURCES_READ, [LARGE_URI], LARGE_BYTES, LARGE_CONNECTIONS
            ),
        }
        rows = []
        for measure, load in loads.items():
            pairs = self._pairs(measure, load, self.mux_core)
            rows.append(rate_row(measure, pairs))
            self.remarks.append(bystanders(measure, pairs))
        return rows

    def _latencies(self) -> list[Row]:
        """With one connection one process is busy at a time, so both placements mean something.

        All on one core, it is what mcpmux computes; on its own core, that and waking another core twice.
        """
        rows = []
        for place, core in (("all on one core", self.load_core), ("mcpmux on its own core", self.mux_core)):
            measure = f"latency of a 1 KB read, 1 connection, {place}"
            pairs = self._pairs(measure, READ._replace(connections=1), core)
            rows.append(latency_row(f"{measure}, p50", pairs, lambda tally: tally.p50))
            rows.append(latency_row(f"{measure}, p99", pairs, lambda tally: tally.p99))
        return rows

    def _pairs(self, measure: str, load: Load, mux_core: int, *more: str) -> list[Pair]:
        self._note(measure)
        with self._upstream(UPSTREAMS, "--era", load.era, *more) as upstream:
            urls = upstream.lines(UPSTREAMS)
            with self._mux(http_config(urls), mux_core) as mux:
                (url,) = mux.lines(1)
                return [self._pair(load, upstream, urls, mux, url) for _ in range(self._effort.runs)]

    def _pair(self, load: Load, upstream: Child, urls: Sequence[str], mux: Child, url: str) -> Pair:
        used = upstream.cpu_seconds()
        direct = self._load(load, urls, load.subjects)
        upstream_cpu = upstream.cpu_seconds() - used
        used = mux.cpu_seconds()
        through = self._load(load, [url], exposed_subjects(load, len(urls)))
        mux_cpu = mux.cpu_seconds() - used
        return Pair(direct, through, mux_cpu / through.all_exchanges, upstream_cpu / direct.all_exchanges)

    def _load(self, load: Load, targets: Sequence[str], subjects: Sequence[str], *more: str) -> Tally:
        effort = self._effort
        options = {
            "era": load.era,
            "method": load.method,
            "size": load.size,
            "connections": load.connections,
            "seconds": effort.seconds,
            "warm-up": effort.warm_up,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        arguments += [f"--subject={subject}" for subject in subjects]
        with Child(["benchmarks.load", *arguments, *more, "--", *targets], self.load_core) as child:
            return msgspec.json.decode(child.output(effort.seconds + GRACE_SECONDS), type=Tally)

    def _list(self, page_ms: int) -> Row:
        """Each run has a mux that was never asked before."""
        measure = f"list 5 × 1,000 resources, pages of 100 at {page_ms} ms, cold, beside the slowest upstream"
        self._note(measure)
        direct, through = [], []
        with self._upstream(UPSTREAMS, f"--page-ms={page_ms}") as upstream:
            urls = upstream.lines(UPSTREAMS)
            for _ in range(self._effort.runs):
                direct.append(max(timed_walk(url, 1000) for url in urls))
                with self._mux(http_config(urls), self.mux_core) as mux:
                    (url,) = mux.lines(1)
                    first_answer(url, exposed_uri(UPSTREAMS - 1))
                    through.append(timed_walk(url, 1000 * UPSTREAMS))
        return time_row(measure, direct, through)

    def _warm_list(self) -> Row:
        """The first page of a merged list that is remembered, beside one upstream's page of as many items."""
        measure = "first 1,000 of 5 × 1,000 resources, remembered, beside one upstream's page of 1,000"
        self._note(measure)
        direct, through = [], []
        with self._upstream(UPSTREAMS, FRESH) as upstream, self._upstream(1, "--page=1000") as single:
            (own,) = single.lines(1)
            with self._mux(http_config(upstream.lines(UPSTREAMS)), self.mux_core) as mux:
                (url,) = mux.lines(1)
                first_answer(url, exposed_uri(UPSTREAMS - 1))
                timed_walk(url, 1000 * UPSTREAMS)
                for _ in range(self._effort.runs):
                    direct.append(timed_first_pages(own) / LISTS)
                    through.append(timed_first_pages(url) / LISTS)
        return time_row(measure, direct, through)

    def _slow_read(self) -> Row:
        measure = "read 1 KB, 64 connections, modern, 100 public URIs of a server that takes 20 ms"
        load = READ._replace(subjects=READ.subjects[:100])  # each is asked of it once
        return rate_row(measure, self._pairs(measure, load, self.mux_core, FRESH, SLOW_READ))

    def _stdio(self) -> Row:
        measure = "read 1 KB from a stdio upstream, 64 at a time, modern"
        self._note(measure)
        command = [sys.executable, "-m", "benchmarks.upstream", "--stdio", f"--core={self.load_core}"]
        with self._mux(stdio_config(command), self.mux_core) as mux:
            (url,) = mux.lines(1)
            pairs = []
            for _ in range(self._effort.runs):
                direct = self._load(READ, command, READ.subjects[:1], "--stdio")
                used = mux.cpu_seconds()
                through = self._load(READ, [url], exposed_subjects(READ, 1)[:1])
                pairs.append(Pair(direct, through, (mux.cpu_seconds() - used) / through.all_exchanges, 0))
        return rate_row(measure, pairs)

    def _watching(self) -> list[Row]:
        """mcpmux that keeps what passes, beside mcpmux that does not; both on the same core, in turns."""
        rows = []
        with self._upstream(UPSTREAMS) as upstream, TemporaryDirectory() as folder:
            plain = http_config(upstream.lines(UPSTREAMS))
            for what, settings in WATCHING.items():
                measure = f"read 1 KB, 64 connections, modern, {what} (direct: without)"
                self._note(measure)
                watched = settings.format(folder=folder) + plain
                with self._mux(plain, self.mux_core) as mux, self._mux(watched, self.mux_core) as watching:
                    pairs = self._side_by_side(mux, watching)
                rows.append(rate_row(measure, pairs))
        return rows

    def _side_by_side(self, mux: Child, other: Child) -> list[Pair]:
        subjects = exposed_subjects(READ, UPSTREAMS)
        (url,), (other_url,) = mux.lines(1), other.lines(1)
        pairs = []
        for _ in range(self._effort.runs):
            direct = self._load(READ, [url], subjects)
            used = other.cpu_seconds()
            through = self._load(READ, [other_url], subjects)
            pairs.append(Pair(direct, through, (other.cpu_seconds() - used) / through.all_exchanges, 0))
        return pairs

    def _start(self) -> Row:
        """The upstreams run already; direct is how long the upstream itself takes."""
        measure = f"start to first answer, {UPSTREAMS} upstreams, beside the upstream's own start"
        self._note(measure)
        direct, through = [], []
        with self._upstream(UPSTREAMS) as upstream:
            urls = upstream.lines(UPSTREAMS)
            for _ in range(self._effort.runs):
                with self._upstream(1) as child:
                    direct.append(first_answer(child.lines(1)[0], item_uri(0)) - child.started)
                with self._mux(http_config(urls), self.mux_core) as child:
                    through.append(first_answer(child.lines(1)[0], exposed_uri(0)) - child.started)
        return time_row(measure, direct, through)

    def _memory(self) -> Row:
        measure = (
            f"resident memory, idle, {IDLE_UPSTREAMS} upstreams (direct: the one process that serves them)"
        )
        self._note(measure)
        direct, through = [], []
        with self._upstream(IDLE_UPSTREAMS) as upstream:
            urls = upstream.lines(IDLE_UPSTREAMS)
            for _ in range(self._effort.runs):
                with self._mux(http_config(urls), self.mux_core) as mux:
                    (url,) = mux.lines(1)
                    for number in range(IDLE_UPSTREAMS):
                        first_answer(url, exposed_uri(number))
                    time.sleep(SETTLE_SECONDS)
                    direct.append(upstream.resident_bytes())
                    through.append(mux.resident_bytes())
        return memory_row(measure, direct, through)

    def _upstream(self, count: int, *more: str) -> Child:
        return Child(["benchmarks.upstream", *["--port=0"] * count, *more], self.load_core)

    def _mux(self, config: str, core: int) -> Child:
        return Child(["mcpmux", "serve", "-", "--http", "127.0.0.1:0", *QUIET], core, config)


def name_of(number: int) -> str:
    """The configured name of an upstream."""
    return f"s{number}"


def exposed_uri(number: int) -> str:
    """The first resource of an upstream, as clients of mcpmux see it."""
    return f"{name_of(number)}+{item_uri(0)}"


def exposed_subjects(load: Load, upstreams: int) -> list[str]:
    """What `load` asks for, from every upstream in turn, as clients of mcpmux see it."""
    joint = "__" if load.method == m.TOOLS_CALL else "+"
    count = max(len(load.subjects), upstreams)
    return [
        f"{name_of(turn % upstreams)}{joint}{load.subjects[turn % len(load.subjects)]}"
        for turn in range(count)
    ]


def http_config(urls: Sequence[str]) -> str:
    """A configuration with these servers."""
    return "".join(f'[upstreams.{name_of(number)}]\nurl = "{url}"\n' for number, url in enumerate(urls))


def stdio_config(command: Sequence[str]) -> str:
    """A configuration with one server that mcpmux starts. A TOML array of these strings is a JSON one."""
    words = [msgspec.json.encode(part).decode() for part in (*command, str(PROJECT))]
    first, *middle, project = words
    return f"[upstreams.{name_of(0)}]\ncommand = {first}\nargs = [{', '.join(middle)}]\ncwd = {project}\n"


def first_answer(url: str, uri: str) -> float:
    """When the answer to a read was in."""
    connection = Connection(url)
    question = Client(connection, MODERN).question(m.RESOURCES_READ, uri, TEXT_BYTES)
    question.check(FIRST_ID, connection.exchange(question.encode(FIRST_ID)).body)
    connection.close()
    return time.perf_counter()


def timed_first_pages(url: str) -> float:
    """Seconds that a client takes to ask LISTS times for the first page of the resources."""
    connection = Connection(url)
    client = Client(connection, MODERN)
    began = time.perf_counter()
    for _ in range(LISTS):
        client.first_resources()
    seconds = time.perf_counter() - began
    connection.close()
    return seconds


def timed_walk(url: str, expected: int) -> float:
    """Seconds that a client takes to list all resources. Raises WrongAnswer when some are missing."""
    connection = Connection(url)
    client = Client(connection, MODERN)
    began = time.perf_counter()
    found = client.walk_resources()
    seconds = time.perf_counter() - began
    connection.close()
    if found != expected:
        raise WrongAnswer(f"{found} resources are listed, not {expected}")
    return seconds
