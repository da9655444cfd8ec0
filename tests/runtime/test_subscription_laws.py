"""The laws of subscriptions, under any sequence of what clients, servers and resources may do.

A script is made up by Hypothesis and acted out in virtual time, with upstreams and clients of both eras.
Between its quiet points everything may overlap; the laws are checked when all tasks are blocked:

    each upstream is asked for exactly the URIs that clients want of it, as far as it grants them
    a client gets each change after its subscription, despite any losses
    no client gets a notification that it did not ask for
    a reconnect is one catch-up for each subscribed URI, no more
    when all clients have gone, no trace of them is left
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpmux.clients.stdio_client import serve_messages
from mcpmux.errors import TransportClosed
from tests.oracle import SchemaOracle
from tests.peers.client import ScriptedClient
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.peers.subscribable import SUBSCRIPTION_ID, Subscribable
from tests.runtime.world import World, open_world

UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

CLIENTS = {"ann": LEGACY, "ben": LEGACY, "cid": MODERN, "dot": MODERN}
UPSTREAMS = {"x": LEGACY, "y": MODERN}
URIS = ("memo:1", "memo:2", "memo:3", "file:///a", "file:///a/b")
EXAMPLES = 100
ERRANDS = 100  # of one client that wait; more than a script is long
QUIET_SECONDS = 100.0  # of virtual time: longer than the longest wait before a reconnect, and every retry

Errand = Callable[[], Awaitable[None]]


class Grant(NamedTuple):
    """The habits of a server: the URIs that can be subscribed, its slowness (seconds), and its refusals.

    `strict`: a modern one answers a whole listen with an error when there is one URI that it does not grant.
    """

    uris: frozenset[str] = frozenset(URIS)
    seconds: float = 0.0
    strict: bool = False


class Picky(Subscribable):
    """A server that grants what `grant` says."""

    def __init__(self, revision: str, grant: Grant) -> None:
        super().__init__(revision, uris=list(URIS), honours=set(grant.uris))
        self.grant = grant

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if "subscri" in method:
            await trio.sleep(self.grant.seconds)
        if method == "resources/subscribe" and params["uri"] not in self.grant.uris:
            raise RpcFailure(-32002, "Resource not found")
        if method == "subscriptions/listen" and self.grant.strict:
            uris = params["notifications"].get("resourceSubscriptions", [])
            if not self.grant.uris.issuperset(uris):
                raise RpcFailure(-32602, "No such resource")
        return await super().handle(method, params, message)


class Promise(NamedTuple):
    """A client got the answer that it is subscribed. `listen` is None on a legacy session."""

    upstream: str
    uri: str
    listen: int | None

    @property
    def exposed(self) -> str:
        return f"{self.upstream}+{self.uri}"


class Heard(NamedTuple):
    """An update as a client got it."""

    exposed: str
    listen: int | None
    at: int


class Ear(ScriptedClient):
    """A client that reads all the time.

    `promises` is what it may rely on, and since when; `asked` is what it ever asked for.
    """

    def __init__(self, pipe: Any, ticks: Iterator[int]) -> None:
        super().__init__(pipe)
        self._ticks = ticks
        self._waiting: dict[Any, trio.Event] = {}
        self._answers: dict[Any, Json] = {}
        self._errands, self._to_do = trio.open_memory_channel[Errand](ERRANDS)
        self.asked: set[tuple[str, int | None]] = set()
        self.promises: dict[Promise, int] = {}
        self.heard: list[Heard] = []

    def tell(self, errand: Errand) -> None:
        """Queue an errand for it, while others go on."""
        self._errands.send_nowait(errand)

    async def work(self) -> None:
        """Do its errands, one by one."""
        with suppress(TransportClosed):
            async for errand in self._to_do:
                await errand()

    async def listen(self) -> None:
        """Take what comes until the stream ends."""
        with suppress(TransportClosed):
            while True:
                self._take(await self.receive_raw())
        for arrived in self._waiting.values():
            arrived.set()

    def _take(self, message: Json) -> None:
        SchemaOracle(self.revision).check_from_server(message, self._methods.get(message.get("id")))
        if "method" not in message:
            self._answers[message["id"]] = message
            self._waiting[message["id"]].set()
            return
        params = message.get("params", {})
        listen = params.get("_meta", {}).get(SUBSCRIPTION_ID)
        if message["method"] == ACKNOWLEDGED:
            for exposed in params["notifications"].get("resourceSubscriptions", []):
                self._promise(exposed, listen)
            self._waiting[listen].set()
        elif message["method"] == UPDATED:
            assert self._may_hear(params["uri"], listen), message
            self.heard.append(Heard(params["uri"], listen, next(self._ticks)))

    def _may_hear(self, exposed: str, listen: int | None) -> bool:
        uris = [uri for uri, of in self.asked if of == listen]
        return any(exposed == uri or exposed.startswith(uri + "/") for uri in uris)

    def _promise(self, exposed: str, listen: int | None) -> None:
        upstream, _, uri = exposed.partition("+")
        self.promises.setdefault(Promise(upstream, uri, listen), next(self._ticks))

    async def ask(self, method: str, params: Json) -> Json:
        """Send a request. Return its answer; None when the stream ended, or a listen was acknowledged."""
        arrived = self._waiting[self._ids + 1] = trio.Event()
        request_id = await self.start(method, params)
        await arrived.wait()
        return self._answers.get(request_id, {})

    async def greet(self, revision: str) -> None:
        self.revision = revision
        if revision != MODERN:
            client = {"name": "ear", "version": "1"}
            params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": client}
            await self.ask("initialize", params)

    async def subscribe(self, exposed: list[str]) -> None:
        if self.revision == MODERN:
            self.asked |= {(uri, self._ids + 1) for uri in exposed}
            await self.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": exposed}})
            return
        for uri in exposed:
            self.asked.add((uri, None))
            if "result" in await self.ask("resources/subscribe", {"uri": uri}):
                self._promise(uri, None)

    async def unsubscribe(self, which: int) -> None:
        """Take back one subscription, or the whole listen that it is in."""
        if not self.promises:
            return
        chosen = list(self.promises)[which % len(self.promises)]
        if self.revision == MODERN:
            self.promises = {p: at for p, at in self.promises.items() if p.listen != chosen.listen}
            await self.send({"method": "notifications/cancelled", "params": {"requestId": chosen.listen}})
        else:
            del self.promises[chosen]
            await self.ask("resources/unsubscribe", {"uri": chosen.exposed})


class Stage:
    """One script acted out."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._world = world
        self._nursery = nursery
        self._ticks = count()
        self._ears: dict[str, Ear] = {}
        self._changes: dict[tuple[str, str], int] = {}

    # Events

    def _join(self, name: str) -> Ear:
        if name not in self._ears:
            ours, theirs = open_memory_pipes()
            self._nursery.start_soon(serve_messages, theirs, self._world.mux.service)
            ear = self._ears[name] = Ear(ours, self._ticks)
            self._nursery.start_soon(ear.listen)
            self._nursery.start_soon(ear.work)
            ear.tell(partial(ear.greet, CLIENTS[name]))
        return self._ears[name]

    async def subscribe(self, name: str, exposed: list[str]) -> None:
        ear = self._join(name)
        ear.tell(partial(ear.subscribe, exposed))

    async def unsubscribe(self, name: str, which: int) -> None:
        if (ear := self._ears.get(name)) is not None:
            ear.tell(partial(ear.unsubscribe, which))

    async def vanish(self, name: str) -> None:
        if (ear := self._ears.pop(name, None)) is not None:
            await ear.vanish()

    async def change(self, upstream: str, uri: str) -> None:
        self._changes[upstream, uri] = next(self._ticks)
        server = self._world.servers[upstream]
        if isinstance(server, Picky):
            with suppress(TransportClosed):
                await server.update(uri)

    async def kill(self, upstream: str) -> None:
        await self._world.kill(upstream)

    async def replace(self, upstream: str, grant: Grant | None) -> None:
        """Kill the server, and put another one in its place, or none."""
        self._world.servers[upstream] = Picky(UPSTREAMS[upstream], grant) if grant is not None else None
        await self.kill(upstream)

    async def relent(self, upstream: str) -> None:
        """Make the server grant everything from now on."""
        server = self._world.servers[upstream]
        if isinstance(server, Picky):
            server.grant = Grant(seconds=server.grant.seconds)
            server.honours = None

    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    # Laws at rest

    async def settle(self) -> None:
        """Wait until all tasks are blocked, and check every law."""
        await trio.sleep(QUIET_SECONDS)
        for upstream in UPSTREAMS:
            self._check_subscriptions(upstream)
        self._check_changes()

    async def reconnect(self) -> None:
        """Lose every connection at rest, which costs one catch-up for each URI."""
        await self.settle()
        for ear in self._ears.values():
            ear.heard.clear()
        for upstream in UPSTREAMS:
            await self.kill(upstream)
        await self.settle()
        for ear in self._ears.values():
            updates = [(update.exposed, update.listen) for update in ear.heard]
            for promise in ear.promises:
                if self._grants(promise):
                    assert updates.count((promise.exposed, promise.listen)) == 1, (promise, updates)

    def _grants(self, promise: Promise) -> bool:
        """Return whether the present server lets that be subscribed."""
        server = self._world.servers[promise.upstream]
        if not isinstance(server, Picky):
            return False
        if server.modern and server.grant.strict:
            return server.grant.uris.issuperset(self._wanted(promise.upstream))
        return promise.uri in server.grant.uris

    def _wanted(self, upstream: str) -> set[str]:
        promises = [promise for ear in self._ears.values() for promise in ear.promises]
        return {promise.uri for promise in promises if promise.upstream == upstream}

    def _check_subscriptions(self, upstream: str) -> None:
        expected = self._wanted(upstream)
        assert self._world.mux.hub.subscriptions.wanted(upstream) == expected
        server = self._world.servers[upstream]
        if isinstance(server, Picky):
            assert self._world.mux.upstreams[upstream].state == "ready"
            assert server.subscribed == {
                uri for uri in expected if self._grants(Promise(upstream, uri, None))
            }

    def _check_changes(self) -> None:
        for name, ear in self._ears.items():
            for promise, since in ear.promises.items():
                changed = self._changes.get((promise.upstream, promise.uri), -1)
                if changed > since and self._grants(promise):
                    assert self._heard_after(ear, promise, changed), (name, promise, changed, ear.heard)

    def _heard_after(self, ear: Ear, promise: Promise, tick: int) -> bool:
        return any(
            (update.exposed, update.listen) == (promise.exposed, promise.listen) and update.at > tick
            for update in ear.heard
        )

    async def empty(self) -> None:
        """Close all clients, and check that they leave no trace."""
        for name in CLIENTS:
            await self.vanish(name)
        await self.settle()
        hub = self._world.mux.hub
        assert repr(hub) == "<NotificationHub 0 listeners, <Subscriptions {} of 0 listeners>>"
        for upstream in self._world.mux.upstreams.values():
            if upstream.status.connection is not None:
                assert repr(upstream.subscriber) == "<Subscriber 0 asked, 0 refused>"
                listens = (
                    1 if upstream.status.connection.facts.revision == MODERN else 0
                )  # for changes of lists
                assert f"<PendingRequests {listens} in flight>" in repr(upstream.status.connection.channel)


