"""What workers do that replicas do not: they give connections away, and hear at once that one has ended."""

from __future__ import annotations

import math

from mcpmux.app.workers import pool, worker
from mcpmux.transports.handing import NOTE_BYTES
from mcpmux.transports.http.client import HttpPool
from tests.cluster.nodes import LEASE
from tests.cluster.test_nodes import subscribable
from tests.cluster.workers import open_workers
from tests.runtime.test_http_endpoint import HttpClient, request


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
