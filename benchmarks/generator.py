"""`python -m benchmarks.generator`: `mcpmux bench` beside `wrk`, printed as Markdown.

Two arrangements. Agreement: the server takes READ_MS for every answer, so it decides how much is asked, and
both tools have to see the same. Most load: the server answers as fast as C can, so the tool on its one core
decides. Tool and server have a core each; the tools take turns, and which one begins changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from benchmarks.asking import Client
from benchmarks.load import Tally, run_bench, run_wrk
from benchmarks.process import PROJECT, Child, MeasurementFailed
from benchmarks.report import describe_machine, spread
from benchmarks.upstream import TEXT_BYTES, item_uri
from mcpmux.protocol import method as m

CONNECTIONS = 64
AGREED_CONNECTIONS = 32
READ_MS = 20
MEMORY_RATE = 500  # a second
MEMORY_MINUTES = (1, 2, 5, 10)
URI = item_uri(0)


class Pair(NamedTuple):
    """Results of the two tools, one right after the other."""

    wrk: Tally
    bench: Tally


class Row(NamedTuple):
    """One line of the table, in words."""

    measure: str
    wrk: str
    bench: str
    compared: str


def agreement_rows(pairs: Sequence[Pair]) -> list[Row]:
    """Compare rate and latency where the server decides both."""
    load = f"{AGREED_CONNECTIONS} connections, {READ_MS} ms for an answer"
    return [
        _row(f"throughput, {load}", pairs, lambda seen: seen.rate, "{:,.0f} /s"),
        _row(f"median latency, {load}", pairs, lambda seen: seen.p50 * 1000, "{:.2f} ms"),
    ]


def most_rows(pairs: Sequence[Pair], server: str) -> list[Row]:
    """Compare the load that one core generates."""
    load = f"{CONNECTIONS} connections, {server}"
    return [
        _row(f"most load of one core, {load}", pairs, lambda seen: seen.rate, "{:,.0f} /s"),
        _row(f"the same in a second of the tool's CPU time, {load}", pairs, lambda s: 1 / s.cpu, "{:,.0f}"),
    ]


def _row(measure: str, pairs: Sequence[Pair], of: Callable[[Tally], float], form: str) -> Row:
    wrk, bench = [of(pair.wrk) for pair in pairs], [of(pair.bench) for pair in pairs]
    ratios = [b / w for w, b in zip(wrk, bench, strict=True)]
    return Row(measure, form.format(median(wrk)), form.format(median(bench)), spread(ratios, "", 2))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [Row("measure", "wrk", "mcpmux bench", "bench / wrk"), Row("---", "--:", "--:", "--:"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure_pairs(url: str, connections: int, seconds: float, runs: int) -> list[Pair]:
    """Run both tools in turns. Raises MeasurementFailed."""
    core = {cores()[0]}
    with closing(Client(url)) as client:
        requests = [client.frame(m.RESOURCES_READ, URI)]
    pairs = []
    for number in range(runs):
        tools = {
            "wrk": lambda: run_wrk([url], requests, TEXT_BYTES, connections, seconds, core),
            "bench": lambda: run_bench(
                url, connections, seconds, core, "--sessions=1", "--do", f"read {URI}"
            ),
        }
        names = sorted(tools, reverse=number % 2 == 0)
        pairs.append(Pair(**{name: tools[name]() for name in names}))
    return pairs


def cores() -> tuple[int, int]:
    """Return the core of the tools and that of the server, which may be the same."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@contextmanager
def serve_slowly(core: int) -> Iterator[str]:
    """Run the reference server, which takes READ_MS for a read, and yield its URL."""
    with Child(["benchmarks.upstream", "--port=0", f"--read-ms={READ_MS}"], core) as child:
        yield child.lines(1)[0]


@contextmanager
def serve_fast(core: int) -> Iterator[tuple[str, str]]:
    """Run the fastest server that can be had here, and yield (its URL, what it is)."""
    compiler = shutil.which("cc")
    if compiler is None:
        with Child(["benchmarks.upstream", "--port=0"], core) as child:
            yield child.lines(1)[0], "reference server in Python, for there is no C compiler"
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "responder")
        source = PROJECT / "benchmarks" / "responder.c"
        subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
        with subprocess.Popen([str(program)], stdout=subprocess.PIPE) as process:
            try:
                os.sched_setaffinity(process.pid, {core})
                assert process.stdout is not None
                yield process.stdout.readline().decode().strip(), "server in C"
            finally:
                process.kill()


def memory_table(minutes: Sequence[int]) -> str:
    """Return the resident memory of `mcpmux bench` as a run gets older."""
    load = ["--do", "8 read", "--do", "1 list tools", "--do", "1 tool report", "--check", "hash"]
    seconds = minutes[-1] * 60 + 10
    model = ["--rate", str(MEMORY_RATE), "--duration", f"{seconds}s", "--count", "1000000000"]
    with Child(["benchmarks.upstream", "--port=0"], cores()[1]) as server:
        url = server.lines(1)[0]
        with Child(["mcpmux", "bench", url, *model, *load], cores()[0]) as bench:
            sizes = []
            for minute in minutes:
                time.sleep(max(bench.started + minute * 60 - time.perf_counter(), 0))
                sizes.append(f"{bench.resident_bytes() / 2**20:.1f} MiB")
    heads = " | ".join(f"{minute} min" for minute in minutes)
    return (
        f"| resident memory, {MEMORY_RATE} a second | {heads} |\n"
        f"| --- |{' --: |' * len(minutes)}\n| `mcpmux bench` | {' | '.join(sizes)} |"
    )


@click.command()
@click.option("--runs", type=click.IntRange(1, 100), default=7, show_default=True, help="Pairs of runs.")
@click.option("--seconds", type=click.FloatRange(1, 60), default=4, show_default=True, help="Of each run.")
@click.option("--memory", is_flag=True, help="Ten minutes more: whether the generator's memory stays flat.")
def main(runs: int, seconds: float, memory: bool) -> None:
    """Measure the load generator beside wrk."""
    try:
        click.echo(measured(runs, seconds, memory=memory))
    except MeasurementFailed as error:
        raise click.ClickException(str(error)) from None


def measured(runs: int, seconds: float, *, memory: bool) -> str:
    """Measure, and return the whole report. Raises MeasurementFailed."""
    tool_core, server_core = cores()
    click.echo("agreement …", err=True)
    with serve_slowly(server_core) as url:
        pairs = measure_pairs(url, AGREED_CONNECTIONS, seconds, runs)
        rows = agreement_rows(pairs)
    click.echo("most load …", err=True)
    with serve_fast(server_core) as (url, server):
        rows += most_rows(measure_pairs(url, CONNECTIONS, seconds, runs), server)
    counts = f"{runs} alternating pairs of runs of {seconds:g} s; median (min–max) of each pair's ratio."
    parts = [table(rows), counts, describe_machine((tool_core, server_core))]
    if memory:
        click.echo("memory …", err=True)
        parts.append(memory_table(MEMORY_MINUTES))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