clients = st.sampled_from(list(CLIENTS))
upstreams = st.sampled_from(list(UPSTREAMS))
uris = st.sampled_from(URIS)
exposed = st.lists(st.builds("{}+{}".format, upstreams, uris), min_size=1, max_size=3, unique=True)
grants = st.builds(
    Grant,
    st.just(frozenset(URIS)) | st.frozensets(uris),
    st.sampled_from([0.0, 0.0, 0.01, 1.0]),
    st.booleans(),
)
pauses = st.sampled_from([0.0, 0.01, 0.021, 0.5, 6.0])


def step(verb: Callable[..., Awaitable[None]], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(verb), *arguments)


actions = st.one_of(
    step(Stage.subscribe, clients, exposed),
    step(Stage.subscribe, clients, exposed),
    step(Stage.unsubscribe, clients, st.integers(0, 5)),
    step(Stage.vanish, clients),
    step(Stage.change, upstreams, uris),
    step(Stage.change, upstreams, uris),
    step(Stage.kill, upstreams),
    step(Stage.replace, upstreams, st.none() | grants),
    step(Stage.relent, upstreams),
    step(Stage.wait, pauses),
    step(Stage.wait, pauses),
    step(Stage.settle),
    step(Stage.reconnect),
)


async def act_out(script: list[tuple[Any, ...]], slowness: float) -> None:
    servers = {name: Picky(revision, Grant(seconds=slowness)) for name, revision in UPSTREAMS.items()}
    async with open_world(servers) as world, trio.open_nursery() as nursery:
        for upstream in world.mux.upstreams.values():
            await upstream.supervision.settled()
        stage = Stage(world, nursery)
        for verb, *arguments in script:
            await verb(stage, *arguments)
        await stage.reconnect()
        await stage.empty()
        nursery.cancel_scope.cancel()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions, min_size=5, max_size=30), st.sampled_from([0.0, 0.05]))
def test_the_laws_hold_whatever_happens(script: list[tuple[Any, ...]], slowness: float):
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(partial(act_out, script, slowness), clock=clock)
