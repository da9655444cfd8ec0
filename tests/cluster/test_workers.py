"""What workers do that replicas do not: they give connections away, and hear at once that one has ended."""

from __future__ import annotations

import math

import pytest
import trio

from mcpmux.app.workers import pool, worker
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.transports.handing import NOTE_BYTES
from mcpmux.transports.http.client import HttpPool
from tests.cluster.nodes import LEASE
from tests.cluster.test_nodes import ABLE, LEGACY, ask, subscribable
from tests.cluster.workers import open_workers
from tests.peers.client import ScriptedClient
from tests.peers.http_client import HttpClient, request
from tests.peers.pipe import open_memory_pipes
from tests.peers.server import RpcFailure
from tests.runtime.test_asking import ASKED, Curious


async def test_a_client_keeps_its_connection_whoever_answers_and_however_much_it_says():
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        sessions = [await workers[name].client.initialize() for name in "ab"]
        with HttpPool(workers["a"].client.origin) as connections:
            client, used = HttpClient(connections), set()
            for padding in ("", "x" * 2 * NOTE_BYTES, ""):
                ask = request("resources/list", {"_meta": {"padding": padding}})
                for session in (*sessions, *reversed(sessions)):
                    answer = await client.send(ask, session)
                    assert len(answer.last["result"]["resources"]) == 4
                    used.update(connections._idle)
            assert len(used) == 1


async def test_workers_that_are_stopped_do_not_wait_for_what_goes_through_them(monkeypatch):
    monkeypatch.setattr(worker, "DRAIN_SECONDS", math.inf)
    monkeypatch.setattr(pool, "FORWARD_SECONDS", math.inf)
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        session = await workers["b"].client.initialize()
        with HttpPool(workers["a"].client.origin) as connections:
            ask = request("resources/list", {"_meta": {"padding": "x" * 2 * NOTE_BYTES}})
            assert (await HttpClient(connections).send(ask, session)).status == 200
            workers.pool.stop()
            for name in "ab":
                await workers[name].ended.wait()


async def test_that_a_worker_has_ended_the_others_hear_before_they_ask():
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        members = workers["b"].node.members
        members.lease = math.inf  # it asks once more by itself, if at all
        await members.changed(LEASE)
        members.renew_soon()
        await members.changed(LEASE)
        assert members.others
        await workers["a"].kill()
        while members.others:
            await members.changed(LEASE)


async def test_a_client_without_http_is_told_which_worker_has_its_call():
    servers = [Curious(LEGACY, "elicitation/create") for _ in range(2)]
    async with open_workers(a=servers[0], b=servers[1]) as workers, trio.open_nursery() as clients:
        asked = (await ask(workers["a"], "tools/call", {"name": "docs__t"}))["result"]
        answers = dict.fromkeys(asked["inputRequests"], ASKED["elicitation/create"][1])
        again = {"name": "docs__t", "inputResponses": answers, "requestState": asked["requestState"]}
        ours, theirs = open_memory_pipes()
        clients.start_soon(serve_messages, theirs, workers["b"].mux.service)
        client = ScriptedClient(ours)
        client.capabilities = ABLE
        with pytest.raises(RpcFailure, match="worker 1 of this mcpmux has that call") as refused:
            await client.request("tools/call", client.params(again))
        assert refused.value.error["code"] == -32602
        await workers["a"].kill()
        await workers["b"].node.members.changed(LEASE)
        with pytest.raises(RpcFailure, match="has gone") as lost:
            await client.request("tools/call", client.params(again))
        assert lost.value.error["code"] == -31001
        clients.cancel_scope.cancel()
