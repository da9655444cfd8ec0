"""Requests of a program through a mux in its own process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from mcpmux.config import AccessRule
from mcpmux.config.views import Selector, View
from mcpmux.library import Client, LocalProtocolError, Notification, RemoteProtocolError, RpcError
from tests.library.servers import DONE, Worker, open_local
from tests.peers.revision import CAPABILITIES, CLIENT_INFO, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable


async def call(client: Client, name: str, *more: Any) -> Json:
    return await client.request("tools/call", {"name": name, "arguments": {"n": 1}}, *more)


async def test_a_request_takes_and_gives_plain_values(autojump_clock):
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (_, client):
        result = await call(client, "x__work")
    assert {key: result[key] for key in DONE} == DONE
    sent = worker.seen[-1]["params"]
    assert (sent["name"], sent["arguments"]) == ("work", {"n": 1})


async def test_an_error_has_the_code_message_and_data_of_the_server(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(RpcError) as caught:
            await call(client, "x__fail")
    assert (caught.value.code, caught.value.message, caught.value.data) == (
        -32050,
        "out of paper",
        {"tray": 2},
    )


async def test_an_error_that_nobody_catches_leaves_the_mux_in_no_group(autojump_clock):
    with pytest.raises(RpcError, match="out of paper"):
        async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
            await call(client, "x__fail")


async def test_progress_and_log_messages_are_told_in_order(autojump_clock):
    notifications: list[Notification] = []

    async def hear(notification: Notification) -> None:
        notifications.append(notification)

    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        await call(client, "x__work", hear, "info")
        await call(client, "x__work", hear, "error")
    progress = "notifications/progress"
    assert [notification.method for notification in notifications] == [
        progress,
        "notifications/message",
        progress,
    ]
    assert (notifications[0].params["progress"], notifications[0].params["total"]) == (1, 2)
    assert notifications[1].params["data"] == {"low": ["ink"]}


async def test_cancelling_a_request_cancels_it_at_the_server(autojump_clock):
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(call, client, "x__hang")
        await worker.hangs.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(5):
            await worker.cancelled.wait()


async def test_a_list_comes_whole_from_all_servers_and_pages(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        tools = await client.list_all("tools/list")
    expected = {f"{name}__{tool}": {"type": "object"} for name in "xy" for tool in ("work", "fail", "hang")}
    assert len(tools) == 6
    assert {tool["name"]: tool["inputSchema"] for tool in tools} == expected


async def test_a_list_that_no_server_has_is_empty(autojump_clock):
    async with open_local({"x": Worker()}) as (_, client):
        assert await client.list_all("prompts/list") == []


async def test_what_is_no_list_is_not_walked(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(LocalProtocolError, match="tools/call is no list"):
            await client.list_all("tools/call")


async def test_changes_are_heard_until_the_listen_is_left(autojump_clock):
    server = Subscribable(MODERN)
    async with open_local({"x": server, "y": Subscribable(MODERN)}) as (_, client):
        async with client.listen(uris=["x+memo:1", "z+memo:1"], lists=["tools"]) as notifications:
            assert notifications.honoured == {"toolsListChanged": True, "resourceSubscriptions": ["x+memo:1"]}
            await server.update("memo:1")
            notification = await anext(notifications)
            assert (notification.method, notification.params["uri"]) == (
                "notifications/resources/updated",
                "x+memo:1",
            )
        with pytest.raises(trio.ClosedResourceError):
            await anext(notifications)


async def test_a_listen_that_makes_no_sense_is_refused(autojump_clock):
    async with open_local({"x": Subscribable(MODERN), "y": Worker()}) as (_, client):
        with pytest.raises(RpcError) as caught:
            async with client.listen(uris=[f"x+memo:{number}" for number in range(10_001)]):
                pytest.fail("it began")
    assert caught.value.code == -32602


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
async def test_an_error_in_a_listen_leaves_all_in_no_group(error, autojump_clock):
    with pytest.raises(error):
        async with open_local({"x": Subscribable(MODERN)}) as (_, client), client.listen(lists=["tools"]):
            raise error


async def test_what_python_cannot_hold_is_said_to_be_so(autojump_clock):
    class Vast(Worker):
        async def send(self, message: Json) -> None:
            if message.get("result", {}).get("content"):
                text = '{"jsonrpc":"2.0","id":%d,"result":{"content":[],"resultType":"complete","n":1e400}}'
                await self._pipe.send((text % message["id"]).encode())
            else:
                await super().send(message)

    async with open_local({"x": Vast(), "y": Worker()}) as (_, client):
        with pytest.raises(RemoteProtocolError, match="Python cannot hold"):
            await call(client, "x__work")


async def test_what_is_no_json_is_a_mistake_of_the_program(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(TypeError):
            await client.request("tools/call", {"name": object()})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_number_that_json_lacks_is_a_mistake_of_the_program(autojump_clock, number: float):
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (_, client):
        arguments = {"none": None, "deep": [{"n": (1, number)}]}
        with pytest.raises(ValueError, match=rf"but arguments\.deep\.0\.n\.1 is {number}$"):
            await client.request("tools/call", {"name": "x__work", "arguments": arguments})
        with pytest.raises(ValueError, match=r"but _meta\.n is"):
            await client.request("tools/list", {"_meta": {"n": number}})
        assert not [message for message in worker.seen if message["method"] == "tools/call"]
        await client.request("tools/call", {"name": "x__work", "arguments": {"none": None, "n": 1e308}})
    assert worker.seen[-1]["params"]["arguments"] == {"none": None, "n": 1e308}


async def test_a_method_that_nobody_has_is_refused(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        for method in ("vendor/x", "ping"):
            with pytest.raises(RpcError) as caught:
                await client.request(method)
            assert caught.value.code == -32601


async def test_a_log_level_that_does_not_exist_is_refused(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(RpcError, match="must be one of debug"):
            await client.request("tools/list", log_level="loud")


async def test_what_a_listener_of_notifications_raises_fails_its_request(autojump_clock):
    async def hear(_notification: Notification) -> None:
        raise ZeroDivisionError

    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        with pytest.raises(ZeroDivisionError):
            await call(client, "x__work", hear)
        await call(client, "x__work")


async def test_a_server_knows_who_asks_and_what_it_offers(autojump_clock):
    worker = Worker()
    async with (
        open_local({"x": worker, "y": Worker()}) as (mux, _),
        mux.client(capabilities={"roots": {}}, name="planner") as client,
    ):
        await client.request("tools/call", {"name": "x__work", "_meta": {"traceparent": "t"}})
    meta = worker.seen[-1]["params"]["_meta"]
    assert meta[CLIENT_INFO]["name"] == "planner"
    assert meta[CAPABILITIES] == {"roots": {}}
    assert meta["traceparent"] == "t"


async def test_what_a_server_asks_is_answered_by_the_same_request_again(autojump_clock):
    async def ask(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        if "inputResponses" in params:
            roots = params["inputResponses"]["where"]["roots"]
            return {**DONE, "content": [{"type": "text", "text": roots[0]["uri"]}]}
        wish = {"method": "roots/list", "params": {}}
        return {"resultType": "input_required", "inputRequests": {"where": wish}, "requestState": "s"}

    server = ScriptedServer(tools=[{"name": "go", "inputSchema": {"type": "object"}}])
    server.handlers["tools/call"] = ask
    async with (
        open_local({"x": server, "y": Worker()}) as (mux, _),
        mux.client(capabilities={"roots": {}}) as client,
    ):
        params: Json = {"name": "x__go", "arguments": {}}
        question = await client.request("tools/call", params)
        assert question["inputRequests"]["where"]["method"] == "roots/list"
        params["requestState"] = question["requestState"]
        params["inputResponses"] = {"where": {"roots": [{"uri": "file:///here"}]}}
        result = await client.request("tools/call", params)
    assert result["content"][0]["text"] == "file:///here"


async def test_a_client_or_a_mux_that_was_left_refuses_requests(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (mux, _):
        async with mux.client() as client:
            pass
        with pytest.raises(LocalProtocolError, match="was left"):
            await client.request("tools/list")
    with pytest.raises(LocalProtocolError, match="has ended"):
        async with mux.client():
            pytest.fail("it was let in")


async def test_access_rules_and_views_hold_for_whom_a_client_is(autojump_clock):
    rules = (AccessRule(effect="allow", principals=("alice",), upstreams=("x",)),)
    views = {"few": View(include=(Selector(kind="tools", name="work"),))}
    async with open_local({"x": Worker(), "y": Worker()}, access=rules, views=views) as (mux, nobody):
        assert await nobody.list_all("tools/list") == []
        async with mux.client("alice") as alice, mux.client("alice", view="few") as narrow:
            assert len(await alice.list_all("tools/list")) == 3
            assert [tool["name"] for tool in await narrow.list_all("tools/list")] == ["x__work"]


@pytest.mark.parametrize(("name", "view"), [("", "nix"), ("\n", ""), ("x" * 257, "")])
async def test_nobody_is_let_in_who_cannot_be(autojump_clock, name: str, view: str):
    async with open_local({"x": Worker(), "y": Worker()}) as (mux, _):
        with pytest.raises(LocalProtocolError):
            async with mux.client(name, view=view):
                pytest.fail("it was let in")
