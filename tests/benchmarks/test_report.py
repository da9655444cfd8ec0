"""Rows hold words for people; the table and the scorecard are made of them."""

from __future__ import annotations

from benchmarks.goal import IN_PROPORTION, MET, NOT_MEASURED, NOT_MET, Goal, at_least, at_most
from benchmarks.load import Tally
from benchmarks.report import (
    Pair,
    Row,
    failed_row,
    latency_row,
    memory_row,
    rate_row,
    scorecard,
    table,
    time_row,
)


def pair(direct: int, through: int) -> Pair:
    """Return runs of one second with so many exchanges."""
    direct_run, mux_run = (Tally(count, 1.0, 0.5, 1e-4, 2e-4) for count in (direct, through))
    return Pair(direct_run, mux_run, 50e-6, 20e-6)


def test_rate_row_compares_pair_by_pair():
    row = rate_row("read", [pair(1000, 500), pair(2000, 600), pair(1000, 400)], at_least(0.4))
    assert row[:5] == ("read", "1,000 /s", "500 /s", "0.40 (0.30–0.50)", "50 µs (50–50)")
    assert (row.goal, row.met, row.bound) == ("≥ 0.4", MET, 0.4)
    assert row.ratio == (0.4, 0.3, 0.5)


def test_rate_row_without_a_goal_judges_nothing():
    row = rate_row("call", [pair(1000, 10)])
    assert (row.goal, row.met, row.bound) == ("", "", None)


def test_latency_row_judges_what_is_added():
    slow = Tally(1, 1.0, 0.1, 300e-6, 900e-6)
    fast = Tally(1, 1.0, 0.1, 100e-6, 200e-6)
    pairs = [Pair(fast, slow, 0, 0)]
    assert latency_row("p50", pairs, lambda tally: tally.p50, at_most(200, " µs")).met == MET
    assert latency_row("p50", pairs, lambda tally: tally.p50, at_most(199, " µs")).met == NOT_MET


def test_memory_is_judged_in_bytes_and_shown_in_megabytes():
    row = memory_row("memory", [39e6], [44.9e6], Goal("≤ 45 MB", most=45e6))
    assert row[:3] == ("memory", "39.0 MB", "44.9 MB (44.9–44.9)")
    assert row.met == MET


def test_table_states_the_goal_next_to_the_value():
    judged = time_row("start", [0.1], [0.5]).judged(at_most(0.6, " s"), [0.5])
    lines = table([judged, Row("other", "1", "2")]).splitlines()
    assert all(line.count("|") == 8 for line in lines)
    assert lines[2] == "| start | 100.0 ms | 500.0 ms | 5.00 × as long (5.00–5.00) |  | ≤ 0.6 s | met |"


def test_a_slower_machine_may_take_as_much_longer():
    late = time_row("start", [0.1], [1.2]).judged(at_most(0.6, " s", absolute=True), [1.2])
    assert late.met == NOT_MET
    assert late.paced(1.9).met == NOT_MET
    assert late.paced(2.1).met == IN_PROPORTION
    early = time_row("start", [0.1], [0.5]).judged(at_most(0.6, " s", absolute=True), [0.5])
    assert early.paced(2.1).met == MET


def test_a_ratio_is_never_reached_in_proportion():
    row = rate_row("read", [pair(1000, 100)], at_least(0.4))
    assert row.paced(100).met == NOT_MET


def test_scorecard_counts_and_names_what_was_missed():
    rows = [Row("a", "", "", met=MET), Row("b", "", "", met=NOT_MET), Row("c", "", "")]
    assert scorecard(rows) == "1 of 2 goals were met in this run; not met: b."
    late = Row("d", "", "", met=IN_PROPORTION)
    summary = "1 of 3 goals were met in this run; not met, but in proportion: d; not met: b."
    assert scorecard([*rows, late]) == summary
    assert scorecard(rows[:1]) == "1 of 1 goals were met in this run."


def test_what_failed_says_why_in_one_cell():
    row = failed_row("read", RuntimeError("no answer\nfrom a | b"))
    assert row.compared == "could not be measured: no answer from a / b"
    assert row.met == NOT_MEASURED
    assert "not measured: read" in scorecard([row])
