"""Measurements as a Markdown table: their rows, the goals by which they are judged, and the file of a report.

Ratios are taken pair by pair, so that a slow minute of the machine hurts both sides. A report is written to
`benchmarks/results/DATE-MACHINE.md`, beside those of other days and machines.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.load import Tally
from benchmarks.process import PROJECT

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"
IN_PROPORTION = "not met, but in proportion"
"""A time or a rate by itself that this machine, being slower than the one of the goals, could not reach."""


class Spread(NamedTuple):
    """Median, least and most of one number in several runs."""

    median: float
    least: float
    most: float


class Goal(NamedTuple):
    """A bound of a median, in words that a person reads next to the value: `≥ 0.33`.

    `absolute`: it is a time or a rate and no ratio, so a slower machine reaches it later.
    """

    words: str
    least: float | None = None
    most: float | None = None
    absolute: bool = False

    def judge(self, values: Sequence[float]) -> str:
        """Return MET or NOT_MET, by the median of this run."""
        return NOT_MET if self.distance(values) > 1 else MET

    def distance(self, values: Sequence[float]) -> float:
        """Return the factor by which the median misses the bound; 1 or less if the goal is met."""
        value = median(values)
        short = 0.0 if self.least is None else self.least / value if value > 0 else math.inf
        over = value / self.most if self.most is not None else 0.0
        return max(short, over)


def at_least(bound: float, unit: str = "", *, absolute: bool = False) -> Goal:
    """Return a goal of which more is better."""
    return Goal(f"≥ {bound:,g}{unit}", least=bound, absolute=absolute)


def at_most(bound: float, unit: str = "", *, absolute: bool = False) -> Goal:
    """Return a goal of which less is better."""
    return Goal(f"≤ {bound:,g}{unit}", most=bound, absolute=absolute)


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the ends."""
    return Spread(median(values), min(values), max(values))


# Rows.

MICRO = 1e6
MEGA = 1e6
LIBRARIES = ("trio", "httptools", "msgspec")


class Pair(NamedTuple):
    """One direct run and the run through mcpmux right after it. CPU time is seconds per exchange."""

    direct: Tally
    through: Tally
    mux_cpu: float
    upstream_cpu: float


class Row(NamedTuple):
    """One line of the table, in words. `ratio` is what the picture shows: a share of the value beside it.

    `goal` and `met` are empty where there is no goal.
    """

    measure: str
    direct: str
    through: str
    compared: str = ""
    mux_cpu: str = ""
    goal: str = ""
    met: str = ""
    ratio: Spread | None = None
    bound: float | None = None  # the goal as a ratio, for the picture
    distance: float = 0.0  # how many times too much or too little it is, of an absolute goal

    def judged(self, goal: Goal, values: Sequence[float]) -> Row:
        """Return the row with its goal, and whether `values` met it."""
        distance = goal.distance(values) if goal.absolute else 0.0
        return self._replace(goal=goal.words, met=goal.judge(values), distance=distance)

    def paced(self, pace: float) -> Row:
        """Return the row on a machine that takes `pace` times as long as the one of the goals."""
        if self.met == NOT_MET and 0 < self.distance <= pace:
            return self._replace(met=IN_PROPORTION)
        return self


def failed_row(name: str, error: Exception) -> Row:
    """Return a line for a failed measurement."""
    reason = " ".join(f"{error}".split()).replace("|", "/")[:300] or type(error).__name__
    return Row(name, "", "", f"could not be measured: {reason}", met=NOT_MEASURED)


def rate_row(measure: str, pairs: Sequence[Pair], goal: Goal | None = None) -> Row:
    """Return the row of exchanges a second, and their ratio, which `goal` bounds."""
    direct, through = [pair.direct.rate for pair in pairs], [pair.through.rate for pair in pairs]
    row = ratio_row(measure, direct, through, "", goal)
    return row._replace(
        direct=f"{median(direct):,.0f} /s", through=f"{median(through):,.0f} /s", mux_cpu=cpu(pairs)
    )


def ratio_row(
    measure: str, direct: Sequence[float], through: Sequence[float], unit: str, goal: Goal | None
) -> Row:
    """Return the row of the ratio of two values, of which more is better. `goal` bounds it."""
    ratios = shares(direct, through)
    row = Row(measure, "", "", spread(ratios, unit, 2), ratio=spread_of(ratios))
    return row if goal is None else row._replace(bound=goal.least).judged(goal, ratios)


