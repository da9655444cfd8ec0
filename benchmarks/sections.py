"""Measurements besides the rows of `scenario`: sections of the report, each with a table.

A new section is a function of a `Bench` that gives a `Section`, and a line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks import generator, instructions
from benchmarks.bench import Bench
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.measure import Result, compare
from benchmarks.peers.table import named
from benchmarks.peers.table import table as peers_table
from benchmarks.picture import Mark, Panel
from benchmarks.process import MeasurementFailed

TOOL_RUNS, TOOL_SECONDS = 7, 4  # of the load generator beside wrk


class Section(NamedTuple):
    """A part of the report, and what the picture shows of it."""

    title: str
    text: str
    panels: tuple[Panel, ...] = ()


def peers(bench: Bench) -> Section:
    """Measure every other proxy."""
    results = [compare(bench, peer) for peer in PEERS.values()]
    return Section("Beside other proxies", peers_table(results), peer_panels(results))


def peer_panels(results: list[Result]) -> tuple[Panel, ...]:
    """Show the rate of mcpmux, divided by that of each peer."""
    marks = [
        Mark(f"{named(result)}, {result.shape}", result.times, result.goal.least, result.met)
        for result in results
        if result.times is not None
    ]
    return (Panel("Rate of mcpmux, divided by the peer's", marks, log=True),)


def counts(bench: Bench) -> Section:
    """Count instructions and system calls of one exchange, which do not drift with the machine."""
    title = "Instructions and system calls"
    costs = []
    try:
        for scenario in instructions.SCENARIOS:
            bench.note(f"counting: {scenario.name}")
            costs.append(instructions.cost_of(scenario))
    except MeasurementFailed as error:
        return Section(title, f"Not counted: {error}")
    return Section(title, instructions.table(costs))


def load_generator(bench: Bench) -> Section:
    """Measure `mcpmux bench` beside an independent tool."""
    title = "The load generator beside wrk"
    bench.note(title)
    try:
        return Section(title, generator.measured(TOOL_RUNS, TOOL_SECONDS, memory=False))
    except MeasurementFailed as error:
        return Section(title, f"Not measured: {error}")


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "peers": peers,
    "instructions": counts,
    "generator": load_generator,
}
