"""Places where requests are counted, by script."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcpmux.bench.results import generator_of
from mcpmux.bench.tally import MOST_KINDS, MOST_OPERATIONS, MOST_ROWS, MOST_STEPS, Tally
from tests.bench.made import about

IDLE = generator_of(0.1, 1.0)


def ended(tally: Tally, at: float):
    return tally.results(about(), at, IDLE)


def ask(
    tally: Tally, at: float, took: float, outcome: str = "ok", operation: str = "read", late: float = 0.0
):
    tally.record(operation, at, at + late, at + took, outcome, 10, 100)


def test_requests_of_the_warm_up_are_never_counted():
    tally = Tally(100.0, warm_up=5.0)
    ask(tally, 101.0, 0.1)
    ask(tally, 104.9, 3.0)
    ask(tally, 105.0, 0.1)
    results = ended(tally, 115.0)
    assert results.operations["read"].count == 1
    assert results.seconds == pytest.approx(10.0)
    assert tally.seen == 3


def test_latency_counts_from_the_intended_time_and_service_from_the_actual_one():
    tally = Tally(0.0)
    ask(tally, 1.0, 0.5, late=0.4)
    ask(tally, 2.0, 0.5)
    part = ended(tally, 10.0).operations["read"]
    assert part.latency.percentiles((1, 100)) == [0.5, 0.5]
    assert part.service.least == pytest.approx(0.1)
    assert part.service.most == pytest.approx(0.5)
    assert part.latency.count == part.service.count == 2


def test_errors_make_nothing_faster_and_timeouts_do_not_vanish():
    tally = Tally(0.0)
    ask(tally, 1.0, 0.2)
    ask(tally, 1.0, 0.001, "rpc -32602")
    ask(tally, 1.0, 0.001, "wrong answer")
    ask(tally, 1.0, 30.0, "timeout")
    results = ended(tally, 10.0)
    part = results.operations["read"]
    assert part.errors == {"rpc -32602": 1, "wrong answer": 1, "timeout": 1}
    assert (part.count, part.failed, part.error_share) == (4, 3, 0.75)
    assert (part.latency.count, part.latency.least, part.latency.most) == (2, pytest.approx(0.2), 30.0)
    assert results.seconds == 31.0, "a run lasts until its last answer"
    assert results.rate(part) == pytest.approx(1 / 31)


def test_a_stall_shows_as_rows_without_anything_and_then_as_long_latencies():
    tally = Tally(0.0, longest=5)
    for at in (0.2, 0.4):
        ask(tally, at, 0.01)
    for at in (0.9, 1.9, 2.9):
        ask(tally, at, 3.0 - at + 0.5, late=0.001)
    series = ended(tally, 4.0).series
    assert series.count == (2, 0, 0, 3)
    assert series.p50[0] == pytest.approx(0.01, rel=1e-3)
    assert series.p50[1:3] == (None, None)
    assert series.most[3] == pytest.approx(2.6)
    assert series.rates() == [2.0, 0.0, 0.0, 3.0]
    assert (series.seconds, series.last_seconds) == (1.0, 1.0)


def test_the_last_row_is_as_long_as_it_lasted():
    tally = Tally(0.0)
    ask(tally, 1.1, 0.1)
    series = ended(tally, 1.5).series
    assert series.widths() == [1.0, 0.5]
    assert series.rates() == [0.0, 2.0]
    assert series.whole().count == (0,)
    assert ended(tally, 1.95).series.whole().count == (0, 1), "nearly a whole row is one"


def test_an_operation_that_comes_later_has_rows_for_all_of_the_time():
    tally = Tally(0.0)
    ask(tally, 0.1, 0.1)
    ask(tally, 2.1, 0.1, operation="list")
    results = ended(tally, 3.0)
    assert results.operations["list"].series.count == (0, 0, 1)
    assert results.operations["read"].series.count == (1, 0, 0)
    assert results.series.count == (1, 0, 1)


timed_request = st.tuples(
    st.floats(0, 20),
    st.floats(1e-4, 5),
    st.sampled_from(["ok", "timeout", "tool_error"]),
    st.sampled_from("abc"),
)


@settings(deadline=None)
@given(st.lists(timed_request, max_size=60), st.floats(0, 5))
@example(
    [(2.0, 1.0, "ok", "b"), (16.0, 4.9, "ok", "a")], 1.9
)  # the last row lasts no time, but has an answer
def test_every_request_is_in_one_operation_and_one_row(requests: list, warm_up: float):
    tally = Tally(0.0, warm_up=warm_up, longest=30)
    for at, took, outcome, operation in sorted(requests, key=lambda request: request[0] + request[1]):
        ask(tally, at, took, outcome, operation)
    early = ended(tally, 20.0)
    results = ended(tally, 20.0)
    assert early == results, "results can be asked for at any time"
    counted = [row for row in requests if row[0] >= warm_up]
    whole = results.overall()
    assert whole.count == sum(results.series.count) == len(counted)
    assert whole.failed == sum(results.series.errors) == sum(row[2] != "ok" for row in counted)
    assert whole.latency.count == whole.service.count == sum(row[2] != "tool_error" for row in counted)
    for part in results.operations.values():
        assert sum(part.series.count) == part.count
        assert len(part.series.count) == len(results.series.count)
    assert sum(results.series.widths()) == pytest.approx(results.seconds)


def test_a_request_belongs_to_the_step_in_which_it_was_due():
    tally = Tally(0.0)
    tally.begin_step(0.0, "slow", offered=2.0)
    ask(tally, 0.5, 0.1)
    ask(tally, 0.9, 0.05, "tool_error")
    step = tally.begin_step(1.0, "fast", offered=9.0)
    ask(tally, 0.8, 0.7)
    ask(tally, 1.2, 0.4)
    step.end(2.0)
    step.held, step.why = False, "p99 ≥ 0.1 s"
    ask(tally, 1.9, 0.3)
    slow, fast = ended(tally, 5.0).steps
    assert (slow.count, slow.errors, slow.latency.count, slow.arrived) == (3, {"tool_error": 1}, 2, 1)
    assert (fast.count, fast.seconds, fast.held, fast.why) == (2, 1.0, False, "p99 ≥ 0.1 s")
    assert fast.arrived == 2, "what came in its time, of whichever step; nothing after its end"
    assert fast.rate == 2.0


def test_connections_count_in_the_warm_up_and_by_what_they_failed_of():
    tally = Tally(0.0, warm_up=5.0)
    tally.connected(0.25)
    tally.connected(1.0, "refused")
    total = ended(tally, 6.0).connections
    assert (total.count, total.errors, total.times.count, total.times.most) == (2, {"refused": 1}, 1, 0.25)


def test_a_run_that_ends_in_the_warm_up_has_measured_nothing():
    results = ended(Tally(0.0, warm_up=5.0), 2.0)
    assert (results.seconds, results.operations, results.series.count) == (0.0, {}, ())
    assert results.overall().error_share is None
    assert results.rate(results.overall()) == 0.0


def test_memory_is_bounded_whatever_the_names_and_the_time():
    tally = Tally(0.0, longest=10 * MOST_ROWS)
    for number in range(MOST_OPERATIONS + 50):
        ask(tally, number, 0.1, operation=f"tool {number}")
    for number in range(MOST_KINDS + 50):
        ask(tally, 300.0, 0.1, f"rpc {number}", "tool 1")
    ask(tally, 100.0 * MOST_ROWS, 0.1)
    results = ended(tally, 100.0 * MOST_ROWS)
    assert len(results.operations) == MOST_OPERATIONS + 1
    assert results.operations["others"].count == 51
    assert len(results.operations["tool 1"].errors) == MOST_KINDS + 1
    assert results.operations["tool 1"].errors["others"] == 50
    assert results.series.seconds == 10.0
    assert len(results.series.count) == MOST_ROWS + 1
    assert sum(results.series.count) == results.overall().count


def test_too_many_steps_are_refused():
    tally = Tally(0.0)
    for number in range(MOST_STEPS):
        tally.begin_step(float(number), str(number))
    with pytest.raises(ValueError, match=f"at most {MOST_STEPS}"):
        tally.begin_step(1e6, "one more")


def test_a_snapshot_tells_how_far_it_is():
    tally = Tally(10.0, warm_up=1.0)
    ask(tally, 10.5, 0.1)
    assert tally.snapshot(10.9).warming
    ask(tally, 11.5, 0.1)
    ask(tally, 11.6, 0.1, "tool_error")
    tally.begin_step(12.0, "200/s")
    seen = tally.snapshot(12.5, in_flight=7)
    assert (seen.elapsed, seen.warming, seen.in_flight, seen.step) == (2.5, False, 7, "200/s")
    assert (seen.seen, seen.count, seen.errors) == (3, 2, 1)
    assert list(seen.times) == pytest.approx([0.1] * 4)


@pytest.mark.parametrize(("cpu", "warned"), [(0.5, False), (0.89, False), (0.9, True), (1.0, True)])
def test_a_generator_that_was_busy_is_warned_of(cpu: float, warned: bool):
    generator = generator_of(cpu * 60, 60.0)
    assert generator.cpu_share == pytest.approx(cpu)
    assert (generator.warning is not None) is warned


@pytest.mark.parametrize(("cpu", "waited", "words"), [(0.3, 0.5, None), (0.3, 0.61, "kept from running 61%")])
def test_a_generator_that_had_to_wait_for_its_core_is_warned_of(cpu: float, waited: float, words: str | None):
    generator = generator_of(cpu * 60, 60.0, waited * 60)
    assert generator.cpu_share == pytest.approx(cpu)
    assert (words or "") in (generator.warning or "")
    assert (generator.warning is None) is (words is None)
