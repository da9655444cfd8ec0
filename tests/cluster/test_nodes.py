"""Clients of several processes see one mcpmux, be they replicas of a cluster or workers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import trio

from mcpmux.config import Http
from mcpmux.config.model import RateLimit
from mcpmux.errors import McpmuxError
from mcpmux.mux.replay import ReplayBounds
from tests.cluster.nodes import LEASE, sessions_at
from tests.cluster.replicas import open_replicas
from tests.cluster.workers import open_workers
from tests.peers.http_client import HttpClient, request
from tests.peers.revision import CAPABILITIES, CLIENT_INFO, LEGACY, MODERN, VERSION, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.peers.task_server import EXTENSION, TaskServer
from tests.runtime.test_asking import ASKED, Curious

INFO = {"name": "test", "version": "1"}
ABLE: Json = {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}}
LOST = "The replica that worked on this request has gone; it may have been carried out"


WORKERS = pytest.param(open_workers, id="workers", marks=pytest.mark.slow)  # tests/process runs real ones


@pytest.fixture(params=[pytest.param(open_replicas, id="replicas"), WORKERS])
def open_members(request: pytest.FixtureRequest) -> Any:
    return request.param


def subscribable(revision: str = LEGACY) -> Subscribable:
    return Subscribable(revision)


class Working(ScriptedServer):
    """Has a tool that reports progress, then goes on until `done`. `begun`: it was called; `calls` counts."""

    def __init__(self, reports: int = 0) -> None:
        super().__init__(
            MODERN,
            tools=[{"name": "work", "inputSchema": {"type": "object"}}],
            handlers={"tools/call": self._work},
        )
        self.begun, self.done = trio.Event(), trio.Event()
        self.calls, self._reports = 0, reports

    async def _work(self, _server: Any, params: Json, _message: Json) -> Json:
        self.calls += 1
        self.begun.set()
        for step in range(self._reports):
            progress = {"progressToken": params["_meta"]["progressToken"], "progress": step}
            await self.send({"method": "notifications/progress", "params": progress})
        await self.done.wait()
        return {"resultType": "complete", "content": [{"type": "text", "text": "worked"}]}


async def listed(client: HttpClient, session: Json) -> Any:
    return await client.send(request("resources/list"), session)


async def test_any_process_answers_any_request_of_a_session(open_members):
    async with open_members(a=subscribable(), b=subscribable(), c=subscribable()) as members:
        session = await members["a"].client.initialize()
        page = {"Origin": "http://localhost:6274"}
        for name in "bcab":
            answer = await listed(members[name].client, session | page)
            assert (answer.status, len(answer.last["result"]["resources"])) == (200, 4)
            assert answer.headers["access-control-allow-origin"] == page["Origin"]  # once
        assert (await members["c"].client.send(b"", session, "DELETE")).status == 204
        for name in "abc":
            assert (await listed(members[name].client, session)).status == 404


async def test_a_request_of_a_local_session_needs_no_store(open_members):
    async with open_members(a=subscribable(), b=subscribable()) as members:
        session = await members["a"].client.initialize()
        await listed(members["b"].client, session)
        count = members.asked()
        for _ in range(50):
            await listed(members["a"].client, session)
            await listed(members["b"].client, session)
        assert members.asked() == count


async def test_a_session_goes_on_elsewhere_when_its_process_has_gone(open_members):
    async with open_members(a=subscribable(), b=subscribable(), c=subscribable()) as members:
        session = await members["a"].client.initialize()
        uri = "docs+memo:1"
        subscribed = await members["b"].client.send(request("resources/subscribe", {"uri": uri}), session)
        assert subscribed.last["result"] == {}
        await members["a"].kill()
        async with members["b"].client.stream("GET", None, session) as stream:
            messages = [await stream.message() for _ in range(3)]
            # It may have missed anything: it gets a notification of each change that it would have got.
            assert {message["method"] for message in messages} == {
                "notifications/resources/updated",
                "notifications/resources/list_changed",
                "notifications/tools/list_changed",
            }
            second = members.having(session)  # the replica that was notified first
            await second.server.update("memo:1")
            event_id, update = await stream.next()
            assert update["params"] == {"uri": uri}
        await second.kill()
        (last,) = members.running
        headers = {**session, "Last-Event-ID": event_id}
        async with last.client.stream("GET", None, headers) as stream:
            later = [await stream.next() for _ in range(3)]
            assert all(number(event) > number((event_id, None)) for event in later)
        assert (await listed(last.client, session)).status == 200


@pytest.mark.parametrize("back", [True, False], ids=["again", "as another"])
async def test_a_session_goes_on_where_one_has_just_started(open_members, back):
    async with open_members(a=subscribable(), b=subscribable()) as members:
        session = await members["a"].client.initialize()
        subscribe = request("resources/subscribe", {"uri": "docs+memo:1"})
        assert (await members["a"].client.send(subscribe, session)).last["result"] == {}
        await members["a"].kill()
        fresh = await members.start("a" if back else "c", subscribable())
        async with fresh.client.stream("GET", None, session) as stream:
            assert len({(await stream.message())["method"] for _ in range(3)}) == 3
            await members.having(session).server.update("memo:1")
            assert (await stream.message())["params"] == {"uri": "docs+memo:1"}


async def test_no_simultaneous_request_takes_a_live_session_for_ended(open_members):
    async with open_members(a=subscribable(), b=subscribable(), c=subscribable()) as members:
        sessions = [await members["a"].client.initialize() for _ in range(10)]
        await members["a"].kill()
        statuses: list[int] = []

        async def ask(name: str, session: Json, number: int) -> None:
            listing = request("resources/list", request_id=number)
            statuses.append((await members[name].client.send(listing, session)).status)

        async with trio.open_nursery() as nursery:
            for session in sessions:
                for number, name in enumerate("bcbc"):
                    nursery.start_soon(ask, name, session, number)
        assert statuses == [200] * 40


def number(event: tuple[str | None, Any]) -> int:
    return int((event[0] or "").partition("-")[2])


async def test_a_stream_of_a_call_is_resumed_at_another_process(open_members):
    server = Working()
    async with open_members(a=server, b=Working()) as members:
        session = await members["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        async with members["a"].client.stream("POST", call, session) as stream:
            first, _ = await stream.next()
        headers = {**session, "Last-Event-ID": first}
        async with members["b"].client.stream("GET", None, headers) as stream:
            server.done.set()
            answer = await stream.message()
        assert answer["result"]["content"][0]["text"] == "worked"
        for sessions in members["a"].node._sessions:
            assert await sessions.events.written()
        await members["a"].kill()
        # It was answered, so it is the same answer, from the store.
        async with members["b"].client.stream("GET", None, headers) as stream:
            assert await stream.message() == answer


@pytest.mark.parametrize("reports", [0, ReplayBounds().events + 1])  # the beginning is not kept any more
async def test_a_resumed_stream_reports_the_call_that_was_cut_off(reports: int, open_members):
    async with open_members(a=Working(reports), b=Working()) as members:
        session = await members["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work", "_meta": {"progressToken": "p"}}, 7)
        async with members["a"].client.stream("POST", call, session) as stream:
            for _ in range(1 + reports):
                last, _ = await stream.next()
        for sessions in members["a"].node._sessions:
            assert await sessions.events.written()
        await members["a"].kill()
        headers = {**session, "Last-Event-ID": last}
        async with members["b"].client.stream("GET", None, headers) as stream:
            answer = await stream.message()
        assert (answer["id"], answer["error"]["message"]) == (7, LOST)
        assert members["b"].server.calls == 0


async def test_a_process_that_stops_leaves_its_sessions_to_others_at_once(open_members):
    async with open_members(a=subscribable(), b=subscribable()) as members:
        session = await members["a"].client.initialize()
        await members["a"].node.leave()
        start = trio.current_time()
        assert (await listed(members["a"].client, session)).status == 200
        assert (await listed(members["b"].client, session)).status == 200
        assert sessions_at(members["b"]) == 1
        assert trio.current_time() - start < LEASE * 20


class Remembered(ScriptedServer):
    """A document that a tool changes; reading it may be remembered for long. `version` is shared."""

    def __init__(self, shared: list[int]) -> None:
        super().__init__(
            MODERN,
            resources=[{"uri": "memo:1", "name": "m"}],
            tools=[{"name": "change", "inputSchema": {"type": "object"}}],
            handlers={"tools/call": self._change, "resources/read": self._read},
        )
        self.shared = shared
        self.reads = 0

    async def _change(self, _server: Any, _params: Json, _message: Json) -> Json:
        self.shared[0] += 1
        return {"resultType": "complete", "content": []}

    async def _read(self, _server: Any, _params: Json, _message: Json) -> Json:
        self.reads += 1
        contents = [{"uri": "memo:1", "text": str(self.shared[0])}]
        return {"resultType": "complete", "contents": contents, "ttlMs": 60_000, "cacheScope": "public"}


async def test_a_change_by_one_process_is_seen_by_reads_at_all(open_members):
    shared = [0]
    async with open_members(a=Remembered(shared), b=Remembered(shared)) as members:
        await trio.sleep(2 * LEASE)  # in which they keep no answers, as others may not know them yet
        for turn in range(20):
            for name in "ab":
                read = await members[name].client.modern("resources/read", {"uri": "docs+memo:1"})
                assert read.last["result"]["contents"][0]["text"] == str(turn)
            await members["ab"[turn % 2]].client.modern("tools/call", {"name": "docs__change"})
        reads = members["a"].server.reads
        for _ in range(10):
            await members["a"].client.modern("resources/read", {"uri": "docs+memo:1"})
        assert members["a"].server.reads <= reads + 1  # and it is remembered


class Slow(Remembered):
    """Its tool changes the document once it `may`, and then goes on for ever. `begun` when it was called."""

    def __init__(self, shared: list[int]) -> None:
        super().__init__(shared)
        self.begun, self.may, self.has = trio.Event(), trio.Event(), trio.Event()

    async def _change(self, server: Any, params: Json, message: Json) -> Json:
        self.begun.set()
        await self.may.wait()
        await super()._change(server, params, message)
        self.has.set()
        await trio.sleep_forever()
        raise AssertionError


async def test_a_change_by_a_killed_process_is_seen_by_reads_at_others(open_members):
    shared = [0]
    server = Slow(shared)
    async with open_members(a=server, b=Remembered(shared)) as members:
        other = members["b"]
        await trio.sleep(2 * LEASE)  # as above

        async def read() -> str:
            answer = await other.client.modern("resources/read", {"uri": "docs+memo:1"})
            return str(answer.last["result"]["contents"][0]["text"])

        async with trio.open_nursery() as nursery:

            async def change() -> None:
                with suppress(McpmuxError):  # it gets no answer, or that it may have been done
                    await members["a"].client.modern("tools/call", {"name": "docs__change"})

            nursery.start_soon(change)
            await server.begun.wait()
            while True:
                count = other.server.reads
                assert [await read() for _ in range(3)] == ["0"] * 3
                if other.server.reads <= count + 1:  # it is remembered; on a busy machine a lease may end
                    break
            server.may.set()
            await server.has.wait()
            await members["a"].kill()
        while other.node.members.others:
            await other.node.members.changed(LEASE)
        assert await read() == "1"


async def test_a_list_change_that_one_process_hears_of_reaches_clients_of_all(open_members):
    async with open_members(a=subscribable(), b=subscribable()) as members:
        session = await members["a"].client.initialize()
        async with members["a"].client.stream("GET", None, session) as stream:
            await members["b"].server.notify("notifications/tools/list_changed")
            notification = await stream.message()
        assert notification["method"] == "notifications/tools/list_changed"


async def test_a_rate_limit_holds_for_all_processes_together(open_members):
    limits = (RateLimit(requests=5, per=3600.0),)
    async with open_members() as members:
        for name in "ab":
            await members.start(name, subscribable(), rate=limits)
        statuses = [(await modern_list(members["ab"[turn % 2]])).status for turn in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        refused = await modern_list(members["b"])
        assert int(refused.headers["retry-after"]) > 600


async def modern_list(member: Any) -> Any:
    return await member.client.modern("resources/list")


@pytest.mark.parametrize("comes", ["before it is noticed", "after"])
async def test_a_listen_that_moves_hears_of_what_it_may_have_missed(open_members, comes):
    async with open_members(a=subscribable(MODERN), b=subscribable(MODERN)) as members:
        other = members["b"]
        async with other.client.stream("POST", *listen(1)) as elsewhere:
            assert (await elsewhere.message())["method"].endswith("acknowledged")
            await members["a"].kill()
            while comes == "after" and other.node.members.others:
                await other.node.members.changed(LEASE)
            async with other.client.stream("POST", *listen(2)) as stream:
                methods = [(await stream.message())["method"] for _ in range(3)]
            assert methods[0].endswith("acknowledged")
            assert set(methods[1:]) == {
                "notifications/resources/updated",
                "notifications/tools/list_changed",
            }


async def test_a_listen_that_moves_to_a_new_process_is_caught_up(
    open_members,
):
    async with open_members(a=subscribable(MODERN), b=subscribable(MODERN)) as members:
        await members["a"].kill()
        while members["b"].node.members.others:
            await members["b"].node.members.changed(LEASE)
        fresh = await members.start("a", subscribable(MODERN))
        async with fresh.client.stream("POST", *listen(1)) as stream:
            methods = [(await stream.message())["method"] for _ in range(3)]
        assert set(methods[1:]) == {
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        }


def listen(request_id: int) -> tuple[Json, Json]:
    wish = {"resourceSubscriptions": ["docs+memo:1"], "toolsListChanged": True}
    meta = {VERSION: MODERN, CLIENT_INFO: INFO, CAPABILITIES: {}}
    params = {"notifications": wish, "_meta": meta}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
    return request("subscriptions/listen", params, request_id), headers


async def test_a_question_in_a_call_comes_back_to_the_process_that_asked(open_members):
    meta = {VERSION: MODERN, CLIENT_INFO: INFO, CAPABILITIES: {"elicitation": {"form": {}}}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "docs__t"}
    call = {"name": "docs__t", "_meta": meta}
    servers = [Curious(LEGACY, "elicitation/create", times=2) for _ in range(2)]
    async with open_members(a=servers[0], b=servers[1]) as members:
        state: Json = {}
        for name in "abb":
            answer = await members[name].client.send(request("tools/call", {**call, **state}), headers)
            result = answer.last["result"]
            if result["resultType"] == "input_required":
                responses = dict.fromkeys(result["inputRequests"], ASKED["elicitation/create"][1])
                state = {"inputResponses": responses, "requestState": result["requestState"]}
        assert len(json.loads(result["content"][0]["text"])) == 2


async def test_a_post_to_an_old_event_stream_reaches_its_process(open_members):
    async with (
        open_members(a=subscribable(), b=subscribable()) as members,
        members["a"].client.stream("GET", None, {}, "/sse") as stream,
    ):
        endpoint = (await stream.response.receive_some()).decode()
        path = endpoint.partition("data: ")[2].strip()
        begin = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": INFO}
        for number, method in enumerate(["initialize", "ping", "resources/list"]):
            posted = await members["ab"[number % 2]].client.send(
                request(method, begin if not number else {}, number), path=path
            )
            assert posted.status == 202
            assert (await stream.message())["id"] == number


async def test_a_task_is_for_the_session_that_made_it_at_any_process(open_members):
    async with open_members(a=TaskServer(), b=TaskServer(), c=TaskServer()) as members:
        sessions = [await members["a"].client.initialize(LEGACY) for _ in range(2)]
        sessions.append(await members["b"].client.initialize(LEGACY))
        call = request("tools/call", {"name": "docs__must", "task": {"ttl": 60_000}})
        made = await members["c"].client.send(call, sessions[0])
        about = request("tasks/get", {"taskId": made.last["result"]["task"]["taskId"]})
        for member in members.all.values():
            assert "result" in (await member.client.send(about, sessions[0])).last
            for other in sessions[1:]:
                refused = await member.client.send(about, other)
                assert refused.last["error"]["message"] == "Task not found"
        members["c"].server.tasks = members["b"].server.tasks = members["a"].server.tasks
        await members["a"].kill()
        assert "result" in (await members["b"].client.send(about, sessions[0])).last
        assert "error" in (await members["b"].client.send(about, sessions[2])).last


@pytest.mark.parametrize("lives_at", ["a server for all", "one process"])
async def test_a_task_outlives_its_process_where_it_can(open_members, lives_at):
    revision = MODERN if lives_at == "a server for all" else LEGACY
    async with open_members() as members:
        for name in "ab":
            await members.start(name, TaskServer(revision), target=Http("http://unused.invalid"))
        await members.know_each_other()
        server, other = members["a"].server, members["b"]
        made = await ask(members["a"], "tools/call", {"name": "docs__must"})
        about = {"taskId": made["result"]["taskId"]}
        answered = await ask(other, "tasks/get", about)
        if lives_at == "one process":  # which is asked by all others
            assert answered["result"]["status"] == "working"
            await members["a"].kill()
            error = (await ask(other, "tasks/get", about))["error"]
            assert (error["code"], error["data"]["mayHaveBeenCarriedOut"]) == (-32602, True)
            assert "Task not found: the replica that had it has gone" in error["message"]
            return
        assert answered["error"]["message"] == "Task not found"  # as its own server says
        other.server.tasks = server.tasks
        await members["a"].kill()
        server.set("t1", "input_required")
        asking = (await ask(other, "tasks/get", about))["result"]
        assert asking["taskId"] == about["taskId"]
        answers = {"inputResponses": {name: {"action": "decline"} for name in asking["inputRequests"]}}
        assert "result" in await ask(other, "tasks/update", {**about, **answers})
        assert (await ask(other, "tasks/get", about))["result"]["status"] == "completed"
        assert "result" in await ask(other, "tasks/cancel", about)
        assert server.tasks["t1"]["status"] == "cancelled"


async def ask(member: Any, method: str, params: Json, fields: Json | None = None) -> Any:
    """Return the messages for a modern client with tasks and questions. `fields`: more header fields."""
    meta = {VERSION: MODERN, CLIENT_INFO: INFO, CAPABILITIES: ABLE, **params.get("_meta", {})}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **(fields or {})}
    headers["Mcp-Name"] = params.get("name") or params["taskId"]
    return (await member.client.send(request(method, {**params, "_meta": meta}), headers)).last


async def test_a_call_that_waits_for_its_client_continues_elsewhere(open_members):
    async with open_members() as members:
        for name in "ab":
            server = Curious(MODERN, "elicitation/create")
            await members.start(name, server, target=Http("http://unused.invalid"))
        await members.know_each_other()
        question = (await ask(members["a"], "tools/call", {"name": "docs__t"}))["result"]
        await members["a"].kill()
        answers = dict.fromkeys(question["inputRequests"], ASKED["elicitation/create"][1])
        again = {"name": "docs__t", "inputResponses": answers, "requestState": question["requestState"]}
        assert (await ask(members["b"], "tools/call", again))["result"]["resultType"] == "complete"


async def test_a_call_whose_server_waits_in_a_gone_process_is_lost(open_members):
    servers = [Curious(LEGACY, "elicitation/create") for _ in range(2)]
    async with open_members(a=servers[0], b=servers[1]) as members:
        question = (await ask(members["a"], "tools/call", {"name": "docs__t"}))["result"]
        await members["a"].kill()
        answers = dict.fromkeys(question["inputRequests"], ASKED["elicitation/create"][1])
        again = {"name": "docs__t", "inputResponses": answers, "requestState": question["requestState"]}
        error = (await ask(members["b"], "tools/call", again))["error"]
        assert (error["code"], error["data"]["mayHaveBeenCarriedOut"]) == (-31001, True)
        assert error["message"] == f"{LOST}; to start it again, send it without requestState"


async def test_the_error_of_a_call_stays_what_it_is(open_members):
    async def fail(_server: Any, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32021, "elicitation is missing", {"requiredCapabilities": {"elicitation": {}}})

    def failing() -> ScriptedServer:
        tools = [{"name": "fail", "inputSchema": {"type": "object"}}]
        return ScriptedServer(MODERN, tools=tools, handlers={"tools/call": fail})

    async with open_members(a=failing(), b=failing()) as members:
        for name in "ab":
            answer = await members[name].client.modern("tools/call", {"name": "docs__fail"})
            assert answer.last["error"]["code"] == -32021
