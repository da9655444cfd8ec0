"""What was measured, as a Markdown table.

Ratios are taken pair by pair, so that a slow minute of the machine hurts both sides.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.load import Tally

MICRO = 1e6
MEBI = 2**20
LIBRARIES = ("trio", "httptools", "msgspec")


class Pair(NamedTuple):
    """One direct run and the run through mcpmux right after it. CPU time is seconds per exchange."""

    direct: Tally
    through: Tally
    mux_cpu: float
    upstream_cpu: float


class Row(NamedTuple):
    """One line of the table, in words."""

    measure: str
    direct: str
    through: str
    compared: str
    mux_cpu: str = ""


def rate_row(measure: str, pairs: Sequence[Pair]) -> Row:
    """Exchanges a second, and their ratio."""
    direct, through = [pair.direct.rate for pair in pairs], [pair.through.rate for pair in pairs]
    return Row(
        measure,
        f"{median(direct):,.0f} /s",
        f"{median(through):,.0f} /s",
        ratio(direct, through),
        cpu(pairs),
    )


def latency_row(measure: str, pairs: Sequence[Pair], of: Callable[[Tally], float]) -> Row:
    """A percentile, and what mcpmux adds to it."""
    direct = [of(pair.direct) * MICRO for pair in pairs]
    through = [of(pair.through) * MICRO for pair in pairs]
    added = [t - d for d, t in zip(direct, through, strict=True)]
    return Row(
        measure,
        f"{median(direct):.0f} µs",
        f"{median(through):.0f} µs",
        "added " + spread(added, " µs", 0),
        cpu(pairs),
    )


def time_row(measure: str, direct: Sequence[float], through: Sequence[float]) -> Row:
    """Durations in seconds; their ratio is through / direct, so more is slower."""
    factors = [t / d for d, t in zip(direct, through, strict=True)]
    return Row(
        measure,
        f"{median(direct) * 1000:.1f} ms",
        f"{median(through) * 1000:.1f} ms",
        spread(factors, " × as long", 2),
    )


def memory_row(measure: str, upstream: Sequence[int], mux: Sequence[int]) -> Row:
    """Resident memory of the upstreams' process and of mcpmux."""
    return Row(
        measure, f"{median(upstream) / MEBI:.1f} MiB", spread([size / MEBI for size in mux], " MiB", 1), ""
    )


def cpu(pairs: Sequence[Pair]) -> str:
    """CPU time of mcpmux per exchange."""
    return spread([pair.mux_cpu * MICRO for pair in pairs], " µs", 0)


def ratio(direct: Sequence[float], through: Sequence[float]) -> str:
    """through / direct, pair by pair."""
    return spread([t / d for d, t in zip(direct, through, strict=True)], "", 2)


def spread(values: Sequence[float], unit: str, digits: int) -> str:
    """`median (min–max)`."""
    return f"{median(values):.{digits}f}{unit} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    head = Row("measure", "direct", "through mcpmux", "compared", "CPU of mcpmux per exchange")
    lines = [head, Row("---", "--:", "--:", "--:", "--:"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bystanders(measure: str, pairs: Sequence[Pair]) -> str:
    """What the other processes used: they share a core, which bounds what can be seen through mcpmux."""
    load = [pair.direct.cpu_seconds / pair.direct.all_exchanges * MICRO for pair in pairs]
    upstream = [pair.upstream_cpu * MICRO for pair in pairs]
    return (
        f"CPU per direct exchange ({measure}): load generator {spread(load, ' µs', 0)}, "
        f"upstream {spread(upstream, ' µs', 0)}."
    )


def describe_machine(cores: Sequence[int]) -> str:
    """The machine and what ran on it, in one sentence."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{_processor()}, {os.cpu_count()} cores (used: {len(set(cores))}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, {libraries}, mcpmux {version('mcpmux')}."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
