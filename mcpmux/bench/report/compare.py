"""Tells changes between two benchmarks from noise. Pure: the random source is handed in.

Several runs of each (RUNS or more) are compared run by run: then what differs between two runs of the same
thing is seen as noise. When they were taken in turns (old, new, old, new) they are compared pair by pair,
so that a slow drift of the machine does no harm. With fewer runs the seconds within the runs are compared,
in blocks: this cannot see what differs from run to run, and the comparison says so. What is compared then
is the mean of the seconds, so that a "p99" there is that of a typical second, not of the whole run.

A change counts when its whole interval (95 %) lies beyond MARGIN; everything else is "no difference shown",
which does not mean that there is none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from random import Random
from typing import Literal, NamedTuple

import msgspec

from mcpmux.bench.results import OperationResult, Report, Results, Series, by_name
from mcpmux.format import rate_text, share_text, time_text

# Intervals and effect sizes of differences, by resampling.
#
# A sample is a list of blocks, a block a list of (weight, value): what is estimated is the weighted mean of
# all values. Whole blocks are drawn, because neighbours in time are alike and single seconds would look
# like more evidence than they are.

Block = Sequence[tuple[float, float]]
Sample = Sequence[Block]

ROUNDS = 2000  # resamples; the ends of a 95 % interval then move by a fraction of its width
CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """An estimate and the range in which it lies with CONFIDENCE."""

    estimate: float
    low: float
    high: float


def weighted_mean(blocks: Sample) -> float:
    """Of all values; 0 when nothing has weight."""
    return _mean([_sum(block) for block in blocks])


def relative_change(old: Sample, new: Sample, random: Random) -> Interval | None:
    """By what share the mean of the new sample differs from that of the old one; None when that is 0."""
    if weighted_mean(old) <= 0:
        return None
    return _resampled([old, new], random, lambda before, after: after / before - 1 if before > 0 else None)


def difference(old: Sample, new: Sample, random: Random) -> Interval:
    """By how much the mean of the new sample differs from that of the old one."""
    return _resampled([old, new], random, lambda before, after: after - before)


def paired_change(old: Sequence[float], new: Sequence[float], random: Random) -> Interval | None:
    """The mean of the relative changes pair by pair; None when an old value is 0."""
    if any(value <= 0 for value in old):
        return None
    changes = [[(1.0, after / before - 1)] for before, after in zip(old, new, strict=True)]
    return _resampled([changes], random, lambda change: change)


def _resampled(samples: Sequence[Sample], random: Random, relate: Callable[..., float | None]) -> Interval:
    """Of what `relate` makes of means: the middle CONFIDENCE of the draws, wider where blocks are few."""
    sums = [[_sum(block) for block in sample] for sample in samples]
    draws = (relate(*(_mean(random.choices(each, k=len(each))) for each in sums)) for _ in range(ROUNDS))
    drawn = sorted(each for each in draws if each is not None)
    estimate = relate(*map(_mean, sums)) or 0.0
    if not drawn:
        return Interval(estimate, -math.inf, math.inf)
    tail = (1 - CONFIDENCE) / 2
    low, high = drawn[int(len(drawn) * tail)], drawn[min(int(len(drawn) * (1 - tail)), len(drawn) - 1)]
    blocks = min(map(len, samples))
    wider = math.sqrt(blocks / (blocks - 1)) * (1 + 2 / blocks) if blocks > 1 else math.inf
    return Interval(estimate, estimate - (estimate - low) * wider, estimate + (high - estimate) * wider)


def cliffs_delta(old: Sequence[float], new: Sequence[float]) -> float:
    """How often a new value is above an old one, less how often it is below: -1 to 1, 0 when alike."""
    ordered = sorted(old)
    if not ordered or not new:
        return 0.0
    above = sum(bisect_left(ordered, value) for value in new)
    below = sum(len(ordered) - bisect_right(ordered, value) for value in new)
    return (above - below) / (len(ordered) * len(new))


def _sum(block: Block) -> tuple[float, float]:
    return sum(weight for weight, _ in block), sum(weight * value for weight, value in block)


def _mean(sums: Sequence[tuple[float, float]]) -> float:
    weight = sum(weight for weight, _ in sums)
    return math.fsum(product for _, product in sums) / weight if weight else 0.0


Runs = Sequence[Results]
Sides = tuple[str, str]
Verdict = Literal["better", "worse", "no difference shown"]

OLD_NEW = ("old", "new")

RUNS = 5  # of each; fewer say too little of how runs differ
BLOCKS = 5  # of each; fewer say too little of how seconds differ
MOST_BLOCKS = 30  # of one series; more would be shorter than what goes on in a server takes
MARGIN = 0.02  # of the old value; smaller changes are no news even when they are sure
ERROR_MARGIN = 0.0005  # of all requests


class Change(msgspec.Struct, frozen=True):
    """Of one measure. `old`, `new`: means over what was compared (runs, or seconds within runs), in its own
    unit (seconds, per second, a share).

    `interval`: of the change, as a share of the old value, or of all requests for `errors`; None when
    too little is known. `effect`: Cliff's delta, -1 to 1: how often the new values are above the old ones.
    """

    part: str | None
    measure: str
    old: float
    new: float
    interval: Interval | None
    effect: float
    verdict: Verdict

    def text(self, value: float) -> str:
        """A value of this measure, for people."""
        return MEASURES[self.measure].text(value)

    @property
    def interval_text(self) -> str:
        """How sure the change is, for people."""
        if self.interval is None:
            return "too little to tell"
        low, high = self.interval.low * 100, self.interval.high * 100
        if self.measure == "errors":
            return f"{low:+.2f} to {high:+.2f} points"
        return f"{low:+.1f} to {high:+.1f} %"


class Comparison(msgspec.Struct, frozen=True):
    """Of one target. `basis`: what was compared with what; `notes`: what to know before trusting it."""

    name: str
    basis: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    sides: Sides = OLD_NEW  # what the old and the new values are called


class Measure(NamedTuple):
    """How to read one number off a run, and weights and values off the seconds of a run."""

    of_run: Callable[[Results, OperationResult], float | None]
    of_rows: Callable[[Series], tuple[Sequence[float], Sequence[float | None]]]
    text: Callable[[float], str]


MEASURES = {
    "rate": Measure(lambda run, one: run.rate(one), lambda rows: (rows.widths(), rows.rates()), rate_text),
    "p50": Measure(lambda _, one: one.latency.percentile(50), lambda rows: (rows.count, rows.p50), time_text),
    "p99": Measure(lambda _, one: one.latency.percentile(99), lambda rows: (rows.count, rows.p99), time_text),
    "errors": Measure(lambda _, one: one.error_share, lambda rows: (rows.count, rows.shares()), share_text),
}


def compare_reports(old: Report, new: Report, random: Random) -> list[Comparison]:
    """Every target that both have, by name; when each has but one, those two."""
    before, after = _matched(old, new)
    found = [compare_runs(name, before[name], runs, random) for name, runs in after.items() if name in before]
    if old.machine == new.machine:
        return found
    note = "the two were not measured on the same kind of machine"
    return [msgspec.structs.replace(one, notes=(note, *one.notes)) for one in found]


def compare_targets(results: Iterable[Results], random: Random) -> list[Comparison]:
    """Each target with the first one, where they were measured RUNS times or more in one go."""
    (first, baseline), *others = by_name(results).items()
    return [
        compare_runs(f"{name} against {first}", baseline, runs, random, (first, name))
        for name, runs in others
        if min(len(baseline), len(runs)) >= RUNS
    ]


def unmatched(old: Report, new: Report) -> list[str]:
    """Names of targets that only one of the two has, when targets are matched by name."""
    before, after = _matched(old, new)
    return sorted(before.keys() ^ after.keys())


def _matched(old: Report, new: Report) -> tuple[dict[str, list[Results]], dict[str, list[Results]]]:
    before, after = by_name(old.results), by_name(new.results)
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    return before, after


def compare_runs(name: str, old: Runs, new: Runs, random: Random, sides: Sides = OLD_NEW) -> Comparison:
    """One target, or two that do the same work; each time with one run or more."""
    by_runs = min(len(old), len(new)) >= RUNS
    paired = by_runs and in_turns(old, new)
    common = [part for part in new[0].operations if all(part in run.operations for run in (*old, *new))]
    parts: list[str | None] = [None, *(common if len(common) > 1 else ())]
    changes = []
    for part, measure in product(parts, MEASURES):
        values = [_values(measure, part, runs) for runs in (old, new)]
        if not all(values):
            continue
        if by_runs:
            samples: list[list[Block]] = [[[(1.0, value)] for value in each] for each in values]
        else:
            samples = [_blocks(measure, part, runs) for runs in (old, new)]
        changes.append(_change(measure, part, samples, random, paired))
    notes = tuple(_notes(old, new, sides, by_runs))
    return Comparison(name, _basis(old, new, sides, by_runs, paired), tuple(changes), notes, sides)


def in_turns(old: Runs, new: Runs) -> bool:
    """Whether the runs of the two were taken in turns, by when they began."""
    if len(old) != len(new):
        return False
    whens = sorted([(run.about.when, "old") for run in old] + [(run.about.when, "new") for run in new])
    return all(one[1] != other[1] for one, other in zip(whens[::2], whens[1::2], strict=True))


def _change(name: str, part: str | None, samples: Sequence[Sample], random: Random, paired: bool) -> Change:
    old, new = samples
    befores, afters = ([value for block in sample for _, value in block] for sample in samples)
    interval: Interval | None = None
    if min(map(len, samples)) >= BLOCKS:
        if name == "errors":
            interval = difference(old, new, random)
        elif paired:
            interval = paired_change(befores, afters, random)
        else:
            interval = relative_change(old, new, random)
    margin = ERROR_MARGIN if name == "errors" else MARGIN
    verdict: Verdict = "no difference shown"
    if interval is not None and (interval.low > margin or interval.high < -margin):
        verdict = "better" if (interval.low > 0) == (name == "rate") else "worse"
    effect = cliffs_delta(befores, afters)
    return Change(part, name, weighted_mean(old), weighted_mean(new), interval, effect, verdict)


def _values(name: str, part: str | None, runs: Runs) -> list[float]:
    of_run = MEASURES[name].of_run
    found = [of_run(run, run.overall() if part is None else run.operations[part]) for run in runs]
    return [value for value in found if value is not None]


def _blocks(name: str, part: str | None, runs: Runs) -> list[Block]:
    """The rows of all runs in blocks of neighbours; no block reaches from one run into another."""
    blocks: list[Block] = []
    for run in runs:
        series = run.series if part is None else run.operations[part].series
        columns = MEASURES[name].of_rows(series.whole())
        rows = [(weight, value) for weight, value in zip(*columns, strict=True) if value is not None]
        size = round(math.sqrt(len(rows))) if len(rows) >= BLOCKS**2 else 1
        size = max(size, math.ceil(len(rows) / MOST_BLOCKS))
        blocks += [rows[place : place + size] for place in range(0, len(rows), size)]
    return blocks


def _basis(old: Runs, new: Runs, sides: Sides, by_runs: bool, paired: bool) -> str:
    if sides == OLD_NEW:
        runs = f"{len(old)} old and {len(new)} new run{'s' if len(new) > 1 else ''}"
    else:
        runs = f"{len(old)} runs of each"
    if paired:
        return f"{runs}, in turns, pair by pair"
    return f"{runs}, run by run" if by_runs else f"the typical second of {runs}"


def _notes(old: Runs, new: Runs, sides: Sides, by_runs: bool) -> Iterable[str]:
    if not by_runs:
        yield (
            f"with fewer than {RUNS} runs of each, what differs from run to run is not seen: "
            f"measure with --runs {RUNS} before you trust a small change"
        )
    if any(run.about.load.settings != new[0].about.load.settings for run in (*old, *new)):
        yield f"the load was not the same: {old[0].about.load.text}; now {new[0].about.load.text}"
    for side, runs in zip(sides, (old, new), strict=True):
        if any(run.generator.warning for run in runs):
            yield f"{side}: the load generator was the limit in a run, not the target"
        if any(run.stopped for run in runs):
            yield f"{side}: a run ended before its time"
