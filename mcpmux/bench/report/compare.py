"""Tell changes between two benchmarks from noise. Pure.

Several runs of each (RUNS or more) are compared, as what differs between two runs of the same thing is noise.
Runs that were taken in turns (old, new, old, new) are compared pair by pair, so that a slow drift of the
machine does no harm; the range of the changes goes from the least change of a pair to the greatest. Other
runs are compared all with all: the range goes from the least that any new run may differ from any old one
to the most.

A change counts when its whole range lies beyond MARGIN. Everything else is "no difference shown", which does
not mean that there is none; with fewer runs there is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from mcpmux.bench.results import OperationResult, Report, Results, by_name
from mcpmux.format import rate_text, share_text, time_text

Runs = Sequence[Results]
Sides = tuple[str, str]
Verdict = Literal["better", "worse", "no difference shown", "too few runs"]

OLD_NEW = ("old", "new")

RUNS = 5  # of each; fewer say too little of how runs differ
MARGIN = 0.02  # of the old value; smaller changes are no news even when they are sure
ERROR_MARGIN = 0.0005  # of all requests


class Range(msgspec.Struct, frozen=True):
    """The median of changes, the least and the greatest: shares of the old value, or of all requests."""

    middle: float
    low: float
    high: float


class Change(msgspec.Struct, frozen=True):
    """The change of one measure. `old`, `new`: medians of the runs, in seconds, per second, or a share.

    `range` is None when an old value is 0.
    """

    part: str | None
    measure: str
    old: float
    new: float
    range: Range | None
    verdict: Verdict

    def text(self, value: float) -> str:
        """Return a value of this measure, for people."""
        return MEASURES[self.measure].text(value)

    @property
    def range_text(self) -> str:
        """The change and its range, for people."""
        if self.range is None:
            return "too little to tell"
        middle, low, high = (each * 100 for each in (self.range.middle, self.range.low, self.range.high))
        if self.measure == "errors":
            return f"{middle:+.2f} points ({low:+.2f} to {high:+.2f})"
        return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of one target. `basis`: the runs that were compared; `notes`: reasons to doubt it."""

    name: str
    basis: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    sides: Sides = OLD_NEW  # the names of the old and the new values


class Measure(NamedTuple):
    """How to read one number off a run, and how to show it."""

    of_run: Callable[[Results, OperationResult], float | None]
    text: Callable[[float], str]


MEASURES = {
    "rate": Measure(lambda run, one: run.rate(one), rate_text),
    "p50": Measure(lambda _, one: one.latency.percentile(50), time_text),
    "p99": Measure(lambda _, one: one.latency.percentile(99), time_text),
    "errors": Measure(lambda _, one: one.error_share, share_text),
}


def compare_reports(old: Report, new: Report) -> list[Comparison]:
    """Compare every target that both have, by name; when each has but one, those two."""
    old_runs, new_runs = _matched(old, new)
    comparisons = [
        compare_runs(name, old_runs[name], runs) for name, runs in new_runs.items() if name in old_runs
    ]
    if old.machine == new.machine:
        return comparisons
    note = "the two were not measured on the same kind of machine"
    return [
        msgspec.structs.replace(comparison, notes=(note, *comparison.notes)) for comparison in comparisons
    ]


def compare_targets(results: Iterable[Results]) -> list[Comparison]:
    """Compare each target with the first one, where they were measured RUNS times or more in one go."""
    (first, baseline), *others = by_name(results).items()
    return [
        compare_runs(f"{name} against {first}", baseline, runs, (first, name))
        for name, runs in others
        if min(len(baseline), len(runs)) >= RUNS
    ]


def unmatched(old: Report, new: Report) -> list[str]:
    """Return the names of targets that only one of the two has, when targets are matched by name."""
    old_runs, new_runs = _matched(old, new)
    return sorted(old_runs.keys() ^ new_runs.keys())


def _matched(old: Report, new: Report) -> tuple[dict[str, list[Results]], dict[str, list[Results]]]:
    old_runs, new_runs = by_name(old.results), by_name(new.results)
    if len(old_runs) == len(new_runs) == 1:
        old_runs = dict(zip(new_runs, old_runs.values(), strict=True))
    return old_runs, new_runs


def compare_runs(name: str, old: Runs, new: Runs, sides: Sides = OLD_NEW) -> Comparison:
    """Compare one target, or two that do the same work; each was measured once or more."""
    paired = in_turns(old, new)
    common = [part for part in new[0].operations if all(part in run.operations for run in (*old, *new))]
    parts: list[str | None] = [None, *(common if len(common) > 1 else ())]
    changes = []
    for part, measure in product(parts, MEASURES):
        old_values, new_values = (_values(measure, part, runs) for runs in (old, new))
        if not old_values or not new_values:
            continue
        in_pairs = paired and len(old_values) == len(new_values)
        spread = range_of(old_values, new_values, in_pairs, is_share=measure == "errors")
        margin = ERROR_MARGIN if measure == "errors" else MARGIN
        verdict: Verdict = "no difference shown"
        if min(len(old_values), len(new_values)) < RUNS:
            verdict = "too few runs"
        elif spread is not None and (spread.low > margin or spread.high < -margin):
            verdict = "better" if (spread.low > 0) == (measure == "rate") else "worse"
        changes.append(Change(part, measure, median(old_values), median(new_values), spread, verdict))
    if sides == OLD_NEW:
        basis = f"{len(old)} old and {len(new)} new run{'s' if len(new) > 1 else ''}"
    else:
        basis = f"{len(old)} runs of each"
    basis += ", in turns, pair by pair" if paired else ", all with all"
    return Comparison(name, basis, tuple(changes), tuple(_notes(old, new, sides)), sides)


def in_turns(old: Runs, new: Runs) -> bool:
    """Return whether the runs of the two were taken in turns, by when they began."""
    if len(old) != len(new):
        return False
    whens = sorted([(run.about.when, "old") for run in old] + [(run.about.when, "new") for run in new])
    return all(one[1] != other[1] for one, other in zip(whens[::2], whens[1::2], strict=True))


def range_of(old: Sequence[float], new: Sequence[float], paired: bool, *, is_share: bool) -> Range | None:
    """Return the changes from old values to new ones: relative ones, differences for shares of requests."""
    if not is_share and min(old) <= 0:
        return None

    def change(before: float, after: float) -> float:
        return after - before if is_share else after / before - 1

    if paired:
        changes = list(map(change, old, new))
        return Range(median(changes), min(changes), max(changes))
    middle = change(median(old), median(new))
    return Range(middle, change(max(old), min(new)), change(min(old), max(new)))


def _values(name: str, part: str | None, runs: Runs) -> list[float]:
    of_run = MEASURES[name].of_run
    values = [of_run(run, run.overall() if part is None else run.operations[part]) for run in runs]
    return [value for value in values if value is not None]


def _notes(old: Runs, new: Runs, sides: Sides) -> Iterable[str]:
    if min(len(old), len(new)) < RUNS:
        yield (
            f"with fewer than {RUNS} runs of each, what differs from run to run is not known: "
            f"measure with --runs {RUNS}"
        )
    if any(run.about.load.settings != new[0].about.load.settings for run in (*old, *new)):
        yield f"the load was not the same: {old[0].about.load.text}; now {new[0].about.load.text}"
    for side, runs in zip(sides, (old, new), strict=True):
        if any(run.generator.warning for run in runs):
            yield f"{side}: the load generator was the limit in a run, not the target"
        if any(run.stopped for run in runs):
            yield f"{side}: a run ended before its time"
