"""Row: many clients over HTTP onto the one pipe of a stdio upstream."""

from __future__ import annotations

import sys

from benchmarks.bench import Bench
from benchmarks.goal import at_least
from benchmarks.naming import READ, exposed_subjects, stdio_config
from benchmarks.report import Row, rate_row
from benchmarks.upstream import MODERN

LEAST = at_least(25_000, " /s", absolute=True)


def upstream_command(bench: Bench, era: str = MODERN) -> list[str]:
    """How the reference server is started on the core of the load."""
    return [
        sys.executable,
        "-m",
        "benchmarks.upstream",
        "--stdio",
        f"--era={era}",
        f"--core={bench.load_core}",
    ]


def stdio(bench: Bench) -> list[Row]:
    """The direct side has no HTTP at all: lines in bursts of 64. So the rate counts, not the ratio."""
    measure = "read 1 KB from a stdio upstream, 64 at a time, modern"
    bench.note(measure)
    command = upstream_command(bench)
    with bench.mux(stdio_config(command)) as mux:
        (url,) = mux.lines(1)
        pairs = bench.alternate(
            lambda: bench.load(READ, command, READ.subjects[:1], "--stdio"),
            lambda: bench.load(READ, [url], exposed_subjects(READ, 1)[:1]),
            mux,
        )
    return [rate_row(measure, pairs).judged(LEAST, [pair.through.rate for pair in pairs])]
