"""One client on its own stream: its mistakes, and what is left of it."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs

from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.test_subscriptions import quiet
from tests.runtime.world import open_world

PARAMS = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


async def start_slowly(server: ScriptedServer, _params: Json, _message: Json) -> Json:
    await trio.sleep(1)
    return server._discover()


async def test_of_two_initializes_at_once_one_opens_the_session(autojump_clock):
    server = Subscribable(MODERN)
    server.handlers = {"server/discover": start_slowly}
    async with open_world({"x": server, "y": Subscribable(LEGACY)}) as world:
        client = world.client()
        for _ in range(2):
            await client.start("initialize", PARAMS)
        client.revision = LEGACY
        answers = [await client.receive() for _ in range(2)]
        assert sorted("error" in answer for answer in answers) == [False, True]
        assert next(a["error"]["code"] for a in answers if "error" in a) == -32600
        await client.vanish()
        await quiet()
        assert repr(world.mux.hub).startswith("<NotificationHub 0 listeners")


async def test_what_comes_while_initialize_is_answered_waits_for_it(autojump_clock):
    server = Subscribable(MODERN)
    server.handlers = {"server/discover": start_slowly}
    async with open_world({"x": server, "y": Subscribable(LEGACY)}) as world:
        client = world.client()
        client.revision = LEGACY
        first = await client.start("initialize", PARAMS)
        await client.send({"method": "notifications/initialized"})
        listed, pinged = await client.start("resources/list"), await client.start("ping")
        cancelled = await client.start("resources/list")
        await client.send({"method": "notifications/cancelled", "params": {"requestId": cancelled}})
        answers = [message for message in await client.drain() if "id" in message]
        assert [answer["id"] for answer in answers] == [pinged, first, listed]
        assert answers[-1]["result"]["resources"]


async def test_requests_behind_a_failed_initialize_are_refused(autojump_clock):
    async with open_world({"x": Subscribable(LEGACY)}) as world:
        client = world.client()
        client.revision = LEGACY
        started = [
            await client.start("initialize", {}),
            await client.start("initialize", PARAMS),
            await client.start("resources/list"),
        ]
        answers = {message["id"]: message for message in await client.drain() if "id" in message}
        assert ["error" in answers[number] for number in started] == [True, False, False]


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_client_that_left_is_no_fault_of_the_server(down, up, autojump_clock):
    """Its progress cannot be delivered any more. The server gets the request once, and no health check."""

    async def report(server: ScriptedServer, params: Json, _message: Json) -> Json:
        for progress in range(3):
            await trio.sleep(1)
            event = {"progressToken": params["_meta"]["progressToken"], "progress": progress}
            await server.send({"method": "notifications/progress", "params": event})
        await trio.sleep_forever()
        raise AssertionError

    server = ScriptedServer(up, resources=[{"uri": "file:///a", "name": "a"}])
    server.handlers["resources/read"] = report
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await world.open_client(down)
        await trio.sleep(1)  # until the servers are connected
        server.seen.clear()
        with capture_logs() as logs:
            await client.start("resources/read", {"uri": "x+file:///a"}, progressToken=1)
            await trio.sleep(0.5)
            await client.vanish()
            await trio.sleep(20)  # less than until the next health check
        methods = [message["method"] for message in server.seen]
        assert methods == ["resources/read", "notifications/cancelled"]
        assert world.mux.upstreams["x"].status.last_error is None
        assert not [entry for entry in logs if entry["log_level"] in ("warning", "error")]
