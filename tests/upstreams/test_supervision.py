"""Upstreams that hang, die over and over or stop answering: in memory, with a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.config import Merging
from mcpmux.mux.breaker import DEATHS, FAILURES, JITTER, LOOP_SECONDS
from mcpmux.upstreams.health import ANSWER_SECONDS, SILENCES
from mcpmux.upstreams.relisting import TRIES
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.world import World, open_world

QUESTION = {LEGACY: "ping", MODERN: "server/discover"}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
SHORT: dict[str, Any] = {"x": {"request_timeout": 20.0, "timeouts": {"tools/call": 20.0}}}
LISTENS = {"toolsListChanged": True, "resourcesListChanged": True}


class Moody(ScriptedServer):
    """Answers everything until it is `dumb` about some methods (all of them when it has none to name)."""

    def __init__(self, revision: str, **more: Any) -> None:
        super().__init__(revision, resources=[{"uri": "a:1", "name": "a"}], tools=[TOOL], **more)
        self.dumb: frozenset[str] | None = frozenset()
        self.failing: frozenset[str] = frozenset()

    def refuse(self, method: str, fault: str | None) -> None:
        """Be "late" with all answers of a method from now on, be "failing", or, with None, answer again."""
        self.dumb = frozenset({method} if fault == "late" else ())
        self.failing = frozenset({method} if fault == "failing" else ())

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if self.dumb is None or method in self.dumb:
            await trio.sleep_forever()
        if method in self.failing:
            raise RpcFailure(-32603, "Internal error")
        if method == "tools/call":
            return {"content": []} | ({"resultType": "complete"} if self.modern else {})
        if method == "ping":
            return {}
        return await super().handle(method, params, message)

    def asked(self, method: str) -> int:
        return [message.get("method") for message in self.seen].count(method)


def other() -> ScriptedServer:
    return ScriptedServer(resources=[])


async def call_tool(world: World, seconds: float | None = None) -> Any:
    """Call a tool, check that it takes `seconds`, and return the error, or None."""
    began = trio.current_time()
    try:
        await world.client().request("tools/call", {"name": "x__t", "arguments": {}})
        return None
    except RpcFailure as failure:
        return failure.error
    finally:
        if seconds is not None:
            assert trio.current_time() - began == pytest.approx(seconds, abs=0.5)


async def fail_calls(world: World, count: int = FAILURES) -> None:
    """Start so many calls at a time, which stay without an answer."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call_tool, world)


# Crash loops


async def test_attempts_to_start_a_server_count_as_restarts_even_if_they_fail(autojump_clock):
    class Dead(Moody):
        async def serve(self, pipe: Any) -> None:
            await pipe.aclose()

    async with open_world({"x": Dead("2025-11-25"), "docs": other()}) as world:
        await trio.sleep(30)
        upstream = world.mux.upstreams["x"]
        assert (upstream.state, upstream.status.connects) == ("crash-loop", 0)
        assert upstream.status.restarts == world.connects["x"] - 1 > 0
        assert world.mux.upstreams["docs"].status.restarts == 0


