"""What clients of several replicas see: one mcpmux."""

from __future__ import annotations

import copy
import hashlib
import math
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.cluster.sessions import EPOCHS_SKIPPED
from mcpmux.config import Caching
from mcpmux.config.auth import Auth, StaticToken
from mcpmux.config.model import RateLimit
from mcpmux.mux.replay import EPOCH
from mcpmux.runtime import notification_hub
from tests.cluster.replicas import LEASE, open_replicas
from tests.runtime.scripted import (
    CAPABILITIES,
    CLIENT_INFO,
    MODERN,
    VERSION,
    Json,
    RpcFailure,
    ScriptedServer,
)
from tests.runtime.subscribable import Subscribable
from tests.runtime.task_server import TaskServer
from tests.runtime.test_http_endpoint import HttpClient, request

LEGACY = "2025-11-25"
LOST = "The replica that worked on this request has gone; it may have been carried out"


def subscribable(revision: str = LEGACY) -> Subscribable:
    return Subscribable(revision)


class Working(ScriptedServer):
    """Has a tool that goes on until `done`; `begun` when it was called, `calls` counts."""

    def __init__(self) -> None:
        super().__init__(
            MODERN,
            tools=[{"name": "work", "inputSchema": {"type": "object"}}],
            handlers={"tools/call": self._work},
        )
        self.begun, self.done = trio.Event(), trio.Event()
        self.calls = 0

    async def _work(self, _server: Any, _params: Json, _message: Json) -> Json:
        self.calls += 1
        self.begun.set()
        await self.done.wait()
        return {"resultType": "complete", "content": [{"type": "text", "text": "worked"}]}


async def listed(client: HttpClient, session: Json) -> Any:
    return await client.send(request("resources/list"), session)


