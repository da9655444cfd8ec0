"""Metrics of several processes as those of one."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.channels.tap import Leg
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.recorder import observe
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.traffic.telemetry.prometheus import Family, Totals, add_up, gauge, render, snapshot
from tests.traffic.test_prometheus import parse


def told(answers: int, up: float = 1) -> list[Family]:
    metrics, exchanges, numbers = Metrics(), count(1), count(1)
    leg = Leg("upstream", 'a "docs" {x}', "http", 'a "docs" {x}')
    for number in range(answers):
        request = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call"}' % number
        answer = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number
        for direction, data, at in (("out", request, 0.0), ("in", answer, 0.03)):
            unread = Observation(leg, direction, data, at)  # type: ignore[arg-type]
            metrics.take_all(observe([unread], exchanges, numbers))
    gauges = [gauge("upstream_up", "Up.", {"docs": up}), gauge("client_sessions", "Sessions.", answers)]
    return snapshot(metrics, gauges)


def value(families: list[Family], name: str, *labels: str) -> float:
    """Return the value of the one sample of that name whose first labels are these."""
    samples = parse(render(families))[name]
    (value,) = [sample for values, sample in samples.items() if values[: len(labels)] == labels]
    return value


def test_the_sum_of_one_is_the_same():
    assert render(add_up([told(3)])) == render(told(3))


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_the_sum_of_one_has_every_number_of_it(number: float):
    alone = snapshot(Metrics(), [gauge("x", "x", number)])
    assert parse(render(add_up([alone]))) == parse(render(alone))


def test_everything_that_is_counted_is_added_up():
    assert add_up([told(3), told(4)]) == told(7)
    assert parse(render(add_up([told(0), told(4)]))) == parse(render(told(4)))


def test_up_is_what_is_so_everywhere():
    assert value(add_up([told(1, 1), told(1, 0)]), "mcpmux_upstream_up") == 0
    assert value(add_up([told(1, 1), told(1, 1)]), "mcpmux_upstream_up") == 1
    assert value(add_up([told(1), told(1)]), "mcpmux_build_info") == 1


def test_an_audit_log_that_fails_anywhere_fails():
    workers = [[gauge("audit_failing", "It fails.", failing)] for failing in (1, 1, 0)]
    assert value(add_up(workers), "mcpmux_audit_failing") == 1


def test_no_counter_goes_back_when_a_process_ends():
    totals = Totals()
    running: dict[object, list[Family]] = {(1, 1): told(3), (2, 1): told(4)}
    assert value(totals.add_up(running, running), "mcpmux_messages_total", "in") == 7
    after: dict[object, list[Family]] = {(1, 1): told(5), (2, 2): told(1)}
    for _ in range(3):
        summed = totals.add_up(after, after)
        assert value(summed, "mcpmux_messages_total", "in") == 10
        assert value(summed, "mcpmux_upstream_request_duration_seconds_count") == 10
        assert value(summed, "mcpmux_client_sessions") == 6


def test_one_that_says_nothing_for_once_has_not_ended():
    totals = Totals()
    everyone: dict[object, list[Family]] = {1: told(3), 2: told(4)}
    totals.add_up(everyone, everyone)
    totals.add_up({1: told(3)}, everyone)
    assert value(totals.add_up(everyone, everyone), "mcpmux_messages_total", "in") == 7
