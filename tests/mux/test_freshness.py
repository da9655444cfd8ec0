from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.cache import Freshness
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields

ttls = st.integers(0, 1 << 40)
scopes = st.sampled_from(["public", "private"])


def result(ttl: object, scope: object) -> Fields:
    return {"ttlMs": raw(ttl), "cacheScope": raw(scope)}


def of(parts: list[Fields]) -> tuple[int, str]:
    whole = Freshness()
    for part in parts:
        whole.take(part)
    return whole.ttl_ms, whole.scope


@given(st.lists(st.tuples(ttls, scopes), min_size=1))
def test_the_shortest_time_and_the_narrowest_scope_win(parts: list[tuple[int, str]]):
    scope = "public" if all(scope == "public" for _, scope in parts) else "private"
    assert of([result(*part) for part in parts]) == (min(ttl for ttl, _ in parts), scope)


@given(st.lists(st.tuples(ttls, scopes), min_size=1), st.randoms(use_true_random=False))
def test_order_does_not_matter(parts: list[tuple[int, str]], random):
    results = [result(*part) for part in parts]
    freshness = of(results)
    random.shuffle(results)
    assert of(results) == freshness


@pytest.mark.parametrize("hints", [{}, {"ttlMs": raw(1000)}, {"cacheScope": raw("public")}])
def test_a_part_without_a_hint_is_not_fresh_or_not_public(hints: Fields):
    ttl, scope = of([result(5000, "public"), {"tools": raw([]), **hints}])
    assert ttl == (1000 if "ttlMs" in hints else 0)
    assert scope == ("public" if "cacheScope" in hints else "private")


@pytest.mark.parametrize("ttl", [-1, 1.5, "60", None, True, [], 10**400])
def test_a_time_that_makes_no_sense_is_none(ttl: object):
    is_time = isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0
    assert of([result(ttl, "public")]) == (ttl if is_time else 0, "public")


@pytest.mark.parametrize("scope", ["shared", "", None, 1, ["public"]])
def test_an_unknown_scope_is_private(scope: object):
    assert of([result(1, scope)]) == (1, "private")


def test_an_empty_result_is_no_part():
    assert of([result(7, "public"), {}]) == (7, "public")


def test_nothing_taken_is_not_fresh():
    fresh = Freshness()
    assert (fresh.ttl_ms, fresh.scope) == (0, "public")