def latency_row(
    measure: str, pairs: Sequence[Pair], of: Callable[[Tally], float], goal: Goal | None = None
) -> Row:
    """Return the row of a percentile. `goal` bounds the time that mcpmux adds, in µs."""
    direct = [of(pair.direct) * MICRO for pair in pairs]
    through = [of(pair.through) * MICRO for pair in pairs]
    added = [t - d for d, t in zip(direct, through, strict=True)]
    row = Row(
        measure,
        f"{median(direct):.0f} µs",
        f"{median(through):.0f} µs",
        "added " + spread(added, " µs", 0),
        cpu(pairs),
    )
    return row if goal is None else row.judged(goal, added)


def time_row(measure: str, direct: Sequence[float], through: Sequence[float]) -> Row:
    """Return the row of durations in seconds; their ratio is through / direct, so more is slower."""
    factors = shares(direct, through)
    return Row(
        measure,
        f"{median(direct) * 1000:.1f} ms",
        f"{median(through) * 1000:.1f} ms",
        spread(factors, " × as long", 2),
    )


def memory_row(measure: str, upstream: Sequence[float], mux: Sequence[float], goal: Goal) -> Row:
    """Return the row of memory in bytes, of the upstreams' process and of mcpmux, which `goal` bounds."""
    own = [size / MEGA for size in mux]
    row = Row(measure, f"{median(upstream) / MEGA:.1f} MB", spread(own, " MB", 1))
    return row.judged(goal, mux)


def cpu(pairs: Sequence[Pair]) -> str:
    """Return the CPU time of mcpmux per exchange."""
    return spread([pair.mux_cpu * MICRO for pair in pairs], " µs", 0)


def shares(direct: Sequence[float], through: Sequence[float]) -> list[float]:
    """Return through / direct, pair by pair."""
    return [t / d for d, t in zip(direct, through, strict=True)]


def spread(values: Sequence[float], unit: str, digits: int) -> str:
    """Return `median (min–max)`."""
    return f"{median(values):.{digits}f}{unit} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], words: Container[int] = (0,)) -> str:
    """Return a Markdown table. `words`: the columns that hold words; all others hold numbers."""
    aligned = ["---" if place in words else "--:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, aligned, *rows))


HEAD = ("measure", "direct", "through mcpmux", "compared", "CPU of mcpmux per exchange", "goal", "reached")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    return markdown(HEAD, (row[:7] for row in rows), (0, 6))


def scorecard(rows: Sequence[Row]) -> str:
    """Count the goals that were reached and name the others, in one sentence."""
    judged = [row for row in rows if row.met]
    parts = [f"{sum(row.met == MET for row in judged)} of {len(judged)} goals were met in this run"]
    for verdict in (IN_PROPORTION, NOT_MET, NOT_MEASURED):
        missed = [row.measure for row in judged if row.met == verdict]
        if missed:
            parts.append(f"{verdict}: {'; '.join(missed)}")
    return f"{'; '.join(parts)}."


def bystanders(measure: str, pairs: Sequence[Pair]) -> str:
    """Describe the CPU time of the other processes, whose core bounds the rate through mcpmux."""
    load = [pair.direct.cpu * MICRO for pair in pairs]
    upstream = [pair.upstream_cpu * MICRO for pair in pairs]
    return (
        f"CPU per direct exchange ({measure}): load generator {spread(load, ' µs', 0)}; "
        f"upstream {spread(upstream, ' µs', 0)}."
    )


def describe_machine(cores: Sequence[int]) -> str:
    """Describe the machine and its software in one sentence."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{processor()}, {os.cpu_count()} cores (used: {len(set(cores))}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, {libraries}, mcpmux {version('mcpmux')}."
    )


# The file.

RESULTS = PROJECT / "benchmarks" / "results"
NAME = "benchmarks/results/DATE-MACHINE.md"  # as help texts show it
PART = "part"  # of a run that left something out: it does not replace a whole one, and git ignores it

_MARKS = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)
_NOISE = re.compile(r"\b(?:\d+-core|cpu|processor)\b", re.IGNORECASE)
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")


def processor(described: str | None = None) -> str:
    """Return the processor's model as the kernel describes it, or else its architecture.

    `described` is the text of `/proc/cpuinfo`, which is read when it is None.
    """
    text = Path("/proc/cpuinfo").read_text() if described is None else described
    match = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def machine_name(model: str) -> str:
    """Return a processor's model as part of a file name: `Intel(R) Xeon(R) CPU @ 2.60GHz` is `intel-xeon`."""
    words = _NOISE.sub(" ", _MARKS.sub(" ", model.partition("@")[0]))
    return _NOT_IN_A_NAME.sub("-", words.lower()).strip("-") or "unknown"


def result_path(*parts: str) -> Path:
    """Return the file of a report that this machine makes today. `parts` come behind its name."""
    return RESULTS / f"{'-'.join((date.today().isoformat(), machine_name(processor()), *parts))}.md"


def heading() -> str:
    """Return the first line of a report that this machine makes today."""
    return f"# Benchmarks of {date.today().isoformat()}, {processor()}"
