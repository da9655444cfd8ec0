"""The view of a tap on exchanges, on both legs and over each kind of transport."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux import app
from mcpmux.channels.tap import Leg, Watch, tapped
from mcpmux.config import Config
from mcpmux.errors import MessageTooLarge, RpcError
from mcpmux.traffic.observer import Exchange, Observation
from mcpmux.traffic.recorder import Recorder
from mcpmux.transports.message_stream import open_line_stream
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.test_asking import ASKED, CAPABILITIES, Curious, call_and_answer, client_of
from tests.runtime.world import World, upstream


class Witness:
    """Remembers everything. `refusal` is raised at the next admission."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.ended_with: list[tuple[Exchange, Any]] = []
        self.refusal: Exception | None = None

    @property
    def passes(self) -> bool:
        return False

    most_waiting = 1

    def expect(self, settle: Callable[[], None]) -> None:
        pass

    def take_all(self, batch: Sequence[Observation]) -> None:
        self.seen += batch

    async def admit(self, exchange: Exchange) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def ended(self, exchange: Exchange, outcome: Any, seconds: float) -> None:
        self.ended_with.append((exchange, outcome))

    def of(self, exchange: int) -> list[tuple[str, str, str, str | None]]:
        """Return the parts of an exchange: (leg, direction, kind, method)."""
        return [
            (seen.leg.side, seen.direction, seen.kind, seen.method)
            for seen in self.seen
            if seen.exchange == exchange
        ]

    def last(self, method: str) -> int:
        """Return the newest exchange of a method."""
        return max(e.number for e, _ in self.ended_with if e.call.method == method)


@asynccontextmanager
async def open_watched(servers: dict[str, ScriptedServer]) -> AsyncIterator[tuple[World, Witness]]:
    """Open mcpmux with a witness between scripted servers and clients."""
    world, witness = World(servers), Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    config = Config(upstreams=tuple(upstream(name, era="newest") for name in servers))
    async with (
        app.open_mux(config, world.open_channel, recorder) as world.mux,
        trio.open_nursery() as world.nursery,
    ):
        yield world, witness
        world.nursery.cancel_scope.cancel()


def docs(revision: str = MODERN) -> ScriptedServer:
    async def read(server: ScriptedServer, params: Json, _message: Json) -> Json:
        if params["uri"] != "memo:1":
            raise RpcFailure(-32602 if server.modern else -32002, "no such resource")
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if server.modern else {}
        return {"contents": [{"uri": "memo:1", "text": "x"}]} | more

    return ScriptedServer(
        revision, resources=[{"uri": "memo:1", "name": "m"}], handlers={"resources/read": read}
    )


@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_a_read_is_seen_on_both_legs(down, up, autojump_clock):
    async with open_watched({"x": docs(up), "y": docs(up)}) as (world, witness):
        client = await client_of(world, down)
        await client.request("resources/read", {"uri": "x+memo:1"})
        number = witness.last("resources/read")
        await trio.testing.wait_all_tasks_blocked()
        assert witness.of(number) == [
            ("client", "in", "request", "resources/read"),
            ("upstream", "out", "request", "resources/read"),
            ("upstream", "in", "result", "resources/read"),
            ("client", "out", "result", "resources/read"),
        ]
        legs = {seen.leg.side: seen.leg for seen in witness.seen if seen.exchange == number}
        assert (legs["upstream"].peer, legs["upstream"].revision) == ("x", up)
        assert (legs["client"].name, legs["client"].revision) == ("scripted", down)
        targets = [seen.target for seen in witness.seen if seen.exchange == number and seen.target]
        assert targets == ["x+memo:1", "memo:1"]
        exchange, outcome = witness.ended_with[-1]
        assert (exchange.number, exchange.upstreams) == (number, ["x"])
        assert "contents" in outcome


async def test_what_is_seen_is_what_is_on_the_wire(autojump_clock):
    server = docs()
    async with open_watched({"x": server, "y": docs()}) as (world, witness):
        client = await client_of(world, MODERN)
        await client.request("resources/read", {"uri": "x+memo:1"})
        sent = [json.loads(s.data) for s in witness.seen if s.leg.peer == "x" and s.direction == "out"]
        assert sent == server.seen


async def test_a_list_is_one_exchange_with_every_upstream(autojump_clock):
    async with open_watched({"x": docs(), "y": docs(LEGACY)}) as (world, witness):
        client = await client_of(world, MODERN)
        await client.request("resources/list")
        exchange, _ = witness.ended_with[-1]
        assert sorted(exchange.upstreams) == ["x", "y"]
        peers = [s.leg.peer for s in witness.seen if s.exchange == exchange.number and s.kind == "request"]
        assert sorted(peers) == ["c1", "x", "y"]


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_a_question_of_a_server_belongs_to_the_call(down, autojump_clock):
    async with open_watched({"x": Curious(LEGACY, "roots/list"), "y": docs()}) as (world, witness):
        client = await client_of(world, down, CAPABILITIES)
        await call_and_answer(client, {"result": ASKED["roots/list"][1]})
        questions = [s for s in witness.seen if s.method == "roots/list" and s.leg.side == "upstream"]
        assert [(s.direction, s.kind) for s in questions] == [("in", "request"), ("out", "result")]
        assert questions[0].exchange in [
            e.number for e, _ in witness.ended_with if e.call.method == "tools/call"
        ]
        assert questions[0].exchange == questions[1].exchange


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_errors_and_cut_off_exchanges_are_told(down, autojump_clock):
    async def hang(_server: Any, _params: Json, _message: Json) -> Json:
        await trio.sleep_forever()
        raise AssertionError

    slow = ScriptedServer(
        tools=[{"name": "t", "inputSchema": {"type": "object"}}], handlers={"tools/call": hang}
    )
    async with open_watched({"x": docs(), "slow": slow}) as (world, witness):
        client = await client_of(world, down)
        with pytest.raises(RpcFailure):
            await client.request("resources/read", {"uri": "x+memo:2"})
        assert witness.ended_with[-1][1].code in (-32602, -32002)
        await client.start("tools/call", {"name": "slow__t"})
        await trio.testing.wait_all_tasks_blocked()
        await client.vanish()
        await trio.sleep(30)
        assert isinstance(witness.ended_with[-1][1], trio.Cancelled)
        assert witness.ended_with[-1][0].call.method == "tools/call"


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_what_is_not_admitted_is_not_done(down, autojump_clock):
    server = docs()
    async with open_watched({"x": server, "y": docs()}) as (world, witness):
        client = await client_of(world, down)
        await client.request("resources/list")
        count = len(server.seen)
        witness.refusal = RpcError(-31003, "Busy: the log cannot be written")
        with pytest.raises(RpcFailure, match="cannot be written"):
            await client.request("resources/read", {"uri": "x+memo:1"})
        assert len(server.seen) == count


async def test_what_is_left_of_a_message_past_the_limit_is_seen(autojump_clock):
    witness = Witness()
    recorder = Recorder([witness], [], trio.current_time)
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_line_stream(ours, 2000) as messages:
        tapped_messages = tapped(messages, Watch(recorder, Leg("upstream", "x", "stdio", "x")))
        await theirs.send_all(b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 3000 + b'"}\n')
        with pytest.raises(MessageTooLarge):
            await tapped_messages.receive()
    (seen,) = witness.seen
    assert (seen.kind, seen.id) == ("invalid", 1)
    assert seen.data.startswith(b'{"jsonrpc":"2.0","id":1,"result":"xxx')
