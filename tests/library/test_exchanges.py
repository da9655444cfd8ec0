"""Exchanges that a program observes."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from mcpmux.channels.tap import EXCHANGE, ORIGIN
from mcpmux.config import AccessRule
from mcpmux.library import RpcError
from tests.library.servers import Worker, open_local


async def test_an_observer_hears_what_was_asked_by_whom_of_which_server(autojump_clock):
    rules = (AccessRule(effect="allow", principals=("alice",)),)
    async with (
        open_local({"x": Worker(), "y": Worker()}, access=rules) as (mux, _),
        mux.observe() as exchanges,
        mux.client("alice", name="planner") as client,
    ):
        await client.request("tools/call", {"name": "x__work", "arguments": {}})
        seen = await anext(exchanges)
    assert (seen.method, seen.target, seen.upstreams) == ("tools/call", "x__work", ("x",))
    assert (seen.principal, seen.view, seen.client) == ("alice", "", "planner")
    assert (seen.outcome, seen.code, seen.message) == ("ok", None, None)
    assert seen.seconds >= 0


async def test_an_observer_hears_how_each_exchange_went(autojump_clock):
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (mux, client), mux.observe() as exchanges:
        with pytest.raises(RpcError):
            await client.request("tools/call", {"name": "x__fail"})
        failed = await anext(exchanges)
        with pytest.raises(RpcError):
            await client.request("tools/call", {"name": "nix"})
        unknown = await anext(exchanges)
        with trio.move_on_after(3):
            await client.request("tools/call", {"name": "x__hang"})
        cancelled = await anext(exchanges)
    assert (failed.outcome, failed.code, failed.message) == ("error", -32050, "out of paper")
    assert (unknown.outcome, unknown.code) == ("invalid_params", -32602)
    assert (cancelled.outcome, cancelled.code, cancelled.seconds) == ("cancelled", None, 3)
    assert [exchange.number for exchange in (failed, unknown, cancelled)] == [1, 2, 3]


async def test_what_finds_no_room_is_dropped_and_counted(autojump_clock):
    async with (
        open_local({"x": Worker(), "y": Worker()}) as (mux, client),
        mux.observe(most=2) as slow,
        mux.observe() as quick,
    ):
        for _ in range(5):
            await client.request("tools/call", {"name": "x__work"})
        assert [(await anext(slow)).number for _ in range(2)] == [1, 2]
        assert [(await anext(quick)).number for _ in range(5)] == [1, 2, 3, 4, 5]
        assert (slow.dropped, quick.dropped) == (3, 0)


async def test_only_what_begins_while_somebody_observes_is_told(autojump_clock):
    worker = Worker()
    async with open_local({"x": worker, "y": Worker()}) as (mux, client):
        await client.request("tools/call", {"name": "x__work"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.request, "tools/call", {"name": "x__hang"})
            await worker.hangs.wait()
            async with mux.observe() as exchanges:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await worker.cancelled.wait()
                    await client.request("tools/list")
                    assert (await anext(exchanges)).method == "tools/list"
        with pytest.raises(trio.ClosedResourceError):
            await anext(exchanges)


async def test_a_request_leaves_nothing_behind_in_the_task_that_made_it(autojump_clock):
    async with open_local({"x": Worker(), "y": Worker()}) as (_, client):
        for name in ("x__work", "x__fail"):
            with suppress(RpcError):
                await client.request("tools/call", {"name": name})
            assert (EXCHANGE.get(), ORIGIN.get()) == (0, None)
