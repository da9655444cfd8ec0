"""Another configuration for a running mux: what changes, what stays, what clients receive. Virtual time."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcpmux.config import Config, Http, Identity, Merging, Missing, Secret, Stdio, Upstream
from mcpmux.mux.seal import StateSeal
from mcpmux.protocol.call import SERVER_INFO
from mcpmux.protocol.principal import Principal
from mcpmux.upstreams.registry import RETIRE_SECONDS
from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.test_asking import ASKED, ASKING, CAPABILITIES, Curious
from tests.runtime.test_flows import docs
from tests.runtime.world import World, open_world, upstream

OTHER = Http(url="http://other.invalid/")
LEFT_OUT = "dev.mcpmux/upstreams"


class Gate:
    """A tool that answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.open = trio.Event(), trio.Event()

    async def handle(self, server: ScriptedServer, _params: Json, _message: Json) -> Json:
        self.asked.set()
        await self.open.wait()
        result: Json = {"content": [{"type": "text", "text": "done"}]}
        return result | ({"resultType": "complete"} if server.modern else {})


def gated(gate: Gate, revision: str = MODERN) -> ScriptedServer:
    return ScriptedServer(
        revision,
        tools=[{"name": "wait", "inputSchema": {"type": "object"}}],
        handlers={"tools/call": gate.handle},
    )


def become(world: World, *upstreams: Upstream, **settings: Any) -> Json:
    """Give the mux a configuration with these upstreams, and return the plan."""
    return world.mux.apply(attrs.evolve(world.mux.config, upstreams=upstreams, **settings)).as_json()


async def uris(client: ScriptedClient) -> list[str]:
    return [item["uri"] for item in await client.walk("resources/list", "resources")]


async def legacy_client(world: World) -> ScriptedClient:
    client = world.client()
    await client.initialize(LEGACY)
    return client


