"""Goals are judged by the median; rows hold words for people; a report goes by its day and its machine."""

from __future__ import annotations

import math
import platform
import re
from datetime import date

import pytest
from click.testing import CliRunner

from benchmarks import report, run
from benchmarks.load import Tally
from benchmarks.report import (
    IN_PROPORTION,
    MET,
    NOT_MEASURED,
    NOT_MET,
    RESULTS,
    Goal,
    Pair,
    Row,
    at_least,
    at_most,
    failed_row,
    heading,
    latency_row,
    machine_name,
    memory_row,
    processor,
    rate_row,
    result_path,
    scorecard,
    spread_of,
    table,
    time_row,
)
from benchmarks.run import default_output


@pytest.mark.parametrize(
    ("goal", "values", "judged"),
    [
        (at_least(0.33), [0.1, 0.33, 0.9], MET),
        (at_least(0.33), [0.32, 0.1, 0.9], NOT_MET),
        (at_most(120, " µs"), [120, 5000, 1], MET),
        (at_most(120, " µs"), [121, 5000, 1], NOT_MET),
        (Goal("between", least=1, most=2), [3], NOT_MET),
        (Goal("between", least=1, most=2), [1.5], MET),
    ],
)
def test_median_decides(goal, values, judged):
    assert goal.judge(values) == judged


def test_distance_is_the_factor_that_is_missing():
    assert at_least(100).distance([50]) == 2
    assert at_most(100).distance([250, 300, 1]) == 2.5
    assert at_most(100).distance([50]) == 0.5
    assert at_least(100).distance([0]) == math.inf
    assert at_least(100).judge([0]) == NOT_MET


def test_goal_says_its_bound_with_the_unit():
    assert at_least(0.33).words == "≥ 0.33"
    assert at_least(25_000, " /s").words == "≥ 25,000 /s"
    assert at_most(120, " µs").words == "≤ 120 µs"


def test_spread_has_median_and_ends():
    assert spread_of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


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


@pytest.fixture(autouse=True)
def _a_xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Day(date):
        @classmethod
        def today(cls) -> Day:
            return cls(2026, 11, 27)

    monkeypatch.setattr(report, "date", Day)
    monkeypatch.setattr(report, "processor", lambda: "Intel(R) Xeon(R) Processor @ 2.60GHz")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "intel-xeon"),
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "intel-xeon-platinum-8370c"),
        ("AMD EPYC", "amd-epyc"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Core(TM) i7-8565U CPU @ 1.80GHz", "intel-core-i7-8565u"),
        ("aarch64", "aarch64"),
        ("../../x", "x"),
        ("", "unknown"),
    ],
)
def test_a_processor_has_a_short_name_in_lower_case(model, name):
    assert machine_name(model) == name


def test_a_processor_has_its_model_or_its_architecture_as_name():
    assert processor("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t: fpu\n") == "AMD EPYC"
    assert processor("processor\t: 0\nmodel name\t:\nflags\t: fpu\n") == platform.machine()
    assert processor("processor\t: 0\nBogoMIPS\t: 50.00\n") == platform.machine()


def test_a_report_is_named_after_its_day_and_machine():
    assert result_path() == RESULTS / "2026-11-27-intel-xeon.md"
    assert result_path("peers", "part") == RESULTS / "2026-11-27-intel-xeon-peers-part.md"
    assert heading() == "# Benchmarks of 2026-11-27, Intel(R) Xeon(R) Processor @ 2.60GHz"


@pytest.mark.parametrize(
    ("quick", "only", "without"), [(True, (), ()), (False, ("read",), ()), (False, (), ("peers",))]
)
def test_a_run_that_leaves_something_out_does_not_replace_a_whole_one(quick, only, without):
    assert default_output(quick=quick, only=only, without=without).name == "2026-11-27-intel-xeon-part.md"
    assert default_output(quick=False, only=(), without=()).name == "2026-11-27-intel-xeon.md"


def test_help_says_where_a_report_goes():
    shown = CliRunner().invoke(run.main, ["--help"]).output
    assert re.search(r"benchmarks/results/DATE-\s*MACHINE", shown)
