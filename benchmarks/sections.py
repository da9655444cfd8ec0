"""Measurements besides the rows of `scenario`: sections of the report, each with a table.

A new section is a function of a `Bench` that gives a `Section`, and a line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks import generator, instructions
from benchmarks.bench import Bench
from benchmarks.peers import context_forge, envoy, fast_mcp, node
from benchmarks.peers.measure import Result, compare, named
from benchmarks.peers.measure import table as peers_table
from benchmarks.picture import Mark, Panel
from benchmarks.process import MeasurementFailed

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
    results = [compare(bench, PEERS[name]) for name in bench.peers or PEERS]
    return Section("Beside other proxies", peers_table(results), peer_panels(results))


def peer_panels(results: list[Result]) -> tuple[Panel, ...]:
    """Show the rate of mcpmux, divided by that of each peer."""
    marks = [
        Mark(f"{named(result)}, {result.shape}", result.times, result.goal.least, result.met)
        for result in results
        if result.times is not None
    ]
    return (Panel("Rate of mcpmux, divided by the peer's", marks, log=True),)


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
