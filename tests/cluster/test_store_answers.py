"""Values in the store may have been written by others: a state machine with a store that tells lies.

A replica is a member, has sessions and places, and counts by rate limits. Now and then the store answers
anything, or the truth with something wrong in it. Always:

    the only errors are: the store is away, the session is elsewhere, or the client is too early
    the lease lasts no longer than its time, and only who has sealed a card is a neighbour, under that id
    a client is sent away for no longer than an empty bucket takes
    as soon as the store tells the truth again, everything works
"""

from __future__ import annotations

import math
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcpmux.clients.session_records import MovedElsewhere
from mcpmux.cluster import redis_script as script
from mcpmux.cluster.letter import Card
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.redis_store import RedisStore, parse_store_url
from mcpmux.cluster.replica import Replica as RealReplica
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import Bucket, MemoryStore, Place, StoreAway, StoredSession
from mcpmux.config import Limits, Secret
from mcpmux.config.cluster import Cluster
from mcpmux.config.model import RateLimit
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.envelope import Request, raw
from mcpmux.protocol.principal import ANYONE
from mcpmux.transports.tls import TlsContexts
from tests.examples import examples
from tests.peers.server import ScriptedServer
from tests.runtime.world import open_world

LEASE, IDLE = 3.0, 60.0
URL: Final = Secret("redis://127.0.0.1:1")
RATE: Final = RateLimit(requests=1, per=1.0, burst=2)
MOST_SESSIONS: Final = 3
OTHERS: Final = ("one", "two")
SESSIONS: Final = ("s", "t")
SETTLED = 10 * LEASE  # seconds after which all that was wrong is over

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=8) | st.text(max_size=3),
    lambda each: st.lists(each, max_size=4),
    max_leaves=8,
)
TAMPERINGS: dict[str, Callable[[list[Any]], Any]] = {
    "shorter": lambda answer: answer[:-1],
    "longer": lambda answer: [*answer, b"x"],
    "twice": lambda answer: answer * 2,
    "turned": lambda answer: answer[::-1],
    "no UTF-8": lambda answer: [b"\xff\xfe" if isinstance(part, bytes) else part for part in answer],
    "all alike": lambda answer: [answer[0]] * len(answer) if answer else answer,
    "another's": lambda answer: [*answer[:1], *answer[3:], *answer[1:3]],
    "in the future": lambda answer: [part + 10**15 if isinstance(part, int) else part for part in answer],
    "never": lambda answer: [math.inf if isinstance(part, int) else part for part in answer],
}


