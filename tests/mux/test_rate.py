"""Token buckets: how many exchanges may begin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.model import RateLimit
from mcpmux.mux import rate
from mcpmux.mux.rate import Exceeded, Rates
from mcpmux.protocol.principal import ANYONE, Principal

ALICE, BOB = Principal("alice"), Principal("bob")
SLACK = 1e-6  # of sums of floats


def begin(rates: Rates, principal: Principal, method: str, now: float, upstream: str = "") -> Exceeded | None:
    return rates.take(rates.counted(principal, method, upstream), now)


limits = st.builds(
    RateLimit,
    requests=st.integers(1, 50),
    per=st.floats(0.1, 100),
    burst=st.integers(1, 50),
)
pauses = st.lists(st.floats(0, 20), max_size=200)


@given(limits, pauses)
def test_no_more_begin_in_any_time_than_the_bucket_allows(limit, pauses):
    rates, now, begun = Rates([limit]), 0.0, []
    for pause in pauses:
        now += pause
        if begin(rates, ALICE, "tools/call", now) is None:
            begun.append(now)
    for first, start in enumerate(begun):
        for number, time in enumerate(begun[first:], 1):
            assert number <= limit.burst + limit.requests * (time - start) / limit.per + SLACK


@given(limits, pauses)
def test_who_comes_back_when_it_is_told_to_may_begin(limit, pauses):
    rates, now = Rates([limit]), 0.0
    for pause in pauses:
        now += pause
        exceeded = begin(rates, ALICE, "tools/call", now)
        if exceeded is not None:
            assert 0 < exceeded.seconds <= limit.per / limit.requests + SLACK
            now += exceeded.seconds + SLACK
            assert begin(rates, ALICE, "tools/call", now) is None


def test_a_burst_is_followed_by_an_even_rate():
    rates = Rates([RateLimit(requests=2, per=1.0, burst=3)])
    begun = [now for now in (quarter / 4 for quarter in range(20)) if not begin(rates, ALICE, "m", now)]
    assert begun == [0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]


@pytest.mark.parametrize(
    ("each", "together"),
    [
        ((), {"same", "principal", "method"}),
        (("principal",), {"same", "method"}),
        (("method",), {"same", "principal"}),
        (("principal", "method"), {"same"}),
    ],
)
def test_what_is_counted_apart(each, together):
    a, b = "tools/call", "tools/list"
    others = {"same": (ALICE, a), "principal": (BOB, a), "method": (ALICE, b)}
    for kind, (principal, method) in others.items():
        rates = Rates([RateLimit(requests=1, each=each)])
        assert begin(rates, ALICE, a, 0) is None
        assert (begin(rates, principal, method, 0) is not None) is (kind in together), kind


def test_only_what_a_limit_names_counts_for_it():
    rates = Rates([RateLimit(requests=1, principals=("a*",), methods=("tools/*",))])
    assert begin(rates, ALICE, "tools/call", 0) is None
    for principal, method in ((BOB, "tools/call"), (ANYONE, "tools/call"), (ALICE, "resources/read")):
        assert begin(rates, principal, method, 0) is begin(rates, principal, method, 0) is None
    exceeded = begin(rates, ALICE, "tools/list", 0)
    assert exceeded is not None and (exceeded.setting, exceeded.seconds) == ("limits.rate[0]", 1)


def test_limits_about_upstreams_count_exchanges_and_others_requests():
    rates = Rates([RateLimit(requests=1), RateLimit(requests=2, upstreams=("s*",), each=("upstream",))])
    assert rates.counts_requests and rates.counts_exchanges
    for upstream, allowed in (("search", 2), ("sums", 2), ("docs", 9)):
        begun = [begin(rates, ALICE, "m", 0, upstream) for _ in range(9)]
        assert begun.count(None) == allowed
    assert [begin(rates, ALICE, "m", 0) is None for _ in range(2)] == [True, False]
    assert RateLimit(requests=1, each=("upstream",)).is_about_upstreams
    none = Rates()
    assert not none.counts_requests and not none.counts_exchanges


def test_what_is_refused_costs_nothing():
    """Else a client that is refused by one limit would use up another one."""
    rates = Rates([RateLimit(requests=1, per=10.0), RateLimit(requests=5, per=10.0, methods=("b",), each=())])
    assert begin(rates, ALICE, "a", 0) is None
    for _ in range(20):
        assert begin(rates, ALICE, "b", 0) is not None
    assert [begin(rates, Principal(str(number)), "b", 0) for number in range(5)] == [None] * 5


def test_a_bucket_is_dropped_only_when_it_is_full(monkeypatch):
    monkeypatch.setattr(rate, "SWEEP_FROM", 10)
    rates = Rates([RateLimit(requests=1, per=100.0)])
    for number in range(100):
        assert begin(rates, Principal(str(number)), "m", number) is None
    assert begin(rates, Principal("0"), "m", 99) is not None
    for number in range(1000, 1200):
        assert begin(rates, Principal(str(number)), "m", number) is None
    assert len(rates._full) < 300


def test_past_the_limit_of_buckets_only_known_clients_begin(monkeypatch):
    monkeypatch.setattr(rate, "BUCKETS_LIMIT", 10)
    monkeypatch.setattr(rate, "SWEEP_FROM", 10)
    rates = Rates([RateLimit(requests=1, per=1000.0, burst=5)])
    begun = [begin(rates, Principal(str(number)), "m", 0) is None for number in range(20)]
    assert begun == [True] * 10 + [False] * 10
    assert begin(rates, Principal("3"), "m", 1) is None
    assert begin(rates, Principal("19"), "m", 3000) is None


def test_methods_that_are_not_known_share_a_bucket():
    rates = Rates([RateLimit(requests=1, each=("method",))])
    assert begin(rates, ALICE, "vendor/a", 0) is None
    assert begin(rates, ALICE, "vendor/b", 0) is not None
    assert begin(rates, ALICE, "tools/list", 0) is None


def test_other_limits_have_full_buckets():
    rates = Rates([RateLimit(requests=1)])
    begin(rates, ALICE, "m", 0)
    rates.become([RateLimit(requests=2)])
    assert [begin(rates, ALICE, "m", 0) is None for _ in range(3)] == [True, True, False]
