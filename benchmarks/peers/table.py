"""The comparison as a Markdown table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.goal import NOT_MEASURED, Spread
from benchmarks.peers.measure import Result

HEAD = (
    "peer",
    "load",
    "peer",
    "mcpmux",
    "mcpmux / peer",
    "CPU per exchange: peer",
    "mcpmux",
    "goal",
    "reached",
)
ALIGNED = ("---", "---", "--:", "--:", "--:", "--:", "--:", "--:", "---")


def table(results: Sequence[Result]) -> str:
    """Return a line for each peer, and below, how each was run or why it could not run."""
    lines = [HEAD, ALIGNED, *map(_line, results)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"* **{named(result)}**: {result.peer.settings}." for result in results)
    return f"{rows}\n\n{notes}"


def named(result: Result) -> str:
    """Return the peer and its version."""
    return f"{result.peer.name} {result.version}".strip()


def factor(times: Spread) -> str:
    """Return `median (min–max)`, with as many digits as mean something."""
    return f"{times.median:.1f} ({times.least:.1f}–{times.most:.1f})"


def _line(result: Result) -> tuple[str, ...]:
    if result.times is None:
        reason = result.trouble.replace("|", "/")
        return (named(result), f"could not run: {reason}", *([""] * 5), result.goal.words, NOT_MEASURED)
    return (
        named(result),
        result.shape,
        f"{result.peer_rate:,.0f} /s",
        f"{result.mux_rate:,.0f} /s",
        factor(result.times),
        f"{result.peer_cpu:,.0f} µs",
        f"{result.mux_cpu:,.0f} µs",
        result.goal.words,
        result.met,
    )
