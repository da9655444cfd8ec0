"""Metrics of several processes as those of one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.runtime.tap import Leg
from mcpmux.traffic.correlation import Correlator
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.traffic.telemetry.prometheus import Gauge, single
from mcpmux.traffic.telemetry.scraping import Totals, add_up
from tests.traffic.test_prometheus import parse, rendered


def text(answers: int, up: float = 1) -> str:
    metrics, correlator = Metrics(), Correlator()
    leg = Leg("upstream", 'a "docs" {x}', "http", 'a "docs" {x}')
    for number in range(answers):
        request = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call"}' % number
        answer = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number
        for direction, data, at in (("out", request, 0.0), ("in", answer, 0.03)):
            for seen in correlator.settle([(leg, direction, data, at, None, 0, False)]):  # type: ignore[arg-type]
                metrics.take(seen)
    gauges = [
        Gauge("mcpmux_upstream_up", "Up.", ("upstream",), lambda: [(("docs",), up)]),
        Gauge("mcpmux_client_sessions", "Sessions.", (), lambda: [((), answers)]),
    ]
    return rendered(metrics, gauges).decode()


def value(text: str, beginning: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(beginning)]
    return float(line.rpartition(" ")[2])


def test_the_sum_of_one_is_the_same():
    assert add_up([text(3)]) == text(3)


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_the_sum_of_one_has_every_number_of_it(number: float):
    alone = rendered(Metrics(), [single("mcpmux_x", "x", lambda: number)])
    assert parse(add_up([alone.decode()]).encode()) == parse(alone)


def test_everything_that_is_counted_is_added_up():
    assert add_up([text(3), text(4)]) == text(7)
    assert sorted(add_up([text(0), text(4)]).splitlines()) == sorted(text(4).splitlines())


def test_up_is_what_is_so_everywhere():
    assert value(add_up([text(1, 1), text(1, 0)]), "mcpmux_upstream_up") == 0
    assert value(add_up([text(1, 1), text(1, 1)]), "mcpmux_upstream_up") == 1
    assert value(add_up([text(1), text(1)]), "mcpmux_build_info") == 1


def test_no_counter_goes_back_when_a_process_ends():
    totals = Totals()
    running: dict[object, str] = {(1, 1): text(3), (2, 1): text(4)}
    assert value(totals.add_up(running, running), 'mcpmux_messages_total{direction="in"') == 7
    after: dict[object, str] = {(1, 1): text(5), (2, 2): text(1)}
    for _ in range(3):
        told = totals.add_up(after, after)
        assert value(told, 'mcpmux_messages_total{direction="in"') == 10
        assert value(told, "mcpmux_upstream_request_duration_seconds_count") == 10
        assert value(told, "mcpmux_client_sessions") == 6


def test_one_that_says_nothing_for_once_has_not_ended():
    totals = Totals()
    everyone: dict[object, str] = {1: text(3), 2: text(4)}
    totals.add_up(everyone, everyone)
    totals.add_up({1: text(3)}, everyone)
    assert value(totals.add_up(everyone, everyone), 'mcpmux_messages_total{direction="in"') == 7
