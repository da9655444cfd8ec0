"""Changes are found, noise is not taken for one, and what cannot be told is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.bench.report.compare import (
    RUNS,
    cliffs_delta,
    compare_reports,
    compare_runs,
    difference,
    in_turns,
    paired_change,
    relative_change,
    unmatched,
    weighted_mean,
)
from mcpmux.bench.results import Results, generator_of
from tests.bench.made import about, made, report
from tests.examples import examples

SEED = 20261101


def drifting(seed: int, factor: float = 1.0) -> Callable[[Random, float], float]:
    """A server whose speed wanders from second to second, so that neighbours are alike."""
    random = Random(seed)
    drift = [0.0]
    for _ in range(60):
        drift.append(0.8 * drift[-1] + random.gauss(0, 0.05))
    return lambda source, at: factor * source.lognormvariate(-5, 0.4) * math.exp(drift[min(int(at), 59)])


def steady(seconds: float) -> Callable[[Random, float], float]:
    """A server that takes about as long each time."""
    return lambda random, at: seconds * random.uniform(0.98, 1.02)


def verdicts(old: list[Results], new: list[Results]) -> dict[str, str]:
    changes = compare_runs("docs", old, new, Random(SEED)).changes
    return {change.measure: change.verdict for change in changes if change.part is None}


@pytest.mark.parametrize("pairs", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_two_runs_of_the_same_are_seldom_told_apart(pairs: int):
    alarms = 0
    for seed in range(0, 2 * pairs, 2):
        old, new = (made(drifting(one), seed=one, rate=40, seconds=60) for one in (seed, seed + 1))
        alarms += sum(verdict != "no difference shown" for verdict in verdicts([old], [new]).values())
    assert alarms <= pairs / 10, f"{alarms} of {4 * pairs} are false"


@pytest.mark.parametrize(("factor", "verdict"), [(1.3, "worse"), (0.7, "better")])
def test_a_change_of_latency_is_found_through_the_drift(factor: float, verdict: str):
    for seed in range(0, 6, 2):
        old, new = made(drifting(seed), seed=seed), made(drifting(seed + 1, factor), seed=seed + 1)
        found = verdicts([old], [new])
        assert found["p50"] == verdict
        assert found["rate"] == found["errors"] == "no difference shown"


def test_a_change_of_throughput_and_of_errors_is_found():
    old = made(seed=1, seconds=60)
    new = made(seed=2, seconds=60, outcome=lambda random: "ok" if random.random() < 0.9 else "tool error")
    assert verdicts([old], [new])["errors"] == "worse"
    assert verdicts([old], [new])["rate"] == "worse"
    assert verdicts([new], [old])["errors"] == "better"


def test_a_change_that_is_sure_but_tiny_is_no_news():
    old, new = made(lambda _random, _at: 0.01, seed=1), made(lambda _random, _at: 0.0101, seed=1)
    assert verdicts([old], [new])["p50"] == "no difference shown"


def test_a_run_of_a_few_seconds_says_nothing():
    old, new = made(seconds=4), made(lambda random, at: 1.0, seconds=4)
    found = compare_runs("docs", [old], [new], Random(SEED))
    assert {change.verdict for change in found.changes} == {"no difference shown"}
    assert all(change.interval is None for change in found.changes)
    assert found.changes[0].interval_text == "too little to tell"


def repeated(
    spread: float, factor: float, which: str, seeds: int, minutes: Callable[[int], int]
) -> list[Results]:
    """Runs that differ among themselves by more than their seconds do."""
    found = []
    for place in range(RUNS + 1):
        speed = factor * math.exp(Random(f"{which}{place}{seeds}").gauss(0, spread))
        when = f"2026-11-01T12:{minutes(place):02}:00Z"
        found.append(made(steady(0.01 * speed), seed=place, rate=20, seconds=6, when=when))
    return found


def test_what_differs_from_run_to_run_is_noise():
    """Each run is steady in itself: its seconds alone would make every pair of runs differ."""
    alarms = 0
    for seeds in range(8):
        old = repeated(0.1, 1.0, "old", seeds, lambda place: place)
        new = repeated(0.1, 1.0, "new", seeds, lambda place: 30 + place)
        alarms += verdicts(old, new)["p50"] != "no difference shown"
    assert alarms <= 1
    single = compare_runs("docs", old[:1], new[:1], Random(SEED))
    assert any("run to run" in note for note in single.notes)


def test_runs_taken_in_turns_are_compared_pair_by_pair():
    """A drift that both share hides a change of 10 % from runs in any order, not from pairs."""
    old: list[Results] = []
    new: list[Results] = []
    for place in range(RUNS):
        machine = 1.5**place
        for factor, runs, minute in ((1.0, old, 2 * place), (1.1, new, 2 * place + 1)):
            when = f"2026-11-01T12:{minute:02}:00Z"
            latency = steady(0.001 * machine * factor)
            runs.append(made(latency, seed=minute, rate=20, seconds=6, when=when))
    assert in_turns(old, new)
    paired = compare_runs("docs", old, new, Random(SEED))
    assert "pair by pair" in paired.basis
    assert {change.measure: change.verdict for change in paired.changes}["p50"] == "worse"
    later = [
        msgspec.structs.replace(run, about=about(when=f"2026-11-02T12:{place:02}:00Z"))
        for place, run in enumerate(new)
    ]
    assert not in_turns(old, later)
    assert verdicts(old, later)["p50"] == "no difference shown"


def test_the_same_seed_gives_the_same_answer():
    old, new = made(drifting(1), seed=1), made(drifting(2), seed=2)
    one, other = (compare_runs("docs", [old], [new], Random(7)) for _ in range(2))
    assert one == other


def test_targets_are_matched_by_name_and_a_single_one_by_being_the_only_one():
    a, b = made(seed=1, seconds=6), made(seed=2, seconds=6, name="other")
    found = compare_reports(report(a), report(b), Random(SEED))
    assert [one.name for one in found] == ["other"]
    assert unmatched(report(a), report(b)) == []
    assert [one.name for one in compare_reports(report(a, b), report(b), Random(SEED))] == ["other"]
    assert unmatched(report(a, b), report(b)) == ["docs"]


def test_each_operation_that_both_have_is_compared():
    old = made(operations=("read", "list"), seed=1)
    new = made(operations=("read", "list", "call"), seed=2)
    parts = {change.part for change in compare_runs("docs", [old], [new], Random(SEED)).changes}
    assert parts == {None, "read", "list"}


def test_what_makes_a_comparison_doubtful_is_said():
    old = made(seed=1, seconds=6)
    new = made(seed=2, seconds=6, generator=generator_of(6, 6))
    new = msgspec.structs.replace(new, stopped="interrupted", about=about(load="closed, 5 clients"))
    there = msgspec.structs.replace(report(old), machine={"processors": 64})
    (found,) = compare_reports(there, report(new), Random(SEED))
    notes = " / ".join(found.notes)
    for words in (
        "same kind of machine",
        "the load was not the same",
        "generator was the limit",
        "before its time",
    ):
        assert words in notes


numbers = st.lists(st.floats(0.1, 100), min_size=1, max_size=40)


@given(numbers, numbers)
def test_the_effect_is_how_often_the_new_is_above(old: list[float], new: list[float]):
    slow = sum((after > before) - (after < before) for before in old for after in new) / (len(old) * len(new))
    assert cliffs_delta(old, new) == pytest.approx(slow)
    assert cliffs_delta(new, old) == pytest.approx(-slow)


@settings(max_examples=examples(10))  # each draws thousands of resamples
@given(numbers, numbers, st.integers(0, 5))
def test_an_interval_holds_its_estimate(old: list[float], new: list[float], seed: int):
    before, after = ([[(1.0, value)] for value in values] for values in (old, new))
    changed = relative_change(before, after, Random(seed))
    moved = difference(before, after, Random(seed))
    assert changed is not None
    assert changed.estimate == pytest.approx(weighted_mean(after) / weighted_mean(before) - 1)
    assert moved.estimate == pytest.approx(weighted_mean(after) - weighted_mean(before))


@pytest.mark.parametrize("times", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_intervals_cover_the_truth_about_as_often_as_they_say(times: int):
    covered = 0
    for seed in range(times):
        random = Random(seed)
        old, new = ([[(1.0, random.gauss(10, 1))] for _ in range(10)] for _ in range(2))
        interval = difference(old, new, random)
        covered += interval.low <= 0 <= interval.high
    assert covered >= 0.92 * times, f"{covered} of {times}"


def test_a_change_of_nothing_has_no_relation():
    assert relative_change([[(1.0, 0.0)]], [[(1.0, 5.0)]], Random(1)) is None
    assert paired_change([0.0, 1.0], [1.0, 1.0], Random(1)) is None
    assert cliffs_delta([], [1.0]) == 0.0
