"""The part of a configuration that each worker gets, and the state of upstreams for all workers together."""

from __future__ import annotations

import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.app.workers.channel import encode_message
from mcpmux.app.workers.supervisor import (
    divide,
    is_shared,
    merge_upstreams,
    shared_config,
    worker_config,
    worst,
)
from mcpmux.config import Audit, Config, Http, Limits, Secret, Stdio, Unix, Upstream
from mcpmux.config.model import RateLimit, ToolSelection
from mcpmux.config.views import Override, Parameter, View, ViewOverride
from mcpmux.traffic.admin.upstreams import SessionState, UpstreamState
from mcpmux.traffic.audit.chain import CHAIN_FOLDER

KEY = Secret("a key that nobody guesses")
WORKERS = st.integers(1, 64)
SHARED = Upstream(name="shared", prefix="h", target=Stdio(command="cat", env={"A": Secret("b")}))
OWN = Upstream(name="own", target=Stdio(command="cat"), per_worker=True)
PRIVATE = Upstream(name="private", target=Stdio(command="cat"), session="per-client")
RUNNING = Upstream(name="running", target=Http(url="http://a.example/mcp"))
OFF = Upstream(name="off", target=Stdio(command="cat"), enabled=False)
UPSTREAMS = (SHARED, OWN, PRIVATE, RUNNING, OFF)
SOCKETS = {"shared": "/run/1.sock"}


def config(**settings: Any) -> Config:
    return Config(upstreams=UPSTREAMS, **settings)


def share(worker: int = 1, workers: int = 2, **settings: Any) -> Config:
    return worker_config(config(**settings), worker, workers, SOCKETS, KEY)


def test_only_a_shared_server_that_mcpmux_starts_is_a_shared_upstream():
    assert [upstream.name for upstream in UPSTREAMS if is_shared(upstream)] == ["shared"]


@given(st.integers(1, 10**9), WORKERS)
def test_shares_are_the_whole_and_less_than_one_a_worker_more(whole: int, workers: int):
    part = divide(Limits(max_sessions=whole), workers, max_sessions=1).max_sessions
    assert whole <= part * workers < whole + workers


@given(WORKERS)
def test_upstreams_keep_their_order_and_prefixes(workers: int):
    shared = share(1, workers).upstreams
    assert [(upstream.name, upstream.prefix, upstream.enabled) for upstream in shared] == [
        (upstream.name, upstream.prefix, upstream.enabled) for upstream in UPSTREAMS
    ]


@given(WORKERS)
def test_what_is_bounded_in_all_is_divided(workers: int):
    limits = Limits(max_sessions=100, max_connections=77, max_connections_per_address=70)
    shares = [share(worker, workers, limits=limits) for worker in range(1, workers + 1)]
    assert {share.limits.max_streams_per_client for share in shares} == {None}
    for name in ("max_sessions", "max_connections", "max_connections_per_address"):
        assert sum(getattr(share.limits, name) for share in shares) >= getattr(limits, name)
    assert sum(share.caching.max_bytes for share in shares) >= config().caching.max_bytes
    assert sum(share.upstreams[1].max_in_flight for share in shares) >= OWN.max_in_flight
    # By the workers themselves, or of one worker alone.
    assert {share.upstreams[number].max_in_flight for share in shares for number in (2, 3)} == {
        RUNNING.max_in_flight
    }
    assert shares[0].limits.max_in_flight == limits.max_in_flight


def test_a_shared_upstream_is_at_its_socket_without_health_checks():
    shared = share().upstreams[0]
    assert shared.target == Unix("/run/1.sock")
    assert (shared.era, shared.health_interval) == ("newest", 0.0)
    assert shared.max_in_flight == SHARED.max_in_flight


def test_a_server_that_follows_its_client_does_so_when_shared():
    mirroring = attrs.evolve(SHARED, era="mirror")
    whole = Config(upstreams=(mirroring,))
    assert worker_config(whole, 1, 2, SOCKETS, KEY).upstreams[0].era == "mirror"


def test_every_worker_writes_into_a_folder_of_its_own():
    first, second = (share(worker, audit=Audit(directory="/log")) for worker in (1, 2))
    assert first.audit.directory == f"/log/{CHAIN_FOLDER}1"
    assert second.audit.directory == f"/log/{CHAIN_FOLDER}2"
    assert first.capture.directory == second.capture.directory
    assert share().audit.directory is None


def test_what_one_worker_seals_the_others_open():
    assert share(1).merging.cursor_key == share(2).merging.cursor_key == KEY
    own = Secret("another key, from the file")
    merging = attrs.evolve(config().merging, cursor_key=own)
    assert share(1, merging=merging).merging.cursor_key == own


@given(WORKERS)
def test_the_same_configuration_makes_the_same_share(worker: int):
    assert share(worker, 64) == share(worker, 64)


def test_a_shared_upstream_is_passed_on_untouched_and_without_authentication():
    overridden = attrs.evolve(
        SHARED, overrides=(Override(name="x", rename="y"),), tools=ToolSelection(("x",))
    )
    limits = Limits(rate=(RateLimit(requests=1),))
    whole = shared_config(config(limits=limits), overridden)
    (upstream,) = whole.upstreams
    assert (upstream.prefix, upstream.target, upstream.caching) == ("", SHARED.target, False)
    assert (upstream.tools, upstream.overrides) == (ToolSelection(), ())  # workers see to it
    assert not whole.limits.rate
    assert not whole.access
    assert not whole.auth.asks_tokens
    assert not whole.listeners.http


def test_a_configuration_arrives_as_it_was_sent():
    override = ViewOverride(upstream="own", name="x", parameters={"p": Parameter(value={"a": [1]})})
    whole = config(
        audit=Audit(directory="/log", key=Secret("0123456789abcdef")),
        views={"coding": View(overrides=(override,))},
    )
    _, _, (arrived,) = pickle.loads(encode_message((0, "apply", (whole,)))[8:])
    assert arrived == whole
    assert arrived.upstreams[0].target.env["A"].reveal() == "b"


# The state of upstreams


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
