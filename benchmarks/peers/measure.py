"""Measures a peer beside mcpmux: both on the same core, in front of the same upstreams, in turns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.asking import Client, check_text
from benchmarks.bench import UPSTREAMS, Bench
from benchmarks.load import Tally, run_bench
from benchmarks.naming import exposed_subjects, http_config, stdio_config, stdio_upstream
from benchmarks.peers.install import CannotRun, install
from benchmarks.peers.peer import READ_ITEMS, Peer, Running, Shape, Site, listening
from benchmarks.process import MeasurementFailed, free_port
from benchmarks.report import MICRO, NOT_MEASURED, Goal, Pair, Spread, at_least, markdown, shares, spread_of
from benchmarks.upstream import LEGACY

AGGREGATOR_GOAL = at_least(10, " ×")
BRIDGE_GOAL = at_least(5, " ×")
COMPILED_GOAL = at_least(1, " ×")
MUX_CONNECTIONS = 64  # with which mcpmux is measured everywhere else, if it is not better with the peer's


class Result(NamedTuple):
    """Result of one peer. `trouble`: why it could not run, and then there is nothing else.

    Rates are medians, CPU times medians in µs per exchange; `times` is mcpmux's rate divided by the peer's.
    """

    peer: Peer
    version: str = ""
    trouble: str = ""
    shape: str = ""
    peer_rate: float = 0.0
    mux_rate: float = 0.0
    peer_cpu: float = 0.0
    mux_cpu: float = 0.0
    times: Spread | None = None
    met: str = ""

    @property
    def goal(self) -> Goal:
        """Goal of the comparison."""
        if self.peer.compiled:
            return COMPILED_GOAL
        return BRIDGE_GOAL if self.peer.bridge else AGGREGATOR_GOAL


def compare(bench: Bench, peer: Peer) -> Result:
    """Install the peer, run it and measure it. Its errors become a part of the result."""
    bench.note(f"{peer.name}: installing")
    version = ""
    try:
        name = peer.environment.package.replace("/", "-").lstrip("@")
        installed = install(f"peer-{name}", peer.environment)
        version = installed.version(peer.environment.package)
        bench.note(f"{peer.name} {version}: starting")
        with TemporaryDirectory() as folder:
            site = Site(installed, Path(folder), free_port())
            return _measured(bench, peer, version, site)
    except (CannotRun, MeasurementFailed, OSError) as trouble:
        bench.note(f"{peer.name} {version}: {trouble}")
        return Result(peer, version, " ".join(str(trouble).split()) or type(trouble).__name__)


def summed_up(peer: Peer, version: str, shape: str, pairs: list[Pair]) -> Result:
    """Return the pairs as a result. In each, `direct` is the peer."""
    peer_rates, mux_rates = [pair.direct.rate for pair in pairs], [pair.through.rate for pair in pairs]
    times = shares(peer_rates, mux_rates)
    result = Result(peer, version)
    return result._replace(
        shape=shape,
        peer_rate=median(peer_rates),
        mux_rate=median(mux_rates),
        peer_cpu=median(pair.upstream_cpu for pair in pairs) * MICRO,
        mux_cpu=median(pair.mux_cpu for pair in pairs) * MICRO,
        times=spread_of(times),
        met=result.goal.judge(times),
    )


def _measured(bench: Bench, peer: Peer, version: str, site: Site) -> Result:
    with ExitStack() as stack:
        if peer.bridge:
            command = stdio_upstream(bench.load_core, f"--era={LEGACY}", f"--items={READ_ITEMS}")
            site = site._replace(command=command)
            config = stdio_config(command)
        else:
            upstream = stack.enter_context(
                bench.upstream(UPSTREAMS, f"--era={LEGACY}", f"--items={READ_ITEMS}", f"--page={READ_ITEMS}")
            )
            site = site._replace(urls=upstream.lines(UPSTREAMS))
            config = http_config(site.urls)
        process = stack.enter_context(_started(bench, peer, site))
        mux = stack.enter_context(bench.mux(config))
        (url,) = mux.lines(1)
        shape = max(peer.shapes, key=lambda each: _asked(bench, peer, site, process, each).rate)
        bench.note(f"{peer.name} {version}: {shape}")
        subjects = exposed_subjects(peer.load, 1 if peer.bridge else UPSTREAMS)
        with process.paused():
            loads = [
                peer.load._replace(connections=connections)
                for connections in {shape.connections, MUX_CONNECTIONS}
            ]
            load = max(loads, key=lambda each: bench.load(each, [url], subjects).rate)

        costs = []

        def direct() -> Tally:
            process.settle()  # else what the last load left behind is counted
            used = process.cpu_seconds()
            with mux.paused():
                tally = _asked(bench, peer, site, process, shape)
            costs.append((process.cpu_seconds() - used) / tally.exchanges)
            return tally

        def through() -> Tally:
            with process.paused():
                return bench.load(load, [url], subjects)

        pairs = bench.alternate(direct, through, mux)
        pairs = [pair._replace(upstream_cpu=cost) for pair, cost in zip(pairs, costs, strict=True)]
    return summed_up(peer, version, f"{shape}; mcpmux {load.connections}", pairs)


@contextmanager
def _started(bench: Bench, peer: Peer, site: Site) -> Iterator[Running]:
    """Start the peer's process, and wait until it has answered for every upstream. Raises CannotRun."""
    with Running(peer.start(site), bench.mux_core, site.folder) as process:
        process.wait_until(lambda: listening(site.port), peer.start_seconds)
        process.wait_until(lambda: peer.prepare(site), peer.start_seconds)
        process.wait_until(lambda: _answers(peer, site), peer.start_seconds)
        yield process


