"""The requests that a modern listen may make, and their answers."""

from __future__ import annotations

from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, CLIENT_INFO, MODERN, VERSION
from tests.peers.subscribable import SUBSCRIPTION_ID, Subscribable
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_subscriptions import quiet, silent
from tests.runtime.world import open_world

META = {VERSION: MODERN, CLIENT_INFO: {"name": "c", "version": "1"}, CAPABILITIES: {}}


async def test_a_uri_that_is_named_twice_is_heard_once(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = world.client()
        wish = {"resourceSubscriptions": ["x+memo:1", "x+memo:1"]}
        listen = await client.start("subscriptions/listen", {"notifications": wish})
        acknowledged = (await client.receive())["params"]["notifications"]
        assert acknowledged == {"resourceSubscriptions": ["x+memo:1"]}
        await server.update("memo:1")
        assert (await client.receive())["params"]["_meta"] == {SUBSCRIPTION_ID: listen}
        await silent(client)


async def test_a_listen_for_nothing_hears_nothing(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = world.client()
        await client.start("subscriptions/listen", {"notifications": {}})
        assert (await client.receive())["params"]["notifications"] == {}
        await server.notify("notifications/tools/list_changed")
        await server.update("memo:1")
        await silent(client)


async def test_more_than_anybody_needs_is_refused(autojump_clock):
    async with open_world({"x": Subscribable(MODERN), "y": Subscribable(MODERN)}) as world:
        client = world.client()
        wish = {"resourceSubscriptions": [f"x+memo:{number}" for number in range(10_001)]}
        await client.start("subscriptions/listen", {"notifications": wish})
        assert (await client.receive())["error"]["code"] == -32602
        await quiet()
        assert repr(world.mux.hub).startswith("<NotificationHub 0 listeners")


async def test_a_listen_of_a_client_that_takes_no_event_streams_is_refused():
    async with open_endpoint({"x": Subscribable(MODERN), "y": Subscribable(MODERN)}) as client:
        headers = {
            "Accept": "application/json",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "subscriptions/listen",
        }
        body = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META})
        answer = await client.send(body, headers)
        assert answer.status == 400
        assert "text/event-stream" in answer.last["error"]["message"]
