"""Updates on their way from the relay to clients: once each, at once where clients keep up, seen by taps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.mux.rewrite import Space
from mcpmux.protocol.raw_json import SHORT_CHARS
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import WAITING_LIMIT, NotificationHub
from mcpmux.traffic.recorder import Recorder
from tests.channels.test_http_streams import next_update
from tests.channels.test_tap import Witness
from tests.clients.test_outlet import Client
from tests.peers.http_client import HttpClient, Stream, request
from tests.peers.revision import CAPABILITIES, CLIENT, CLIENT_INFO, LEGACY, MODERN, VERSION
from tests.peers.subscribable import Subscribable
from tests.runtime.http_front import open_endpoint

SPACE = Space("x", "x", frozenset())
LISTEN_ID = "listen-7"


@asynccontextmanager
async def open_relay(spaces: dict[str, Space]) -> AsyncIterator[tuple[NotificationHub, trio.Nursery]]:
    hub = NotificationHub(spaces.get, 1.0, lambda _upstream: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.run)
        yield hub, nursery
        nursery.cancel_scope.cancel()


def uris_of(client: Client) -> list[str]:
    return [json.loads(bytes(event.params["uri"])) for event in client.heard]


def join(
    hub: NotificationHub, uri: str, nursery: trio.Nursery, *, said_raw: bool = False, room: int = 10**6
) -> Client:
    """Return a client that listens to a URI. It reads at once as long as there is room."""
    outbox: ClientOutbox = hub.join(ClientOutbox(frozenset()))
    hub.subscribe(outbox, "x", uri, said_raw=said_raw)
    client = Client(outbox, room)
    nursery.start_soon(client.read)
    return client


async def test_a_burst_of_one_update_is_told_once_to_each(autojump_clock):
    async with open_relay({"x": SPACE}) as (hub, nursery):
        clients = [join(hub, "memo:1", nursery) for _ in range(50)]
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(1000):
            hub.tell_update("x", "memo:1")
        await trio.testing.wait_all_tasks_blocked()
        assert [uris_of(client) for client in clients] == [["x+memo:1"]] * 50
        hub.tell_update("x", "memo:1")
        await trio.testing.wait_all_tasks_blocked()
        assert [len(client.heard) for client in clients] == [2] * 50


async def test_clients_of_one_form_share_an_encoded_event(autojump_clock):
    async with open_relay({"x": SPACE}) as (hub, nursery):
        exposed = [join(hub, "file:///a/b", nursery) for _ in range(2)]
        spelled = [join(hub, "file:///a/b", nursery, said_raw=True) for _ in range(2)]
        above = join(hub, "file:///a", nursery)
        await trio.testing.wait_all_tasks_blocked()
        hub.tell_update("x", "file:///a/b")
        await trio.testing.wait_all_tasks_blocked()
        assert [uris_of(client) for client in exposed] == [["x+file:///a/b"]] * 2
        assert [uris_of(client) for client in spelled] == [["file:///a/b"]] * 2
        assert uris_of(above) == ["x+file:///a/b"]
        assert exposed[0].heard[0] is exposed[1].heard[0] is above.heard[0]
        assert spelled[0].heard[0] is spelled[1].heard[0]


async def test_any_number_of_different_updates_takes_bounded_memory_and_none_is_lost(autojump_clock):
    async with open_relay({"x": SPACE}) as (hub, nursery):
        client = join(hub, "memo:/", nursery)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3 * WAITING_LIMIT):
            hub.tell_update("x", f"memo:/{number}")
            assert len(hub._updates) <= WAITING_LIMIT
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(uris_of(client)) == sorted(f"x+memo:/{number}" for number in range(3 * WAITING_LIMIT))


async def test_no_update_overtakes_the_caches_of_other_processes(autojump_clock):
    async with open_relay({"x": SPACE}) as (hub, nursery):
        settled = trio.Event()
        hub.settle = settled.wait
        client = join(hub, "memo:/", nursery)
        numbers = range(2 * WAITING_LIMIT)
        for part in ("l" * (SHORT_CHARS + 1), *numbers):
            hub.tell_update("x", f"memo:/{part}")
            assert len(hub._updates) <= WAITING_LIMIT
        await trio.testing.wait_all_tasks_blocked()
        assert uris_of(client) == []
        settled.set()
        await trio.testing.wait_all_tasks_blocked()
        kept = [f"x+memo:/{number}" for number in numbers[: WAITING_LIMIT - 1]]
        assert uris_of(client) == ["x+memo:/", *kept]


@pytest.mark.parametrize("event", ["another session takes over", "it has another prefix", "we stop"])
async def test_what_was_said_before_something_else_happens_is_told(autojump_clock, event: str):
    spaces = {"x": SPACE, "x@legacy": SPACE}
    async with open_relay(spaces) as (hub, nursery):
        client = join(hub, "memo:1", nursery)
        await trio.testing.wait_all_tasks_blocked()
        hub.tell_update("x", "memo:1")
        if event == "another session takes over":
            hub.move_interest("x", "x@legacy")
            del spaces["x"]
        elif event == "it has another prefix":
            hub.forget("x")
        else:
            hub.close()
        await trio.testing.wait_all_tasks_blocked()
        assert uris_of(client) == ["x+memo:1"]


async def test_a_pass_lets_others_have_their_turn(autojump_clock):
    told_by_turn = [0]

    async def take_turns() -> None:
        while told_by_turn[-1] < 100:
            told_by_turn.append(len(client.heard))
            await trio.lowlevel.checkpoint()

    async with open_relay({"x": SPACE}) as (hub, nursery):
        client = join(hub, "memo:/", nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take_turns)
        for number in range(100):
            hub.tell_update("x", f"memo:/{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert max(after - earlier for earlier, after in pairwise(told_by_turn)) <= 2


# Over HTTP


@asynccontextmanager
async def open_stream(client: HttpClient, revision: str) -> AsyncIterator[Stream]:
    """Open a stream of a client that listens to `memo:1`."""
    if revision == MODERN:
        meta = {VERSION: MODERN, CLIENT_INFO: CLIENT, CAPABILITIES: {}}
        wish = {"notifications": {"resourceSubscriptions": ["x+memo:1"]}, "_meta": meta}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
        body = request("subscriptions/listen", wish, LISTEN_ID)
        async with client.stream("POST", body, headers) as stream:
            message = await stream.message()
            assert message["method"] == "notifications/subscriptions/acknowledged"
            yield stream
        return
    session = await client.initialize(revision)
    await client.send(request("resources/subscribe", {"uri": "x+memo:1"}), session)
    async with client.stream("GET", None, session) as stream:
        yield stream


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_tap_sees_each_update_once_with_the_exchange_of_its_stream(revision: str):
    witness = Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    server = Subscribable(MODERN)
    async with (
        open_endpoint({"x": server, "y": Subscribable(MODERN)}, tap=recorder) as client,
        open_stream(client, revision) as stream,
    ):
        for _ in range(3):
            await server.update("memo:1")
            await next_update(stream)
    seen = [
        exchange
        for exchange in witness.seen
        if (exchange.leg.side, exchange.direction) == ("client", "out")
        and b"resources/updated" in exchange.data
    ]
    assert [json.loads(exchange.data)["params"]["uri"] for exchange in seen] == ["x+memo:1"] * 3
    listens: list[Any] = [exchange for exchange in witness.seen if exchange.method == "subscriptions/listen"]
    listen_number = next((listen.exchange for listen in listens if listen.leg.side == "client"), 0)
    assert {exchange.exchange for exchange in seen} == {listen_number}
    assert {exchange.status for exchange in seen} == {200}
    assert bool(listen_number) == (revision == MODERN)
