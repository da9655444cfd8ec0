"""Rows: the one pipe of a stdio upstream, without HTTP before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench import GRACE_SECONDS, Bench
from benchmarks.load import Tally
from benchmarks.naming import READ, exposed_uri, stdio_config
from benchmarks.pipes import LEAST, upstream_command
from benchmarks.process import Child
from benchmarks.report import Pair, Row, rate_row


def channel(bench: Bench) -> list[Row]:
    """mcpmux's side of the pipe alone, on its core; the server is on the other."""
    measure = "the channel to a stdio upstream alone, 64 reads of 1 KB in flight, modern"
    command = ["benchmarks.stdio_channel", f"--server-core={bench.load_core}"]
    return [_row(bench, measure, lambda: _run(bench, command, bench.mux_core))]


def client(bench: Bench) -> list[Row]:
    """What a host application has that starts mcpmux: a pipe on either side of it."""
    measure = "read 1 KB from a stdio upstream for a stdio client, 64 in flight, modern"
    with TemporaryDirectory() as folder:
        config = Path(folder) / "mcpmux.toml"
        config.write_text(stdio_config(upstream_command(bench)))
        command = ["benchmarks.stdio_client", str(config), exposed_uri(0), f"--mux-core={bench.mux_core}"]
        return [_row(bench, measure, lambda: _run(bench, command, bench.load_core))]


def _row(bench: Bench, measure: str, through: Callable[[], Tally]) -> Row:
    """The direct side is the pipe without mcpmux, lines in bursts: the rate counts, not the ratio."""
    bench.note(measure)
    command = upstream_command(bench)
    pairs = []
    for number in range(bench.effort.runs):
        second = through() if number % 2 else None
        first = bench.load(READ, command, READ.subjects[:1], "--stdio")
        second = second or through()
        pairs.append(Pair(first, second, second.cpu_seconds / second.all_exchanges, 0))
    return rate_row(measure, pairs).judged(LEAST, [pair.through.rate for pair in pairs])


def _run(bench: Bench, command: list[str], core: int) -> Tally:
    effort = bench.effort
    with Child([*command, f"--seconds={effort.seconds}", f"--warm-up={effort.warm_up}"], core) as child:
        return msgspec.json.decode(child.output(effort.seconds + GRACE_SECONDS), type=Tally)
