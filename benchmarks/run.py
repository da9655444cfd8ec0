"""`python -m benchmarks.run`: every measurement, printed and written as Markdown, and a picture of it.

A new row is a function of a `Bench` that gives rows, in a module of its subject, and a line in SCENARIOS. A
new table is a function that gives a `Section`, and a line in SECTIONS.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks import (
    fanout,
    features,
    footprint,
    generator,
    instructions,
    lists,
    pipes,
    proxies,
    rates,
    several,
)
from benchmarks.bench import LONG_RUNS, Bench, Effort
from benchmarks.compiled import is_compiled, measure_compiled
from benchmarks.peers import context_forge, envoy, fast_mcp, node
from benchmarks.peers.measure import Result, compare, named
from benchmarks.peers.measure import table as peers_table
from benchmarks.picture import Mark, Panel, picture, ratio_marks
from benchmarks.process import MeasurementFailed, on_core
from benchmarks.report import (
    NAME,
    NOT_MEASURED,
    PART,
    Row,
    describe_machine,
    failed_row,
    heading,
    result_path,
    scorecard,
    table,
)
from benchmarks.yardstick import pace_of


class Scenario(NamedTuple):
    """Measures some rows. `quick`: `--quick` has them too."""

    measure: Callable[[Bench], list[Row]]
    quick: bool


SCENARIOS = {
    "lean-read": Scenario(proxies.read, quick=True),
    "lean-call": Scenario(proxies.call, quick=False),
    "lean-latency": Scenario(proxies.latency, quick=False),
    "sdk-read": Scenario(proxies.read_of_sdk, quick=False),
    "read": Scenario(rates.read_modern, quick=True),
    "read-legacy": Scenario(rates.read_legacy, quick=True),
    "call": Scenario(rates.call, quick=False),
    "call-legacy": Scenario(rates.call_legacy, quick=False),
    "call-streamed": Scenario(rates.call_streamed, quick=False),
    "large": Scenario(rates.read_large, quick=True),
    "latency": Scenario(rates.own_core, quick=True),
    "latency-one-core": Scenario(rates.one_core, quick=False),
    "list": Scenario(lists.cold, quick=True),
    "list-slow": Scenario(lists.cold_slow, quick=True),
    "list-warm": Scenario(lists.warm, quick=True),
    "list-many": Scenario(lists.many, quick=False),
    "list-many-counted": Scenario(lists.many_counted, quick=False),
    "cache": Scenario(rates.read_slow, quick=True),
    "stdio": Scenario(pipes.stdio, quick=True),
    "stdio-client": Scenario(pipes.client, quick=False),
    "capture": Scenario(features.capture, quick=False),
    "capture-metadata": Scenario(features.metadata, quick=False),
    "audit": Scenario(features.audit, quick=False),
    "admin": Scenario(features.admin, quick=False),
    "watched": Scenario(features.together, quick=False),
    "capture-both": Scenario(partial(features.capture, both_cores=True), quick=False),
    "audit-both": Scenario(partial(features.audit, both_cores=True), quick=False),
    "admin-both": Scenario(partial(features.admin, both_cores=True), quick=False),
    "watched-both": Scenario(partial(features.together, both_cores=True), quick=False),
    "tls-clients": Scenario(features.tls_to_clients, quick=False),
    "tls-servers": Scenario(features.tls_to_servers, quick=False),
    "token": Scenario(features.token, quick=False),
    "jwt": Scenario(features.jwt_token, quick=False),
    "start": Scenario(footprint.start, quick=True),
    "memory": Scenario(footprint.memory, quick=True),
    "large-memory": Scenario(footprint.large, quick=False),
    "fanout": Scenario(fanout.rows, quick=False),
    "workers": Scenario(several.two_workers, quick=False),
    "cluster": Scenario(several.beside_one_alone, quick=False),
    "replicas": Scenario(several.two_replicas, quick=False),
}


def measure(bench: Bench, names: Iterable[str]) -> list[Row]:
    """Return the rows of these scenarios, in the order of the table. A failed one has a row with a reason."""
    selection = set(names)
    rows: list[Row] = []
    with on_core(bench.load_core):  # this process asks too
        for name in SCENARIOS:
            if name not in selection:
                continue
            try:
                rows += SCENARIOS[name].measure(bench)
            except (MeasurementFailed, OSError) as error:
                bench.note(f"{name}: {error}")
                rows.append(failed_row(name, error))
    return rows


# Sections.

_AGGREGATORS = (node.MCP_HUB, node.ONE_MCP, fast_mcp.PEER, context_forge.PEER, envoy.PEER)
_BRIDGES = (node.SUPERGATEWAY, node.MCP_PROXY)
PEERS = {peer.name: peer for peer in (*_AGGREGATORS, *_BRIDGES)}


class Section(NamedTuple):
    """A part of the report, and what the picture shows of it."""

    title: str
    text: str
    panels: tuple[Panel, ...] = ()


def peers(bench: Bench) -> Section:
    """Measure every other proxy, or those that were chosen."""
    results: list[Result] = [compare(bench, PEERS[name]) for name in bench.peers or PEERS]
    marks = [
        Mark(f"{named(result)}, {result.shape}", result.times, result.goal.least, result.met)
        for result in results
        if result.times is not None
    ]
    panel = Panel("Rate of mcpmux, divided by the peer's", marks, log=True)
    return Section("Beside other proxies", peers_table(results), (panel,))


def _section(title: str, measure: Callable[[Bench], str], bench: Bench) -> Section:
    bench.note(title)
    try:
        return Section(title, measure(bench))
    except MeasurementFailed as error:
        return Section(title, f"Not measured: {error}")


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "peers": peers,
    "instructions": partial(_section, "Instructions and system calls", instructions.counted),
    "generator": partial(_section, "The load generator beside wrk", generator.compared),
    "generator-memory": partial(_section, "Memory of the load generator", generator.memory),
}
ASKED_FOR = frozenset({"generator-memory"})  # takes ten minutes: only with `--only`


# A run.

FULL = Effort(runs=7, seconds=4)
QUICK = Effort(runs=2, seconds=1)
HURRY_SECONDS = 50  # from the start of a quick run, which is to end within two minutes on a slow machine too
NAMES = [*SCENARIOS, *SECTIONS]
MACHINE = (
    "This machine takes {pace:.1f} times as long as the one of the goals: that is what a thin loop of trio "
    "over httptools says (`yardstick.py`). A goal that is a time or a rate by itself is reached in "
    "proportion when the value is no further off than that."
)


def chosen(*, quick: bool, only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return the names of the measurements in order. `only` wins over `quick`."""
    everything = [name for name in NAMES if name not in ASKED_FOR]
    usual = [name for name, scenario in SCENARIOS.items() if scenario.quick] if quick else everything
    return [name for name in NAMES if name in (only or usual) and name not in without]


