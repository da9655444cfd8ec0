"""A tap on clients over HTTP sees each message once, unchanged, with its exchange. On a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux import app
from mcpmux.config import Config, Http, Merging, Upstream
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.recorder import Recorder
from mcpmux.transports.inline import in_task
from tests.channels.test_tap import Witness
from tests.peers.http_client import HttpClient, request
from tests.peers.http_server import HttpFace, open_http_face
from tests.peers.revision import CLIENT_INFO, LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.http_world import HttpWorld
from tests.runtime.test_asking import ASKED, CAPABILITIES, Curious, call_and_answer, client_of
from tests.runtime.test_flows import docs
from tests.runtime.world import World, upstream

WINDOW = Merging(change_window=0.001)


def client_side(witness: Witness, direction: str) -> list[Any]:
    return [
        json.loads(seen.data)
        for seen in witness.seen
        if seen.leg.side == "client" and seen.direction == direction
    ]


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_each_message_of_a_client_is_seen_once_as_it_was(revision: str):
    witness = Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    async with open_endpoint({"x": docs(), "y": docs()}, tap=recorder) as client:
        if revision == MODERN:
            answer = await client.modern("resources/list")
        else:
            session = await client.initialize()
            answer = await client.send(request("resources/list", request_id="r"), session)
    assert client_side(witness, "out").count(answer.last) == 1
    requests = [seen for seen in witness.seen if seen.method == "resources/list" and seen.kind == "request"]
    assert sorted(seen.leg.peer for seen in requests) == ["c1", "x", "y"]
    assert len({seen.exchange for seen in requests}) == 1
    [answered] = [s for s in witness.seen if s.leg.side == "client" and json.loads(s.data) == answer.last]
    assert (answered.exchange, answered.status) == (requests[0].exchange, 200)
    if revision == LEGACY:
        assert {seen.leg.session for seen in witness.seen if seen.leg.side == "client"} == {
            session["Mcp-Session-Id"]
        }


async def test_clients_of_one_connection_keep_their_names():
    """A proxy before mcpmux may send requests of several clients over one connection."""
    witness = Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    async with open_endpoint({"x": docs()}, tap=recorder) as client:
        for name in ("ann", "bob", "ann"):
            meta = {CLIENT_INFO: {"name": name, "version": "1"}}
            await client.modern("resources/list", {"_meta": meta})
    legs = [seen.leg for seen in witness.seen if seen.leg.side == "client" and seen.direction == "in"]
    assert [(leg.peer, leg.name) for leg in legs] == [("c1", "ann"), ("c2", "bob"), ("c1", "ann")]


@asynccontextmanager
async def open_behind_http(server: ScriptedServer) -> AsyncIterator[tuple[World, Witness, Witnessed]]:
    """Open mcpmux with a witness between `server`, over HTTP, and clients in memory."""
    world, witness = World({}), Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    face_class = Witnessed
    with trio.fail_after(60):
        async with open_http_face(server, face_class) as face:
            config = Config(
                upstreams=(Upstream(name="x", target=Http(face.url), era="newest"),), merging=WINDOW
            )
            async with (
                app.open_mux(config, tap=recorder) as world.mux,
                trio.open_nursery() as world.nursery,
            ):
                assert isinstance(face, Witnessed)
                await world.mux.upstreams["x"].supervision.settled()
                await trio.testing.wait_all_tasks_blocked(0.05)  # until its appearance is announced
                yield world, witness, face
                world.nursery.cancel_scope.cancel()


class Witnessed(HttpFace):
    """Remembers what it said, as it was."""

    def __init__(self, server: ScriptedServer) -> None:
        super().__init__(server)
        self.said: list[Any] = []

    async def send(self, data: bytes, about: Any = None) -> None:
        self.said.append(json.loads(data))
        await super().send(data, about)


def upstream_side(witness: Witness, direction: str) -> list[Any]:
    return [
        json.loads(seen.data)
        for seen in witness.seen
        if seen.leg.side == "upstream" and seen.direction == direction
    ]


@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_each_message_of_an_upstream_is_seen_once_as_it_was(down: str, up: str):
    async with open_behind_http(Curious(up, "roots/list")) as (world, witness, face):
        client = world.client()
        client.capabilities = CAPABILITIES
        if down != MODERN:
            await client.initialize(down)
        await call_and_answer(client, {"result": ASKED["roots/list"][1]})
        messages = upstream_side(witness, "out")
        assert messages == [message for message in face._server.seen if message]
        assert upstream_side(witness, "in") == face.said
        assert {s.status for s in witness.seen if s.leg.side == "upstream" and s.direction == "in"} == {200}
        calls = [e.number for e, _ in witness.ended_with if e.call.method == "tools/call"]
        answered = [s for s in witness.seen if s.leg.side == "upstream" and s.method == "tools/call"]
        assert set() < {seen.exchange for seen in answered} <= set(calls)
        if up != MODERN:
            questions = [s for s in witness.seen if s.leg.side == "upstream" and s.method == "roots/list"]
            assert [(s.direction, s.kind) for s in questions] == [("in", "request"), ("out", "result")]
            assert {seen.exchange for seen in questions} <= set(calls)
            session = {s.leg.session for s in witness.seen if s.leg.side == "upstream"}
            assert session == {face._session}


class Keeping(Witness):
    """Wants to know how each exchange ends."""

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[str] = []

    async def admit(self, exchange: Exchange) -> None:
        await in_task()
        await trio.lowlevel.checkpoint()
        self.admitted.append(exchange.call.method)


class Open(Keeping):
    """Would hold exchanges back, and never does."""

    passes = True


class Shut(Keeping):
    """The same, and it holds all of them back for a moment."""

    passes = False


class Turning(Keeping):
    """Holds every other one back."""

    _turns = 0

    @property
    def passes(self) -> bool:
        self._turns += 1
        return self._turns % 2 == 0


WITNESSES = pytest.mark.parametrize("kind", [Witness, Keeping, Open, Shut, Turning])


def recorder_of(witness: Witness) -> Recorder:
    return Recorder([witness], [] if type(witness) is Witness else [witness], trio.current_time)


def check_admissions(witness: Witness, count: int, recorder: Recorder) -> None:
    """Check that closed or kept observers saw each read, and open ones those that met a new server."""
    assert recorder._exchanges == {}
    if not isinstance(witness, Keeping):
        return
    reads = witness.admitted.count("resources/read")
    ended = [e for e, _ in witness.ended_with if e.call.method == "resources/read"]
    assert len(ended) == reads
    if isinstance(witness, Open):
        assert reads < count / 2
    elif isinstance(witness, Turning):
        assert 0 < reads < count
    else:
        assert reads == count


def check_apart(witness: Witness, count: int) -> None:
    """Check that as many reads were seen, each once on both legs, under its own number."""
    reads = [seen for seen in witness.seen if seen.method == "resources/read"]
    exchanges = {seen.exchange for seen in reads if seen.leg.side == "client"}
    assert len(exchanges) == count
    for exchange in exchanges:
        theirs = [seen for seen in reads if seen.exchange == exchange]
        assert [(seen.leg.side, seen.direction, seen.kind) for seen in theirs] == [
            ("client", "in", "request"),
            ("upstream", "out", "request"),
            ("upstream", "in", "result"),
            ("client", "out", "result"),
        ]
        assert (theirs[0].target or "").startswith(f"{theirs[1].leg.upstream}+")


@WITNESSES
@pytest.mark.parametrize("up", [LEGACY, MODERN])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_calls_of_many_http_clients_are_told_apart(down: str, up: str, kind: type[Witness]):
    witness = kind()
    servers: dict[str, Any] = {"x": docs(up), "y": docs(up)}

    async def ask_often(client: HttpClient, session: Json | None, name: str) -> None:
        for number in range(8):
            uri = f"{'xy'[number % 2]}+memo:1"
            if session is None:
                answer = await client.modern("resources/read", {"uri": uri})
            else:
                message = request("resources/read", {"uri": uri}, f"{name}-{number}")
                answer = await client.send(message, session)
            assert answer.last["result"]["contents"][0]["uri"] == uri

    settings, recorder = {"caching": False}, recorder_of(witness)
    async with (
        open_endpoint(
            servers,
            tap=recorder,
            world_class=HttpWorld,
            settings={"x": settings, "y": settings},
        ) as client,
        trio.open_nursery() as nursery,
    ):
        for name in "abcd":
            session = await client.initialize(down) if down != MODERN else None
            nursery.start_soon(ask_often, client, session, name)
    check_apart(witness, 32)
    check_admissions(witness, 32, recorder)


@WITNESSES
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_calls_of_a_stream_client_are_told_apart(down: str, kind: type[Witness], autojump_clock):
    world, witness = World({"x": docs(LEGACY), "y": docs(LEGACY)}), kind()
    config = Config(upstreams=tuple(upstream(name, era="newest") for name in "xy"))
    async with (
        app.open_mux(config, world.open_channel, recorder_of(witness)) as world.mux,
        trio.open_nursery() as world.nursery,
    ):
        client = await client_of(world, down)
        for name in "xyxyxy":
            await client.request("resources/read", {"uri": f"{name}+memo:1"})
        await trio.testing.wait_all_tasks_blocked()
        world.nursery.cancel_scope.cancel()
    check_apart(witness, 6)
