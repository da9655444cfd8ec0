"""Interceptors between scripted clients and servers of every era, in memory and virtual time."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from mcpmux.config import Intercept, Limits
from mcpmux.config.views import Override
from mcpmux.errors import ConfigError
from mcpmux.protocol.principal import Principal
from mcpmux.runtime.holding import Held
from mcpmux.runtime.interception import WAITING_BYTES
from mcpmux.traffic.audit.record import AuditRecord
from mcpmux.traffic.audit.record_maker import RecordMaker
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.transports.inline import AT_ONCE
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, LEGACY_REVISIONS, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.peers.task_server import EXTENSION, RESULT, TaskServer
from tests.runtime.http_world import HttpWorld
from tests.runtime.test_asking import CAPABILITIES, Curious, call_and_answer
from tests.runtime.world import World, open_world

REVISIONS = [*LEGACY_REVISIONS, MODERN]
REFUSED = -31004
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: list[Json] = [
    {"name": "delete", "inputSchema": SCHEMA, "annotations": {"destructiveHint": True}},
    {"name": "look", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
]
ACCEPTS: Json = {"result": {"action": "accept", "content": {}}}


async def echo(server: ScriptedServer, params: Json, message: Json) -> Json:
    """Answer with the arguments, or the URI, that have come."""
    text = json.dumps(params.get("arguments", params.get("uri")))
    done: dict[str, Json] = {
        "tools/call": {"content": [{"type": "text", "text": text}]},
        "resources/read": {"contents": [{"uri": params.get("uri"), "text": text}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]},
    }
    if params.get("arguments", {}).get("path") == "/missing":
        raise RpcFailure(-32602, "no such file: secret", {"path": "/missing"})
    result = done[message["method"]]
    if server.modern:
        result |= {"resultType": "complete"}
        if message["method"] == "resources/read":
            result |= {"ttlMs": 60_000, "cacheScope": "public"}
    return result


def disk(revision: str = MODERN, **more: Any) -> ScriptedServer:
    return ScriptedServer(
        revision,
        tools=TOOLS,
        resources=[{"uri": "file:///a", "name": "a"}],
        prompts=[{"name": "p", "arguments": [{"name": "path"}]}],
        handlers=dict.fromkeys(("tools/call", "resources/read", "prompts/get"), echo),
        **more,
    )


def calls_at(server: ScriptedServer, method: str = "tools/call") -> list[Json]:
    return [message["params"] for message in server.seen if message.get("method") == method]


def intercepted_by(function: Callable[[Json], Any], **settings: Any) -> Json:
    """Return the arguments of `open_world` for one function that intercepts."""
    return {
        "intercept": (Intercept(name="guard", python="m:guard", **settings),),
        "functions": {"m:guard": function},
    }


DELETE = {"name": "x__delete", "arguments": {"path": "/tmp"}}


# Functions


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_function_sees_both_messages_in_the_clients_words(down, up, autojump_clock):
    seen: list[Json] = []
    async with open_world({"x": disk(up), "y": ScriptedServer()}, **intercepted_by(seen.append)) as world:
        client = await world.open_client(down)
        await client.request("tools/call", DELETE)
        request, answered = seen
        about = {"principal": None, "view": None, "upstream": "x", "name": "delete"}
        hints = {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        }
        common = {"method": "tools/call", "params": DELETE, **about, "annotations": hints}
        assert request == {"on": "request", **common}
        assert answered.pop("result")["content"] == [{"type": "text", "text": '{"path": "/tmp"}'}]
        assert answered == {"on": "result", **common}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_refused_request_reaches_no_server(down, up, autojump_clock):
    server = disk(up)

    def refuse(message: Json) -> Json:
        return {"verdict": "refuse", "reason": "not today"}

    async with open_world({"x": server, "y": ScriptedServer()}, **intercepted_by(refuse)) as world:
        client = await world.open_client(down)
        for method, params in (
            ("tools/call", DELETE),
            ("resources/read", {"uri": "x+file:///a"}),
            ("prompts/get", {"name": "x__p"}),
        ):
            error = await client.refusal(method, params)
            assert (error["code"], error["message"]) == (REFUSED, "Refused by guard: not today")
            assert not calls_at(server, method)


@pytest.mark.parametrize("down", REVISIONS)
async def test_a_refused_answer_leaks_nothing(down, autojump_clock):
    def refuse(message: Json) -> Any:
        return {"verdict": "refuse", "reason": "hidden"} if message["on"] == "result" else None

    async with open_world({"x": disk(), "y": ScriptedServer()}, **intercepted_by(refuse)) as world:
        client = await world.open_client(down)
        for path in ("/tmp/secret", "/missing"):
            error = await client.refusal("tools/call", DELETE | {"arguments": {"path": path}})
            assert error == {"code": REFUSED, "message": "Refused by guard: hidden"}


async def test_a_refused_tool_call_can_be_answered_for_the_model(autojump_clock):
    def refuse(message: Json) -> Json:
        return {"verdict": "refuse", "reason": "no"}

    watching = intercepted_by(refuse, refuse_as="tool_error")
    async with open_world({"x": disk()}, **watching) as world:
        result = await world.client().request("tools/call", DELETE)
        assert result["isError"] and result["content"][0]["text"] == "Refused by guard: no"
        error = await world.client().refusal("resources/read", {"uri": "x+file:///a"})
        assert error["code"] == REFUSED


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_arguments_and_results_can_be_changed(down, up, autojump_clock):
    server = disk(up)

    def change(message: Json) -> Json:
        if message["on"] == "request":
            return {"verdict": "change", "params": message["params"] | {"arguments": {"path": "/safe"}}}
        text = message["result"]["content"][0]["text"].upper()
        return {"verdict": "change", "result": {"content": [{"type": "text", "text": text}]}}

    async with open_world({"x": server, "y": ScriptedServer()}, **intercepted_by(change)) as world:
        client = await world.open_client(down)
        result = await client.request("tools/call", DELETE)
        assert result["content"][0]["text"] == '{"PATH": "/SAFE"}'
        assert calls_at(server)[0]["arguments"] == {"path": "/safe"}


async def test_an_answer_in_the_servers_place_reaches_no_server(autojump_clock):
    server = disk()

    def answer(message: Json) -> Any:
        result = {"content": [{"type": "text", "text": "made up"}]}
        return {"verdict": "change", "result": result} if message["on"] == "request" else None

    async with open_world({"x": server}, **intercepted_by(answer)) as world:
        result = await world.client().request("tools/call", DELETE)
        assert result["content"][0]["text"] == "made up"
        assert not calls_at(server)


async def test_an_error_of_a_server_can_be_changed_but_for_its_code(autojump_clock):
    def clean(message: Json) -> Any:
        error = message.get("error")
        return error and {"verdict": "change", "error": {"code": error["code"], "message": "gone"}}

    async with open_world({"x": disk()}, **intercepted_by(clean)) as world:
        error = await world.client().refusal("tools/call", DELETE | {"arguments": {"path": "/missing"}})
        assert error == {"code": -32602, "message": "gone"}


# Nonsense


def bad(**change: Any) -> Callable[[Json], Json]:
    return lambda message: {"verdict": "change", "params": message["params"] | change}


def fails(_message: Json) -> Any:
    raise RuntimeError("a bug")


def exits(_message: Json) -> Any:
    sys.exit("by mistake")


async def exits_in_a_task(_message: Json) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        exits(_message)


NONSENSE: dict[str, Callable[[Json], Any]] = {
    "raises": fails,
    "exits": exits,
    "exits in a task": exits_in_a_task,
    "another tool": bad(name="x__look"),
    "a progress token": bad(_meta={"progressToken": 1}),
    "a task": bad(task={"ttl": 1}),
    "against the schema": bad(arguments={"path": 7}),
    "no object": bad(arguments=[]),
    "no JSON": bad(arguments={"path": {1, 2}}),
    "no verdict": lambda message: "pass",
    "unknown": lambda message: {"verdict": "maybe"},
    "two at once": lambda message: {"verdict": "change", "params": {}, "result": {}},
    "a result without content": lambda message: {"verdict": "change", "result": {}},
    "no question": lambda message: {"verdict": "change", "result": {"resultType": "input_required"}},
    "too much": bad(arguments={"path": "x" * 10_000}),
    "an error of its own": lambda message: {"verdict": "change", "error": {"code": 1, "message": ""}},
    "changes in place": lambda message: message["params"]["arguments"].update(path="/etc") or "?",
}


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_nonsense_is_refused_by_name_and_changes_nothing(nonsense, autojump_clock):
    server = disk()
    watching = intercepted_by(NONSENSE[nonsense], on=("request",))
    async with open_world({"x": server}, **watching, limits=Limits(max_message_bytes=10_000)) as world:
        error = await world.client().refusal("tools/call", DELETE)
        assert error["code"] == REFUSED and "guard" in error["message"]
        assert not calls_at(server)


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_nonsense_can_be_let_pass_and_changes_nothing(nonsense, autojump_clock):
    server = disk()
    watching = intercepted_by(NONSENSE[nonsense], on=("request",), on_failure="pass")
    async with open_world({"x": server}, **watching, limits=Limits(max_message_bytes=10_000)) as world:
        result = await world.client().request("tools/call", DELETE)
        assert json.loads(result["content"][0]["text"]) == {"path": "/tmp"}


async def test_structured_content_must_suit_the_tools_schema(autojump_clock):
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}

    async def answer(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        return {"resultType": "complete", "content": [], "structuredContent": {"path": "/a"}}

    def change(message: Json) -> Json:
        structured = message["params"]["arguments"]
        return {"verdict": "change", "result": message["result"] | {"structuredContent": structured}}

    server = ScriptedServer(tools=[tool], handlers={"tools/call": answer})
    async with open_world({"x": server}, **intercepted_by(change, on=("result",))) as world:
        client = world.client()
        good = await client.request("tools/call", {"name": "x__t", "arguments": {"path": "/b"}})
        assert good["structuredContent"] == {"path": "/b"}
        error = await client.refusal("tools/call", {"name": "x__t", "arguments": {"path": 1}})
        assert error["code"] == REFUSED


async def test_the_request_for_a_list_is_refused(autojump_clock):
    def refuse(_message: Json) -> Json:
        return {"verdict": "refuse", "reason": "no"}

    for servers in ({"x": disk()}, {"x": disk(), "y": disk()}):
        async with open_world(servers, **intercepted_by(refuse, on=("request",))) as world:
            assert (await world.client().refusal("tools/list"))["code"] == REFUSED


async def test_items_of_a_list_may_go_and_not_get_new_names(autojump_clock):
    def first(message: Json) -> Json:
        tools = message["result"]["tools"][:1]
        return {"verdict": "change", "result": message["result"] | {"tools": tools}}

    def rename(message: Json) -> Json:
        tools = [tool | {"name": "x__other"} for tool in message["result"]["tools"]]
        return {"verdict": "change", "result": message["result"] | {"tools": tools}}

    for servers in ({"x": disk()}, {"x": disk(), "y": ScriptedServer()}):
        settings = {"methods": ("tools/list",), "on": ("result",)}
        async with open_world(servers, **intercepted_by(first, **settings)) as world:
            listed = await world.client().request("tools/list")
            assert [tool["name"] for tool in listed["tools"]] == ["x__delete"]
        async with open_world(servers, **intercepted_by(rename, **settings)) as world:
            assert (await world.client().refusal("tools/list"))["code"] == REFUSED


@pytest.mark.parametrize("up", ERAS)
async def test_a_request_over_http_can_get_headers(up):
    def tag(message: Json) -> Json:
        return {"verdict": "change", "headers": {"X-Tenant": "a"}}

    server = disk(up)
    async with open_world(
        {"x": server}, world_class=HttpWorld, **intercepted_by(tag, on=("request",))
    ) as world:
        client = world.client()
        for method, params in (("tools/call", DELETE), ("resources/read", {"uri": "x+file:///a"})):
            await client.request(method, params)
            headers = cast(HttpWorld, world).faces["x"].headers
            assert headers[method]["x-tenant"] == "a" and "x-tenant" not in headers["tools/list"]
            assert calls_at(server, method)


@pytest.mark.parametrize("up", ERAS)
async def test_clients_with_other_headers_share_no_list(up):
    """A legacy session can tell its clients apart when their headers differ."""
    released = trio.Event()

    def tag(message: Json) -> Json:
        return {"verdict": "change", "headers": {"X-Tenant": message["principal"]}}

    async def list_own(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        tenant = cast(HttpWorld, world).faces["x"].headers["tools/list"]["x-tenant"]
        await released.wait()
        listed = {"tools": [{"name": tenant, "inputSchema": {"type": "object"}}]}
        return listed | {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}

    server = disk(up)
    server.handlers["tools/list"] = list_own
    interceptor = intercepted_by(tag, methods=("tools/list",), on=("request",))
    async with open_world(
        {"x": server}, world_class=HttpWorld, settings={"x": {"prefix": ""}}, **interceptor
    ) as world:
        clients = {name: world.client(principal=Principal(name)) for name in ("ann", "bob")}
        requests = {name: await client.start("tools/list") for name, client in clients.items()}
        await trio.testing.wait_all_tasks_blocked(0.05)
        released.set()
        for name, client in clients.items():
            for request_id in (requests[name], await client.start("tools/list")):
                [tool] = (await client.answer(request_id))["result"]["tools"]
                assert tool["name"] == name


async def test_a_server_without_http_gets_no_headers(autojump_clock):
    def tag(message: Json) -> Json:
        return {"verdict": "change", "params": message["params"], "headers": {"X-Tenant": "a"}}

    server = disk()
    async with open_world({"x": server}, **intercepted_by(tag, on=("request",))) as world:
        assert (await world.client().refusal("tools/call", DELETE))["code"] == REFUSED
        assert not calls_at(server)


# Time


class Hanging:
    """A function that is an object."""

    async def __call__(self, _message: Json) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("kind", ["async", "in a thread"])
async def test_a_late_verdict_is_a_failure_and_others_are_not_held_up(kind, autojump_clock):
    end = threading.Event()
    hang: Any = Hanging() if kind == "async" else lambda _message: end.wait(5)
    server = disk()
    watching = intercepted_by(hang, names=("delete",), timeout=5.0, in_thread=kind != "async")
    async with open_world({"x": server}, **watching) as world:
        client, other = world.client(), world.client()
        slow = await client.start("tools/call", DELETE)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await other.request("tools/call", DELETE | {"name": "x__look"})
        assert trio.current_time() == began
        assert (await client.answer(slow))["error"]["code"] == REFUSED
        assert trio.current_time() == pytest.approx(began + 5.0)
        assert [call["name"] for call in calls_at(server)] == ["look"]
    end.set()


async def test_a_function_in_a_thread_decides_like_any_other():
    threads = []

    def judge(message: Json) -> Any:
        threads.append(threading.current_thread())
        if message["on"] == "result":
            sys.exit(1)
        return {"verdict": "change", "params": message["params"] | {"arguments": {"path": "/safe"}}}

    server = disk()
    async with open_world({"x": server}, **intercepted_by(judge, in_thread=True)) as world:
        error = await world.client().refusal("tools/call", DELETE)
        assert error["code"] == REFUSED and "failed" in error["message"]
        assert [call["arguments"] for call in calls_at(server)] == [{"path": "/safe"}]
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("down", ERAS)
async def test_cancelling_a_request_cancels_its_interceptor(down, autojump_clock):
    ended = trio.Event()

    async def hang(_message: Json) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_world({"x": disk()}, **intercepted_by(hang)) as world:
        client = await world.open_client(down)
        request_id = await client.start("tools/call", DELETE)
        await trio.testing.wait_all_tasks_blocked()
        params = client.params({"requestId": request_id})
        await client.send({"method": "notifications/cancelled", "params": params})
        with trio.fail_after(1):
            await ended.wait()


async def test_interceptors_keep_their_order_for_every_exchange(autojump_clock):
    order: dict[str, list[str]] = {}

    def note(name: str) -> Any:
        async def judge(message: Json) -> None:
            path = message["params"]["arguments"]["path"]
            await trio.sleep(len(path))
            order.setdefault(path, []).append(f"{name} {message['on']}")

        return judge

    intercept = tuple(Intercept(name=name, python=f"m:{name}") for name in "ab")
    functions = {f"m:{name}": note(name) for name in "ab"}
    async with open_world({"x": disk()}, intercept=intercept, functions=functions) as world:
        client = world.client()
        for path in ("333", "1", "22"):
            await client.start("tools/call", DELETE | {"arguments": {"path": path}})
        for _ in range(3):
            await client.receive()
        expected = ["a request", "b request", "a result", "b result"]
        assert order == dict.fromkeys(("333", "1", "22"), expected)


# For which exchanges


async def test_only_exchanges_that_fit_everything_are_intercepted(autojump_clock):
    def refuse(_message: Json) -> Json:
        return {"verdict": "refuse", "reason": "no"}

    async def refused(**settings: Any) -> list[str]:
        async with open_world({"x": disk(), "y": disk()}, **intercepted_by(refuse, **settings)) as world:
            client = world.client()
            names = []
            for name in ("x__delete", "x__look", "y__delete", "delete"):
                request_id = await client.start("tools/call", DELETE | {"name": name})
                answer = await client.answer(request_id)
                if answer.get("error", {}).get("code") == REFUSED:
                    names.append(name)
            return names

    assert await refused(upstreams=("x",)) == ["x__delete", "x__look"]
    assert await refused(names=("del*",)) == ["x__delete", "y__delete"]
    assert await refused(names=("x__del*",)) == ["x__delete"]
    assert await refused(annotations={"destructiveHint": True}) == ["x__delete", "y__delete"]
    assert await refused(methods=("resources/*",)) == []
    assert await refused(principals=("*",)) == []
    assert await refused(views=("*",), upstreams=("y",)) == ["y__delete"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "x__look", "Name": "delete"}),
        ("tools/call", {"name": "x__look", "arguments": {"path": "/a"}, "Arguments": {"path": "/etc"}}),
        ("resources/read", {"uri": "x+file:///b", "URI": "file:///a"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x__q", "NAME": "p"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x__q", "uri": "file:///a"}}),
    ],
)
async def test_no_server_gets_another_spelling_than_interceptors_see(method, params, autojump_clock):
    server = disk()
    names = ("delete", "p", "file:///a")
    async with open_world({"x": server, "y": disk()}, **intercepted_by(fails, names=names)) as world:
        error = await world.client().refusal(method, params)
        assert error["code"] == -32602 and not calls_at(server, method)


async def test_a_remembered_answer_is_intercepted_for_each_client(autojump_clock):
    server = disk()
    seen: list[Json] = []
    async with open_world({"x": server}, **intercepted_by(seen.append, on=("result",))) as world:
        for _ in range(4):
            await world.client().request("resources/read", {"uri": "x+file:///a"})
        assert len(calls_at(server, "resources/read")) < 4
        assert len(seen) == 4


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_each_uri_of_a_subscription_is_judged(down, up, autojump_clock):
    seen: list[Json] = []

    def judge(message: Json) -> Any:
        seen.append(message)
        verdict = {"file:///a": "refuse", "file:///b": "change"}.get(message["name"])
        return verdict and {"verdict": verdict, **({"params": {}} if verdict == "change" else {})}

    server = Subscribable(up, uris=[f"file:///{name}" for name in "abc"])
    settings = {"methods": ("resources/subscribe",)}
    async with open_world({"x": server, "y": disk()}, **intercepted_by(judge, **settings)) as world:
        client = await world.open_client(down)
        uris = [f"x+file:///{name}" for name in "abc"]
        if down == MODERN:
            await client.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
            agreed = (await client.receive())["params"]["notifications"]["resourceSubscriptions"]
        else:
            for uri in uris[:2]:
                assert (await client.refusal("resources/subscribe", {"uri": uri}))["code"] == REFUSED
            await client.request("resources/subscribe", {"uri": uris[2]})
            agreed = uris[2:]
        assert agreed == uris[2:] and server.subscribed == {"file:///c"}
        about = {"on": "request", "method": "resources/subscribe", "upstream": "x", "annotations": None}
        assert [message["name"] for message in seen] == ["file:///a", "file:///b", "file:///c"]
        assert seen[0] == {
            **about,
            "params": {"uri": uris[0]},
            "name": "file:///a",
            "principal": None,
            "view": None,
        }


async def test_progress_can_be_dropped_and_not_changed(autojump_clock):
    async def tell(server: ScriptedServer, params: Json, message: Json) -> Json:
        token = params["_meta"]["progressToken"]
        for step in (1, 2, 3):
            progress = {"progressToken": token, "progress": step}
            await server.send({"method": "notifications/progress", "params": progress})
        return {"resultType": "complete", "content": []}

    def judge(message: Json) -> Any:
        if message["params"]["progress"] == 2:
            return {"verdict": "refuse", "reason": "noise"}
        is_third = message["params"]["progress"] == 3
        return {"verdict": "change", "params": {}} if is_third else None

    server = disk()
    server.handlers["tools/call"] = tell
    async with open_world({"x": server}, **intercepted_by(judge, on=("notification",))) as world:
        client = world.client()
        await client.start("tools/call", DELETE, progressToken="p")
        messages = await client.drain()
        steps = [message["params"]["progress"] for message in messages if "method" in message]
        assert steps == [1] and "result" in messages[-1]


@pytest.mark.parametrize("down", ERAS)
async def test_a_result_that_comes_by_a_task_is_intercepted_as_well(down, autojump_clock):
    def hide(message: Json) -> Json:
        result = json.loads(json.dumps(message["result"]).replace('"name": "r"', '"name": "hidden"'))
        return {"verdict": "change", "result": result}

    server = TaskServer(LEGACY)
    settings = {"methods": ("tools/call",), "names": ("must",), "on": ("result",)}
    async with open_world({"x": server, "y": ScriptedServer()}, **intercepted_by(hide, **settings)) as world:
        client = await world.open_client(down, {"extensions": {EXTENSION: {}}})
        task = {"task": {"ttl": 60_000}} if down == LEGACY else {}
        made = await client.request("tools/call", {"name": "x__must", "arguments": {}, **task})
        task_id = (made["task"] if down == LEGACY else made)["taskId"]
        server.set("t1", "completed", RESULT)
        method = "tasks/result" if down == LEGACY else "tasks/get"
        result = await client.request(method, {"taskId": task_id})
        assert '"name": "hidden"' in json.dumps(result) and '"name": "r"' not in json.dumps(result)


async def test_a_call_that_is_refused_makes_no_task(autojump_clock):
    server = TaskServer(LEGACY)
    approve = (Intercept(builtin="approve", refuse_as="tool_error"),)
    async with open_world({"x": server}, intercept=approve) as world:
        client = await world.open_client(LEGACY, {})
        error = await client.refusal("tools/call", {"name": "x__must", "task": {"ttl": 60_000}})
        assert error["code"] == REFUSED and not server.tasks


# Without code


async def test_built_in_interceptors_refuse_delay_and_redact(autojump_clock):
    intercept = (
        Intercept(builtin="redact", names=("delete",)),
        Intercept(builtin="limit_size", max_bytes=500, names=("delete",)),
        Intercept(builtin="delay", seconds=30.0, names=("delete",)),
        Intercept(builtin="fail", names=("look",), name="chaos"),
    )
    server = disk()
    async with open_world({"x": server}, intercept=intercept) as world:
        client, began = world.client(), trio.current_time()
        path = "postgres://user:hunter2hunter2@db/x"
        result = await client.request("tools/call", DELETE | {"arguments": {"path": path}})
        assert "hunter2" not in json.dumps([calls_at(server), result])
        assert trio.current_time() >= began + 30.0
        error = await client.refusal("tools/call", DELETE | {"arguments": {"path": "/" * 500}})
        assert error["message"].startswith("Refused by intercept[1]")
        error = await client.refusal("tools/call", DELETE | {"name": "x__look"})
        assert error["message"] == "Refused by chaos: it fails on purpose"


async def test_what_is_named_by_a_secret_is_hidden_and_refused(autojump_clock):
    secret = "x+https://h/a?token=abcdefghijklmnop1234"
    named = [{"uri": uri, "name": "a"} for uri in ("file:///a", secret[2:])]
    server = ScriptedServer(resources=named, handlers={"resources/read": echo})
    for servers in ({"x": server}, {"x": server, "y": ScriptedServer()}):
        async with open_world(servers, intercept=(Intercept(builtin="redact"),)) as world:
            client = world.client()
            listed = await client.request("resources/list")
            assert [resource["uri"] for resource in listed["resources"]] == ["x+file:///a"]
            error = await client.refusal("resources/read", {"uri": secret})
            assert error["message"] == "Refused by intercept[0]: its `uri` contains a secret"
            assert not calls_at(server, "resources/read")


async def test_a_cursor_that_looks_like_a_secret_stays(autojump_clock):
    cursor = f"eyJhbGciOiJIUzI1NiJ9.eyJwYWdlIjoyfQ.{'a' * 43}"

    async def pages(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        page = {"tools": TOOLS[:1], "nextCursor": cursor} if "cursor" not in params else {"tools": TOOLS[1:]}
        assert params.get("cursor") in (None, cursor)
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **page}

    server = ScriptedServer(tools=TOOLS, handlers={"tools/list": pages})
    alone: Json = {"settings": {"x": {"prefix": ""}}, "intercept": (Intercept(builtin="redact"),)}
    async with open_world({"x": server}, **alone) as world:
        client = world.client()
        assert (await client.request("tools/list"))["nextCursor"] == cursor
        assert (await client.request("tools/list", {"cursor": cursor}))["tools"][0]["name"] == "look"


@pytest.mark.parametrize("down", ERAS)
async def test_a_question_for_a_secret_is_asked_and_its_answer_refused(down, autojump_clock):
    ask = {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}

    async def question(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        requests = {"password": {"method": "elicitation/create", "params": ask}}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}

    server, questions = ScriptedServer(tools=TOOLS, handlers={"tools/call": question}), list[Json]()
    redact = (Intercept(builtin="redact", refuse_as="tool_error"),)
    async with open_world({"x": server}, intercept=redact) as world:
        client = await world.open_client(down, CAPABILITIES)
        result = await call_and_answer(client, ACCEPTS, DELETE, questions)
        assert questions == [{"method": "elicitation/create", "params": ask}]
        assert result["content"][0]["text"].endswith("the answer to `password` contains a secret")
        assert len(calls_at(server)) == 1


# The client's user is asked

APPROVE: Json = {"intercept": (Intercept(builtin="approve", annotations={"destructiveHint": True}),)}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", [LEGACY, "2025-06-18", MODERN])
async def test_a_destructive_tool_needs_the_users_consent(down, up, autojump_clock):
    server = disk(up)
    async with open_world({"x": server, "y": ScriptedServer()}, **APPROVE) as world:
        client = await world.open_client(down, CAPABILITIES)
        result = await call_and_answer(client, ACCEPTS, DELETE)
        assert json.loads(result["content"][0]["text"]) == {"path": "/tmp"}
        assert len(calls_at(server)) == 1
        await client.request("tools/call", DELETE | {"name": "x__look"})  # is not asked about
        assert len(calls_at(server)) == 2


async def test_overridden_annotations_decide_what_needs_consent(autojump_clock):
    overrides = (
        Override(name="delete", rename="clear", annotations={"readOnlyHint": True}),
        Override(name="look", annotations={"readOnlyHint": False}),
    )
    async with open_world({"x": disk()}, settings={"x": {"overrides": overrides}}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        answers = [
            await client.request("tools/call", DELETE | {"name": f"x__{name}"}) for name in ("clear", "look")
        ]
        assert [answer["resultType"] for answer in answers] == ["complete", "input_required"]


async def test_a_question_shows_what_would_deceive_its_reader(autojump_clock):
    async with open_world({"x": disk()}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        arguments = {"path": "/tmp/\u202egnp.sh" + "x" * 500}
        result = await client.request("tools/call", DELETE | {"arguments": arguments})
        [question] = result["inputRequests"].values()
        shown, hidden = question["params"]["message"].split("…")
        assert shown.startswith(r'Allow tools/call x__delete with {"path":"/tmp/\u202egnp.shxx')
        assert hidden == " (23 more characters)?"


async def ask_modern(client: ScriptedClient, params: Json = DELETE) -> Json:
    """Call a tool, and return the call with the user's consent."""
    result = await client.request("tools/call", params)
    assert result["resultType"] == "input_required"
    [(key, question)] = result["inputRequests"].items()
    assert question["params"]["message"] == 'Allow tools/call x__delete with {"path":"/tmp"}?'
    return {**params, "inputResponses": {key: ACCEPTS["result"]}, "requestState": result["requestState"]}


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("down", ERAS)
async def test_without_consent_nothing_reaches_the_server(down, action, autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(down, CAPABILITIES)
        if down == MODERN:
            again = await ask_modern(client)
            again["inputResponses"] = {key: {"action": action} for key in again["inputResponses"]}
            error = await client.refusal("tools/call", again)
        else:
            request_id = await client.start("tools/call", DELETE)
            question = await client.receive()
            await client.send({"id": question["id"], "result": {"action": action}})
            error = (await client.answer(request_id))["error"]
        assert error == {"code": REFUSED, "message": "Refused by intercept[0]: the user did not agree"}
        assert not calls_at(server)


async def test_consent_is_for_the_arguments_that_were_shown(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        again = await ask_modern(client)
        await client.request("tools/call", again | {"arguments": {"path": "/etc"}})
        assert [call["arguments"] for call in calls_at(server)] == [{"path": "/tmp"}]
        hiding = DELETE | {"arguments": {"path": "/" * 1000}}
        [question] = (await client.request("tools/call", hiding))["inputRequests"].values()
        assert question["params"]["message"].endswith("… (511 more characters)?")


async def test_consent_is_used_once_and_by_nobody_else(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        again = await ask_modern(client)
        other = await world.open_client(MODERN, CAPABILITIES)
        assert "unknown" in (await other.refusal("tools/call", again))["message"]
        await client.request("tools/call", again)
        assert "unknown" in (await client.refusal("tools/call", again))["message"]
        assert len(calls_at(server)) == 1


async def test_an_answer_that_had_consent_is_not_asked_for_again(autojump_clock):
    def judge(_message: Json) -> Json:
        return {"verdict": "ask", "message": "Show it?"}

    server = disk()
    async with open_world({"x": server}, **intercepted_by(judge, on=("result",))) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        result = await client.request("tools/call", DELETE)
        responses = dict.fromkeys(result["inputRequests"], ACCEPTS["result"])
        again = {**DELETE, "inputResponses": responses, "requestState": result["requestState"]}
        await client.request("tools/call", again)
        assert "unknown" in (await client.refusal("tools/call", again))["message"]
        assert len(calls_at(server)) == 1


async def test_calls_that_wait_for_consent_take_bounded_memory(autojump_clock):
    large = DELETE | {"padding": "x" * (WAITING_BYTES * 2 // 5)}
    async with open_world({"x": disk()}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        again, _ = [await ask_modern(client, large) for _ in range(2)]
        assert "cannot ask" in (await client.refusal("tools/call", large))["message"]
        await client.request("tools/call", again)
        await ask_modern(client, large)


@pytest.mark.parametrize("action", ["accept", "decline"])
@pytest.mark.parametrize("down", ERAS)
async def test_an_answer_waits_for_consent_and_is_asked_for_once(down, action, autojump_clock):
    seen: list[str] = []

    def judge(message: Json) -> Any:
        text = message["result"]["content"][0]["text"]
        seen.append(text)
        change = {
            "verdict": "change",
            "result": message["result"] | {"content": [{"type": "text", "text": "b"}]},
        }
        return {"verdict": "ask", "message": text} if text == "b" else change

    server = disk()
    functions = {"m:change": judge, "m:ask": judge, "m:after": lambda message: seen.append("after")}
    intercept = tuple(Intercept(python=name, on=("result",)) for name in functions)
    async with open_world({"x": server}, intercept=intercept, functions=functions) as world:
        client = await world.open_client(down, CAPABILITIES)
        answers: Json = {"result": {"action": action, "content": {}}}
        if action == "accept":
            answer = await call_and_answer(client, answers, DELETE)
            assert answer["content"] == [{"type": "text", "text": "b"}]
        else:
            with pytest.raises((RpcFailure, AssertionError), match="the user did not agree"):
                await call_and_answer(client, answers, DELETE)
        assert len(calls_at(server)) == 1
        assert seen == ['{"path": "/tmp"}', "b", *(["after"] if action == "accept" else [])]


@pytest.mark.parametrize("down", [*ERAS, "2024-11-05"])
async def test_a_client_that_cannot_be_asked_is_refused(down, autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(down, {})
        error = await client.refusal("tools/call", DELETE)
        assert error["code"] == REFUSED and "cannot ask" in error["message"]
        assert not calls_at(server)


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_consent_lasts_while_the_server_asks_questions_itself(down, up, autojump_clock):
    questions: list[str] = []

    class Counting(Curious):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            if method == "tools/call":
                questions.append("call")
            return await super().handle(method, params, message)

    approve: Json = {"intercept": (Intercept(builtin="approve"),)}
    server = Counting(up, "elicitation/create", times=2)
    async with open_world({"x": server, "y": ScriptedServer()}, **approve) as world:
        client = await world.open_client(down, CAPABILITIES)
        texts: list[str] = []

        async def answer(message: Json) -> None:
            texts.append(message["params"]["message"])

        if down == MODERN:
            result = await client.request("tools/call", {"name": "x__t"})
            while result["resultType"] == "input_required":
                [(key, question)] = result["inputRequests"].items()
                await answer(question)
                state = {"inputResponses": {key: ACCEPTS["result"]}, "requestState": result["requestState"]}
                result = await client.request("tools/call", {"name": "x__t", **state})
        else:
            request_id = await client.start("tools/call", {"name": "x__t"})
            while (message := await client.receive()).get("id") != request_id or "method" in message:
                await answer(message)
                await client.send({"id": message["id"], **ACCEPTS})
        assert texts == ["Allow tools/call x__t?", "name?", "name?"]


async def test_consent_of_one_client_is_not_for_another_that_repeats_its_call(autojump_clock):
    server = Curious(MODERN, "elicitation/create")
    async with open_world({"x": server}, intercept=(Intercept(builtin="approve"),)) as world:
        texts = []
        for params in ({}, {"inputResponses": {"it": ACCEPTS["result"]}, "requestState": "[]"}):
            client = await world.open_client(MODERN, CAPABILITIES)
            result = await client.request("tools/call", {"name": "x__t", **params})
            [(key, question)] = result["inputRequests"].items()
            state = {"inputResponses": {key: ACCEPTS["result"]}, "requestState": result["requestState"]}
            texts.append(question["params"]["message"])
            if not params:
                await client.request("tools/call", {"name": "x__t", **state})
        assert texts == ["Allow tools/call x__t?"] * 2


@pytest.mark.parametrize("on", ["request", "result"])
@pytest.mark.parametrize("down", ERAS)
async def test_a_refused_call_does_not_stay_parked_at_its_server(down, on, autojump_clock):
    def refuse(message: Json) -> Any:
        has_asked = message["on"] == "result" or "inputResponses" in message["params"]
        return {"verdict": "refuse", "reason": "no"} if message["on"] == on and has_asked else None

    async with open_world({"x": Curious(LEGACY, "elicitation/create")}, **intercepted_by(refuse)) as world:
        client = await world.open_client(down, CAPABILITIES)
        if down == LEGACY or on == "result":
            answer = await client.start("tools/call", {"name": "x__t"})
            if on == "request":
                question = await client.receive()
                await client.send({"id": question["id"], **ACCEPTS})
            error = (await client.answer(answer))["error"]
        else:
            result = await client.request("tools/call", {"name": "x__t"})
            responses = dict.fromkeys(result["inputRequests"], ACCEPTS["result"])
            again = {"inputResponses": responses, "requestState": result["requestState"]}
            error = await client.refusal("tools/call", {"name": "x__t", **again})
        assert error["code"] == REFUSED
        assert not world.channel("x").questions.parked


# A person at the admin page is asked

HELD: Json = {"intercept": (Intercept(builtin="hold", names=("delete",), name="desk", answer_timeout=30.0),)}


async def test_a_held_exchange_ends_at_its_deadline(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **HELD) as world:
        client, began = world.client(), trio.current_time()
        error = await client.refusal("tools/call", DELETE)
        assert error["message"] == "Refused by desk: nobody decided in time"
        assert trio.current_time() == pytest.approx(began + 30.0)
        assert not calls_at(server) and not world.mux.interceptors.holding.held


async def held_one(world: World) -> tuple[int, Held]:
    await trio.testing.wait_all_tasks_blocked()
    [(number, held)] = world.mux.interceptors.holding.held.items()
    return number, held


async def test_a_person_changes_a_held_call_and_mistakes_leave_it_held(autojump_clock):
    from mcpmux.mux.intercept import PASS, BadVerdict, Change

    server = disk()
    async with open_world({"x": server}, **HELD) as world:
        client = world.client()
        request_id = await client.start("tools/call", DELETE)
        number, _ = await held_one(world)
        with pytest.raises(BadVerdict):
            world.mux.interceptors.holding.decide(number, Change(params=DELETE | {"arguments": {"path": 1}}))
        assert world.mux.interceptors.holding.decide(
            number, Change(params=DELETE | {"arguments": {"path": "/else"}})
        )
        assert not world.mux.interceptors.holding.decide(number, PASS)  # before its task goes on
        assert "result" in await client.answer(request_id)
        assert [call["arguments"] for call in calls_at(server)] == [{"path": "/else"}]


async def test_request_and_answer_of_an_exchange_are_held_one_after_the_other(autojump_clock):
    from mcpmux.mux.intercept import PASS

    hold = Intercept(builtin="hold", names=("delete",), on=("request", "result"))
    async with open_world({"x": disk()}, intercept=(hold,)) as world:
        client = world.client()
        request_id = await client.start("tools/call", DELETE)
        for on in ("request", "result"):
            number, held = await held_one(world)
            assert held.message.on == on
            world.mux.interceptors.holding.decide(number, PASS)
        assert "result" in await client.answer(request_id)


async def test_cancelling_lets_a_held_exchange_go(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **HELD) as world:
        client = world.client()
        request_id = await client.start("tools/call", DELETE)
        await held_one(world)
        await client.send(
            {"method": "notifications/cancelled", "params": client.params({"requestId": request_id})}
        )
        await trio.testing.wait_all_tasks_blocked()
        assert not world.mux.interceptors.holding.held and not calls_at(server)


# Changes while it runs


def with_interceptors(world: World, *intercept: Intercept) -> Any:
    return attrs.evolve(world.mux.config, intercept=intercept)


async def test_interceptors_change_while_mcpmux_runs(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        again = await ask_modern(client)
        plan = world.mux.apply(with_interceptors(world, Intercept(builtin="fail", name="chaos")))
        assert (plan.settings, plan.pending) == (("intercept",), ())
        error = await client.refusal("tools/call", DELETE)
        assert error["message"] == "Refused by chaos: it fails on purpose"
        world.mux.apply(with_interceptors(world, *APPROVE["intercept"]))
        assert "content" in await client.request("tools/call", again)  # consent from before both changes
        world.mux.apply(with_interceptors(world))
        await client.request("tools/call", DELETE)
        assert len(calls_at(server)) == 2


@pytest.mark.parametrize("on", ["request", "result"])
@pytest.mark.parametrize("down", ERAS)
async def test_consent_outlasts_the_interceptor_that_asked_for_it(down, on, autojump_clock):
    """The server gets neither our state nor the answer to our question, and no call twice."""
    server = disk()
    question = {"verdict": "ask", "message": 'Allow tools/call x__delete with {"path":"/tmp"}?'}
    async with open_world({"x": server}, **intercepted_by(lambda _message: question, on=(on,))) as world:
        client = await world.open_client(down, CAPABILITIES)
        if down == MODERN:
            again = await ask_modern(client)
            world.mux.apply(with_interceptors(world))
            request_id = await client.start("tools/call", again)
        else:
            request_id = await client.start("tools/call", DELETE)
            elicitation = await client.receive()
            world.mux.apply(with_interceptors(world))
            await client.send({"id": elicitation["id"], **ACCEPTS})
        assert "content" in (await client.answer(request_id))["result"]
        [call] = calls_at(server)
        assert call.keys() == {"name", "arguments", "_meta"}


async def test_consent_is_not_for_another_interceptor_in_the_same_place(autojump_clock):
    server = disk()
    async with open_world({"x": server}, **APPROVE) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        again = await ask_modern(client)
        world.mux.apply(with_interceptors(world, Intercept(builtin="fail", names=("delete",))))
        error = await client.refusal("tools/call", again)
        assert error["message"] == "Refused by intercept[0]: it fails on purpose"
        assert not calls_at(server)


async def test_an_interceptor_that_cannot_be_made_changes_no_setting(tmp_path, monkeypatch, autojump_clock):
    (tmp_path / "exiting_guard.py").write_text("import sys\nsys.exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with open_world({"x": disk()}) as world:
        config = world.mux.config
        names = "no_such_module:f", "json:no", "exiting_guard:f"
        bad = with_interceptors(
            world,
            *(Intercept(python=name) for name in names),
            Intercept(python="trio:sleep", in_thread=True),
        )
        with pytest.raises(ConfigError) as error:
            world.mux.apply(attrs.evolve(bad, merging=attrs.evolve(bad.merging, page_size=1)))
        assert [str(problem.path) for problem in error.value.found] == [
            "('intercept', 0, 'python')",
            "('intercept', 1, 'python')",
            "('intercept', 2, 'python')",
            "('intercept', 3, 'in_thread')",
        ]
        assert world.mux.config is config and world.mux.merger.merging == config.merging


async def test_audit_log_has_who_agreed(autojump_clock):
    seen = Seen()
    tap = Recorder([], [seen], trio.current_time)
    async with open_world({"x": disk()}, **APPROVE, tap=tap) as world:
        client = await world.open_client(MODERN, CAPABILITIES)
        await client.request("tools/call", await ask_modern(client))
    verdicts = [record.intercepted for record in seen.records]
    common = {"name": "intercept[0]", "on": "request"}
    assert verdicts == [[{**common, "verdict": "ask"}], [{**common, "verdict": "agreed"}]]


# Observation


class Seen:
    """Keeps the records that the audit log would have."""

    passes = False

    def __init__(self) -> None:
        self.maker = RecordMaker("run", Redactor(), lambda: 0.0)
        self.records: list[AuditRecord] = []

    def admit(self, exchange: Exchange) -> Any:
        return AT_ONCE

    def ended(self, exchange: Exchange, outcome: Any, seconds: float) -> Any:
        self.records.append(self.maker.end(exchange, outcome, seconds))
        return AT_ONCE


async def test_audit_log_and_metrics_have_each_verdict(autojump_clock):
    def judge(message: Json) -> Any:
        if message["on"] == "request":
            return {"verdict": "change", "params": message["params"] | {"arguments": {"path": "/b"}}}
        return {"verdict": "refuse", "reason": "secret"}

    seen, metrics = Seen(), Metrics()
    tap = Recorder([metrics], [metrics, seen], trio.current_time)
    async with open_world({"x": disk()}, **intercepted_by(judge), tap=tap) as world:
        client = world.client()
        await client.refusal("tools/call", DELETE)
    [record] = seen.records
    assert (record.decision, record.rule, record.outcome) == ("refused", "guard", "refused")
    assert record.intercepted is not None
    change, refusal = record.intercepted
    digests = [
        hashlib.sha256(json.dumps(DELETE | {"arguments": {"path": path}}, separators=(",", ":")).encode())
        for path in ("/tmp", "/b")
    ]
    assert change.pop("after") == digests[1].hexdigest()
    assert len(change.pop("before")) == 64
    assert change == {"name": "guard", "on": "request", "verdict": "change"}
    assert refusal == {"name": "guard", "on": "result", "verdict": "refuse"}
    assert metrics.verdicts_total == {
        ("guard", "request", "change"): 1,
        ("guard", "result", "refuse"): 1,
    }
