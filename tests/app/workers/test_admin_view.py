"""How upstreams are for all workers together."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.app.workers.supervisor import merge_upstreams, worst
from mcpmux.traffic.admin.upstreams import SessionState, UpstreamState


def state(name: str = "docs", state: str = "ready", **more: Any) -> UpstreamState:
    return UpstreamState(name=name, prefix="d", target="unix:/run/1.sock", state=state, **more)


def session(key: str = "docs", listeners: int = 0) -> SessionState:
    told = [{"uri": "a:1", "agreed": True, "listeners": listeners}] if listeners else []
    return SessionState(
        key=key,
        kind="shared",
        state="ready",
        since="2026-01-01T00:00:00Z",
        revision=None,
        trouble=None,
        in_flight=0,
        connect_ms=None,
        subscriptions=told,
        more_subscriptions=0,
    )


def test_one_worker_is_told_as_it_is_but_for_whose_sessions_they_are():
    said = state(in_flight=3, restarts=1, cache={"hits": 2}, sessions=[session()])
    (merged,) = merge_upstreams({1: [said]}, {})
    assert [each.key for each in merged.sessions] == ["1/docs"]
    assert merged.in_flight == 3
    assert merged.cache == {"hits": 2}


def test_numbers_are_added_up_and_sessions_stand_side_by_side():
    said = {
        1: [state(in_flight=3, restarts=1, cache={"hits": 2, "misses": 1}, sessions=[session()])],
        2: [state(in_flight=4, restarts=0, cache={"hits": 5, "misses": 0}, sessions=[session()])],
    }
    (merged,) = merge_upstreams(said, {})
    assert (merged.in_flight, merged.restarts, merged.cache) == (7, 1, {"hits": 7, "misses": 1})
    assert [each.key for each in merged.sessions] == ["1/docs", "2/docs"]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["ready", "ready"], "ready"),
        (["ready", "down"], "down"),
        (["crash-loop", "down", "ready"], "down"),
        (["connecting", "failing"], "failing"),
        (["drained", "draining"], "draining"),
        (["ready", "something new"], "something new"),
    ],
)
def test_an_upstream_is_as_good_as_for_whom_it_is_worst(states: list[str], told: str):
    assert worst(states) == worst(reversed(states)) == told
    said = {number: [state(state=each)] for number, each in enumerate(states, 1)}
    assert [each.state for each in merge_upstreams(said, {})] == [told]


def test_trouble_of_one_worker_says_whose_it_is():
    said = {1: [state()], 2: [state(state="down", trouble="connection refused")]}
    (merged,) = merge_upstreams(said, {})
    assert (merged.state, merged.trouble) == ("down", "connection refused (worker 2 of 2)")
    both = {1: [state(state="down", trouble="refused")], 2: [state(state="down", trouble="refused")]}
    assert merge_upstreams(both, {})[0].trouble == "refused"


def test_a_shared_upstream_is_as_it_says_itself():
    shared = UpstreamState(
        name="docs",
        prefix="",
        target="npx …",
        state="crash-loop",
        restarts=7,
        sessions=[session(listeners=2)],
    )
    said = {
        1: [state(state="down", sessions=[session(listeners=3)], in_flight=1)],
        2: [state(state="down", sessions=[session(listeners=5)], in_flight=1)],
    }
    (merged,) = merge_upstreams(said, {"docs": shared})
    assert (merged.state, merged.restarts, merged.prefix, merged.target) == ("crash-loop", 7, "d", "npx …")
    (shown,) = merged.sessions
    assert (shown.key, shown.subscriptions[0]["listeners"]) == ("docs", 8)


def test_a_shared_upstream_that_workers_drain_is_drained():
    shared = UpstreamState(name="docs", prefix="", target="npx …", state="ready")
    said = {1: [state(state="drained")], 2: [state(state="draining")]}
    assert merge_upstreams(said, {"docs": shared})[0].state == "draining"


def test_upstreams_keep_the_workers_order():
    said = {1: [state("b"), state("a")], 2: [state("b"), state("a"), state("c")]}
    assert [each.name for each in merge_upstreams(said, {})] == ["b", "a", "c"]
