"""One subscription at an upstream for all replicas, and that no client misses a change."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpmux.cluster.letter import ListenWanted
from mcpmux.cluster.listens import choose_owner
from mcpmux.config import AccessRule, Http
from mcpmux.errors import RemoteProtocolError
from mcpmux.mux import wanted
from mcpmux.protocol.call import Event
from mcpmux.upstreams.registry import UpstreamRegistry, era_session_key
from mcpmux.upstreams.subscriber import REPLACES
from tests.cluster.nodes import LEASE, Member
from tests.cluster.replicas import Replicas, move, open_replicas
from tests.cluster.test_nodes import listen
from tests.peers.http_client import request
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.subscribable import OFFERS, Subscribable
from tests.runtime.test_lanes import Session
from tests.upstreams.test_subscriber import Moody, agree, ignore_memo_2, refuse_memo_2

SHARED = {"target": Http("http://unused.invalid")}
UPDATED = "notifications/resources/updated"
NOTHING = UpstreamRegistry(lambda *_: pytest.fail("there is none"), lambda *_: None)
URI = "docs+memo:1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted, "RETRY_SECONDS", LEASE / 2)


class Docs:
    """One server, with which each replica has a session. Each session is a separate scripted server."""

    def __init__(self, replicas: Replicas, make: Callable[[], Any]) -> None:
        self._replicas = replicas
        self._make = make
        self.sessions: dict[str, Any] = {}

    async def start(self, name: str, replica_id: str | None = None, **settings: Any) -> Member:
        """Start one more replica."""
        self.sessions[name] = self._make()
        if replica_id is not None:
            self._replicas.ids[name] = replica_id
        member: Member = await self._replicas.start(name, self.sessions[name], **SHARED, **settings)
        return member

    def subscribed(self, uri: str) -> set[str]:
        """Return the replicas that have subscribed to a URI."""
        return {
            name
            for name, session in self.sessions.items()
            if uri in session.subscribed and not self._replicas[name].ended.is_set()
        }

    async def update(self, uri: str, through: str | None = None) -> None:
        for name in self.subscribed(through or uri):
            await self.sessions[name].update(uri, through)

    def owner(self, session: str = "docs") -> Member:
        """Return the replica that has to subscribe in sessions with that key."""
        running = [replica for replica in self._replicas.all.values() if not replica.ended.is_set()]
        owner = choose_owner(session, [replica.node.members.replica for replica in running])
        return next(replica for replica in running if replica.node.members.replica == owner)

    def others(self) -> list[Member]:
        running = [replica for replica in self._replicas.all.values() if not replica.ended.is_set()]
        return [replica for replica in running if replica is not self.owner()]


@asynccontextmanager
async def open_docs(
    revision: str, names: str = "abc", make: Callable[[], Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Replicas, Docs]]:
    async with open_replicas() as replicas:
        docs = Docs(replicas, make or (lambda: Subscribable(revision)))
        for name in names:
            await docs.start(name, **settings)
        await replicas.know_each_other()
        for replica in replicas.all.values():
            await replica.mux.upstreams["docs"].supervision.settled()
        yield replicas, docs


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.01)


class Client:
    """A legacy client of one replica that listens to its stream."""

    def __init__(self, replica: Member, session: Json, stream: Any) -> None:
        self.replica, self.session, self.stream = replica, session, stream

    async def subscribe(self, uri: str = URI) -> Json:
        message = request("resources/subscribe", {"uri": uri})
        return (await self.replica.client.send(message, self.session)).last

    async def unsubscribe(self, uri: str = URI) -> None:
        message = request("resources/unsubscribe", {"uri": uri})
        assert (await self.replica.client.send(message, self.session)).last["result"] == {}

    async def updates(self, until: str) -> list[str]:
        """Wait for the update of a URI. Return the URIs of all updates up to that one."""
        uris: list[str] = []
        while until not in uris:
            notification = await self.stream.message()
            if notification["method"] == UPDATED:
                uris.append(notification["params"]["uri"])
        return uris


@asynccontextmanager
async def clients_of(*replicas: Member, uri: str | None = URI) -> AsyncIterator[list[Client]]:
    """Open a client of each replica, which has subscribed to `uri`."""
    async with AsyncExitStack() as stack:
        clients = []
        for replica in replicas:
            session = await replica.client.initialize()
            stream = await stack.enter_async_context(replica.client.stream("GET", None, session))
            clients.append(Client(replica, session, stream))
            if uri is not None:
                assert (await clients[-1].subscribe(uri))["result"] == {}
        yield clients


async def until_shared(docs: Docs, uri: str = "memo:1", session: str = "docs") -> None:
    """Wait until the owner alone has subscribed, and all replicas rely on it."""
    await until(lambda: docs.subscribed(uri) == {docs.owner(session).name})


@pytest.mark.parametrize("revision", ERAS)
async def test_three_replicas_with_clients_have_one_subscription(revision):
    async with open_docs(revision) as (replicas, docs), clients_of(*replicas.all.values()) as clients:
        await until_shared(docs)
        subscribes = sum(session.subscribes["memo:1"] for session in docs.sessions.values())
        assert subscribes == 1
        for client in clients:
            await client.subscribe("docs+memo:2")
        await docs.update("memo:1")
        await docs.update("memo:2")
        for client in clients:  # each client gets it once
            assert await client.updates("docs+memo:2") == [URI, "docs+memo:2"]
        for client in clients:
            assert docs.subscribed("memo:1") == {docs.owner().name}
            await client.unsubscribe()
        await until(lambda: not docs.subscribed("memo:1"))
        assert docs.subscribed("memo:2") == {docs.owner().name}


@pytest.mark.parametrize("revision", ERAS)
async def test_what_only_another_replica_wants_is_asked_for_by_the_owner(revision):
    async with open_docs(revision) as (_, docs), clients_of(docs.others()[0]) as (client,):
        await until_shared(docs)
        await docs.update("memo:1/part", through="memo:1")
        assert await client.updates(f"{URI}/part") == [f"{URI}/part"]
        await client.unsubscribe()
        await until(lambda: not docs.subscribed("memo:1"))


class BothEras:
    """A server of both eras, with a session for each connection. It tells legacy clients in theirs."""

    def __init__(self) -> None:
        self.offers = dict.fromkeys(ERAS, OFFERS)
        self.initializes = 0
        self._sessions: list[Session] = []

    async def serve(self, pipe: Any) -> None:
        self._sessions.append(Session(self))  # type: ignore[arg-type]
        await self._sessions[-1].serve(pipe)

    def _legacy(self) -> list[Session]:
        return [session for session in self._sessions if session.revision == LEGACY]

    @property
    def subscribed(self) -> set[str]:
        return {uri for session in self._legacy() for uri in session.subscribed}

    async def update(self, uri: str, through: str | None = None) -> None:
        for session in self._legacy():
            if uri in session.subscribed:
                await session.update(uri, through)


async def test_the_session_for_legacy_clients_of_all_has_one_subscription_too():
    key = era_session_key("docs")
    async with open_docs(MODERN, "abc", BothEras, era="auto") as (replicas, docs):
        others = [replica for replica in replicas.all.values() if replica is not docs.owner(key)]
        async with clients_of(*others) as clients:  # so that the owner has no such session for itself
            await until_shared(docs, session=key)
            await docs.update("memo:1")
            for client in clients:
                assert URI in await client.updates(URI)
            for client in clients:
                await client.unsubscribe()
            await until(lambda: not docs.subscribed("memo:1"))


async def test_modern_clients_of_all_replicas_hear_of_an_update():
    async with open_docs(MODERN) as (replicas, docs), AsyncExitStack() as stack:
        streams = []
        for replica in replicas.all.values():
            streams.append(await stack.enter_async_context(replica.client.stream("POST", *listen(1))))
            acknowledged = await streams[-1].message()
            assert acknowledged["params"]["notifications"]["resourceSubscriptions"] == [URI]
        await until_shared(docs)
        await docs.update("memo:1")
        for stream in streams:
            assert (await stream.message())["params"]["uri"] == URI


@pytest.mark.parametrize("revision", ERAS)
async def test_another_replica_subscribes_when_the_owner_is_killed(revision):
    async with open_docs(revision) as (_, docs):
        others = docs.others()
        async with clients_of(*others) as clients:
            await until_shared(docs)
            killed = docs.owner()
            await killed.kill()
            for client in clients:  # of changes that may have been missed, before the lease ends
                assert await client.updates(URI) == [URI]
            await until(
                lambda: all(not other.node.members.neighbours.keys() & own(killed) for other in others)
            )
            await until_shared(docs)
            for client in clients:
                await client.subscribe("docs+memo:2")
            await docs.update("memo:2")
            for client in clients:  # once; on a busy machine the new owner may have lost its lease meanwhile
                updates = await client.updates("docs+memo:2")
                assert [uri for uri in updates if uri != URI] == ["docs+memo:2"]


def own(replica: Member) -> set[str]:
    return set(replica.node.members.marks.own)


@pytest.mark.parametrize("revision", ERAS)
async def test_replicas_ask_for_themselves_while_the_owner_cannot_be_reached(revision):
    async with open_docs(revision, "ab") as (_, docs):
        owner, (other,) = docs.owner(), docs.others()
        url = owner.node.members.card.url
        move(owner.node, "http://127.0.0.1:9")  # no client listens there
        await owner.node.members.renew()
        await other.node.members.renew()
        async with clients_of(other) as (client,):
            assert docs.subscribed("memo:1") == {other.name}
            await docs.update("memo:1")
            assert await client.updates(URI) == [URI]
            move(owner.node, url)
            await owner.node.members.renew()
            await until_shared(docs)
            await client.subscribe("docs+memo:2")
            await docs.update("memo:2")
            assert await client.updates("docs+memo:2") == ["docs+memo:2"]  # no change was missed on the way


@pytest.mark.parametrize("revision", ERAS)
async def test_an_owner_that_ends_its_streams_costs_one_catch_up(revision):
    async with open_docs(revision, "ab") as (_, docs):
        owner, (other,) = docs.owner(), docs.others()
        async with clients_of(other) as (client,):
            await until_shared(docs)
            owner.node.listens.attach(owner.mux.hub, NOTHING)  # it has no such upstream any more
            assert await client.updates(URI) == [URI]
            assert docs.subscribed("memo:1") == {other.name}
            await docs.update("memo:1")
            assert await client.updates(URI) == [URI]
            owner.node.listens.attach(owner.mux.hub, owner.mux.upstreams)
            await until_shared(docs)


@pytest.mark.parametrize("revision", ERAS)
async def test_an_owner_that_loses_its_upstream_is_left_and_found_again(revision):
    async with open_docs(revision, "ab") as (_, docs):
        owner, (other,) = docs.owner(), docs.others()
        async with clients_of(other) as (client,):
            await until_shared(docs)
            owner.world.servers["docs"] = None
            await owner.world.kill("docs")
            await until(lambda: other.name in docs.subscribed("memo:1"))
            assert await client.updates(URI) == [URI]
            owner.world.servers["docs"] = docs.sessions[owner.name]
            await until_shared(docs)
            await docs.update("memo:1")
            assert await client.updates(URI) == [URI]


@pytest.mark.parametrize("revision", ERAS)
async def test_a_change_held_by_the_owner_is_sent_in_the_replacing_listen(revision):
    async with open_docs(revision) as (_, docs):
        listener, dead = docs.others()
        async with clients_of(listener) as (client,):
            await until_shared(docs)
            await dead.kill()
            await docs.update("memo:1")  # which waits until the one that was killed has no lease any more
            await client.subscribe("docs+memo:2")
            assert await client.updates(URI) == [URI]
            await docs.update("memo:2")
            assert await client.updates("docs+memo:2") == ["docs+memo:2"]


@pytest.mark.parametrize("revision", ERAS)
async def test_a_subscription_moves_to_a_replica_that_comes_and_nobody_notices(revision):
    async with (
        open_docs(revision, "ab") as (replicas, docs),
        clients_of(*docs.others(), docs.owner()) as clients,
    ):
        await until_shared(docs)
        earlier_owner = docs.owner()
        ids = [replica.node.members.replica for replica in replicas.all.values()]
        names = (f"{number:010x}" for number in itertools.count())
        fresh = next(name for name in names if choose_owner("docs", [*ids, name]) == name)
        await docs.start("c", fresh)
        assert docs.owner().name == "c"
        assert docs.owner() is not earlier_owner
        await until_shared(docs)
        for client in clients:
            await client.subscribe("docs+memo:2")
        await docs.update("memo:2")
        for client in clients:
            assert await client.updates("docs+memo:2") == ["docs+memo:2"]
        await until_shared(docs, "memo:2")


@pytest.mark.parametrize("revision", ERAS)
async def test_an_owner_without_a_lease_asks_for_itself_alone(revision):
    async with open_docs(revision, "ab") as (replicas, docs):
        owner, (other,) = docs.owner(), docs.others()
        async with clients_of(owner, other):
            await until_shared(docs)
            owner.line.is_cut = True
            await until(lambda: docs.subscribed("memo:1") == {"a", "b"})
            owner.line.is_cut = False
            await replicas.know_each_other()
            await until_shared(docs)


@pytest.mark.parametrize("revision", ERAS)
async def test_what_the_upstream_refuses_is_refused_with_its_error(revision):
    async with open_docs(revision, "ab", lambda: Moody(revision, refuse_memo_2)) as (_, docs):
        (other,) = docs.others()
        async with clients_of(docs.owner(), other) as clients:
            await until_shared(docs)
            refusals = [(await client.subscribe("docs+memo:2"))["error"] for client in clients]
            assert refusals[0] == refusals[1]
            if revision == LEGACY:
                assert refusals[0]["message"] == "Not this one"
            assert docs.subscribed("memo:1") == {docs.owner().name}
            await docs.update("memo:1")
            for client in clients:
                assert await client.updates(URI) == [URI]


async def test_a_subscribe_that_hangs_at_the_owner_holds_up_no_other():
    make = lambda: Moody(LEGACY, agree)  # noqa: E731 - it is one of several
    async with open_docs(LEGACY, "ab", make) as (_, docs):
        (other,) = docs.others()
        docs.sessions[docs.owner().name].mood = ignore_memo_2
        async with clients_of(other, uri="docs+memo:2") as (client,):  # which it asks for itself
            assert docs.subscribed("memo:2") == {other.name}
            await client.subscribe()
            assert docs.subscribed("memo:1") == {docs.owner().name}


async def test_rules_of_the_owner_hide_nothing_from_other_replicas():
    rules = (AccessRule(effect="allow", principals=("somebody",)),)
    async with open_docs(LEGACY, "ab") as (_, docs):
        owner, (other,) = docs.owner(), docs.others()
        owner.mux.apply(attrs.evolve(owner.mux.config, access=rules))
        async with clients_of(other) as (client,):
            assert docs.subscribed("memo:1") == {owner.name}
            await docs.update("memo:1")
            assert await client.updates(URI) == [URI]
            owner.mux.apply(attrs.evolve(owner.mux.config, access=()))
            await docs.update("memo:1")
            assert await client.updates(URI) == [URI]


async def test_a_replica_that_is_no_owner_answers_no_listen():
    async with open_docs(MODERN, "ab") as (_, docs):
        owner, (other,) = docs.owner(), docs.others()
        events: list[Any] = []

        async def hear(event: Event) -> None:
            events.append(event)

        there = owner.node.members.neighbours[other.node.members.replica]
        with pytest.raises(RemoteProtocolError, match="refuses"):
            letter = ListenWanted("docs", ["memo:1"], "1")
            await owner.node._client.listen(there, letter, LEASE, hear)
        assert events == []
        assert not docs.subscribed("memo:1")


async def test_an_owner_reports_whether_a_listen_continues_the_one_it_replaces():
    async with open_docs(MODERN, "ab") as (_, docs), trio.open_nursery() as nursery:
        owner, (other,) = docs.owner(), docs.others()
        there = other.node.members.neighbours[owner.node.members.replica]
        send, acknowledgements = trio.open_memory_channel[Any](1)
        for stream, replaced, goes_on in (("1", "", False), ("2", "1", True), ("3", "1", False)):
            letter = ListenWanted("docs", ["memo:1"], stream, replaced)
            nursery.start_soon(other.node._client.listen, there, letter, LEASE, send.send)
            assert (REPLACES in (await acknowledgements.receive()).params) is goes_on
        nursery.cancel_scope.cancel()


async def test_children_of_each_replica_are_asked_by_each():
    servers = {name: Subscribable(LEGACY) for name in "ab"}
    async with open_replicas(**servers) as replicas, clients_of(*replicas.all.values()):
        assert all(replica.server.subscribed == {"memo:1"} for replica in replicas.all.values())


async def test_replicas_say_at_how_many_upstreams_they_subscribe_for_all():
    async with open_docs(MODERN) as (_, docs):
        states = await docs.owner().node.describe_all()
        assert [state.owned for state in states] == [1, 0, 0]