async def test_any_replica_answers_any_request_of_a_session():
    async with open_replicas(a=subscribable(), b=subscribable(), c=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        for name in "bcab":
            answer = await listed(replicas[name].client, session)
            assert (answer.status, len(answer.last["result"]["resources"])) == (200, 4)
        assert (await replicas["c"].client.send(b"", session, "DELETE")).status == 204
        for name in "abc":
            assert (await listed(replicas[name].client, session)).status == 404


async def test_a_request_of_a_session_that_is_here_asks_nothing_of_the_store():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await listed(replicas["b"].client, session)
        before = [commands_of(replicas[name]) for name in "ab"]
        for _ in range(50):
            await listed(replicas["a"].client, session)
            await listed(replicas["b"].client, session)
        assert [commands_of(replicas[name]) for name in "ab"] == before


def commands_of(replica: Any) -> int:
    """Commands to the store, but for those that renew the lease."""
    return replica.line.commands - replica.line.asked["renew"]


async def test_a_session_goes_on_elsewhere_when_its_replica_has_gone():
    async with open_replicas(a=subscribable(), b=subscribable(), c=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        uri = "docs+memo:1"
        subscribed = await replicas["b"].client.send(request("resources/subscribe", {"uri": uri}), session)
        assert subscribed.last["result"] == {}
        await replicas["a"].kill()
        async with replicas["b"].client.stream("GET", None, session) as stream:
            said = [(await stream.next())[1] for _ in range(3)]
            # It may have missed anything: it hears of each that it would have heard of.
            assert {each["method"] for each in said} == {
                "notifications/resources/updated",
                "notifications/resources/list_changed",
                "notifications/tools/list_changed",
            }
            await replicas["b"].server.update("memo:1")
            event_id, update = await stream.next()
            assert update["params"] == {"uri": uri}
        await replicas["b"].kill()
        headers = {**session, "Last-Event-ID": event_id}
        async with replicas["c"].client.stream("GET", None, headers) as stream:
            later = [await stream.next() for _ in range(3)]
            assert all(number(each) > number((event_id, None)) for each in later)
        assert (await listed(replicas["c"].client, session)).status == 200


async def test_a_stream_goes_on_when_the_store_has_lost_who_had_its_session_last():
    async with open_replicas(a=subscribable(), b=subscribable(), c=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await replicas["a"].client.send(request("resources/subscribe", {"uri": "docs+memo:1"}), session)
        kept = copy.deepcopy(replicas.store._sessions)
        await replicas["a"].kill()
        async with replicas["b"].client.stream("GET", None, session) as stream:
            said = [await stream.next() for _ in range(3)]
            await replicas["b"].server.update("memo:1")
            last = await stream.next()
        replicas.store._sessions = kept  # those of the replica that has become the primary
        await replicas["b"].kill()
        while (answer := await listed(replicas["c"].client, session)).status != 200:
            assert answer.status == 503
        # Event ids are made at random: here that they are lower than those which the client has heard.
        heard = f"0-{number(last) + 2 * EPOCH * EPOCHS_SKIPPED}"
        headers = {**session, "Last-Event-ID": heard}
        async with replicas["c"].client.stream("GET", None, headers) as stream:
            again = [await stream.next() for _ in range(3)]
        assert {each["method"] for _, each in again} == {each["method"] for _, each in said}
        assert all(number(each) > number((heard, None)) for each in again)


async def test_the_end_of_a_lease_is_waited_for_however_often_the_store_is_asked_meanwhile():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await replicas["a"].kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all_the_time, replicas["b"])
            answer = await listed(replicas["b"].client, session)
            nursery.cancel_scope.cancel()
        assert answer.status == 200, answer.last


async def test_of_all_requests_at_once_none_takes_a_session_for_ended_that_goes_on():
    async with open_replicas(a=subscribable(), b=subscribable(), c=subscribable()) as replicas:
        sessions = [await replicas["a"].client.initialize() for _ in range(10)]
        await replicas["a"].kill()
        statuses: list[int] = []

        async def ask(name: str, session: Json, number: int) -> None:
            listing = request("resources/list", request_id=number)
            statuses.append((await replicas[name].client.send(listing, session)).status)

        async with trio.open_nursery() as nursery:
            for session in sessions:
                for number, name in enumerate("bcbc"):
                    nursery.start_soon(ask, name, session, number)
        assert statuses == [200] * 40


TOKEN = "token-of-a-client"
AUTH = Auth(tokens={"client": StaticToken(sha256=hashlib.sha256(TOKEN.encode()).hexdigest())})


async def test_a_request_is_of_the_same_view_however_often_a_replica_tries_to_answer_it():
    async with open_replicas() as replicas:
        for name in "ab":
            await replicas.start(name, subscribable(), auth=AUTH)
        await replicas.know_each_other()
        first, other = replicas["a"], replicas["b"]
        shown = {"Authorization": f"Bearer {TOKEN}"}
        view = {"path": "/mcp/some"}
        session = {**shown, **await first.client.initialize(headers=shown, **view)}
        first.line.is_cut = True
        while not sessions_at(other):
            await other.client.send(request("ping"), session, **view)
        await other.kill()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                # It waits for a lease, then the session is another's that has not gone yet, then nobody's.
                answer = await first.client.send(request("ping"), session, **view)
                assert answer.status in (200, 503), answer.last  # on a busy machine it waits in vain

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
            first.line.is_cut = False
            await first.node.members.renew()


async def ask_all_the_time(replica: Any) -> None:
    """As requests of many sessions do whose replica has gone."""
    while True:
        await replica.node.members.renew()


def number(event: tuple[str | None, Any]) -> int:
    return int((event[0] or "").partition("-")[2])


async def test_a_call_in_flight_ends_with_what_may_have_become_of_it():
    server = Working()
    async with open_replicas(a=server, b=Working()) as replicas:
        session = await replicas["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answer = await replicas["b"].client.send(call, session)
                assert answer.last["error"]["message"] == LOST
                assert answer.last["id"] == 7

            nursery.start_soon(ask)
            await server.begun.wait()
            await replicas["a"].kill()
        assert (await replicas["b"].client.send(request("ping"), session)).status == 200


async def test_a_stream_of_a_call_is_resumed_at_another_replica():
    server = Working()
    async with open_replicas(a=server, b=Working()) as replicas:
        session = await replicas["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        async with replicas["a"].client.stream("POST", call, session) as stream:
            first, _ = await stream.next()
        headers = {**session, "Last-Event-ID": first}
        async with replicas["b"].client.stream("GET", None, headers) as stream:
            server.done.set()
            _, answer = await stream.next()
        assert answer["result"]["content"][0]["text"] == "worked"
        for sessions in replicas["a"].node._sessions:
            assert await sessions.events.written()
        await replicas["a"].kill()
        # It was answered, so it is the same answer, from the store.
        async with replicas["b"].client.stream("GET", None, headers) as stream:
            assert (await stream.next())[1] == answer


async def test_a_call_that_was_cut_off_is_said_to_be_when_its_stream_is_resumed():
    async with open_replicas(a=Working(), b=Working()) as replicas:
        session = await replicas["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        async with replicas["a"].client.stream("POST", call, session) as stream:
            first, _ = await stream.next()
        await replicas["a"].kill()
        headers = {**session, "Last-Event-ID": first}
        async with replicas["b"].client.stream("GET", None, headers) as stream:
            _, answer = await stream.next()
        assert (answer["id"], answer["error"]["message"]) == (7, LOST)
        assert replicas["b"].server.calls == 0


async def test_a_replica_that_is_cut_off_from_the_store_serves_no_session_and_comes_back():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        replicas["a"].line.is_cut = True
        while replicas["a"].node.members.is_inside:
            await replicas["a"].node.members.changed(LEASE)
        refused = await listed(replicas["a"].client, session)
        assert refused.status == 503
        assert "the store of the cluster is away" in refused.last["error"]["message"]
        refused = await replicas["a"].client.send(
            request("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": INFO})
        )
        assert refused.status == 503
        modern = await replicas["a"].client.modern("resources/list")  # which needs no store
        assert modern.status == 200
        replicas["a"].line.is_cut = False
        while not await replicas["a"].node.members.inside():
            pass
        assert (await listed(replicas["a"].client, session)).status == 200
        assert (await listed(replicas["b"].client, session)).status == 200


INFO = {"name": "test", "version": "1"}


async def test_a_session_that_another_replica_has_taken_is_not_served_by_the_one_before():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        replicas["a"].line.is_cut = True
        replicas["a"].node.members._url = "http://127.0.0.1:9"
        while (await listed(replicas["b"].client, session)).status != 200 or not sessions_at(replicas["b"]):
            await replicas["b"].node.members.changed(LEASE)
        replicas["a"].line.is_cut = False
        while not await replicas["a"].node.members.inside():
            pass
        assert not sessions_at(replicas["a"])
        assert (await listed(replicas["a"].client, session)).status == 200
        assert not sessions_at(replicas["a"])


def sessions_at(replica: Any) -> int:
    return sum(map(len, replica.node._sessions))


@pytest.mark.parametrize("way", ["lost", "gone"])
async def test_without_its_data_a_store_ends_sessions_in_words_that_make_clients_start_anew(way):
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        replicas.store.__init__(trio.current_time)  # type: ignore[misc]
        if way == "gone":
            await replicas["a"].kill()
        while (answer := await listed(replicas["b"].client, session)).status != 404:
            await replicas["b"].node.members.changed(LEASE)
        assert "send `initialize` again" in answer.last["error"]["message"]
        again = await replicas["b"].client.initialize()
        assert (await listed(replicas["b"].client, again)).status == 200


async def test_a_replica_that_stops_leaves_its_sessions_to_others_at_once():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await replicas["a"].node.leave()
        before = trio.current_time()
        assert (await listed(replicas["a"].client, session)).status == 200
        assert (await listed(replicas["b"].client, session)).status == 200
        assert sessions_at(replicas["b"]) == 1
        assert trio.current_time() - before < LEASE * 20


async def test_a_replica_that_stops_ends_streams_of_sessions_that_others_have():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        async with replicas["b"].client.stream("GET", None, session) as stream:
            await replicas["b"].node.leave()
            assert await stream.response.read() == b": open\n\n"


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


async def test_what_a_client_did_at_one_replica_is_seen_by_the_next_read_at_any():
    shared = [0]
    async with open_replicas(a=Remembered(shared), b=Remembered(shared)) as replicas:
        await trio.sleep(2 * LEASE)  # in which they remember nothing, as others may not know them yet
        for turn in range(20):
            for name in "ab":
                read = await replicas[name].client.modern("resources/read", {"uri": "docs+memo:1"})
                assert read.last["result"]["contents"][0]["text"] == str(turn)
            await replicas["ab"[turn % 2]].client.modern("tools/call", {"name": "docs__change"})
        reads = replicas["a"].server.reads
        for _ in range(10):
            await replicas["a"].client.modern("resources/read", {"uri": "docs+memo:1"})
        assert replicas["a"].server.reads <= reads + 1  # and it is remembered


async def test_a_list_change_that_one_replica_hears_of_reaches_clients_of_all():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        async with replicas["a"].client.stream("GET", None, session) as stream:
            await replicas["b"].server.notify("notifications/tools/list_changed")
            _, told = await stream.next()
        assert told["method"] == "notifications/tools/list_changed"


async def test_a_replica_can_stop_while_an_update_waits_for_others_to_be_told():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        first = replicas["a"]
        session = await first.client.initialize()
        await first.client.send(request("resources/subscribe", {"uri": "docs+memo:1"}), session)
        async with first.client.stream("GET", None, session) as stream:
            await replicas["b"].kill()
            await first.server.update("memo:1")
            while not first.mux.hub._updates:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            first.mux.hub.close()
            _, told = await stream.next()
            assert told["method"] == "notifications/resources/updated"
            while first.node.members.others:
                await first.node.members.changed(LEASE)


async def test_replicas_with_other_keys_are_no_neighbours():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        stranger = await replicas.start("x", subscribable(), key="key of another cluster")
        await stranger.node.members.renew()
        await replicas["a"].node.members.renew()
        assert not stranger.node.members.others
        assert {each.card.name for each in replicas["a"].node.members.others} == {"b"}


async def test_caching_can_be_off():
    async with open_replicas(a=Remembered([0])) as replicas:
        await replicas.start("b", Remembered([0]), caching=Caching(enabled=False))
        read = await replicas["b"].client.modern("resources/read", {"uri": "docs+memo:1"})
        assert read.status == 200


async def test_a_rate_limit_holds_for_all_replicas_together():
    limits = (RateLimit(requests=5, per=3600.0),)
    async with open_replicas() as replicas:
        for name in "ab":
            await replicas.start(name, subscribable(), rate=limits)
        statuses = [(await modern_list(replicas["ab"[turn % 2]])).status for turn in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        refused = await modern_list(replicas["b"])
        assert int(refused.headers["retry-after"]) > 600
        replicas["b"].line.is_cut = True  # it counts for itself then
        statuses = [(await modern_list(replicas["b"])).status for _ in range(6)]
        assert statuses == [200] * 5 + [429]


async def modern_list(replica: Any) -> Any:
    return await replica.client.modern("resources/list")


@pytest.mark.parametrize("comes", ["before it is noticed", "after"])
async def test_a_listen_that_moves_hears_of_what_it_may_have_missed(comes):
    async with open_replicas(a=subscribable(MODERN), b=subscribable(MODERN)) as replicas:
        other = replicas["b"]
        other.mux.hub._returning_until = -math.inf  # it is not new any more
        async with other.client.stream("POST", *listen(1)) as elsewhere:
            assert (await elsewhere.next())[1]["method"].endswith("acknowledged")
            await replicas["a"].kill()
            while comes == "after" and other.node.members.others:
                await other.node.members.changed(LEASE)
            async with other.client.stream("POST", *listen(2)) as stream:
                said = [(await stream.next())[1]["method"] for _ in range(3)]
            assert said[0].endswith("acknowledged")
            assert set(said[1:]) == {
                "notifications/resources/updated",
                "notifications/tools/list_changed",
            }


async def test_a_listen_that_moves_hears_of_it_however_late_a_loss_is_noticed(monkeypatch):
    monkeypatch.setattr(notification_hub, "NOTICE_SECONDS", LEASE / 10)
    monkeypatch.setattr(notification_hub, "RETURN_SECONDS", 0.0)  # else it is told as the replica is new
    async with open_replicas(a=subscribable(MODERN), b=subscribable(MODERN)) as replicas:
        other = replicas["b"]
        await replicas["a"].kill()
        other.line.is_cut = True
        async with other.client.stream("POST", *listen(1)) as stream:
            assert (await stream.next())[1]["method"].endswith("acknowledged")
            while other.node.members.is_inside:
                await other.node.members.changed(LEASE)
            other.line.is_cut = False
            said = [(await stream.next())[1]["method"] for _ in range(2)]
        assert set(said) == {
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        }


@pytest.mark.parametrize("stays", ["a replica that knows", "nobody who knows"])
async def test_a_listen_that_moves_to_a_replica_which_has_just_started_hears_of_what_it_may_have_missed(
    stays,
):
    async with open_replicas(a=subscribable(MODERN), b=subscribable(MODERN)) as replicas:
        await replicas["a"].kill()
        if stays == "a replica that knows":
            while replicas["b"].node.members.others:
                await replicas["b"].node.members.changed(LEASE)
        else:
            await replicas["b"].kill()
            replicas.store.__init__(trio.current_time)  # type: ignore[misc]
        fresh = await replicas.start("c", subscribable(MODERN))
        async with fresh.client.stream("POST", *listen(1)) as stream:
            said = [(await stream.next())[1]["method"] for _ in range(3)]
        assert set(said[1:]) == {
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        }


def listen(request_id: int) -> tuple[Json, Json]:
    wish = {"resourceSubscriptions": ["docs+memo:1"], "toolsListChanged": True}
    meta = {VERSION: MODERN, CLIENT_INFO: INFO, CAPABILITIES: {}}
    params = {"notifications": wish, "_meta": meta}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
    return request("subscriptions/listen", params, request_id), headers


async def test_a_task_is_for_the_session_that_made_it_at_any_replica():
    async with open_replicas(a=TaskServer(), b=TaskServer(), c=TaskServer()) as replicas:
        sessions = [await replicas["a"].client.initialize(LEGACY) for _ in range(2)]
        sessions.append(await replicas["b"].client.initialize(LEGACY))
        call = request("tools/call", {"name": "docs__must", "task": {"ttl": 60_000}})
        made = await replicas["c"].client.send(call, sessions[0])
        about = request("tasks/get", {"taskId": made.last["result"]["task"]["taskId"]})
        for replica in replicas.all.values():
            assert "result" in (await replica.client.send(about, sessions[0])).last
            for other in sessions[1:]:
                refused = await replica.client.send(about, other)
                assert refused.last["error"]["message"] == "Task not found"
        replicas["c"].server.tasks = replicas["b"].server.tasks = replicas["a"].server.tasks
        await replicas["a"].kill()
        assert "result" in (await replicas["b"].client.send(about, sessions[0])).last
        assert "error" in (await replicas["b"].client.send(about, sessions[2])).last


async def test_the_error_of_a_call_stays_what_it_is():
    async def fail(_server: Any, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32021, "elicitation is missing", {"requiredCapabilities": {"elicitation": {}}})

    def failing() -> ScriptedServer:
        tools = [{"name": "fail", "inputSchema": {"type": "object"}}]
        return ScriptedServer(MODERN, tools=tools, handlers={"tools/call": fail})

    async with open_replicas(a=failing(), b=failing()) as replicas:
        for name in "ab":
            answer = await replicas[name].client.modern("tools/call", {"name": "docs__fail"})
            assert answer.last["error"]["code"] == -32021