def _answers(peer: Peer, site: Site) -> None:
    """Raise an error unless it answers for every upstream."""
    url = peer.url(site)
    subjects = peer.subjects(UPSTREAMS)[: 1 if peer.bridge else UPSTREAMS]
    if peer.sse:
        run_bench(url, 1, 1, os.sched_getaffinity(0), "--do", "read")
        return
    client = Client(url, LEGACY).open()
    for subject in subjects:
        client.send(peer.load.method, subject)
        check_text(client.receive(), peer.load.size)
    client.close()


def _asked(bench: Bench, peer: Peer, site: Site, process: Running, shape: Shape) -> Tally:
    """Run the load once on the peer. Raises CannotRun."""
    process.settle()
    url, subjects = peer.url(site), peer.subjects(1 if peer.bridge else UPSTREAMS)
    load = peer.load._replace(connections=shape.connections)
    try:
        if peer.sse:  # which wrk does not speak
            options = (f"--sessions={load.connections}", "--do", "read")
            return run_bench(url, load.connections, bench.effort.seconds, {bench.load_core}, *options)
        return bench.load(load, [url], subjects, sessions=shape.sessions)
    except MeasurementFailed as error:
        raise CannotRun(f"it does not hold {shape}: {error}; its last words: {process.said()}") from None


# The comparison as a Markdown table.

_SIDES = ("peer", "load", "peer", "mcpmux", "mcpmux / peer")
HEAD = (*_SIDES, "CPU per exchange: peer", "mcpmux", "goal", "reached")
WORDS = (0, 1, 8)  # columns


def table(results: Sequence[Result]) -> str:
    """Return a line for each peer, and below, how each was run or why it could not run."""
    rows = markdown(HEAD, map(_line, results), WORDS)
    notes = "\n".join(f"* **{named(result)}**: {result.peer.settings}." for result in results)
    return f"{rows}\n\n{notes}"


def named(result: Result) -> str:
    """Return the peer and its version."""
    return f"{result.peer.name} {result.version}".strip()


def _line(result: Result) -> tuple[str, ...]:
    if result.times is None:
        reason = result.trouble.replace("|", "/")
        return (named(result), f"could not run: {reason}", *([""] * 5), result.goal.words, NOT_MEASURED)
    return (
        named(result),
        result.shape,
        f"{result.peer_rate:,.0f} /s",
        f"{result.mux_rate:,.0f} /s",
        f"{result.times.median:.1f} ({result.times.least:.1f}–{result.times.most:.1f})",
        f"{result.peer_cpu:,.0f} µs",
        f"{result.mux_cpu:,.0f} µs",
        result.goal.words,
        result.met,
    )