async def test_an_added_upstream_is_there_and_an_unchanged_one_keeps_its_session(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        client = await legacy_client(world)
        connection = world.mux.upstreams["docs"].status.connection
        world.servers["more"] = docs()
        assert become(world, upstream("docs"), upstream("more")) == {"added": ["more"]}
        await client.receive_method("notifications/resources/list_changed")
        assert "more+memo:1" in await uris(client)
        assert world.mux.upstreams["docs"].status.connection is connection is not None
        assert world.connects == {"docs": 1, "more": 1}


async def test_an_upstream_that_lacks_a_value_is_down_until_it_has_it(autojump_clock):
    lack: Json = {"target": Missing("env.A: the variable `A` is not set")}
    async with open_world({"docs": docs(), "more": docs()}, settings={"more": lack}) as world:
        client = await legacy_client(world)
        assert await uris(client) == ["docs+file:///a.md", "docs+memo:1"]
        await trio.sleep(3600)
        with pytest.raises(
            RpcFailure, match=r"'more' is not available: env\.A: the variable `A` is not set$"
        ):
            await client.request("resources/read", {"uri": "more+memo:1"})
        assert world.mux.upstreams["more"].state == "down"
        assert become(world, upstream("docs"), upstream("more")) == {"restarted": ["more"]}
        await client.receive_method("notifications/resources/list_changed")
        assert "more+memo:1" in await uris(client)
        assert become(world, upstream("docs"), upstream("more", **lack)) == {"restarted": ["more"]}
        await client.receive_method("notifications/resources/list_changed")
        assert "more+memo:1" not in await uris(client)
        assert world.connects == {"docs": 1, "more": 1}


async def test_a_changed_identity_is_told_at_once(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        client = world.client()
        identity = Identity(name="renamed", instructions="Ask.")
        assert world.mux.apply(attrs.evolve(world.mux.config, identity=identity))
        for method in ("server/discover", "resources/list"):
            result = await client.request(method, {})
            assert result["_meta"][SERVER_INFO]["name"] == "renamed"
        assert (await client.request("server/discover", {}))["instructions"].startswith("Ask.")
        initialized = await world.client().initialize(LEGACY)
        assert initialized["serverInfo"]["name"] == "renamed"


async def test_a_removed_upstream_is_gone_at_once_and_clients_hear_of_it(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        client = await legacy_client(world)
        assert become(world, upstream("docs")) == {"removed": ["more"]}
        await client.receive_method("notifications/resources/list_changed")
        assert await uris(client) == ["docs+file:///a.md", "docs+memo:1"]
        with pytest.raises(RpcFailure, match=r"no upstream owns more\+memo:1"):
            await client.request("resources/read", {"uri": "more+memo:1"})


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("change", ["removed", "restarted"])
async def test_what_is_in_flight_is_finished_by_the_session_that_began_it(change, revision, autojump_clock):
    gate = Gate()
    async with open_world({"docs": docs(), "slow": gated(gate, revision)}) as world:
        client = world.client()
        request = await client.start("tools/call", {"name": "slow__wait"})
        await gate.asked.wait()
        world.servers["slow"] = gated(Gate(), revision)
        changed = [attrs.evolve(upstream("slow"), target=OTHER)] if change == "restarted" else []
        assert become(world, upstream("docs"), *changed) == {change: ["slow"]}
        await trio.sleep(RETIRE_SECONDS / 2)
        assert [item["uri"] for item in await client.walk("resources/list", "resources")]
        gate.open.set()
        answer = await client.receive()
        assert answer["id"] == request
        assert answer["result"]["content"][0]["text"] == "done"
        await trio.sleep(1)  # of the virtual clock, in which the old session comes to its end
        assert len(world.mux.upstreams.sessions()) == len(world.mux.upstreams)


@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("up", "change"), [(LEGACY, "drain"), (LEGACY, "restart"), (LEGACY, "target"), (MODERN, "drain")]
)
async def test_a_question_that_is_open_is_answered_in_the_session_that_asks(up, change, down, autojump_clock):
    async with open_world({"docs": docs(), "x": Curious(up, ASKING)}) as world:
        client, call = await world.open_client(down, CAPABILITIES), {"name": "x__t"}
        request = await client.start("tools/call", call)
        question = await client.receive()
        world.servers["x"] = docs()
        if change == "target":
            become(world, upstream("docs"), upstream("x", target=OTHER))
        else:
            world.mux.act(change, "x")
        if up == LEGACY:  # else no call is open meanwhile
            assert world.mux.upstreams["x"].state == ("draining" if change == "drain" else "connecting")
        await trio.sleep(RETIRE_SECONDS / 2)
        response = ASKED[ASKING][1]
        if down == LEGACY:
            await client.send({"id": question["id"], "result": response})
        else:
            parked = question["result"]
            again = {"requestState": parked["requestState"], "inputResponses": {}}
            again["inputResponses"] = dict.fromkeys(parked["inputRequests"], response)
            request = await client.start("tools/call", {**call, **again})
        while (answer := await client.receive()).get("id") != request:
            pass
        assert json.loads(answer["result"]["content"][0]["text"]) == [response]
        await trio.sleep(1)  # of the virtual clock, in which the old session comes to its end
        assert world.mux.upstreams["x"].state == ("drained" if change == "drain" else "ready")


async def test_slow_exchanges_are_cut_off_with_an_error_that_explains(autojump_clock):
    gate = Gate()
    async with open_world({"docs": docs(), "slow": gated(gate)}) as world:
        client = world.client()
        await client.start("tools/call", {"name": "slow__wait"})
        await gate.asked.wait()
        began = trio.current_time()
        become(world, upstream("docs"))
        answer = await client.receive()
        assert "'slow' was lost" in answer["error"]["message"]
        assert RETIRE_SECONDS <= trio.current_time() - began < RETIRE_SECONDS + 1


async def test_an_idempotent_exchange_cut_off_does_not_wait_for_a_session(
    autojump_clock,
):
    gate = Gate()
    server = docs()
    server.handlers["resources/read"] = gate.handle
    async with open_world({"docs": docs(), "slow": server}) as world:
        client = world.client()
        await client.start("resources/read", {"uri": "slow+memo:1"})
        await gate.asked.wait()
        began = trio.current_time()
        become(world, upstream("docs"))
        assert "closed; ask again" in (await client.receive())["error"]["message"]
        assert trio.current_time() - began < RETIRE_SECONDS + 1


async def test_a_program_comes_up_again_only_when_the_one_before_has_ended(autojump_clock):
    gate = Gate()
    async with open_world({"slow": gated(gate)}, settings={"slow": {"prefix": "slow"}}) as world:
        program = attrs.evolve(upstream("slow"), target=Stdio(command="first"))
        become(world, program)
        await world.mux.upstreams["slow"].supervision.settled()
        client = world.client()
        await client.start("tools/call", {"name": "slow__wait"})
        await gate.asked.wait()
        connects = world.connects["slow"]
        other = Gate()
        world.servers["slow"] = gated(other)
        become(world, attrs.evolve(program, target=Stdio(command="no time to start")))
        await trio.sleep(1)
        become(world, attrs.evolve(program, target=Stdio(command="second")))
        second = world.client()
        waiting = await second.start("tools/call", {"name": "slow__wait"})
        await trio.sleep(5)  # of the virtual clock: however long it takes
        assert world.connects["slow"] == connects
        gate.open.set()
        assert "result" in await client.receive()
        await other.asked.wait()
        other.open.set()
        answer = await second.receive()
        assert (answer["id"], world.connects["slow"]) == (waiting, connects + 1)
        assert "result" in answer


async def test_prefix_and_timeouts_change_without_a_new_session(autojump_clock):
    gate = Gate()
    async with open_world({"docs": docs(), "slow": gated(gate)}) as world:
        client = await legacy_client(world)
        plan = become(world, upstream("docs", prefix="d"), upstream("slow", timeouts={"tools/call": 3.0}))
        assert plan == {"adjusted": ["docs", "slow"]}
        assert "notifications/resources/list_changed" in {
            notification["method"] for notification in await client.drain()
        }
        assert await uris(client) == ["d+file:///a.md", "d+memo:1"]
        began = trio.current_time()
        await client.start("tools/call", {"name": "slow__wait"})
        while "error" not in (answer := await client.receive()):
            pass
        assert "within 3 s" in answer["error"]["message"]
        assert trio.current_time() - began == pytest.approx(3, abs=0.2)
        assert world.connects == {"docs": 1, "slow": 1}


async def test_another_limit_of_names_holds_at_once(autojump_clock):
    tool = {"name": "a_name_that_is_rather_long_for_a_tool", "inputSchema": {"type": "object"}}
    async with open_world({"docs": ScriptedServer(LEGACY, tools=[tool])}) as world:
        client = await legacy_client(world)
        (whole,) = await client.walk("tools/list", "tools")
        merging = attrs.evolve(world.mux.config.merging, name_limit=44)
        prefix = "docs-of-servers"
        become(world, upstream("docs", prefix=prefix))
        await client.drain()
        become(world, upstream("docs", prefix=prefix), merging=merging)
        assert "notifications/tools/list_changed" in {
            notification["method"] for notification in await client.drain()
        }
        (short,) = await client.walk("tools/list", "tools")
        assert (len(whole["name"]), len(short["name"])) == (43, 44)


async def test_settings_that_are_looked_up_at_each_use_change_at_once(autojump_clock):
    gate, checks = Gate(), list[str]()

    class Counting(ScriptedServer):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            checks.append(method)
            return await super().handle(method, params, message)

    off = {"health_interval": 0.0, "list_timeout": 20.0}
    resources = [{"uri": "memo:1", "name": "one"}]
    server = Counting(LEGACY, resources=resources, handlers={"resources/list": gate.handle})
    async with open_world({"docs": server}, settings={"docs": off}) as world:
        await world.mux.upstreams["docs"].supervision.settled()
        await trio.sleep(1000)
        assert "ping" not in checks
        become(world, upstream("docs", health_interval=30.0, list_timeout=3.0))
        await trio.sleep(100)
        assert checks.count("ping") == 3
        result = await world.client().request("resources/list")
        reason = result["_meta"][LEFT_OUT]["docs"]["reason"]
        assert "within 3 s; to allow more, raise `upstreams.docs.list_timeout`" in reason


async def test_the_order_of_lists_follows_the_order_of_the_file(autojump_clock):
    async with open_world({"a": docs(), "b": docs()}) as world:
        assert become(world, upstream("b"), upstream("a")) == {}
        assert [uri.partition("+")[0] for uri in await uris(world.client())] == ["b", "b", "a", "a"]
        assert world.connects == {"a": 1, "b": 1}


async def test_one_transparent_server_gets_company_and_is_alone_again(autojump_clock):
    async with open_world({"docs": docs()}, settings={"docs": {"prefix": ""}}) as world:
        client = world.client()
        assert await uris(client) == ["file:///a.md", "memo:1"]
        world.servers["more"] = docs()
        become(world, upstream("docs", prefix=""), upstream("more"))
        assert await uris(client) == ["file:///a.md", "memo:1", "more+file:///a.md", "more+memo:1"]
        read = await client.request("resources/read", {"uri": "memo:1"})
        assert read["contents"][0]["uri"] == "memo:1"
        become(world, upstream("docs", prefix=""))
        assert await uris(client) == ["file:///a.md", "memo:1"]
        assert world.connects["docs"] == 1


async def test_a_cursor_goes_on_without_what_was_removed(autojump_clock):
    servers = {"a": docs(), "b": docs()}
    for server in servers.values():
        server.page_size = 1
    async with open_world(servers, page_size=1) as world:
        client = world.client()
        first = await client.request("resources/list")
        assert [item["uri"] for item in first["resources"]] == ["a+file:///a.md", "b+file:///a.md"]
        become(world, upstream("b"))
        rest = await client.request("resources/list", {"cursor": first["nextCursor"]})
        assert [item["uri"] for item in rest["resources"]] == ["b+memo:1"]
        assert "nextCursor" not in rest
        assert rest["_meta"][LEFT_OUT] == {"a": {"state": "removed", "reason": "Upstream 'a' was removed"}}


async def test_another_key_is_for_states_as_for_cursors(autojump_clock):
    async def ask(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        return {"resultType": "input_required", "requestState": "the server's"}

    server, key = ScriptedServer(tools=[], handlers={"tools/call": ask}), "a-key-that-is-long-enough"
    async with open_world({"a": server}) as world:
        become(world, upstream("a"), merging=Merging(cursor_key=Secret(key)))
        client = world.client(principal=Principal("alice"))
        state = (await client.request("tools/call", {"name": "a__t"}))["requestState"]
    # As a replica opens it that was started with this key.
    assert StateSeal(key.encode()).open("alice", state) == "the server's"


@pytest.mark.parametrize("key", ["a-key-that-is-long-enough", None])
async def test_cursors_are_good_after_a_change_that_is_not_about_them(key, autojump_clock):
    server = docs()
    server.page_size = 1
    async with open_world({"a": server}, page_size=1) as world:
        client = world.client()
        become(world, upstream("a"), merging=Merging(page_size=1, cursor_key=key and Secret(key)))
        first = await client.request("resources/list")
        become(world, upstream("a"), merging=attrs.evolve(world.mux.config.merging, change_window=0.5))
        assert (await client.request("resources/list", {"cursor": first["nextCursor"]}))["resources"]


@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize(("name", "is_away"), [("x", True), ("renamed", True), ("renamed", False)])
async def test_a_subscription_comes_back_with_its_upstream_and_is_caught_up(
    up, down, name, is_away, autojump_clock
):
    server = Subscribable(up)
    async with open_world({"docs": docs(), "x": server}) as world:
        client = world.client()
        if down == LEGACY:
            await client.initialize(LEGACY)
            await client.request("resources/subscribe", {"uri": "x+memo:1"})
        else:
            await client.start(
                "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x+memo:1"]}}
            )
            await client.receive_method("notifications/subscriptions/acknowledged")
        assert server.subscribed == {"memo:1"}
        if is_away:
            become(world, upstream("docs"))
            await wait_all_tasks_blocked()
        back = world.servers[name] = Subscribable(up)
        become(world, upstream("docs"), upstream(name, prefix="x"))
        notification = await client.receive_method("notifications/resources/updated")
        assert notification["params"]["uri"] == "x+memo:1"
        assert back.subscribed == {"memo:1"}


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("session", ["shared", "per-client"])
async def test_under_another_prefix_nobody_is_subscribed(session, is_removed, autojump_clock):
    """A listen that has lost a URI ends with its result, any other goes on."""
    server, own = Subscribable(LEGACY), {"session": session}
    async with open_world({"docs": docs(), "x": server}, settings={"x": own}) as world:
        client, modern = await legacy_client(world), world.client()
        await client.request("resources/subscribe", {"uri": "x+memo:1"})
        wishes: list[Json] = [{"resourceSubscriptions": ["x+memo:1"]}, {"toolsListChanged": True}]
        if session == "shared":
            listens = [await modern.start("subscriptions/listen", {"notifications": wish}) for wish in wishes]
            await modern.drain()
        if is_removed:
            become(world, upstream("docs"))
            await trio.sleep(1)
            assert not [message["id"] for message in await modern.drain() if "id" in message]
        become(world, upstream("docs"), upstream("x", prefix="y", **own))
        if session == "shared":
            assert [message["id"] for message in await modern.drain() if "id" in message] == listens[:1]
        await trio.sleep(1)  # of the virtual clock, in which the old session comes to its end
        assert server.subscribed == set()
        assert "'x" not in repr(world.mux.hub.subscriptions)


