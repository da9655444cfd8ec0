from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcpmux.lru import weigh
from mcpmux.mux.subscriptions import (
    PARENTS_LIMIT,
    Subscriptions,
    find_above,
    is_at_or_above,
    parents,
)

LISTENERS = ["ann", "ben", "cid"]
UPSTREAMS = ["x", "y"]
URIS = ["memo:1", "file:///a", "file:///a/", "file:///a/b", "file:///ab"]

listeners = st.sampled_from(LISTENERS)
upstreams = st.sampled_from(UPSTREAMS)
uris = st.sampled_from(URIS)


class Interest(RuleBasedStateMachine):
    """The machine against the plainest model of it: a set of (listener, upstream, uri)."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions: Subscriptions[str] = Subscriptions()
        self.model: set[tuple[str, str, str]] = set()

    @rule(listener=listeners, upstream=upstreams, uri=uris)
    def add(self, listener: str, upstream: str, uri: str) -> None:
        is_new = (listener, upstream, uri) not in self.model
        self.model.add((listener, upstream, uri))
        assert self.subscriptions.add(listener, upstream, uri) == is_new

    @rule(listener=listeners, upstream=upstreams, uri=uris)
    def remove(self, listener: str, upstream: str, uri: str) -> None:
        was_wanted = uri in self.wanted(upstream)
        self.model.discard((listener, upstream, uri))
        ended = self.subscriptions.remove(listener, upstream, uri)
        assert ended == (was_wanted and uri not in self.wanted(upstream))

    @rule(listener=listeners)
    def remove_all(self, listener: str) -> None:
        earlier = {upstream: self.wanted(upstream) for upstream in UPSTREAMS}
        self.model = {entry for entry in self.model if entry[0] != listener}
        less = self.subscriptions.remove_all(listener)
        assert less == {upstream for upstream in UPSTREAMS if earlier[upstream] != self.wanted(upstream)}

    @rule(upstream=upstreams, other=upstreams)
    def move(self, upstream: str, other: str) -> None:
        uris = self.wanted(upstream)
        self.model = {(who, other if of == upstream else of, uri) for who, of, uri in self.model}
        assert self.subscriptions.move(upstream, other) == uris

    def wanted(self, upstream: str) -> set[str]:
        return {uri for _, of, uri in self.model if of == upstream}

    @invariant()
    def the_bytes_of_a_listener_are_those_of_its_uris(self) -> None:
        for listener in LISTENERS:
            held = [uri for who, _, uri in self.model if who == listener]
            assert self.subscriptions.bytes_of(listener) == sum(map(weigh, held))

    @invariant()
    def wanted_is_what_somebody_listens_to(self) -> None:
        for upstream in UPSTREAMS:
            assert self.subscriptions.wanted(upstream) == self.wanted(upstream)

    @invariant()
    def everybody_is_counted(self) -> None:
        for listener in LISTENERS:
            held = sorted((upstream, uri) for who, upstream, uri in self.model if who == listener)
            assert self.subscriptions.held_by(listener) == held
            assert self.subscriptions.count(listener) == len(held)

    @invariant()
    def subscribers_of_a_uri_hear_of_it_under_it(self) -> None:
        for upstream in UPSTREAMS:
            for uri in URIS:
                audience = self.subscriptions.audience(upstream, uri)
                for listener in LISTENERS:
                    if (listener, upstream, uri) in self.model:
                        assert audience[listener] == uri
                for listener, through in audience.items():
                    assert (listener, upstream, through) in self.model
                    assert uri.startswith(through)

    @invariant()
    def nothing_is_remembered_of_nobody(self) -> None:
        if not self.model:
            assert repr(self.subscriptions) == "<Subscriptions {} of 0 listeners>"


TestInterest = Interest.TestCase


segments = st.text("ab%.", min_size=1, max_size=3)
bases = st.builds(
    lambda scheme, parts: scheme + "/".join(parts),
    st.sampled_from(["file:///", "https://host/", "memo:", "urn:x:"]),
    st.lists(segments, min_size=1, max_size=3),
)


@given(bases, st.sampled_from("/?#"), segments)
def test_a_subscriber_hears_of_everything_below_its_uri(base: str, joint: str, tail: str):
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("ann", "x", base)
    assert subscriptions.audience("x", base + joint + tail) == {"ann": base}
    assert subscriptions.audience("y", base + joint + tail) == {}


@given(bases, segments)
def test_a_subscriber_does_not_hear_of_a_longer_name(base: str, tail: str):
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("ann", "x", base)
    assert subscriptions.audience("x", base + tail) == {}


def test_the_nearest_subscribed_uri_is_the_one_heard_through():
    subscriptions: Subscriptions[str] = Subscriptions()
    for uri in ("file:///a", "file:///a/b", "file:///a/b/"):
        subscriptions.add("ann", "x", uri)
    subscriptions.add("ben", "x", "file:///a")
    assert subscriptions.audience("x", "file:///a/b/c") == {"ann": "file:///a/b/", "ben": "file:///a"}


def test_every_separator_ends_a_uri_that_is_above():
    subscriptions: Subscriptions[str] = Subscriptions()
    above = ["https://h/a", "https://h/a/b", "https://h/a/b?q=1", "https://h/a/", "https://h/", "https://h"]
    for uri in [*above, "https://h/a/b?q"]:
        subscriptions.add(uri, "x", uri)
    assert set(subscriptions.audience("x", "https://h/a/b?q=1#part")) == set(above)


texts = st.text("/?#a", max_size=8)


@given(texts)
def test_parents_are_all_shorter_uris_above(uri: str):
    prefixes = [uri[:end] for end in range(1, len(uri))]
    assert list(parents(uri)) == [prefix for prefix in prefixes if is_at_or_above(prefix, uri)]


@given(st.sets(texts, max_size=8), texts, st.booleans())
def test_known_uris_above_are_found_nearest_first(candidates: set[str], uri: str, is_deep: bool):
    if is_deep:  # so that the candidates are compared one by one
        prefix = "/" * PARENTS_LIMIT
        candidates, uri = {prefix + text for text in candidates}, prefix + uri
    above = [text for text in candidates if text and is_at_or_above(text, uri)]
    above_found = find_above(candidates - {""}, uri)
    assert set(above_found) == set(above)
    assert above_found == sorted(above_found, key=len, reverse=True)


def test_a_uri_of_many_separators_takes_no_more_memory_than_its_text():
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("ann", "x", "x:a")
    subscriptions.add("ben", "x", "x:/")
    uri = "x:" + "/" * 90_000
    tracemalloc.start()
    try:
        audience = subscriptions.audience("x", uri)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert audience == {"ben": "x:/"}
    assert peak < len(uri)


def test_what_is_wanted_of_an_upstream_is_looked_up_without_a_copy() -> None:
    """It is asked for with each subscription, and there may be tens of thousands."""
    subscriptions = Subscriptions[str]()
    subscriptions.add("ann", "x", "memo:1")
    uris = subscriptions.wanted("x")
    subscriptions.add("ann", "x", "memo:2")
    assert uris == {"memo:1", "memo:2"}
