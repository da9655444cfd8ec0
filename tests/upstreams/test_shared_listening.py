"""An upstream that is asked through another replica: no change is missed, despite any failure of that one."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.config import Http
from mcpmux.errors import TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.upstreams.subscriber import REPLACES
from mcpmux.upstreams.subscriber import uris_in as uris_of
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, Json
from tests.peers.subscribable import Subscribable
from tests.runtime.test_subscriptions import client_of, expect_update, quiet, silent, subscribe
from tests.runtime.world import open_world
from tests.upstreams.test_subscriber import Moody, uris_in

SETTINGS = {"x": {"target": Http("http://unused.invalid")}}
URIS = ["memo:1", "memo:2", "memo:3"]
LEASE = 3.0
HEARD_SECONDS = 60.0  # of virtual time: more than any pause
ACTS = ("subscribe", "subscribe", "unsubscribe", "become", "break", "decline", "kill", "hear", "hear")
MOODS = ("well", "well", "refusing", "silent", "absent")


class Owner:
    """The other replica. `absent`: there is none, so each asks for itself.

    `delay`: seconds until it acknowledges; `late`: those in which what is replaced has ended already.
    """

    def __init__(self) -> None:
        self.mood = "well"
        self.delay = 0.3
        self.late = 0.0
        self.declined: set[str] = set()
        self.asked = Counter[str]()
        self._listens: dict[int, tuple[frozenset[str], Notify, trio.Event]] = {}
        self._names = count(1)
        self._newest = 0
        self._change = trio.lowlevel.ParkingLot()

    @property
    def listened(self) -> set[str]:
        return {uri for uris, _, _ in self._listens.values() for uri in uris}

    def become(self, mood: str) -> None:
        self.mood = mood
        self._change.unpark_all()

    def break_off(self) -> None:
        for _, _, end in self._listens.values():
            end.set()

    async def update(self, uri: str) -> None:
        for uris, notify, _ in list(self._listens.values()):
            if uri in uris:
                await notify(Event(m.RESOURCE_UPDATED, {"uri": raw(uri)}))

    def owner_of(self, upstream: str) -> Owner | None:
        assert upstream == "x"
        return None if self.mood == "absent" else self

    async def owners_changed(self) -> None:
        await self._change.park()

    @property
    def settle_seconds(self) -> float:
        return 2 * LEASE

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        assert call.method == m.LISTEN
        self.asked[self.mood] += 1
        if self.mood == "refusing":
            raise TransportClosed("refused")
        if self.mood == "silent":
            await trio.sleep(LEASE)
            raise TransportClosed("silent")
        earlier = self._newest
        await trio.sleep(self.delay)
        granted, end, name = uris_of(call.params) - self.declined, trio.Event(), next(self._names)
        self._listens[name] = granted, notify, end
        try:
            acknowledgement = {"notifications": raw({"resourceSubscriptions": sorted(granted)})}
            if earlier in self._listens:
                self._listens[earlier][2].set()
                acknowledgement[REPLACES] = raw(True)
                await trio.sleep(self.late)
                if self.mood == "refusing":
                    raise TransportClosed("refused")
            self._newest = name
            await notify(Event(m.ACKNOWLEDGED, acknowledgement))
            await end.wait()
        finally:
            del self._listens[name]
        return {}


async def be_slow(_server: Subscribable, method: str, _params: Json, _message: Json) -> None:
    """Take a while to agree."""
    if "subscri" in method:
        await trio.sleep(0.3)


@pytest.mark.parametrize("up", ERAS)
async def test_an_owner_is_asked_in_place_of_the_upstream(up, autojump_clock):
    server, owner = Subscribable(up), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        await quiet()
        assert (server.subscribed, owner.listened) == (set(), {"memo:1"})
        assert world.mux.upstreams["x"].subscriber.asked == {"memo:1"}
        await owner.update("memo:1")
        await expect_update(client, "memo:1", None)


@pytest.mark.parametrize("mood", ["refusing", "silent"])
@pytest.mark.parametrize("up", ERAS)
async def test_the_upstream_is_asked_while_the_owner_does_not_answer(up, mood, autojump_clock):
    server, owner = Subscribable(up), Owner()
    owner.become(mood)
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        assert server.subscribed == {"memo:1"}
        began = trio.current_time()
        await subscribe(client, ["memo:2"])  # it is known by now not to answer
        assert trio.current_time() - began < 1
        await trio.sleep(HEARD_SECONDS)
        assert owner.asked[mood] < HEARD_SECONDS
        owner.become("well")
        await trio.sleep(HEARD_SECONDS)
        assert (server.subscribed, owner.listened) == (set(), {"memo:1", "memo:2"})
        await silent(client)


@pytest.mark.parametrize("up", ERAS)
async def test_what_the_owner_declines_is_asked_of_the_upstream(up, autojump_clock):
    server, owner = Subscribable(up), Owner()
    owner.declined = {"memo:2"}
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1", "memo:2"])
        await quiet()
        assert (server.subscribed, owner.listened) == ({"memo:2"}, {"memo:1"})
        count = owner.asked["well"]
        await trio.sleep(15)  # not as long as until it is asked again
        assert owner.asked["well"] == count
        owner.declined = set()
        await trio.sleep(HEARD_SECONDS)
        assert (server.subscribed, owner.listened) == (set(), {"memo:1", "memo:2"})
        await silent(client)


@pytest.mark.parametrize("up", ERAS)
async def test_what_the_owner_declines_later_is_caught_up(up, autojump_clock):
    server, owner = Subscribable(up), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        owner.declined = {"memo:1"}
        await subscribe(client, ["memo:2"])
        await expect_update(client, "memo:1", None)
        assert (server.subscribed, owner.listened) == ({"memo:1"}, {"memo:2"})
        await silent(client, 1)


@pytest.mark.parametrize("up", ERAS)
async def test_a_break_of_an_unneeded_listen_costs_no_request(up, autojump_clock):
    begun, owner = trio.Event(), Owner()

    async def begin(_server: Subscribable, method: str, params: Json, _message: Json) -> None:
        if "subscri" in method and uris_in(params):
            begun.set()

    server = Moody(up, begin)
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        owner.become("absent")
        await begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert owner.listened == {"memo:1"}
        owner.break_off()
        await quiet()
        owner.become("well")
        await silent(client)
        assert (server.subscribed, owner.listened) == (set(), {"memo:1"})


@pytest.mark.parametrize("up", ERAS)
async def test_what_comes_back_from_the_owner_is_subscribed_before_that_ends(up, autojump_clock):
    server, owner = Moody(up, be_slow), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        owner.become("absent")
        while owner.listened:
            assert "memo:1" in owner.listened | server.subscribed
            await trio.sleep(0.001)
        assert server.subscribed == {"memo:1"}
        await silent(client)
        owner.delay = 1
        owner.become("well")
        while server.subscribed:
            assert "memo:1" in owner.listened | server.subscribed
            await trio.sleep(0.001)
        assert owner.listened == {"memo:1"}
        await silent(client)


@pytest.mark.parametrize("up", ERAS)
async def test_a_listen_that_breaks_off_costs_one_catch_up(up, autojump_clock):
    server, owner = Subscribable(up), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        await quiet()
        owner.break_off()
        await expect_update(client, "memo:1", None)
        await trio.sleep(HEARD_SECONDS)
        await silent(client)
        assert (server.subscribed, owner.listened) == (set(), {"memo:1"})


@pytest.mark.parametrize("up", ERAS)
async def test_a_listen_that_ends_before_its_successor_is_acknowledged_costs_nothing(up, autojump_clock):
    server, owner = Moody(up, be_slow), Owner()
    owner.late = 0.1
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        client = await client_of(world, LEGACY)
        began = trio.current_time()
        for uri in URIS:
            await subscribe(client, [uri])
        assert trio.current_time() - began < 1.5
        assert (server.subscribed, owner.listened) == (set(), set(URIS))
        await silent(client)
        assert owner.asked == {"well": len(URIS)}


class Reader:
    """Reads all messages to a client. `heard` has the URIs of updates."""

    def __init__(self, client: ScriptedClient) -> None:
        self._client = client
        self.heard: list[str] = []
        self._answers: dict[Any, Json] = {}
        self._news = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        while True:
            try:
                message = await self._client.receive()
            except trio.TooSlowError:
                continue
            if message.get("method") == "notifications/resources/updated":
                self.heard.append(message["params"]["uri"])
            elif "id" in message:
                self._answers[message["id"]] = message
            self._news.unpark_all()

    async def ask(self, method: str, uri: str) -> Json:
        request = await self._client.start(method, {"uri": uri})
        while request not in self._answers:
            await self._news.park()
        return self._answers.pop(request)

    async def hear(self, uri: str, since: int) -> None:
        """Wait for an update that came when `since` others had been heard, or later."""
        while uri not in self.heard[since:]:
            await self._news.park()


@pytest.mark.parametrize("up", ERAS)
async def test_a_successor_that_breaks_off_costs_one_catch_up(up, autojump_clock):
    server, owner = Subscribable(up), Owner()
    owner.late = 0.1
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        reader = Reader(await client_of(world, LEGACY))
        world.nursery.start_soon(reader.run)
        await reader.ask("resources/subscribe", "memo:1")
        world.nursery.start_soon(become_later, owner, "refusing", owner.delay + owner.late / 2)
        await reader.ask("resources/subscribe", "memo:2")
        await reader.hear("memo:1", 0)
        assert server.subscribed == {"memo:1", "memo:2"}
        owner.become("well")
        await trio.sleep(HEARD_SECONDS)
        assert reader.heard == ["memo:1"]
        assert (server.subscribed, owner.listened) == (set(), {"memo:1", "memo:2"})
        world.nursery.cancel_scope.cancel()


async def become_later(owner: Owner, mood: str, seconds: float) -> None:
    await trio.sleep(seconds)
    owner.become(mood)


@pytest.mark.parametrize("up", ERAS)
async def test_an_owner_that_has_acknowledged_again_is_asked_at_once(up, autojump_clock):
    """Catch up also when the listen before broke off meanwhile."""
    server, owner = Subscribable(up), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        reader = Reader(await client_of(world, LEGACY))
        world.nursery.start_soon(reader.run)
        await reader.ask("resources/subscribe", "memo:1")
        world.nursery.start_soon(break_off_later, owner, owner.delay / 2)
        await reader.ask("resources/subscribe", "memo:2")
        began = trio.current_time()
        await reader.ask("resources/subscribe", "memo:3")
        assert trio.current_time() - began < 1
        await trio.sleep(HEARD_SECONDS)
        assert reader.heard == ["memo:1"]
        assert (server.subscribed, owner.listened) == (set(), set(URIS))
        world.nursery.cancel_scope.cancel()


async def break_off_later(owner: Owner, seconds: float) -> None:
    await trio.sleep(seconds)
    owner.break_off()


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("seed", range(12))
async def test_every_change_is_heard_whatever_happens(up, seed, autojump_clock):
    """The last change of what a client listens to is followed by an update, in either way."""
    chance = random.Random(seed)
    server, owner = Moody(up, be_slow), Owner()
    async with open_world({"x": server}, settings=SETTINGS, replicas=owner) as world:
        reader = Reader(await client_of(world, LEGACY))
        world.nursery.start_soon(reader.run)
        changed: dict[str, int] = {}  # what is listened to -> how much had been heard when it changed last
        for _ in range(60):
            act, uri = chance.choice(ACTS), chance.choice(URIS)
            if act == "subscribe" and uri not in changed:
                if "result" in await reader.ask("resources/subscribe", uri):
                    changed[uri] = -1
            elif act == "unsubscribe" and changed.pop(uri, None) is not None:
                await reader.ask("resources/unsubscribe", uri)
            elif act == "become":
                owner.delay, owner.late = chance.choice((0, 0.3, 2)), chance.choice((0, 0, 0.2))
                owner.become(chance.choice(MOODS))
            elif act == "break":
                owner.break_off()
            elif act == "decline":
                owner.declined ^= {uri}
            elif act == "hear":
                await hear_all(reader, changed)
            elif act == "kill" and not chance.randrange(4):
                await world.kill("x")
            for _ in range(chance.randrange(6)):
                await trio.sleep(chance.choice((0.005, 0.05, 0.1, 0.2, 1, 10)))
                if changed:
                    uri = chance.choice(sorted(changed))
                    changed[uri] = len(reader.heard)
                    await change(uri, server, owner)
        owner.become("well")
        owner.declined = set()
        await hear_all(reader, changed)
        await trio.sleep(HEARD_SECONDS)
        assert (server.subscribed, owner.listened) == (set(), set(changed))
        assert world.mux.upstreams["x"].subscriber.asked == set(changed)
        world.nursery.cancel_scope.cancel()


async def hear_all(reader: Reader, changed: dict[str, int]) -> None:
    """Wait until the client has heard of all changes."""
    with trio.fail_after(HEARD_SECONDS):
        for uri, since in changed.items():
            if since >= 0:
                await reader.hear(uri, since)


async def change(uri: str, server: Subscribable, owner: Owner) -> None:
    """Change a resource; the upstream or owner that was asked reports it."""
    await owner.update(uri)
    with suppress(TransportClosed):  # it was killed
        await server.update(uri)
