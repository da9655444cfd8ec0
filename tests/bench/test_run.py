"""Whole runs over memory pipes, in both eras and virtual time; the scripted servers check what they get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.bench.operation import parse_operation
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import Results
from mcpmux.bench.run import Run
from mcpmux.bench.workload import parse_flow
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.config import Upstream
from mcpmux.errors import ConfigError, TransportError
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.peers.subscribable import SUBSCRIPTION_ID, Subscribable
from tests.runtime.world import upstream

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ERAS = pytest.mark.parametrize("revision", [LEGACY, MODERN])
URIS = [f"memo:{number}" for number in range(10)]


class Place:
    """Where the sessions of a run lead to: a server each, or one for all.

    `cut` ends their streams. `kill` does so, too, and refuses new ones.
    """

    def __init__(self, *servers: ScriptedServer) -> None:
        self._servers = servers
        self._pipes: list[Any] = []
        self._turn = 0
        self._dead = False

    @asynccontextmanager
    async def open(self, _upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        if self._dead:
            raise TransportError("nobody there")
        server = self._servers[self._turn % len(self._servers)]
        self._turn += 1
        ours, theirs = open_memory_pipes(1000)
        self._pipes.append(theirs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            async with open_duplex_channel(ours, hear) as link:
                yield link
            await ours.aclose()
            nursery.cancel_scope.cancel()

    async def cut(self) -> None:
        while self._pipes:
            await self._pipes.pop().aclose()

    async def kill(self) -> None:
        self._dead = True
        await self.cut()


def read_after(seconds: float, texts: dict[str, list[str]] | None = None) -> Any:
    """Return a handler of `resources/read` that takes its time. `texts`: the texts of a URI, read by read."""

    async def read(server: ScriptedServer, params: Json, _message: Json) -> Json:
        await trio.sleep(seconds)
        uri = params["uri"]
        versions = (texts or {}).get(uri)
        text = uri if versions is None else versions.pop(0) if len(versions) > 1 else versions[0]
        modern = {"resultType": "complete", **CACHE} if server.modern else {}
        return {"contents": [{"uri": uri, "text": text}], **modern}

    return read


def make_server(revision: str, seconds: float = 0.01, **more: Any) -> ScriptedServer:
    handlers = {"resources/read": read_after(seconds), **more.pop("handlers", {})}
    resources = [{"uri": uri, "name": uri} for uri in URIS]
    return ScriptedServer(revision, resources=resources, page_size=3, handlers=handlers, **more)


async def measure(place: Place, **settings: Any) -> Results:
    settings.setdefault("warm_up", 0.0)
    flows = tuple(parse_flow(text) for text in settings.pop("do", ()))
    results = await Run(
        upstream("x"), Plan(flows=flows, **settings), place.open, cpu=lambda: 0.0, waited=lambda: 0.0
    ).measure()
    assert results is not None
    return results


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@ERAS
async def test_reads_are_measured_in_both_eras(autojump_clock, revision: str) -> None:
    results = await measure(Place(make_server(revision)), clients=2, duration=1.0)
    assert results.about.revision == revision
    (read,) = results.operations.values()
    assert read.count == 200
    assert read.errors == {}
    assert read.latency.percentile(99) == pytest.approx(0.01, rel=0.01)
    assert read.sent_bytes > 0 < read.received_bytes


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN])
async def test_every_revision_can_be_forced(autojump_clock, revision: str) -> None:
    server = make_server(revision)
    results = await measure(Place(server), clients=1, duration=0.1, revision=revision)
    assert results.about.revision == revision
    handshakes = [message["params"] for message in server.seen if message.get("method") == "initialize"]
    assert [params["protocolVersion"] for params in handshakes] == ([] if revision == MODERN else [revision])


async def test_a_server_of_another_revision_is_told(autojump_clock) -> None:
    with pytest.raises(BaseException) as caught:
        await measure(Place(make_server(LEGACY)), revision="2025-03-26", duration=1.0)
    (error,) = leaves(caught.value)
    assert str(error) == "it does not speak revision 2025-03-26; it answered with 2025-11-25"


@ERAS
async def test_lists_are_walked_to_their_end(autojump_clock, revision: str) -> None:
    server = make_server(revision)
    results = await measure(Place(server), do=["list"], clients=1, count=5, duration=1.0)
    assert results.operations["list resources"].count == 5
    assert server.pages == {("resources/list", cursor): 5 for cursor in (None, "3", "6", "9")}


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_subscriptions_are_taken_and_given_back(autojump_clock, revision: str) -> None:
    server = Subscribable(revision)
    results = await measure(Place(server), do=["subscribe memo:*"], clients=1, count=6, duration=1.0)
    (subscribe,) = results.operations.values()
    assert (subscribe.count, subscribe.errors) == (6, {})
    assert server.subscribed == set()


async def test_wrong_answers_are_errors_when_reads_are_checked(autojump_clock) -> None:
    """The server forgets a word of one resource after two reads, and swaps two letters of another."""
    texts = {"memo:1": ["all of it"] * 2 + ["all of"], "memo:2": ["ab"] * 2 + ["ba"]}
    for check, wrong in (("hash", 2), ("length", 1), (None, 0)):
        copies = {uri: list(answers) for uri, answers in texts.items()}
        server = make_server(MODERN, handlers={"resources/read": read_after(0.01, copies)})
        results = await measure(
            Place(server), do=["read memo:1", "read memo:2"], clients=1, count=200, duration=10.0, check=check
        )
        failing = [part for part in results.operations.values() if part.errors]
        assert len(failing) == wrong
        for part in failing:
            assert part.errors == {"wrong answer": part.count - 2}


async def test_errors_are_counted_by_kind(autojump_clock) -> None:
    async def call(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        await trio.sleep(0.01)
        if params["name"] == "missing":
            raise RpcFailure(-32602, "no such tool")
        if params["name"] == "strange":
            return {"resultType": "input_required", "inputRequests": {}, "requestState": "x"}
        failed = params["name"] == "fail"
        content = [{"type": "text", "text": "no  disk,\npassword=hunter2"}]
        return {"resultType": "complete", "content": content, **({"isError": True} if failed else {})}

    server = make_server(MODERN, tools=[], handlers={"tools/call": call})
    do = ["tool fine", "tool missing", "tool fail", "tool strange"]
    results = await measure(Place(server), do=do, clients=1, count=40, duration=10.0)
    kinds = {name: set(part.errors) for name, part in results.operations.items()}
    assert kinds == {
        "tool fine": set(),
        "tool missing": {"rpc -32602"},
        "tool fail": {"tool_error"},
        "tool strange": {"input_required"},
    }
    assert results.examples == {
        "tool missing: rpc -32602": "no such tool",
        "tool fail: tool_error": "no disk, password=[redacted: password]",
    }


async def test_sessions_share_the_clients(autojump_clock) -> None:
    servers = [make_server(LEGACY) for _ in range(3)]
    results = await measure(Place(*servers), clients=6, sessions=3, duration=0.5)
    assert results.connections.count == 3
    reads = [sum(m.get("method") == "resources/read" for m in server.seen) for server in servers]
    assert min(reads) >= 99


async def test_a_server_that_dies_leaves_what_was_measured(autojump_clock) -> None:
    place = Place(make_server(MODERN))

    async def kill() -> None:
        await trio.sleep(2.005)
        await place.kill()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        results = await measure(place, clients=1, duration=60.0)
    assert results.stopped == "the server is gone: nobody there"
    (read,) = results.operations.values()
    assert read.count - read.failed == pytest.approx(200, abs=2)
    assert set(read.errors) == {"connection lost"}


async def test_stopping_keeps_what_was_measured(autojump_clock) -> None:
    place = Place(make_server(MODERN))
    run = Run(
        upstream("x"),
        Plan(clients=2, duration=60.0, warm_up=0.0),
        place.open,
        cpu=lambda: 0.0,
        waited=lambda: 0.0,
    )
    outcomes: list[Results | None] = []

    async def go() -> None:
        outcomes.append(await run.measure())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go)
        await trio.sleep(1.005)
        run.stop("interrupted")
    (results,) = outcomes
    assert results is not None
    assert results.stopped == "interrupted"
    assert results.unfinished == 2
    assert results.overall().count == pytest.approx(200, abs=2)
    assert results.seconds == pytest.approx(1, abs=0.01)


MISSING = {
    "nothing to read": ({"do": ["read http:*"]}, "lists no resource that matches http:*"),
    "no ping": ({"do": ["ping"]}, "revision 2026-07-28 has none"),
    "too few resources": (
        {"push": 'tool touch {"u": "{{uri}}"}', "resources": 11},
        "lists 10 such resources",
    ),
}


@pytest.mark.parametrize(("settings", "words"), MISSING.values(), ids=MISSING)
async def test_what_the_server_has_not_is_told(autojump_clock, settings: dict[str, Any], words: str) -> None:
    settings = dict(settings)
    if "push" in settings:
        settings["push"] = parse_operation(settings["push"])
    with pytest.raises(BaseException) as caught:
        await measure(Place(make_server(MODERN), make_server(MODERN)), **settings)
    (error,) = leaves(caught.value)
    assert isinstance(error, ConfigError)
    assert words in str(error)


async def test_a_server_with_nothing_but_tools_is_asked_for_them(autojump_clock) -> None:
    server = ScriptedServer(MODERN, tools=[])
    results = await measure(Place(server), clients=1, count=3, duration=1.0)
    assert set(results.operations) == {"list tools"}


async def test_nobody_there_is_told(autojump_clock) -> None:
    @asynccontextmanager
    async def refuse(*_: Any) -> AsyncIterator[Any]:
        raise TransportError("nobody there")
        yield

    with pytest.raises(BaseException) as caught:
        await Run(upstream("x"), Plan(sessions=3), refuse).measure()
    assert str(leaves(caught.value)[0]) == "nobody there"


class Telling(Subscribable):
    """Tells its own subscriber of a change after `delay`; `times`: how often."""

    def __init__(self, revision: str, world: list[Telling], delay: float, times: int = 1) -> None:
        super().__init__(revision, uris=URIS)
        self._world = world
        self._delay = delay
        self._times = times
        world.append(self)
        self.handlers["tools/call"] = self._touch

    async def _touch(self, _server: ScriptedServer, params: Json, _message: Json) -> Json:
        for server in self._world:
            server.nursery.start_soon(server.tell, params["arguments"]["uri"])
        modern = {"resultType": "complete"} if self.modern else {}
        return {"content": [], **modern}

    async def serve(self, pipe: Any) -> None:
        async with trio.open_nursery() as self.nursery:
            await super().serve(pipe)
            self.nursery.cancel_scope.cancel()

    async def tell(self, uri: str) -> None:
        for _ in range(self._times):
            await trio.sleep(self._delay)
            if uri in self._legacy:
                await self.send({"method": "notifications/resources/updated", "params": {"uri": uri}})
            for listen, wish in self._listens.items():
                if uri in wish.get("resourceSubscriptions", []):
                    params = {"uri": uri, "_meta": {SUBSCRIPTION_ID: listen}}
                    await self.send({"method": "notifications/resources/updated", "params": params})


PUSH = parse_operation('tool touch {"uri": "{{uri}}"}')


@ERAS
async def test_pushes_are_timed_and_counted(autojump_clock, revision: str) -> None:
    """Four subscribers: two are notified after 20 ms, one twice, and one never."""
    world: list[Telling] = []
    changer = Telling(revision, world, 0.02)
    servers = [Telling(revision, world, 0.02), Telling(revision, world, 0.02)]
    servers += [Telling(revision, world, 0.02, times=2), Telling(revision, world, 0.02, times=0)]
    place = Place(changer, *servers)
    results = await measure(
        place, push=PUSH, sessions=4, resources=3, count=6, duration=60.0, timeout=1.0, revision=revision
    )
    pushes = results.fan_out
    assert pushes is not None
    assert (pushes.changes, pushes.expected) == (6, 24)
    assert (pushes.deliveries, pushes.losses, pushes.duplicates) == (18, 6, 6)
    assert pushes.delay.percentile(50) == pytest.approx(0.02, rel=0.01)
    assert results.operations["tool touch"].count == 6