def default_output(*, quick: bool, only: Sequence[str], without: Sequence[str]) -> Path:
    """Return the default path of the report."""
    return result_path(PART) if quick or only or without else result_path()


def written(
    bench: Bench,
    effort: Effort,
    rows: Sequence[Row],
    sections: Sequence[Section],
    picture_name: str,
    took: float,
) -> str:
    """Return the report as Markdown."""
    counts = f"{effort.runs} alternating pairs of runs of {effort.seconds:g} s; median (min–max). "
    counts += f"Of captures and the like: {min(effort.runs, LONG_RUNS)} of {effort.long_seconds:g} s."
    parts = [heading()]
    if rows:
        parts += [table(rows), scorecard(rows)]
    parts.append(f"![Ratios with their spread and goals]({picture_name})")
    for section in sections:
        parts += [f"## {section.title}", section.text]
    parts += ["## How it was measured", f"{counts} It took {took:.0f} s.", "\n".join(bench.remarks)]
    parts.append(describe_machine((bench.mux_core, bench.load_core)))
    return "\n\n".join(part for part in parts if part)


@click.command()
@click.option(
    "--quick", is_flag=True, help="Less than two minutes: to see that it works, not to quote. No peers."
)
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure this. May be repeated.")
@click.option("--without", multiple=True, type=click.Choice(NAMES), help="Leave this out. May be repeated.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Only this peer.")
@click.option("--compiled", is_flag=True, help="Compile mcpmux first, and measure that. Needs a C compiler.")
@click.option("--runs", type=click.IntRange(1, 100), help="Pairs of a direct run and one through mcpmux.")
@click.option("--seconds", type=click.IntRange(1, 60), help="How long each run measures.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default=NAME,
    help="Where the report is written; the picture gets the same name with .svg.",
)
def main(
    quick: bool,
    only: tuple[str, ...],
    without: tuple[str, ...],
    peers: tuple[str, ...],
    compiled: bool,
    runs: int | None,
    seconds: int | None,
    output: Path | None,
) -> None:
    """Measure mcpmux beside the upstreams it stands in front of, and beside other proxies."""
    if compiled:
        measure_compiled()
    began = time.monotonic()
    output = output or default_output(quick=quick, only=only, without=without or peers)
    effort = QUICK if quick else FULL
    effort = effort._replace(
        runs=runs or effort.runs,
        seconds=seconds or effort.seconds,
        long_seconds=seconds or effort.long_seconds,
    )
    bench = Bench(effort, partial(click.echo, err=True), HURRY_SECONDS if quick else math.inf, peers)
    names = chosen(quick=quick, only=only, without=without)
    rows = measure(bench, names)
    if rows:
        pace = pace_of(bench)
        rows = [row.paced(pace) for row in rows]
        bench.remarks.append(MACHINE.format(pace=pace))
    sections = [SECTIONS[name](bench) for name in names if name in SECTIONS]
    panels = [Panel("Rate through mcpmux, as a share of the rate without it", ratio_marks(rows))]
    panels += [panel for section in sections for panel in section.panels]
    image = output.with_suffix(".svg")
    bench.remarks.append(f"mcpmux was {'compiled' if is_compiled() else 'interpreted'}.")
    if bench.hurried:
        bench.remarks.append(f"Rows that began after {HURRY_SECONDS} s have one pair of runs only.")
    report = written(bench, effort, rows, sections, image.name, time.monotonic() - began)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(report + "\n")
    image.write_text(picture(panels))
    click.echo(report)
    sys.exit(1 if any(row.met == NOT_MEASURED for row in rows) else 0)


if __name__ == "__main__":
    main()