@pytest.mark.parametrize("up", ERAS)
async def test_a_server_that_keeps_dying_is_in_a_crash_loop(up, autojump_clock):
    class Dying(Moody):
        async def serve(self, pipe: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(super().serve, pipe)
                await trio.sleep(0.5)
                await pipe.aclose()

    async with open_world({"x": Dying(up), "docs": other()}) as world:
        upstream = world.mux.upstreams["x"]
        await trio.sleep(30)
        assert upstream.state == "crash-loop"
        assert "crash loop" in upstream.status.trouble
        assert world.connects["x"] <= DEATHS + 1
        error = await call_tool(world, 0)
        assert error["code"] == -31001
        assert error["data"]["state"] == "crash-loop"
        assert 0 < error["data"]["retryAfterSeconds"] <= LOOP_SECONDS
        count = world.connects["x"]
        await trio.sleep(10 * LOOP_SECONDS)
        assert 10 <= world.connects["x"] - count <= 10 / (1 - JITTER)
        if upstream.status.connection is not None:
            await trio.sleep(1)  # it lives for half a second now and then
        left_out = (await world.client().request("resources/list"))["_meta"]["dev.mcpmux/upstreams"]
        assert left_out["x"]["state"] == "crash-loop"
        world.servers["x"] = Moody(up)
        await trio.sleep(LOOP_SECONDS)
        assert upstream.state == "ready"
        assert await call_tool(world) is None


async def test_clients_hear_of_every_change_of_a_server_that_comes_and_goes(autojump_clock):
    async with open_world({"x": Moody(MODERN), "docs": other()}) as world:
        await world.mux.upstreams["x"].supervision.settled()
        client = world.client()
        await client.start("subscriptions/listen", {"notifications": LISTENS})
        await client.drain()
        world.servers["x"] = None
        await world.kill("x")
        gone = [message["method"] for message in await client.drain()]
        assert gone.count("notifications/tools/list_changed") == 1
        world.servers["x"] = Moody(MODERN)
        await trio.sleep(60)
        back = [message["method"] for message in await client.drain()]
        assert back.count("notifications/tools/list_changed") == 1


# Hangs


@pytest.mark.parametrize("up", ERAS)
async def test_an_idle_server_that_answers_nothing_any_more_is_started_again(up, autojump_clock):
    server = Moody(up)
    async with open_world({"x": server, "docs": other()}) as world:
        upstream = world.mux.upstreams["x"]
        assert await call_tool(world) is None
        await trio.sleep(100)  # it has shown that it answers questions
        assert (world.connects["x"], upstream.state) == (1, "ready")
        server.dumb = None
        world.servers["x"] = Moody(up)
        await trio.sleep(30 + SILENCES * ANSWER_SECONDS + 10)
        assert world.connects["x"] == 2
        assert "health check" in (upstream.status.last_error or "")
        assert await call_tool(world) is None


async def test_a_legacy_server_that_ignores_unknown_requests_is_left_alone(autojump_clock):
    server = Moody(LEGACY)
    server.dumb = frozenset({"ping"})
    async with open_world({"x": server, "docs": other()}) as world:
        await trio.sleep(600)
        assert world.connects["x"] == 1
        assert server.asked("ping") > 5
        assert await call_tool(world) is None


@pytest.mark.parametrize("up", ERAS)
async def test_no_health_check_runs_beside_traffic_or_when_off(up, autojump_clock):
    busy, working, off = Moody(up), Moody(up), Moody(up)
    working.dumb = frozenset({"tools/call"})
    settings = {"x": {}, "w": {"request_timeout": 400.0}, "off": {"health_interval": 0.0}}
    servers: Any = {"x": busy, "w": working, "off": off}
    async with open_world(servers, settings=settings) as world:
        await world.client().request("resources/list")
        counts = [server.asked(QUESTION[up]) for server in (busy, working, off)]
        world.nursery.start_soon(world.client().start, "tools/call", {"name": "w__t", "arguments": {}})
        for _ in range(40):
            await call_tool(world)
            await trio.sleep(8)
        assert [server.asked(QUESTION[up]) for server in (busy, working, off)] == counts
        await trio.sleep(100)
        assert busy.asked(QUESTION[up]) > counts[0]
        assert off.asked(QUESTION[up]) == counts[2]


# The breaker


@pytest.mark.parametrize("up", ERAS)
async def test_calls_that_nobody_answers_open_the_breaker_and_a_probe_closes_it(up, autojump_clock):
    server = Moody(up)
    async with open_world({"x": server, "docs": other()}, settings=SHORT) as world:
        upstream = world.mux.upstreams["x"]
        assert await call_tool(world) is None
        client = world.client()
        await client.start("subscriptions/listen", {"notifications": LISTENS})
        await client.drain()
        server.dumb = None
        assert (await call_tool(world, 20))["code"] == -31002
        await fail_calls(world)
        await trio.sleep(ANSWER_SECONDS + 1)
        assert (upstream.state, upstream.status.breaker.state.value) == ("failing", "open")
        error = await call_tool(world, 0)
        assert error["code"] == -31001
        assert "Upstream 'x' does not answer any more" in error["message"]
        assert 0 < error["data"]["retryAfterSeconds"] <= 5
        left_out = (await world.client().request("tools/list"))["_meta"]["dev.mcpmux/upstreams"]
        assert left_out["x"]["state"] == "failing"
        server.dumb = frozenset()
        await trio.sleep(5)
        assert (upstream.state, world.connects["x"]) == ("ready", 1)
        assert await call_tool(world) is None
        methods = [message.get("method") for message in await client.drain()]
        assert methods.count("notifications/tools/list_changed") == 2  # gone, and back


@pytest.mark.parametrize("up", ERAS)
async def test_a_server_that_hangs_is_given_up_after_its_breaker_opened(up, autojump_clock):
    server = Moody(up)
    async with open_world({"x": server, "docs": other()}, settings=SHORT) as world:
        assert await call_tool(world) is None
        server.dumb = None
        world.servers["x"] = Moody(up)
        await fail_calls(world)
        await trio.sleep(SILENCES * ANSWER_SECONDS + 10)
        assert world.connects["x"] == 2
        assert await call_tool(world) is None


@pytest.mark.parametrize("up", ERAS)
async def test_slow_calls_never_shut_off_a_live_server(up, autojump_clock):
    server = Moody(up)
    server.dumb = frozenset({"tools/call"})
    async with open_world({"x": server, "docs": other()}, settings=SHORT) as world:
        upstream = world.mux.upstreams["x"]
        await upstream.supervision.settled()
        ready_since = upstream.status.since
        for _ in range(3):
            await fail_calls(world)
            assert len((await world.client().request("resources/list"))["resources"]) == 1
        assert (upstream.state, world.connects["x"]) == ("ready", 1)
        assert upstream.status.since == ready_since


@pytest.mark.parametrize("up", ERAS)
async def test_errors_of_the_server_itself_are_answers(up, autojump_clock):
    async def refuse(_server: Any, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32603, "Internal error")

    server = ScriptedServer(up, tools=[TOOL], handlers={"tools/call": refuse})
    async with open_world({"x": server, "docs": other()}) as world:
        for _ in range(3 * FAILURES):
            assert (await call_tool(world))["code"] == -32603
        assert not world.mux.upstreams["x"].status.breaker.doubtful


async def test_lists_that_come_too_late_count_as_failures(autojump_clock):
    server = Moody(MODERN)
    settings = {"x": {"list_timeout": 9.0}}  # so that no list ends when the server has been silent for 30 s
    async with open_world({"x": server, "docs": other()}, settings=settings) as world:
        upstream = world.mux.upstreams["x"]
        await upstream.supervision.settled()
        server.dumb, began = None, trio.current_time()
        while not upstream.status.breaker.blocks:
            await world.client().request("resources/list")
        assert trio.current_time() - began < FAILURES * 9
        began = trio.current_time()
        await world.client().request("resources/list")
        assert trio.current_time() - began < 1


# Deadlines


@pytest.mark.parametrize("up", ERAS)
async def test_each_method_has_its_deadline_and_the_server_gets_the_cancellation(up, autojump_clock):
    server = Moody(up)
    server.dumb = frozenset({"tools/call", "resources/read"})
    settings = {"x": {"request_timeout": 20.0, "timeouts": {"tools/call": 45.0}}}
    async with open_world({"x": server, "docs": other()}, settings=settings) as world:
        assert "within 45 s" in (await call_tool(world, 45))["message"]
        began = trio.current_time()
        assert (await world.client().refusal("resources/read", {"uri": "x+a:1"}))["code"] == -31002
        assert trio.current_time() - began == pytest.approx(20, abs=0.5)
        await trio.testing.wait_all_tasks_blocked()
        assert server.asked("notifications/cancelled") == 2


@pytest.mark.parametrize("asked", [{"progressToken": "p"}, {}])
@pytest.mark.parametrize("up", ERAS)
async def test_progress_renews_a_deadline_up_to_the_maximum(up, asked, autojump_clock):
    async def work(server: ScriptedServer, params: Json, _message: Json) -> Json:
        for step in range(10_000):
            progress = {"progressToken": params["_meta"]["progressToken"], "progress": step}
            await server.send({"method": "notifications/progress", "params": progress})
            await trio.sleep(5)
        raise AssertionError

    server = ScriptedServer(up, tools=[TOOL], handlers={"tools/call": work})
    settings: dict[str, Any] = {"x": {"timeouts": {"tools/call": 10.0}, "max_request_timeout": 50.0}}
    async with open_world({"x": server, "docs": other()}, settings=settings) as world:
        client = world.client()
        began = trio.current_time()
        await client.start("tools/call", {"name": "x__t", "arguments": {}}, **asked)
        notifications = 0
        while "error" not in (message := await client.receive()):
            notifications += 1
        assert (notifications > 0) == bool(asked)  # what mcpmux asks for itself is not for the client
        assert message["error"]["code"] == -31002
        assert "did not finish tools/call within 50 s" in message["error"]["message"]
        assert "raise `upstreams.x.max_request_timeout`" in message["error"]["message"]
        assert trio.current_time() - began == pytest.approx(50, abs=0.5)
        await trio.testing.wait_all_tasks_blocked()
        assert [m["method"] for m in server.seen].count("notifications/cancelled") == 1


# Partial answers


@pytest.mark.parametrize("down", ERAS)
@pytest.mark.parametrize("up", ERAS)
async def test_missing_parts_of_a_list_are_named_or_an_error_when_strict(up, down, autojump_clock):
    async with open_world({"x": Moody(up), "gone": None}) as world:
        client = world.client()
        if down != MODERN:
            await client.initialize(down)
        result = await client.request("resources/list")
        assert [item["uri"] for item in result["resources"]] == ["x+a:1"]
        missing = result["_meta"]["dev.mcpmux/upstreams"]
        assert missing.keys() == {"gone"}
        assert missing["gone"]["state"] == "down"
        world.mux.merger.merging = Merging(strict=True)
        error = await client.refusal("resources/list")
        assert error["code"] == -31001
        assert "The list is not complete: Upstream 'gone' is not available: nobody there" in error["message"]
        assert error["data"]["dev.mcpmux/upstreams"].keys() == {"gone"}
        world.servers["gone"] = Moody(up)
        await trio.sleep(60)
        result = await client.request("resources/list") if down == MODERN else await relisted(client)
        assert len(result["resources"]) == 2
        assert "dev.mcpmux/upstreams" not in result.get("_meta", {})


async def relisted(client: Any) -> Json:
    """List resources again. A legacy client gets the list change before the answer."""
    request = await client.start("resources/list")
    while (message := await client.receive()).get("id") != request:
        assert message["method"].endswith("list_changed")
    return message["result"]


@pytest.mark.parametrize("up", ERAS)
async def test_a_raw_uri_of_a_missing_owner_differs_from_an_unknown_one(up, autojump_clock):
    async def read(server: ScriptedServer, params: Json, _message: Json) -> Json:
        result: Json = {"contents": [{"uri": params["uri"], "text": "x"}]}
        cache = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return result | (cache if server.modern else {})

    async with open_world({"x": Moody(up, handlers={"resources/read": read}), "gone": None}) as world:
        client = world.client()
        error = await client.refusal("resources/read", {"uri": "b:2"})
        assert error["code"] == -31001
        assert "It is not known who owns b:2: Upstream 'gone'" in error["message"]
        assert error["data"]["uri"] == "b:2"
        assert error["data"]["dev.mcpmux/upstreams"].keys() == {"gone"}
        result = await client.request("resources/read", {"uri": "a:1"})
        assert result["_meta"]["dev.mcpmux/upstreams"].keys() == {"gone"}
        world.mux.merger.merging = Merging(strict=True)
        with pytest.raises(RpcFailure, match="It is not known who owns a:1"):
            await client.request("resources/read", {"uri": "a:1"})
        prefixed = await client.request("resources/read", {"uri": "x+a:1"})
        assert "dev.mcpmux/upstreams" not in prefixed.get("_meta", {})
        world.servers["gone"] = ScriptedServer(up, resources=[])
        await trio.sleep(60)
        assert (await client.refusal("resources/read", {"uri": "b:2"}))["code"] == -32602


async def test_waiting_for_a_connection_takes_of_the_calls_own_time(autojump_clock):
    silent = Moody(MODERN)
    silent.dumb = None
    async with open_world({"x": silent, "docs": other()}, settings=SHORT) as world:
        error = await call_tool(world, 20)
        assert error["code"] == -31002
        assert "did not answer tools/call within 20 s" in error["message"]
        assert error["data"]["upstream"] == "x"


async def test_a_call_that_waited_for_its_connection_is_renewed_by_progress(autojump_clock):
    class Late(Moody):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            if method == "server/discover":
                await trio.sleep(4)
            if method == "tools/call":
                for step in range(3):
                    await trio.sleep(15)
                    progress = {"progressToken": params["_meta"]["progressToken"], "progress": step}
                    await self.send({"method": "notifications/progress", "params": progress})
            return await super().handle(method, params, message)

    async with open_world({"x": Late(MODERN), "docs": other()}, settings=SHORT) as world:
        client = world.client()
        await client.start("tools/call", {"name": "x__t", "arguments": {}}, progressToken="p")
        messages = [await client.receive() for _ in range(4)]
        assert "content" in messages[-1]["result"]
        assert trio.current_time() > 45


async def test_a_subscription_does_not_wait_for_a_connection_that_does_not_come(autojump_clock):
    silent = Moody(MODERN)
    silent.dumb = None
    async with open_world({"x": silent, "docs": other()}, settings={"x": {"list_timeout": 4.0}}) as world:
        client = world.client()
        await client.initialize(LEGACY)
        began = trio.current_time()
        error = await client.refusal("resources/subscribe", {"uri": "x+a:1"})
        assert trio.current_time() - began < 5
        assert error["data"]["upstream"] == "x"


# Lists that a connected server owes


@pytest.mark.parametrize("fault", ["late", "failing"])
@pytest.mark.parametrize(("up", "session"), [(LEGACY, "shared"), (MODERN, "shared"), (LEGACY, "per-client")])
async def test_clients_are_notified_when_a_connected_server_lists_what_they_have_missed(
    up, fault, session, autojump_clock
):
    server = Moody(up)
    settings = {"x": {"list_timeout": 9.0, "session": session}}
    async with open_world({"x": server, "docs": other()}, settings=settings) as world:
        client = world.client()
        await client.start("subscriptions/listen", {"notifications": LISTENS})
        await client.drain()
        server.refuse("tools/list", fault)
        assert "x" in (await client.request("tools/list"))["_meta"]["dev.mcpmux/upstreams"]
        await trio.sleep(20)
        assert await client.drain() == []
        server.refuse("tools/list", None)
        await trio.sleep(60)
        assert [message["method"] for message in await client.drain()] == ["notifications/tools/list_changed"]
        result = await client.request("tools/list")
        assert [tool["name"] for tool in result["tools"]] == ["x__t"]
        assert "dev.mcpmux/upstreams" not in result.get("_meta", {})
        count = server.asked("tools/list")
        await trio.sleep(600)
        assert server.asked("tools/list") == count
        assert await client.drain() == []


@pytest.mark.parametrize("up", ERAS)
async def test_a_list_that_never_comes_is_not_asked_for_without_end(up, autojump_clock):
    server = Moody(up)
    server.refuse("tools/list", "failing")
    async with open_world({"x": server, "docs": other()}) as world:
        client = world.client()
        for missed in (1, 2):
            await client.request("tools/list")
            await trio.sleep(3600)
            assert server.asked("tools/list") == missed * (1 + TRIES)


@pytest.mark.parametrize("up", ERAS)
async def test_a_new_connection_begins_without_missed_lists(up, autojump_clock):
    server = Moody(up)
    server.refuse("tools/list", "failing")
    async with open_world({"x": server, "docs": other()}) as world:
        client = world.client()
        await client.request("tools/list")
        world.servers["x"] = again = Moody(up)
        await world.kill("x")
        await trio.sleep(3600)
        assert again.asked("tools/list") == 0
