"""The promises of a store, shown with each engine."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sized
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.app.workers.channel import STORE, ControlChannel, MemberStore, SupervisorStore
from mcpmux.cluster.redis_store import open_redis_store
from mcpmux.cluster.store import Bucket, Member, MemoryStore, Place, Store, StoredSession
from mcpmux.config import Secret
from mcpmux.config.cluster import Cluster
from mcpmux.config.model import RateLimit
from mcpmux.mux.rate import Rates
from mcpmux.protocol.principal import ANYONE

SHORT = 0.3  # seconds; of what is to end while a test waits
LONG = 60.0
STEP = 0.01
MOST_SECONDS = 5.0
PATIENCE = 20.0  # seconds for one call: no test here is about a slow store, but machines may be slow
ANY_BYTES = bytes(range(256))

numbers = count()


class Engine:
    """A store, another replica's way to the same one, and its time."""

    def __init__(self, store: Store, other: Store, step: Callable[[], Awaitable[None]]) -> None:
        self.store = store
        self.other = other
        self._step = step

    async def wait_until(self, question: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(round(MOST_SECONDS / STEP)):
            if await question():
                return
            await self._step()
        pytest.fail(f"not within {MOST_SECONDS} s")

    async def wait_for_end(self, replica: str) -> None:
        """Wait for the end of a replica's lease, which a member with a long one notices."""

        async def is_gone() -> bool:
            members = await self.store.renew("witness", b"", LONG, joining=True)
            assert members is not None
            return replica not in [member.replica for member in members]

        await self.wait_until(is_gone)


@pytest.fixture(
    params=[
        "memory",
        "supervisor",
        pytest.param("redis", marks=pytest.mark.process),
        pytest.param("redis cluster", marks=pytest.mark.slow),
    ]
)
def url(request) -> str | None:
    """Return the address of the store. None: in the memory of this process; "": in that of the supervisor."""
    if request.param in ("memory", "supervisor"):
        return None if request.param == "memory" else ""
    if request.param == "redis":
        return f"redis://{request.getfixturevalue('shared_redis').address}"
    nodes = request.getfixturevalue("shared_redis_cluster")
    return f"redis+cluster://{','.join(node.address for node in nodes)}"


@pytest.fixture
async def engine(url) -> AsyncIterator[Engine]:
    if url is None:
        clock = ManualClock()
        memory = MemoryStore(clock)
        yield Engine(memory, memory, clock.step)
        return
    if not url:
        clock = ManualClock()
        memory = MemoryStore(clock)
        async with open_way(memory) as store, open_way(memory) as other:
            yield Engine(store, other, clock.step)
        return
    config = Cluster(url=Secret(url), prefix=f"test-{next(numbers)}", timeout=PATIENCE)
    async with open_redis_store(config) as store, open_redis_store(config) as other:
        yield Engine(store, other, partial(trio.sleep, STEP))


@asynccontextmanager
async def open_way(memory: MemoryStore) -> AsyncIterator[Store]:
    """Open the store of a worker whose supervisor has `memory`."""
    theirs, ours = map(ControlChannel, socket.socketpair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.run, {STORE: MemberStore(memory).answer})
        nursery.start_soon(theirs.run, {})
        yield cast("Store", SupervisorStore(theirs))
        nursery.cancel_scope.cancel()
    theirs.close()
    ours.close()


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def step(self) -> None:
        self.now += STEP


@pytest.fixture
def store(engine: Engine) -> Store:
    return engine.store


@pytest.fixture
def other(engine: Engine) -> Store:
    return engine.other


# Members


async def test_who_joins_is_a_member(store, other):
    assert await store.renew("b", ANY_BYTES, LONG, joining=True) == [Member("b", ANY_BYTES)]
    assert await other.renew("a", b"", LONG, joining=True) == [Member("a", b""), Member("b", ANY_BYTES)]


async def test_joining_may_be_repeated_while_the_lease_holds(store):
    await store.renew("a", b"old", LONG, joining=True)
    assert await store.renew("a", b"new", LONG, joining=True) == [Member("a", b"new")]


async def test_renewing_says_something_else_of_oneself(store, other):
    await store.renew("a", b"old", LONG, joining=True)
    await store.renew("a", b"new", LONG, joining=False)
    assert await other.renew("b", b"", LONG, joining=True) == [Member("a", b"new"), Member("b", b"")]


@pytest.mark.parametrize("joining", [False, True])
async def test_an_id_that_was_refused_never_comes_to_force(store, joining):
    assert await store.renew("a", b"", LONG, joining=False) is None
    assert await store.renew("a", b"", LONG, joining=joining) is None


@pytest.mark.parametrize("joining", [False, True])
async def test_an_id_whose_lease_has_ended_never_revives(engine, store, joining):
    await store.renew("a", b"", SHORT, joining=True)
    await engine.wait_for_end("a")
    for _ in range(2):
        assert await store.renew("a", b"", LONG, joining=joining) is None
    assert await store.renew("b", b"", LONG, joining=True) == [Member("b", b""), Member("witness", b"")]


@pytest.mark.parametrize("joining", [False, True])
async def test_nobody_else_has_to_notice_that_a_lease_has_ended(engine, store, joining):
    await store.renew("a", b"", SHORT, joining=True)
    await store.save("clock", StoredSession("a", b""), SHORT)
    await engine.wait_until(partial(is_unknown, store, "clock"))
    assert await store.renew("a", b"", LONG, joining=joining) is None


async def test_a_lease_that_is_renewed_goes_on(engine, store):
    await store.renew("a", b"", SHORT, joining=True)
    await store.renew("b", b"", SHORT, joining=True)
    await store.renew("a", b"", LONG, joining=False)
    await engine.wait_for_end("b")
    assert await store.renew("a", b"", LONG, joining=False) == [Member("a", b""), Member("witness", b"")]


@pytest.mark.parametrize("joining", [False, True])
async def test_who_has_left_never_comes_back_under_the_same_id(store, other, joining):
    await store.renew("a", b"", LONG, joining=True)
    await store.leave("a")
    assert await store.renew("a", b"", LONG, joining=joining) is None
    assert await other.renew("b", b"", LONG, joining=True) == [Member("b", b"")]


async def test_who_leaves_before_it_has_joined_never_joins(store):
    await store.leave("a")
    assert await store.renew("a", b"", LONG, joining=True) is None


# Sessions


async def is_unknown(store: Store, name: str) -> bool:
    return await store.find(name) is None


async def test_a_session_is_found_as_it_was_saved(store, other):
    assert await store.find("s") is None
    assert await store.save("s", StoredSession("a", ANY_BYTES), LONG)
    assert await other.find("s") == StoredSession("a", ANY_BYTES)
    assert await store.save("s", StoredSession("a", b"more"), LONG)
    assert await other.find("s") == StoredSession("a", b"more")


@pytest.mark.parametrize("name", ["{", "}", "%7D", "a}b{c", "*", "ünï côde", "a b\r\nc"])
async def test_any_text_is_a_name(store, name):
    await store.save(name, StoredSession("a", b"facts"), LONG)
    await store.append(name, [b"event"], 9, LONG)
    assert await store.keep([name], "a", LONG) == {name}
    assert await store.find(name) == StoredSession("a", b"facts")
    assert list(await store.events(name)) == [b"event"]
    await store.end(name, "a")
    assert await store.find(name) is None


async def test_who_is_not_the_owner_cannot_save(store, other):
    await store.save("s", StoredSession("a", b"facts"), LONG)
    assert not await other.save("s", StoredSession("b", b"other facts"), LONG)
    assert await store.find("s") == StoredSession("a", b"facts")


async def test_a_session_ends_after_its_time(engine, store, other):
    await store.save("s", StoredSession("a", b"facts"), SHORT)
    await store.save("kept", StoredSession("a", b"facts"), SHORT)
    await store.save("kept", StoredSession("a", b"facts"), LONG)
    await engine.wait_until(partial(is_unknown, store, "s"))
    assert await store.find("kept") is not None
    assert await other.save("s", StoredSession("b", b"mine"), LONG)


async def test_a_session_is_claimed_with_what_is_known_of_it(store, other):
    await store.save("s", StoredSession("a", b"facts"), LONG)
    assert await other.claim("s", "b", "a")
    assert await store.find("s") == StoredSession("b", b"facts")


async def test_a_claim_of_what_belongs_to_somebody_else_fails(store, other):
    assert not await store.claim("s", "b", "a")
    assert await store.find("s") is None
    await store.save("s", StoredSession("c", b"facts"), LONG)
    assert not await other.claim("s", "b", "a")
    assert await store.find("s") == StoredSession("c", b"facts")


async def test_who_lost_a_session_can_do_nothing_with_it(store, other):
    await store.save("s", StoredSession("a", b"facts"), LONG)
    await store.append("s", [b"event"], 9, LONG)
    await other.claim("s", "b", "a")
    assert not await store.save("s", StoredSession("a", b"late facts"), LONG)
    assert not await store.keep(["s"], "a", LONG)
    await store.end("s", "a")
    assert await other.find("s") == StoredSession("b", b"facts")
    assert list(await other.events("s")) == [b"event"]


async def test_a_claim_makes_a_session_live_no_longer(engine, store):
    await store.save("s", StoredSession("a", b""), SHORT)
    assert await store.claim("s", "b", "a")
    await engine.wait_until(partial(is_unknown, store, "s"))


async def test_of_many_claims_at_once_exactly_one_wins(store, other):
    await store.save("s", StoredSession("a", b"facts"), LONG)
    winners = []

    async def claim(number: int) -> None:
        if await (store, other)[number % 2].claim("s", f"b{number}", "a"):
            winners.append(f"b{number}")

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(claim, number)
    session = await store.find("s")
    assert session is not None
    assert winners == [session.owner]


async def test_sessions_that_are_kept_live_longer(engine, store):
    for name in ("kept", "left"):
        await store.save(name, StoredSession("a", b""), SHORT)
        await store.append(name, [b"event"], 9, SHORT)
    assert await store.keep(["kept"], "a", LONG) == {"kept"}
    await engine.wait_until(partial(is_unknown, store, "left"))
    await engine.wait_until(partial(has_no_events, store, "left"))
    assert await store.find("kept") == StoredSession("a", b"")
    assert list(await store.events("kept")) == [b"event"]


async def test_only_sessions_of_the_owner_are_kept(store):
    await store.save("mine", StoredSession("a", b""), LONG)
    await store.save("theirs", StoredSession("b", b""), LONG)
    assert await store.keep(["theirs", "mine", "nobody's"], "a", LONG) == {"mine"}
    assert await store.keep([], "a", LONG) == set()


async def test_very_many_sessions_are_kept_at_once(store):
    names = [f"s{number}" for number in range(1234)]
    await store.save("s777", StoredSession("a", b""), LONG)
    await store.save("s1233", StoredSession("a", b""), LONG)
    assert await store.keep(names, "a", LONG) == {"s777", "s1233"}


async def test_a_session_that_has_ended_is_forgotten_with_its_events(store):
    await store.save("s", StoredSession("a", b""), LONG)
    await store.append("s", [b"event"], 9, LONG)
    await store.end("s", "b")
    assert await store.find("s") is not None
    await store.end("s", "a")
    assert await store.find("s") is None
    assert not await store.events("s")
    await store.end("s", "a")


# Events


async def has_no_events(store: Store, name: str) -> bool:
    return not await store.events(name)


async def test_events_come_in_order(store, other):
    assert list(await store.events("s")) == []
    await store.append("s", [b"1", ANY_BYTES], 9, LONG)
    await store.append("s", [], 9, LONG)
    await store.append("s", [b"", b"2"], 9, LONG)
    assert list(await other.events("s")) == [b"1", ANY_BYTES, b"", b"2"]
    assert list(await other.events("other")) == []


@pytest.mark.parametrize("most", [1, 3, 100])
async def test_of_many_events_the_newest_are_kept(store, most):
    events = [str(number).encode() for number in range(250)]
    for start in range(0, 250, 50):
        await store.append("s", events[start : start + 50], most, LONG)
        assert list(await store.events("s")) == events[: start + 50][-most:]


async def test_events_end_after_their_time(engine, store):
    await store.append("s", [b"1"], 9, SHORT)
    await store.append("long", [b"1"], 9, SHORT)
    await store.append("long", [b"2"], 9, LONG)
    await engine.wait_until(partial(has_no_events, store, "s"))
    assert list(await store.events("long")) == [b"1", b"2"]


# Rate limits


async def test_a_bucket_gives_its_tokens_and_then_says_when_there_is_one(store, other):
    bucket = Bucket("b", 10.0, 20.0)  # three tokens, one more every 10 s
    for _ in range(3):
        assert await store.take([bucket]) is None
    assert await other.take([bucket]) == (0, pytest.approx(10.0, abs=MOST_SECONDS))
    assert await store.take([bucket._replace(name="other")]) is None
    assert await store.take([]) is None


async def test_tokens_come_back(engine, store):
    bucket = Bucket("b", SHORT, 0.0)

    async def gives() -> bool:
        return await store.take([bucket]) is None

    for _ in range(2):
        await engine.wait_until(gives)
        assert not await gives()


async def test_tokens_are_taken_from_all_buckets_or_from_none(store):
    single, many, slow = Bucket("one", 10.0, 0.0), Bucket("many", 10.0, 20.0), Bucket("slow", 100.0, 0.0)
    assert await store.take([many, single]) is None
    for _ in range(5):
        assert await store.take([many, single]) == (1, pytest.approx(10.0, abs=MOST_SECONDS))
    assert await store.take([slow]) is None
    assert await store.take([single, slow, many]) == (1, pytest.approx(100.0, abs=MOST_SECONDS))
    assert await store.take([many]) is None
    assert await store.take([many]) is None
    assert await store.take([many]) is not None


limits = st.lists(
    st.builds(RateLimit, requests=st.integers(1, 50), per=st.floats(0.1, 100), burst=st.integers(1, 20)),
    max_size=3,
)


@given(limits, st.lists(st.floats(0, 20) | st.just(0.0), max_size=100))
def test_memory_decides_as_one_process_does(limits, pauses):
    clock = ManualClock()
    store, rates = MemoryStore(clock), Rates(limits)
    buckets = buckets_of(limits)
    for pause in pauses:
        clock.now += pause
        refused = answer_of(store.take(buckets))
        exceeded = rates.take(rates.counted(ANYONE, "m"), clock.now)
        if exceeded is None:
            assert refused is None
        else:
            assert refused is not None
            assert (f"limits.rate[{refused[0]}]", refused[1]) == (exceeded.setting, exceeded.seconds)


def buckets_of(limits: list[RateLimit]) -> list[Bucket]:
    intervals = [limit.per / limit.requests for limit in limits]
    return [
        Bucket(str(number), interval, (limit.burst - 1) * interval)
        for number, (limit, interval) in enumerate(zip(limits, intervals, strict=True))
    ]


def answer_of(asked: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a method that never waits."""
    try:
        asked.send(None)
    except StopIteration as stop:
        return stop.value
    pytest.fail("it waits")


async def test_both_decide_alike(store):
    """The times are so long that those of the test do not matter."""
    limits = [RateLimit(requests=1, per=1000.0, burst=5), RateLimit(requests=1, per=3000.0, burst=3)]
    buckets, rates, now = buckets_of(limits), Rates(limits), 0.0
    for _ in range(6):
        refused, exceeded = await store.take(buckets), rates.take(rates.counted(ANYONE, "m"), now)
        assert (refused is None) == (exceeded is None)
        if refused is not None and exceeded is not None:
            assert f"limits.rate[{refused[0]}]" == exceeded.setting
            assert math.isclose(refused[1], exceeded.seconds, abs_tol=MOST_SECONDS)


# Places


def place(name: str, group: str = "g", owner: str = "") -> Place:
    return Place(group, name, owner)


async def test_no_more_places_are_taken_than_there_are(store, other):
    assert await store.take_place(place("1"), 2, LONG)
    assert await other.take_place(place("2"), 2, LONG)
    for _ in range(3):
        assert not await other.take_place(place("3"), 2, LONG)
    assert await store.take_place(place("3", "another group"), 2, LONG)
    assert await store.take_place(place("3"), 3, LONG)


async def test_a_place_is_taken_once_however_often_it_is_asked_for(store, other):
    for backend in (store, other, store):
        assert await backend.take_place(place("1"), 2, LONG)
    assert await store.take_place(place("2"), 2, LONG)
    assert await store.take_place(place("1"), 2, LONG)
    assert not await store.take_place(place("3"), 2, LONG)


async def test_a_place_that_is_left_is_free(store, other):
    await store.take_place(place("1"), 2, LONG)
    await store.take_place(place("2"), 2, LONG)
    await other.leave_places([place("1"), place("never taken"), place("1", "no such group")])
    assert await store.take_place(place("3"), 2, LONG)
    assert not await store.take_place(place("1"), 2, LONG)
    await store.leave_places([place("2"), place("3")])
    await store.leave_places([])
    assert await store.take_place(place("1"), 1, LONG)


async def test_a_place_that_is_not_kept_ends(engine, store):
    await store.take_place(place("kept"), 2, SHORT)
    await store.take_place(place("left"), 2, SHORT)
    await store.keep_places([place("kept")], LONG)
    await engine.wait_until(lambda: store.take_place(place("new"), 2, LONG))
    assert not await store.take_place(place("left"), 2, LONG)
    await store.keep_places([], LONG)


async def test_a_place_that_ends_early_lets_the_others_of_its_group_be(engine, store):
    await store.take_place(place("long"), 2, LONG)
    await store.take_place(place("short"), 2, SHORT)
    await engine.wait_until(lambda: store.take_place(place("new"), 2, SHORT))
    await store.keep_places([place("new")], SHORT)
    await engine.wait_until(lambda: store.take_place(place("newer"), 2, LONG))
    assert not await store.take_place(place("too many"), 2, LONG)


async def test_places_are_kept_even_if_they_are_too_many(store):
    await store.take_place(place("1"), 1, LONG)
    await store.keep_places([place("2"), place("3"), place("x", "another group")], LONG)
    assert not await store.take_place(place("4"), 3, LONG)
    await store.leave_places([place("1")])
    assert await store.take_place(place("4"), 3, LONG)
    assert not await store.take_place(place("y", "another group"), 1, LONG)


async def test_very_many_places_are_kept_and_left_at_once(store):
    many = [place(f"{number}", f"group {number % 7}") for number in range(1234)]
    await store.keep_places(many, LONG)
    assert not await store.take_place(place("new", "group 0"), 177, LONG)
    await store.leave_places(many)
    assert await store.take_place(place("new", "group 0"), 1, LONG)


async def test_a_place_is_free_when_its_owner_has_no_lease(engine, store, other):
    await store.renew("a", b"", SHORT, joining=True)
    await store.renew("b", b"", LONG, joining=True)
    await store.renew("c", b"", LONG, joining=True)
    for place_name in (place("1", owner="a"), place("2", owner="b"), place("3", owner="c"), place("4")):
        assert await store.take_place(place_name, 4, LONG)
    await engine.wait_for_end("a")
    assert await other.take_place(place("5", owner="b"), 4, LONG)
    assert not await other.take_place(place("6", owner="b"), 4, LONG)
    await store.leave("c")
    assert await other.take_place(place("6", owner="b"), 4, LONG)
    assert not await other.take_place(place("7"), 4, LONG)


async def test_nobody_has_to_notice_that_the_lease_of_an_owner_has_ended(engine, store):
    await store.renew("a", b"", SHORT, joining=True)
    await store.take_place(place("1", owner="a"), 1, LONG)
    await engine.wait_until(lambda: store.take_place(place("2"), 1, LONG))


@pytest.mark.parametrize("name", ["{", "}", "*", "ünï côde", "a b\r\nc", ""])
async def test_any_text_is_the_name_of_a_place_and_of_a_group(store, name):
    assert await store.take_place(place(name, name), 1, LONG)
    assert not await store.take_place(place("other", name), 1, LONG)
    assert await store.take_place(place("other", f"{name}x"), 1, LONG)
    await store.keep_places([place(name, name)], LONG)
    await store.leave_places([place(name, name)])
    assert await store.take_place(place("other", name), 1, LONG)


async def test_exactly_one_of_many_gets_the_last_place(store, other):
    await store.take_place(place("1"), 2, LONG)
    taken = []

    async def take(number: int) -> None:
        if await (store, other)[number % 2].take_place(place(f"new {number}"), 2, LONG):
            taken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(take, number)
    assert len(taken) == 1


async def test_a_store_tells_what_it_is(store):
    assert await store.version()
    assert store.lag is not None
    assert store.commands >= 0


# Memory alone


def test_memory_forgets_what_nobody_keeps():
    clock = ManualClock()
    store = MemoryStore(clock)
    for number in range(10_000):
        clock.now += 1
        answer_of(store.save(f"s{number}", StoredSession("a", b""), 10))
        answer_of(store.append(f"s{number}", [b"event"], 9, 10))
        answer_of(store.take([Bucket(f"b{number}", 1.0, 9.0)]))
        answer_of(store.take_place(place("p", f"g{number}"), 9, 10))
        answer_of(store.take_place(place(f"p{number}"), 50, 10))
    group = store._places.get("g", 0.0)
    assert group is not None
    tables: tuple[Sized, ...] = (
        store._sessions,
        store._events,
        store._full_at,
        store._places,
        group,
    )
    assert max(map(len, tables)) < 100
    assert "sessions" in repr(store)
