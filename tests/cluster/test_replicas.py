"""Clients of several replicas, where workers of one machine are different.

Those have no way to their store that could be cut, no keys, no lease that outlives them, and no letters. And
they give a connection away with the request on it, so that no request waits there for another one.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.cluster.sessions import EPOCHS_SKIPPED
from mcpmux.config import Caching, Http
from mcpmux.config.auth import AccessRule, Auth, StaticToken
from mcpmux.config.model import RateLimit
from mcpmux.mux.replay import EPOCH
from mcpmux.runtime import notification_hub
from tests.cluster.nodes import LEASE, sessions_at
from tests.cluster.replicas import move, open_replicas
from tests.cluster.test_nodes import (
    ABLE,
    INFO,
    LOST,
    Remembered,
    Working,
    ask,
    listed,
    listen,
    modern_list,
    number,
    subscribable,
)
from tests.peers.http_client import request
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.peers.task_server import TaskServer
from tests.runtime.test_asking import ASKED, client_of


async def test_a_stream_continues_when_the_store_lost_its_owner():
    async with open_replicas(a=subscribable(), b=subscribable(), c=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await replicas["a"].client.send(request("resources/subscribe", {"uri": "docs+memo:1"}), session)
        kept = copy.deepcopy(replicas.store._sessions)
        await replicas["a"].kill()
        async with replicas["b"].client.stream("GET", None, session) as stream:
            events = [await stream.next() for _ in range(3)]
            await replicas["b"].server.update("memo:1")
            last = await stream.next()
        replicas.store._sessions = kept  # those of the replica that has become the primary
        await replicas["b"].kill()
        while (answer := await listed(replicas["c"].client, session)).status != 200:
            assert answer.status == 503
        # Event ids are made at random: here that they are lower than those which the client has heard.
        newest = f"0-{number(last) + 2 * EPOCH * EPOCHS_SKIPPED}"
        headers = {**session, "Last-Event-ID": newest}
        async with replicas["c"].client.stream("GET", None, headers) as stream:
            again = [await stream.next() for _ in range(3)]
        assert {event["method"] for _, event in again} == {event["method"] for _, event in events}
        assert all(number(event) > number((newest, None)) for event in again)


async def test_the_end_of_a_lease_is_awaited_despite_further_requests():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        await replicas["a"].kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all_the_time, replicas["b"])
            answer = await listed(replicas["b"].client, session)
            nursery.cancel_scope.cancel()
        assert answer.status == 200, answer.last


TOKEN = "token-of-a-client"
AUTH = Auth(
    tokens={
        name: StaticToken(sha256=hashlib.sha256(token.encode()).hexdigest())
        for name, token in (("client", TOKEN), ("other", "token-of-another"))
    }
)


def shown(token: str) -> Json:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_a_task_is_its_principals_and_its_tools_at_any_replica(prefix):
    server = TaskServer(MODERN)
    settings = {
        "target": Http("http://unused.invalid"),
        "prefix": prefix,
        "auth": AUTH,
        "access": (AccessRule(effect="allow", targets=("must",)),),  # nothing else, nor an unknown tool
    }
    async with open_replicas() as replicas:
        for name in "ab":
            await replicas.start(name, TaskServer(MODERN), **settings)
            replicas[name].server.tasks = server.tasks
        made = await ask(replicas["a"], "tools/call", {"name": f"{prefix}__must".lstrip("_")}, shown(TOKEN))
        about = {"taskId": made["result"]["taskId"]}
        for replica in (replicas["b"], replicas["a"]):
            answer = await ask(replica, "tasks/get", about, shown(TOKEN))
            assert answer["result"]["status"] == "working"
            refused = await ask(replica, "tasks/get", about, shown("token-of-another"))
            assert refused["error"]["message"] == "Task not found"


async def test_a_request_keeps_its_view_over_all_attempts():
    async with open_replicas() as replicas:
        for name in "ab":
            await replicas.start(name, subscribable(), auth=AUTH)
        await replicas.know_each_other()
        first, other = replicas["a"], replicas["b"]
        view = {"path": "/mcp/some"}
        session = {**shown(TOKEN), **await first.client.initialize(headers=shown(TOKEN), **view)}
        first.line.is_cut = True
        while not sessions_at(other):
            await other.client.send(request("ping"), session, **view)
        await other.kill()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                # It waits for a lease; then the session has another owner, then none.
                answer = await first.client.send(request("ping"), session, **view)
                assert answer.status in (200, 503), answer.last  # on a busy machine it waits in vain

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
            first.line.is_cut = False
            await first.node.members.renew()


class Asking(TaskServer):
    """Its tool `may` asks its client something, tells its progress, and goes on until `done`."""

    def __init__(self) -> None:
        super().__init__()
        self.answered, self.done = trio.Event(), trio.Event()

    def take_answer(self, message: Json) -> None:
        self.answered.set()

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method != "tools/call" or params["name"] != "may":
            return await super().handle(method, params, message)
        await self.send({"id": "q", "method": "elicitation/create", "params": ASKED["elicitation/create"][0]})
        await self.answered.wait()
        progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1}
        await self.send({"method": "notifications/progress", "params": progress})
        await self.done.wait()
        return {"content": []}


ASKING = {"name": "docs__may", "_meta": {"progressToken": 1}}


def go_on_with(asked: Json) -> Json:
    """Return the parameters of the call to `may` that answers the questions of an earlier one."""
    answers = dict.fromkeys(asked["inputRequests"], ASKED["elicitation/create"][1])
    return {"name": "docs__may", "inputResponses": answers, "requestState": asked["requestState"]}


async def test_what_is_in_another_replica_is_reached_on_any_transport():
    server = Asking()
    async with open_replicas(a=server, b=Asking()) as replicas:
        made = await ask(replicas["a"], "tools/call", {"name": "docs__must"})
        about = {"taskId": made["result"]["taskId"]}
        again = go_on_with((await ask(replicas["a"], "tools/call", ASKING))["result"])
        client = await client_of(replicas["b"].world, MODERN, ABLE)
        count = replicas.asked()
        assert (await client.request("tasks/get", about))["status"] == "working"
        call = await client.start("tools/call", again, progressToken=5)
        progress = await client.receive()
        assert (progress["method"], progress["params"]["progressToken"]) == ("notifications/progress", 5)
        with trio.move_on_after(0) as waiting:
            await replicas["a"].node.calls.drained()
        assert waiting.cancelled_caught
        server.done.set()
        assert (await client.receive())["id"] == call
        await replicas["a"].node.calls.drained()
        with pytest.raises(RpcFailure, match="Invalid requestState"):
            await client.request("tools/call", again)
        assert (await client.request("tasks/cancel", about))["resultType"] == "complete"
        assert server.tasks["t1"]["status"] == "cancelled"
        assert replicas.asked() == count
        assert replicas["b"].node.describe().handed_over == replicas["a"].node.describe().handed_in == 4
        await replicas["a"].kill()
        with pytest.raises(RpcFailure, match="Task not found: the replica that had it has gone"):
            await client.request("tasks/get", about)
        with pytest.raises(RpcFailure, match=LOST):
            await client.request("tools/call", again)


async def test_a_call_lost_with_another_replica_fails_on_any_transport():
    async with open_replicas(a=Asking(), b=Asking()) as replicas:
        question = (await ask(replicas["a"], "tools/call", ASKING))["result"]
        client = await client_of(replicas["b"].world, MODERN, ABLE)
        await client.start("tools/call", go_on_with(question), progressToken=5)
        assert (await client.receive())["method"] == "notifications/progress"
        await replicas["a"].kill()
        lost = (await client.receive())["error"]
        assert (lost["code"], lost["message"]) == (-31001, LOST)


async def ask_all_the_time(replica: Any) -> None:
    """Send requests of many sessions whose replica has gone."""
    while True:
        await replica.node.members.renew()


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


async def test_what_is_with_a_replica_that_hangs_ends_when_its_lease_does():
    """Cut off from the store it goes on with what it has, and closes no connection."""
    server = Working()
    async with open_replicas(a=server, b=Working()) as replicas:
        session = await replicas["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        async with (
            replicas["b"].client.stream("GET", None, session) as stream,
            trio.open_nursery() as nursery,
        ):

            async def ask() -> None:
                answer = await replicas["b"].client.send(call, session)
                assert answer.last["error"]["message"] == LOST
                assert answer.last["error"]["data"]["mayHaveBeenCarriedOut"] is True

            nursery.start_soon(ask)
            await server.begun.wait()
            replicas["a"].line.is_cut = True
            assert await stream.response.read() == b": open\n\n"
        assert (await replicas["b"].client.send(request("ping"), session)).status == 200


async def test_a_replica_that_stops_in_good_order_answers_what_it_has():
    server = Working()
    async with open_replicas(a=server, b=Working()) as replicas:
        session = await replicas["a"].client.initialize(LEGACY)
        call = request("tools/call", {"name": "docs__work"}, 7)
        members = replicas["b"].node.members
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answer = await replicas["b"].client.send(call, session)
                assert "result" in answer.last

            nursery.start_soon(ask)
            await server.begun.wait()
            await replicas["a"].node.leave()
            while members.others:
                await members.changed(LEASE)
            for _ in range(2):  # it is asked whether it is about to stop
                await members.changed(LEASE)
            server.done.set()


async def test_a_call_ends_with_the_lease_of_a_hanging_replica():
    async with open_replicas(a=Asking(), b=Asking()) as replicas:
        question = (await ask(replicas["a"], "tools/call", ASKING))["result"]
        client = await client_of(replicas["b"].world, MODERN, ABLE)
        await client.start("tools/call", go_on_with(question), progressToken=5)
        assert (await client.receive())["method"] == "notifications/progress"
        replicas["a"].line.is_cut = True
        lost = (await client.receive())["error"]
        assert (lost["code"], lost["message"]) == (-31001, LOST)


async def test_a_replica_without_the_store_serves_no_session_and_returns():
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


async def test_a_session_taken_over_is_no_longer_served_by_its_replica():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        replicas["a"].line.is_cut = True
        move(replicas["a"].node, "http://127.0.0.1:9")
        while (await listed(replicas["b"].client, session)).status != 200 or not sessions_at(replicas["b"]):
            await replicas["b"].node.members.changed(LEASE)
        replicas["a"].line.is_cut = False
        while not await replicas["a"].node.members.inside():
            pass
        assert not sessions_at(replicas["a"])
        assert (await listed(replicas["a"].client, session)).status == 200
        assert not sessions_at(replicas["a"])


@pytest.mark.parametrize("way", ["lost", "gone"])
async def test_an_emptied_store_ends_sessions_so_that_clients_start_anew(way):
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        replicas.store.__init__(trio.current_time)  # type: ignore[misc]  # it has lost all
        if way == "gone":
            await replicas["a"].kill()
        while (answer := await listed(replicas["b"].client, session)).status != 404:
            await replicas["b"].node.members.changed(LEASE)
        assert "send `initialize` again" in answer.last["error"]["message"]
        again = await replicas["b"].client.initialize()
        assert (await listed(replicas["b"].client, again)).status == 200


async def test_a_replica_that_stops_ends_streams_of_sessions_that_others_have():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        session = await replicas["a"].client.initialize()
        async with replicas["b"].client.stream("GET", None, session) as stream:
            await replicas["b"].node.leave()
            assert await stream.response.read() == b": open\n\n"


async def test_a_replica_can_stop_while_it_passes_on_an_update():
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
            notification = await stream.message()
            assert notification["method"] == "notifications/resources/updated"
            while first.node.members.others:
                await first.node.members.changed(LEASE)


async def test_replicas_with_other_keys_are_no_neighbours():
    async with open_replicas(a=subscribable(), b=subscribable()) as replicas:
        stranger = await replicas.start("x", subscribable(), key="key of another cluster")
        await stranger.node.members.renew()
        await replicas["a"].node.members.renew()
        assert not stranger.node.members.others
        assert {other.card.name for other in replicas["a"].node.members.others} == {"b"}


async def test_caching_can_be_off():
    async with open_replicas(a=Remembered([0])) as replicas:
        await replicas.start("b", Remembered([0]), caching=Caching(enabled=False))
        read = await replicas["b"].client.modern("resources/read", {"uri": "docs+memo:1"})
        assert read.status == 200


async def test_a_listen_that_moves_is_caught_up_after_a_late_loss(monkeypatch):
    monkeypatch.setattr(notification_hub, "NOTICE_SECONDS", LEASE / 10)
    monkeypatch.setattr(notification_hub, "RETURN_SECONDS", 0.0)  # else the new replica causes a notification
    async with open_replicas(a=subscribable(MODERN), b=subscribable(MODERN)) as replicas:
        other = replicas["b"]
        await replicas["a"].kill()
        other.line.is_cut = True
        async with other.client.stream("POST", *listen(1)) as stream:
            assert (await stream.message())["method"].endswith("acknowledged")
            while other.node.members.is_inside:
                await other.node.members.changed(LEASE)
            other.line.is_cut = False
            methods = [(await stream.message())["method"] for _ in range(2)]
        assert set(methods) == {
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        }


async def test_a_listen_is_caught_up_when_other_replicas_are_unknown():
    async with open_replicas(a=subscribable(MODERN)) as replicas:
        await replicas["a"].kill()
        replicas.store.__init__(trio.current_time)  # type: ignore[misc]  # it has lost all
        fresh = await replicas.start("b", subscribable(MODERN))
        async with fresh.client.stream("POST", *listen(1)) as stream:
            methods = [(await stream.message())["method"] for _ in range(3)]
        assert set(methods[1:]) == {
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        }


async def test_each_replica_counts_a_rate_limit_without_the_store():
    limits = (RateLimit(requests=5, per=3600.0),)
    async with open_replicas() as replicas:
        for name in "ab":
            await replicas.start(name, subscribable(), rate=limits)
        statuses = [(await modern_list(replicas["ab"[turn % 2]])).status for turn in range(6)]
        assert statuses == [200] * 5 + [429]
        replicas["b"].line.is_cut = True
        statuses = [(await modern_list(replicas["b"])).status for _ in range(6)]
        assert statuses == [200] * 5 + [429]
