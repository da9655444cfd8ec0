"""The cache: a model that forgets everything too early is always right about what must not be found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mcpmux.mux.cache import (
    CHANGES,
    ENTRY_OVERHEAD,
    MERGED,
    PARTS_LIMIT,
    URI_LIMIT,
    Cache,
    CacheKey,
    Fetch,
    like,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO, Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import Principal
from tests.examples import examples

MAX_BYTES, MAX_ENTRIES = 40_000, 8
URIS = ["file:///a", "file:///a/", "file:///a/b", "file:///a/b?c", "file:///ab", "memo:1", ""]
SESSIONS = ["docs", "docs@legacy", "web"]
LISTS = list(m.LISTS)
AUDIENCES = [None, "alice", "bob"]

keys = st.one_of(
    st.builds(CacheKey, st.sampled_from(SESSIONS), st.just(m.RESOURCES_READ), st.sampled_from(URIS)),
    st.builds(
        CacheKey,
        st.sampled_from([*SESSIONS, MERGED]),
        st.sampled_from(LISTS),
        st.sampled_from([None, "", "2"]),
    ),
)


def touches(uri: str, other: str) -> bool:
    """Return whether one URI is the other, or begins with it up to a separator."""
    short, long = sorted((uri, other), key=len)
    if not short:
        return not long
    return long == short or (long.startswith(short) and (short[-1] == "/" or long[len(short)] in "/?#"))


class CacheMachine(RuleBasedStateMachine):
    """`born`: when each value was asked for; `told`: (time, what it was about) of each invalidation."""

    fetches = Bundle("fetches")

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(MAX_BYTES, MAX_ENTRIES)
        self.step = 0
        self.now = 0.0
        self.told: list[tuple[int, Any]] = []
        self.generation = 0
        self.open: dict[int, tuple[Fetch, int]] = {}

    def is_stale(self, key: CacheKey, born: int) -> bool:
        return any(step > born and about(key) for step, about in self.told)

    @rule(target=fetches, key=keys)
    def begin(self, key: CacheKey) -> tuple[Fetch, int]:
        self.step += 1
        joined = next(iter(self.cache.joinable.get((key, self.generation, None), ())), None)
        fetch = self.cache.begin(key, self.generation)
        if joined is not None:
            assert joined.key == key
            assert not self.is_stale(key, self.open[id(joined)][1]), self.told
        assert self.cache.joinable[key, self.generation, None][0] is (joined or fetch)
        self.open[id(fetch)] = fetch, self.step
        return fetch, self.step

    @rule(
        fetch=consumes(fetches),
        audience=st.sampled_from(AUDIENCES),
        seconds=st.floats(0, 100),
        size=st.integers(0, 12_000),
        keeps=st.booleans(),
    )
    def finish(self, fetch: tuple[Fetch, int], audience: Any, seconds: float, size: int, keeps: bool) -> None:
        if keeps:
            value = (fetch[0].key, audience, fetch[1], self.now + seconds)
            until = self.now + seconds
            self.cache.keep(fetch[0], audience, value, size, until, generation=self.generation)
        self.cache.end(fetch[0])
        del self.open[id(fetch[0])]

    @rule(key=keys, audience=st.sampled_from(AUDIENCES))
    def find(self, key: CacheKey, audience: Any) -> None:
        entry = self.cache.find(key, (audience,), self.now, self.generation)
        if entry is not None:
            found_key, found_audience, born, until = entry.value
            assert (found_key, found_audience) == (key, audience)
            assert self.now < until
            assert not self.is_stale(key, born), self.told

    @invariant()
    def only_what_is_open_and_good_is_joined(self) -> None:
        for fetch, born in self.open.values():
            joinable = self.cache.joinable.get((fetch.key, fetch.generation, fetch.audience), [])
            assert fetch.spoiled or fetch in joinable
            assert (
                fetch not in joinable
                or not self.is_stale(fetch.key, born)
                or fetch.generation < self.generation
            )
        assert self.open or not self.cache.joinable

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def tell(self, about: Any) -> None:
        self.step += 1
        self.told.append((self.step, about))

    @rule(session=st.sampled_from(SESSIONS), uri=st.sampled_from(URIS))
    def update(self, session: str, uri: str) -> None:
        self.cache.update(session, uri)
        self.tell(
            lambda key: (
                key.session == session and key.method == m.RESOURCES_READ and touches(uri, key.target or "")
            )
        )

    @rule(session=st.sampled_from(SESSIONS), change=st.sampled_from(list(CHANGES)))
    def change(self, session: str, change: str) -> None:
        self.cache.change(session, CHANGES[change])
        self.tell(lambda key: key.session in (session, MERGED) and key.method in CHANGES[change])

    @rule(session=st.sampled_from(SESSIONS))
    def drop(self, session: str) -> None:
        self.cache.drop(session)
        self.tell(lambda key: key.session in (session, MERGED))

    @rule()
    def act(self) -> None:
        self.generation += 1
        self.tell(lambda _key: True)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.tell(lambda _key: True)

    @rule(max_bytes=st.integers(0, MAX_BYTES), max_entries=st.integers(0, MAX_ENTRIES))
    def resize_and_back(self, max_bytes: int, max_entries: int) -> None:
        self.cache.resize(max_bytes, max_entries)
        assert self.cache.bytes <= max_bytes
        assert len(self.cache) <= max_entries
        self.cache.resize(MAX_BYTES, MAX_ENTRIES)

    @invariant()
    def it_is_bounded(self) -> None:
        assert 0 <= self.cache.bytes <= MAX_BYTES
        assert len(self.cache) <= MAX_ENTRIES
        if not len(self.cache):
            assert self.cache.bytes == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)

READ = CacheKey("docs", m.RESOURCES_READ, "file:///a")
TOOLS = CacheKey("docs", m.TOOLS_LIST)


def keep(cache: Cache, key: CacheKey, audience: Any = None, *, size: int = 0, until: float = 10.0) -> bool:
    fetch = cache.begin(key)
    try:
        return cache.keep(fetch, audience, key, size, until)
    finally:
        cache.end(fetch)


def test_what_was_kept_is_found_until_its_time_is_over():
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    assert keep(cache, READ)
    entry = cache.find(READ, (None,), 9.9)
    assert entry is not None
    assert entry.value == READ
    assert cache.find(READ, (None,), 10.0) is None
    assert len(cache) == cache.bytes == 0


def test_the_least_used_goes_first():
    cache = Cache(MAX_BYTES, 2)
    first, second, third = (CacheKey("docs", m.RESOURCES_READ, f"memo:{n}") for n in range(3))
    keep(cache, first)
    keep(cache, second)
    cache.find(first, (None,), 0)
    keep(cache, third)
    assert [cache.find(key, (None,), 0) is not None for key in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize(
    ("uri", "gone"),
    [
        ("file:///a", True),
        ("file:///a/b", True),  # a resource that may be a directory has changed with what is in it
        ("file:///", True),  # what it is in has changed
        ("file:///ab", False),
        ("file:///b", False),
    ],
)
@pytest.mark.parametrize("in_flight", [False, True])
def test_an_update_is_about_the_resource_and_those_above_and_below_it(uri: str, gone: bool, in_flight: bool):
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    fetch = cache.begin(READ)
    if in_flight:
        cache.update("docs", uri)
        assert cache.keep(fetch, None, READ, 0, 10) is not gone
    else:
        cache.keep(fetch, None, READ, 0, 10)
        cache.update("docs", uri)
        assert (cache.find(READ, (None,), 0) is None) is gone
    cache.end(fetch)
    assert cache.knows("docs") is not gone


def test_an_update_of_another_session_is_not_about_it():
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    keep(cache, READ)
    cache.update("web", "file:///a")
    cache.drop("web")
    assert cache.find(READ, (None,), 0) is not None


def test_a_merged_list_is_gone_with_any_of_its_parts():
    for session in SESSIONS:
        cache = Cache(MAX_BYTES, MAX_ENTRIES)
        merged = CacheKey(MERGED, m.TOOLS_LIST)
        keep(cache, merged)
        cache.change(session, CHANGES[m.PROMPTS_CHANGED])
        assert cache.find(merged, (None,), 0) is not None
        cache.change(session, CHANGES[m.TOOLS_CHANGED])
        assert cache.find(merged, (None,), 0) is None


@pytest.mark.parametrize(
    "uri", ["memo:" + "x" * URI_LIMIT, "file:///" + "a/" * PARTS_LIMIT], ids=["long", "deep"]
)
def test_a_uri_that_costs_too_much_to_be_found_is_not_kept(uri: str):
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    assert not keep(cache, CacheKey("docs", m.RESOURCES_READ, uri))
    assert not cache.knows("docs")


def test_one_large_answer_does_not_displace_all_others():
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    keep(cache, READ)
    assert not keep(cache, TOOLS, size=MAX_BYTES // 2)
    assert len(cache) == 1
    assert not keep(Cache(ENTRY_OVERHEAD, 1), READ)


def test_what_is_fetched_beside_another_can_be_joined_after_that():
    cache = Cache(MAX_BYTES, MAX_ENTRIES)
    fetches = [cache.begin(READ) for _ in range(4)]
    key = (READ, 0, None)
    for over, joinable in ((2, 0), (0, 1), (1, 3)):
        cache.end(fetches[over])
        assert cache.joinable[key][0] is fetches[joinable]
    cache.end(fetches[3])
    assert not cache.joinable


@given(st.sampled_from(URIS), st.sampled_from(URIS))
def test_touching_is_mutual(uri: str, other: str):
    assert touches(uri, other) is touches(other, uri)


@pytest.mark.parametrize(
    "other",
    [
        Call(m.RESOURCES_READ, {}, {}, principal=Principal("alice")),
        Call(m.RESOURCES_READ, {}, {CLIENT_INFO: raw({"name": "other"})}),
        Call(m.RESOURCES_READ, {}, {}, headers=(("X-Tenant", "a"),)),
    ],
)
def test_private_answers_are_apart_where_a_server_tells_clients_apart(other: Call):
    call = Call(m.RESOURCES_READ, {}, {})
    assert like(call) == like(Call(m.RESOURCES_READ, {"uri": raw("memo:x")}, {}))
    assert like(call) != like(other)
