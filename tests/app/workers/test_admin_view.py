"""The state of upstreams for all workers together."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.app.workers.supervisor import merge_upstreams, worst
from mcpmux.traffic.admin.upstreams import SessionState, UpstreamState


def state(name: str = "docs", state: str = "ready", **more: Any) -> UpstreamState:
    return UpstreamState(name=name, prefix="d", target="unix:/run/1.sock", state=state, **more)


def session(key: str = "docs", listeners: int = 0) -> SessionState:
    subscriptions = [{"uri": "a:1", "agreed": True, "listeners": listeners}] if listeners else []
    return SessionState(
        key=key,
        kind="shared",
        state="ready",
        since="2026-01-01T00:00:00Z",
        revision=None,
        trouble=None,
        in_flight=0,
        connect_ms=None,
        subscriptions=subscriptions,
        more_subscriptions=0,
    )


def test_the_state_of_one_worker_is_shown_with_its_session_keys():
    states = state(in_flight=3, restarts=1, cache={"hits": 2}, sessions=[session()])
    (merged,) = merge_upstreams({1: [states]}, {})
    assert [session.key for session in merged.sessions] == ["1/docs"]
    assert merged.in_flight == 3
    assert merged.cache == {"hits": 2}


def test_numbers_are_added_up_and_sessions_stand_side_by_side():
    states = {
        1: [state(in_flight=3, restarts=1, cache={"hits": 2, "misses": 1}, sessions=[session()])],
        2: [state(in_flight=4, restarts=0, cache={"hits": 5, "misses": 0}, sessions=[session()])],
    }
    (merged,) = merge_upstreams(states, {})
    assert (merged.in_flight, merged.restarts, merged.cache) == (7, 1, {"hits": 7, "misses": 1})
    assert [session.key for session in merged.sessions] == ["1/docs", "2/docs"]


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
    by_worker = {number: [state(state=one_state)] for number, one_state in enumerate(states, 1)}
    assert [upstream.state for upstream in merge_upstreams(by_worker, {})] == [told]


def test_trouble_of_one_worker_says_whose_it_is():
    states = {1: [state()], 2: [state(state="down", trouble="connection refused")]}
    (merged,) = merge_upstreams(states, {})
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
    states = {
        1: [state(state="down", sessions=[session(listeners=3)], in_flight=1)],
        2: [state(state="down", sessions=[session(listeners=5)], in_flight=1)],
    }
    (merged,) = merge_upstreams(states, {"docs": shared})
    assert (merged.state, merged.restarts, merged.prefix, merged.target) == ("crash-loop", 7, "d", "npx …")
    (shown,) = merged.sessions
    assert (shown.key, shown.subscriptions[0]["listeners"]) == ("docs", 8)


def test_a_shared_upstream_that_workers_drain_is_drained():
    shared = UpstreamState(name="docs", prefix="", target="npx …", state="ready")
    states = {1: [state(state="drained")], 2: [state(state="draining")]}
    assert merge_upstreams(states, {"docs": shared})[0].state == "draining"


def test_upstreams_keep_the_workers_order():
    states = {1: [state("b"), state("a")], 2: [state("b"), state("a"), state("c")]}
    assert [upstream.name for upstream in merge_upstreams(states, {})] == ["b", "a", "c"]