async def test_a_private_session_ends_with_its_upstream_and_a_new_one_serves(autojump_clock):
    settings = {"x": {"session": "per-client"}}
    async with open_world({"docs": docs(), "x": docs()}, settings=settings) as world:
        client = await legacy_client(world)
        await client.request("resources/read", {"uri": "x+memo:1"})
        assert world.connects["x"] == 2
        become(world, upstream("docs"), upstream("x", session="per-client", era="legacy"))
        await trio.sleep(1)  # of the virtual clock, in which the old session comes to its end
        world.servers["x"] = docs(LEGACY)
        assert len(world.mux.upstreams.sessions()) == 2
        await client.drain()
        assert (await client.request("resources/read", {"uri": "x+memo:1"}))["contents"]
        assert len(world.mux.upstreams.sessions()) == 3


async def test_a_drained_upstream_finishes_what_it_has_and_is_given_nothing_more(autojump_clock):
    gate = Gate()
    async with open_world({"docs": docs(), "slow": gated(gate)}) as world:
        client = world.client()
        await client.start("tools/call", {"name": "slow__wait"})
        await gate.asked.wait()
        world.mux.drain("slow")
        assert world.mux.upstreams["slow"].state == "draining"
        await client.start("tools/call", {"name": "slow__wait"})
        assert "is being drained" in (await client.receive())["error"]["message"]
        tools = await client.request("tools/list")
        assert tools["_meta"][LEFT_OUT]["slow"]["state"] == "draining"
        gate.open.set()
        assert "result" in await client.receive()
        assert world.mux.upstreams["slow"].state == "drained"
        world.mux.release("slow")
        assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["slow__wait"]


async def test_a_restart_takes_over_without_losing_what_is_in_flight(autojump_clock):
    gate, other = Gate(), Gate()
    running = {"slow": {"target": OTHER}}  # which is not ended first, as one that mcpmux starts would be
    async with open_world({"docs": docs(), "slow": gated(gate)}, settings=running) as world:
        client = world.client()
        first = await client.start("tools/call", {"name": "slow__wait"})
        await gate.asked.wait()
        world.servers["slow"] = gated(other)
        world.mux.drain("slow")
        world.mux.restart("slow")
        second = await client.start("tools/call", {"name": "slow__wait"})
        await other.asked.wait()
        other.open.set()
        assert (await client.receive())["id"] == second
        gate.open.set()
        assert (await client.receive())["id"] == first


async def test_whoever_follows_is_told_of_each_new_configuration_once(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        configs: list[Config] = []
        world.mux.followers.append(configs.append)
        become(world, upstream("docs"))
        become(world, upstream("docs", list_timeout=2.0))
        assert configs == [world.mux.config]