class Engine:
    """Answers as a Redis does through coredis, by the rules of the store in memory.

    `lie`: what it makes of its answers.
    """

    def __init__(self) -> None:
        self.truth = MemoryStore(trio.current_time)
        self.lie: Callable[[Any], Any] = lambda answer: answer

    async def evalsha(self, digest: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return self.lie(await self._run(digest, keys, arguments))

    async def _run(self, digest: str, keys: Sequence[str], said: Sequence[Any]) -> Any:
        truth, key = self.truth, keys[0]
        if digest == script.RENEW.digest:
            members = await truth.renew(said[0], said[1], said[2] / 1000, joining=bool(said[3]))
            return members and [part for member in members for part in (member.replica.encode(), member.card)]
        if digest == script.SAVE.digest:
            return int(await truth.save(key, StoredSession(said[0], said[1]), said[2] / 1000))
        if digest == script.CLAIM.digest:
            return int(await truth.claim(key, *said))
        if digest == script.KEEP.digest:
            kept = await truth.keep(keys[::2], said[0], said[1] / 1000)
            return [int(key in kept) for key in keys[::2]]
        if digest == script.TAKE.digest:
            numbers = list(map(float, said))
            pairs = zip(keys, numbers[::2], numbers[1::2], strict=True)
            refused = await truth.take([Bucket(*pair) for pair in pairs])
            return refused and [refused[0], repr(refused[1]).encode()]
        if digest == script.TAKE_PLACE.digest:
            owner, _, name = said[0].partition(" ")
            return int(await truth.take_place(Place(key, name, owner), said[1], said[2] / 1000))
        return None

    async def hmget(self, key: str, _fields: Sequence[str]) -> Any:
        kept = await self.truth.find(key)
        return self.lie([None, None] if kept is None else [kept.owner.encode(), kept.facts])

    async def xrange(self, key: str) -> Any:
        events = [{b"event": event} for event in await self.truth.events(key)]
        return self.lie([SimpleNamespace(field_values=event) for event in events])


class Host:
    """Runs trio in turns: from outside, one coroutine after the other, in virtual time."""

    def __init__(self) -> None:
        self._turns: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._requests: trio.MemorySendChannel[Any]
        self._ended = False

    def start(self, context: Callable[[], Any]) -> Any:
        """Enter an asynchronous context, and stay inside. Returns what it gives."""
        entered: list[Any] = []

        async def live() -> None:
            self._requests, requests = trio.open_memory_channel[Any](1)
            async with context() as inside, requests:
                entered.append(inside)
                async for work, outcome in requests:
                    await self._attend(work, outcome)

        def end(result: Any) -> None:
            self._ended = True
            if not entered:
                entered.append(result)
            self._result = result

        trio.lowlevel.start_guest_run(
            live,
            run_sync_soon_threadsafe=self._turns.put,
            done_callback=end,
            clock=trio.testing.MockClock(autojump_threshold=0),
            host_uses_signal_set_wakeup_fd=True,
        )
        self._go_on(lambda: bool(entered))
        if self._ended:
            self._result.unwrap()
        return entered[0]

    async def _attend(self, work: Callable[[], Awaitable[Any]], outcome: list[Any]) -> None:
        try:
            outcome.append((await work(), None))
        except (StoreAway, MovedElsewhere, Busy) as declared:
            outcome.append((None, declared))

    def run(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, Exception | None]:
        """Run something to its end: what it returns, and the declared error that it raises."""
        outcome: list[Any] = []
        self._turns.put(lambda: self._requests.send_nowait((work, outcome)))
        self._go_on(lambda: bool(outcome))
        if not outcome:
            self._result.unwrap()
        return outcome[0]

    def stop(self) -> None:
        """Leave the context."""
        if not self._ended:
            self._turns.put(lambda: self._requests.close())
            self._go_on(lambda: False)
        self._result.unwrap()

    def _go_on(self, is_done: Callable[[], bool]) -> None:
        while not is_done() and not self._ended:
            self._turns.get(timeout=60)()


class Replica:
    """One mcpmux behind the engine."""

    def __init__(self, engine: Engine, node: RealReplica, service: Any, rates: Any) -> None:
        self.engine, self.node, self.service, self.rates = engine, node, service, rates
        self.sessions = node.sessions_of(0)
        self.others: dict[str, Membership] = {}


@asynccontextmanager
async def open_replica() -> AsyncIterator[Replica]:
    engine = Engine()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield engine

    limits = Limits(rate=(RATE,), session_idle=IDLE, max_sessions_per_principal=MOST_SESSIONS)
    async with open_world({"x": ScriptedServer()}, limits=limits) as world, trio.open_nursery() as nursery:
        store = RedisStore(Cluster(url=URL, timeout=1.0), parse_store_url(URL), opened)
        nursery.start_soon(store.run)
        seal = ClusterSeal(b"key")
        members = Membership(store, seal, "own", "http://own", LEASE, is_told_of=False)
        node = RealReplica(world.mux.config, store, seal, members, TlsContexts(), nursery)
        node.attach(world.mux.service, world.mux.hub, world.mux.rates)
        replica = Replica(engine, node, world.mux.service, world.mux.rates)
        await node.join()
        nursery.start_soon(replica.sessions.run)
        for name in OTHERS:
            other = Membership(engine.truth, seal, name, f"http://{name}", LEASE, is_told_of=False)
            replica.others[name] = other
        yield replica
        nursery.cancel_scope.cancel()


class LyingStore(RuleBasedStateMachine):
    """`_lies`: whether the store tells anything else than the truth now."""

    @initialize()
    def start(self) -> None:
        self._host = Host()
        self._lies = False
        self._replica: Replica = self._host.start(open_replica)

    def teardown(self) -> None:
        if hasattr(self, "_replica"):
            self._host.stop()

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        result, error = self._host.run(work)
        assert self._lies or not isinstance(error, StoreAway), error
        if isinstance(error, Busy):
            assert 0 <= error.retry_seconds <= max(RATE.burst * RATE.per, Busy("", "").retry_seconds)
        return result

    @rule(answer=anything)
    def answer_anything(self, answer: Any) -> None:
        self._lie(lambda _truth: answer)

    @rule(how=st.sampled_from(sorted(TAMPERINGS)))
    def answer_the_truth_with_something_wrong(self, how: str) -> None:
        self._lie(lambda truth: TAMPERINGS[how](truth) if isinstance(truth, list) else truth)

    def _lie(self, lie: Callable[[Any], Any]) -> None:
        self._lies = True
        self._replica.engine.lie = lie

    @precondition(lambda self: self._lies)
    @rule()
    def tell_the_truth_again(self) -> None:
        replica = self._replica
        replica.engine.lie = lambda answer: answer

        async def settle() -> tuple[bool, int]:
            await trio.sleep(SETTLED)
            for other in replica.others.values():
                if not other.is_left:
                    await other.renew()
            await trio.sleep(LEASE / 2)  # in which each asks the store
            return replica.node.members.is_inside, len(replica.node.members.others)

        result, error = self._host.run(settle)
        assert error is None
        assert result == (True, sum(not other.is_left for other in replica.others.values()))
        self._lies = False

    @rule(seconds=st.sampled_from([0.1, LEASE / 2, LEASE, IDLE]))
    def wait(self, seconds: float) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)

        self._run(wait)

    @rule()
    def renew(self) -> None:
        self._run(self._replica.node.members.renew)

    @rule(name=st.sampled_from(OTHERS))
    def another_renews(self, name: str) -> None:
        self._run(self._replica.others[name].renew)

    @rule(name=st.sampled_from(OTHERS))
    def ask_whether_it_is_gone(self, name: str) -> None:
        members = self._replica.node.members
        self._run(lambda: members.is_gone(self._replica.others[name].replica))

    @rule(session_id=st.sampled_from(SESSIONS))
    def begin_a_session(self, session_id: str) -> None:
        replica = self._replica
        params = raw({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})

        async def begin() -> None:
            session, _ = await replica.service.initialize(Request(1, "initialize", params))
            await replica.service.session_counter.begin(session_id, ANYONE, lasting=True)
            await replica.sessions.begin(session_id, session)

        self._run(begin)

    @rule(session_id=st.sampled_from(SESSIONS))
    def go_on_with_a_session(self, session_id: str) -> None:
        replica = self._replica

        async def recover() -> None:
            recovered = await replica.sessions.recover(session_id, ANYONE)
            if recovered is not None:
                recovered.session.close()

        self._run(recover)

    @rule(session_id=st.sampled_from(SESSIONS))
    def end_a_session(self, session_id: str) -> None:
        self._replica.sessions.forget(session_id)
        self._replica.service.session_counter.end(session_id)

    @rule()
    def regain_the_sessions(self) -> None:
        self._run(lambda: self._replica.sessions.regain(["gone"]))

    @rule()
    def count_a_request(self) -> None:
        self._run(lambda: self._replica.rates.begin(Call("tools/list", {}, {})))

    @invariant()
    def the_lease_is_no_longer_than_its_time(self) -> None:
        async def seconds_left() -> float:
            return self._replica.node.members.seconds_left

        assert self._run(seconds_left) <= LEASE

    @invariant()
    def neighbours_are_those_who_say_so_themselves(self) -> None:
        members, others = self._replica.node.members, self._replica.others
        for replica, neighbour in members.neighbours.items():
            card: Card = neighbour.card
            assert replica in (neighbour.replica, *card.ids)
            assert neighbour.replica in others[card.name].marks.own
            assert replica != members.replica


LyingStore.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=25)
TestLyingStore = LyingStore.TestCase
