"""Changes are found, noise is not taken for one, and unclear cases are reported as such."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.bench.report.compare import (
    RUNS,
    compare_reports,
    compare_runs,
    in_turns,
    range_of,
    unmatched,
)
from mcpmux.bench.results import Results, generator_of
from tests.bench.made import about, made, report


def steady(seconds: float) -> Callable[[Random, float], float]:
    """Return the times of a server that takes about as long each time."""
    return lambda random, at: seconds * random.uniform(0.98, 1.02)


def always(seconds: float) -> Callable[[Random, float], float]:
    """Return the times of a server that takes exactly as long each time."""
    return lambda random, at: seconds


def runs(factor: float = 1.0, seed: int = 0, **facts: Any) -> list[Results]:
    """Return RUNS runs of a server, one after another."""
    return [made(steady(0.01 * factor), seed=seed + place, seconds=6, **facts) for place in range(RUNS)]


def verdicts(old: list[Results], new: list[Results]) -> dict[str, str]:
    changes = compare_runs("docs", old, new).changes
    return {change.measure: change.verdict for change in changes if change.part is None}


@pytest.mark.parametrize(("factor", "verdict"), [(1.3, "worse"), (0.7, "better")])
def test_a_change_of_latency_is_found(factor: float, verdict: str):
    changes = verdicts(runs(rate=20), runs(factor, 100, rate=20))
    assert changes["p50"] == verdict
    assert changes["errors"] == "no difference shown"


def test_a_change_of_throughput_and_of_errors_is_found():
    old, new = runs(), runs(seed=100, outcome=lambda random: "ok" if random.random() < 0.9 else "tool_error")
    assert verdicts(old, new)["errors"] == verdicts(old, new)["rate"] == "worse"
    assert verdicts(new, old)["errors"] == "better"


def test_a_change_that_is_sure_but_tiny_is_no_news():
    old, new = ([made(always(seconds), seed=1)] * RUNS for seconds in (0.01, 0.0101))
    assert verdicts(old, new)["p50"] == "no difference shown"


def test_few_runs_have_no_verdict():
    old, new = runs()[1:], runs(3.0, 100)
    comparison = compare_runs("docs", old, new)
    assert {change.verdict for change in comparison.changes} == {"too few runs"}
    assert any("run to run" in note for note in comparison.notes)
    assert comparison.changes[1].range_text.startswith("+20")  # of p50: three times as long


def repeated(spread: float, which: str, seeds: int, minutes: Callable[[int], int]) -> list[Results]:
    """Return runs that differ among themselves by more than their seconds do."""
    results = []
    for place in range(RUNS + 1):
        speed = math.exp(Random(f"{which}{place}{seeds}").gauss(0, spread))
        when = f"2026-11-01T12:{minutes(place):02}:00Z"
        results.append(made(steady(0.01 * speed), seed=place, rate=20, seconds=6, when=when))
    return results


def test_what_differs_from_run_to_run_is_noise():
    """Each run is steady in itself: its seconds alone would make every pair of runs differ."""
    alarms = 0
    for seeds in range(8):
        old = repeated(0.1, "old", seeds, lambda place: place)
        new = repeated(0.1, "new", seeds, lambda place: 30 + place)
        alarms += verdicts(old, new)["p50"] != "no difference shown"
    assert alarms == 0


def test_runs_taken_in_turns_are_compared_pair_by_pair():
    """A drift that both share hides a change of 10 % from runs in any order, not from pairs."""
    old: list[Results] = []
    new: list[Results] = []
    for place in range(RUNS):
        machine = 1.5**place
        for factor, side, minute in ((1.0, old, 2 * place), (1.1, new, 2 * place + 1)):
            when = f"2026-11-01T12:{minute:02}:00Z"
            latency = steady(0.001 * machine * factor)
            side.append(made(latency, seed=minute, rate=20, seconds=6, when=when))
    assert in_turns(old, new)
    paired = compare_runs("docs", old, new)
    assert "pair by pair" in paired.basis
    assert {change.measure: change.verdict for change in paired.changes}["p50"] == "worse"
    later = [
        msgspec.structs.replace(run, about=about(when=f"2026-11-02T12:{place:02}:00Z"))
        for place, run in enumerate(new)
    ]
    assert not in_turns(old, later)
    assert verdicts(old, later)["p50"] == "no difference shown"


def test_targets_are_matched_by_name_or_because_there_is_only_one():
    a, b = made(seed=1, seconds=6), made(seed=2, seconds=6, name="other")
    (comparison,) = compare_reports(report(a), report(b))
    assert comparison.name == "other"
    assert unmatched(report(a), report(b)) == []
    assert [comparison.name for comparison in compare_reports(report(a, b), report(b))] == ["other"]
    assert unmatched(report(a, b), report(b)) == ["docs"]


def test_each_operation_that_both_have_is_compared():
    old = made(operations=("read", "list"), seed=1)
    new = made(operations=("read", "list", "call"), seed=2)
    parts = {change.part for change in compare_runs("docs", [old], [new]).changes}
    assert parts == {None, "read", "list"}


def test_what_makes_a_comparison_doubtful_is_said():
    old = made(seed=1, seconds=6)
    new = made(seed=2, seconds=6, generator=generator_of(6, 6))
    new = msgspec.structs.replace(new, stopped="interrupted", about=about(load="closed, 5 clients"))
    there = msgspec.structs.replace(report(old), machine={"processors": 64})
    (comparison,) = compare_reports(there, report(new))
    notes = " / ".join(comparison.notes)
    for words in (
        "same kind of machine",
        "the load was not the same",
        "generator was the limit",
        "before its time",
    ):
        assert words in notes


pairs = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


@given(pairs, st.booleans())
def test_pairs_say_more_than_all_with_all(measured: list[tuple[float, float]], is_share: bool):
    old, new = zip(*measured, strict=True)
    paired, mixed = (range_of(old, new, of_pairs, is_share=is_share) for of_pairs in (True, False))
    assert paired is not None and mixed is not None
    assert mixed.low <= paired.low <= paired.middle <= paired.high <= mixed.high
    assert mixed.low <= mixed.middle <= mixed.high


def test_a_change_of_nothing_has_no_relation():
    assert range_of([0.0, 1.0], [1.0, 1.0], paired=True, is_share=False) is None
