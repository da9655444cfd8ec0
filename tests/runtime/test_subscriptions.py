"""Subscriptions and changes, over memory pipes with virtual time, in every pair of eras."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.runtime.subscription_request import JOINED_AT_ONCE
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.peers.subscribable import Subscribable
from tests.runtime.world import World, open_world

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


async def subscribe(client: ScriptedClient, uris: list[str], **lists: bool) -> Any:
    """Subscribe in the client's era; the listen's id, or None."""
    if client.revision != MODERN:
        for uri in uris:
            await client.request("resources/subscribe", {"uri": uri})
        return None
    wish = {"resourceSubscriptions": uris, **lists}
    listen = await client.start("subscriptions/listen", {"notifications": wish})
    acknowledged = await client.receive()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["_meta"] == {SUBSCRIPTION_ID: listen}
    assert acknowledged["params"]["notifications"].get("resourceSubscriptions", []) == uris
    return listen


async def unsubscribe(client: ScriptedClient, uris: list[str], listen: Any) -> None:
    if client.revision != MODERN:
        for uri in uris:
            await client.request("resources/unsubscribe", {"uri": uri})
    else:
        await client.send({"method": "notifications/cancelled", "params": {"requestId": listen}})


async def expect_update(client: ScriptedClient, uri: str, listen: Any) -> None:
    message = await client.receive()
    assert message["method"] == "notifications/resources/updated", message
    assert message["params"]["uri"] == uri
    assert message["params"].get("_meta", {}).get(SUBSCRIPTION_ID) == listen


async def silent(client: ScriptedClient, seconds: float = 30) -> None:
    """Check that no message comes."""
    with trio.move_on_after(seconds):
        pytest.fail(str(await client.receive()))


async def quiet() -> None:
    """Wait until every wish has been followed (virtual time makes this immediate)."""
    await trio.sleep(10)


client_of = World.open_client


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_many_clients_are_one_upstream_subscription(up, down, autojump_clock):
    server = Subscribable(up)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        clients = [await client_of(world, down) for _ in range(5)]
        listens = [await subscribe(client, ["x+memo:1"]) for client in clients]
        assert server.subscribed == {"memo:1"}
        assert server.subscribes["memo:1"] == 1
        await trio.sleep(1)
        listen_requests = [
            message for message in server.seen if message.get("method") == "subscriptions/listen"
        ]
        assert len(listen_requests) <= 2  # for the lists alone, and with that resource
        await server.update("memo:1")
        for client, listen in zip(clients, listens, strict=True):
            await expect_update(client, "x+memo:1", listen)
        for client, listen in list(zip(clients, listens, strict=True))[:4]:
            await unsubscribe(client, ["x+memo:1"], listen)
        await quiet()
        assert server.subscribed == {"memo:1"}
        await unsubscribe(clients[4], ["x+memo:1"], listens[4])
        await quiet()
        assert server.subscribed == set()
        assert not world.mux.hub.subscriptions.wanted("x")


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_sub_resource_reaches_subscribers_of_what_is_above_it(up, down, autojump_clock):
    server = Subscribable(up)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, down)
        listen = await subscribe(client, ["x+file:///a"])
        await server.update("file:///a/b.md", through="file:///a")
        await expect_update(client, "x+file:///a/b.md", listen)
        await server.update("file:///ab", through="file:///a")
        await silent(client)


async def test_subscribing_by_raw_uri_is_told_by_raw_uri(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(MODERN, uris=["other:1"])}) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["memo:1"])
        await server.update("memo:1")
        await expect_update(client, "memo:1", None)


@pytest.mark.parametrize("down", ERAS)
async def test_a_legacy_server_is_asked_without_its_capability(down, autojump_clock):
    shy = Subscribable(LEGACY, capabilities={"resources": {"subscribe": False}})
    async with open_world({"shy": shy, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, down)
        listen = await subscribe(client, ["shy+memo:1"])
        await shy.update("memo:1")
        await expect_update(client, "shy+memo:1", listen)


async def test_what_cannot_be_subscribed_is_an_error_and_leaves_nothing(autojump_clock):
    server = Subscribable(LEGACY)
    deaf = Subscribable(MODERN, capabilities={"resources": {}})
    bare = Subscribable(LEGACY, capabilities={"tools": {}})
    unwilling = Subscribable(MODERN, honours=set())
    servers = {"x": server, "deaf": deaf, "bare": bare, "no": unwilling, "gone": None}
    async with open_world(servers) as world:
        client = await client_of(world, LEGACY)
        for uri, code in [
            ("x+nope:1", -32002),
            ("deaf+memo:1", -32601),
            ("bare+memo:1", -32601),
            ("no+memo:1", -32601),
            ("gone+memo:1", -31001),
            ("nosuch:1", -31001),  # it may be that of the one that is not there
        ]:
            error = await client.refusal("resources/subscribe", {"uri": uri})
            assert (uri, error["code"]) == (uri, code)
        assert not world.mux.hub.subscriptions._of_listener
        modern = await client_of(world, MODERN)
        wish = {"resourceSubscriptions": ["x+nope:1", "x+memo:1", "gone+a:b"], "toolsListChanged": True}
        await modern.start("subscriptions/listen", {"notifications": wish})
        acknowledged = (await modern.receive())["params"]["notifications"]
        assert acknowledged == {"resourceSubscriptions": ["x+memo:1"], "toolsListChanged": True}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_thousand_list_changes_are_a_handful(up, down, autojump_clock):
    server = Subscribable(up)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, down)
        await subscribe(client, [], resourcesListChanged=True)
        await quiet()
        await client.drain()
        for _ in range(10):
            for _ in range(100):
                await server.notify("notifications/resources/list_changed")
            await trio.sleep(0.1)
        await quiet()
        notifications = await client.drain()
        assert 1 <= len(notifications) <= 12
        assert {m["method"] for m in notifications} == {"notifications/resources/list_changed"}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_an_upstream_that_is_just_starting_is_no_news(up, down, autojump_clock):
    async with open_world({"x": Subscribable(up)}) as world:
        client = world.client()
        if down != MODERN:
            await client.initialize(down)
        await subscribe(client, [], resourcesListChanged=True)
        await quiet()
        assert await client.drain() == []


class Deliberate(Subscribable):
    """Acknowledges a listen only after a while, and sends no notifications before."""

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "subscriptions/listen":
            await trio.sleep(5)
        return await super().handle(method, params, message)


async def test_what_is_agreed_late_is_told_as_a_change(autojump_clock):
    async with open_world({"x": Deliberate(MODERN)}) as world:
        client = await client_of(world, MODERN)
        await subscribe(client, [], resourcesListChanged=True)
        await client.request("resources/list")
        methods = [message["method"] for message in await client.drain()]
        assert methods == ["notifications/resources/list_changed"]


async def test_a_listen_gets_its_own_updates_and_several_stay_apart(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(LEGACY)}) as world:
        client = await client_of(world, MODERN)
        first = await subscribe(client, ["x+memo:1"])
        second = await subscribe(client, ["x+memo:1", "x+memo:2"])
        await server.update("memo:1")
        messages = [await client.receive() for _ in range(2)]
        assert {m["params"]["_meta"][SUBSCRIPTION_ID] for m in messages} == {first, second}
        await server.notify("notifications/tools/list_changed")
        await server.update("memo:2")
        await expect_update(client, "x+memo:2", second)
        await unsubscribe(client, [], second)
        await quiet()
        await server.update("memo:2")
        await silent(client)


@pytest.mark.parametrize("down", ERAS)
async def test_long_uris_of_one_client_share_a_bound_in_bytes(down, autojump_clock):
    uris = [f"memo:{number}{'x' * 2**20}" for number in range(6)]
    server = Subscribable(down, uris=uris)
    async with open_world({"docs": server, "other": Subscribable(down)}) as world:
        client, other = await client_of(world, down), await client_of(world, down)
        if down == MODERN:
            wish = {"resourceSubscriptions": [f"docs+{uri}" for uri in uris]}
            await client.start("subscriptions/listen", {"notifications": wish})
            acknowledged = await client.receive_method("notifications/subscriptions/acknowledged")
            assert len(acknowledged["params"]["notifications"]["resourceSubscriptions"]) == 3
        else:
            for uri in uris[:3]:
                await client.request("resources/subscribe", {"uri": f"docs+{uri}"})
            with pytest.raises(RpcFailure, match="take more than 4 MiB"):
                await client.request("resources/subscribe", {"uri": f"docs+{uris[3]}"})
            await client.request("resources/unsubscribe", {"uri": f"docs+{uris[0]}"})
            await client.request("resources/subscribe", {"uri": f"docs+{uris[3]}"})
            await other.request("resources/subscribe", {"uri": f"docs+{uris[4]}"})


async def test_long_uris_of_many_listens_share_a_bound_in_bytes(autojump_clock):
    uris = [f"memo:{number}{'x' * 2**20}" for number in range(3)]
    async with open_world({"docs": Subscribable(MODERN, uris=[*uris, "memo:short"])}) as world:
        client = await client_of(world, MODERN)

        async def agreed(uris: list[str]) -> int:
            await client.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
            acknowledged = await client.receive_method("notifications/subscriptions/acknowledged")
            return len(acknowledged["params"]["notifications"].get("resourceSubscriptions", ()))

        counts = [await agreed(uris) for _ in range(24)]
        assert counts == [*[3] * 21, 0, 0, 0]
        assert await agreed(["memo:short"]) == 1


@pytest.mark.parametrize("wish", [None, [], {"resourceSubscriptions": "x"}, {"toolsListChanged": 1}])
async def test_a_malformed_filter_is_an_error(wish, autojump_clock):
    async with open_world({"x": Subscribable(MODERN), "y": Subscribable(LEGACY)}) as world:
        client = await client_of(world, MODERN)
        assert (await client.refusal("subscriptions/listen", {"notifications": wish}))["code"] == -32602


@pytest.mark.parametrize("up", ERAS)
async def test_others_have_their_turn_while_a_listen_of_many_uris_begins(up):
    uris = [f"memo:{number}" for number in range(1000)]
    server = Subscribable(up, uris=uris)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, MODERN)
        joined = [0]  # at each turn of the others

        async def look() -> None:
            while True:
                joined.append(len(world.mux.hub.subscriptions.wanted("x")))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            exposed = [f"x+{uri}" for uri in uris]
            wish = {"resourceSubscriptions": ["x+memo:unknown", *exposed]}
            await client.start("subscriptions/listen", {"notifications": wish})
            granted = (await client.receive())["params"]["notifications"]["resourceSubscriptions"]
            nursery.cancel_scope.cancel()
        assert granted == exposed
        assert world.mux.hub.subscriptions.wanted("x") == set(uris)
        # In each pass trio runs all tasks that are ready, in any order.
        assert max(later - now for now, later in pairwise(joined)) <= 2 * JOINED_AT_ONCE
        # A modern server is asked for all of them at once: by the listen for its lists, and by one more.
        assert sum(message.get("method") == "subscriptions/listen" for message in server.seen) <= 2


class Slow(Subscribable):
    """A server that takes some seconds for each subscription."""

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/subscribe":
            await trio.sleep(4)
        return await super().handle(method, params, message)


async def test_a_listen_of_many_uris_waits_as_long_as_its_server_answers(autojump_clock):
    uris = [f"memo:{number}" for number in range(100)]  # 16 at a time, for longer than `list_timeout` in all
    async with open_world({"x": Slow(LEGACY, uris=uris), "y": Subscribable(MODERN)}) as world:
        await subscribe(await client_of(world, MODERN), [f"x+{uri}" for uri in uris])
