"""The detection of the era of an HTTP upstream, also of one that answers the probe with something else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.errors import RpcError
from mcpmux.protocol.revisions import LEGACY
from mcpmux.upstreams import connection
from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.web import JSON, TOOLS, Web, initialize
from tests.runtime.bad_answers import DENIED, NO_ANSWER, Bad, saying
from tests.runtime.web_world import exchange, open_web
from tests.runtime.world import open_world

NEWEST = "2026-07-28"
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
FACTS = {"supportedVersions": [NEWEST], "capabilities": TOOLS} | COMPLETE


async def refuse_version(reply: Any, message: Json, *supported: str) -> None:
    data = {"supported": supported, "requested": NEWEST}
    error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
    body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
    await reply.send(400, JSON, json.dumps(body).encode())


async def test_a_server_that_refuses_a_version_which_it_lists_is_asked_again():
    async def script(web: Web, _request: Any, message: Json, reply: Any) -> None:
        if web.methods() == ["server/discover"]:
            await refuse_version(reply, message, "2025-11-25", NEWEST)
        elif message["method"] == "server/discover":
            await web.answer(reply, message, FACTS)
        else:
            await web.answer(reply, message, {"contents": []} | COMPLETE)

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        assert web.methods() == ["server/discover", "server/discover", "resources/read"]


@pytest.mark.parametrize(
    ("listed", "discovers"), [(["2025-11-25", NEWEST], 2), (["2025-11-25"], 1)], ids=["listed", "not listed"]
)
async def test_a_server_that_refuses_a_version_gets_an_older_one(listed, discovers):
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "server/discover":
            await refuse_version(reply, message, *listed)
        elif not await initialize(web, request, message, reply) and message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        assert web.methods()[: discovers + 1] == ["server/discover"] * discovers + ["initialize"]


@pytest.mark.parametrize(
    ("supported", "words"),
    [(["2099-01-01"], "no revision in common; it supports 2099-01-01"), ([NEWEST], "it refuses revision")],
)
async def test_a_server_without_a_common_revision_is_not_asked_to_initialize(supported, words):
    async def script(_web: Web, _request: Any, message: Json, reply: Any) -> None:
        await refuse_version(reply, message, *supported)

    async with open_web(script) as (web, mux):
        with pytest.raises(RpcError, match=words):
            await exchange(mux, "resources/read", {"uri": "a:1"})
        assert set(web.methods()) == {"server/discover"}


async def test_the_newest_revision_is_offered_once():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "server/discover":
            await refuse_version(reply, message, "2025-11-25")
        elif not await initialize(web, request, message, reply) and message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        await exchange(mux, "resources/read", {"uri": "a:1"})
        assert web.methods()[:2] == ["server/discover", "initialize"]


# Servers that refuse a legacy revision instead of answering with one that they speak

SPEC_EXAMPLE: Json = {
    "code": -32602,
    "message": "Unsupported protocol version",
    "data": {"supported": ["2024-11-05", "2025-03-26"], "requested": "1.0.0"},
}
WITHOUT_LIST: Json = {"code": -32602, "message": "Invalid protocol version"}
TEXT = b"Bad Request: Unsupported protocol version (supported versions: 2025-03-26, 2024-11-05)"


def asked_revisions(messages: list[Json]) -> list[str]:
    handshakes = (
        message.get("params") or {} for message in messages if message.get("method") == "initialize"
    )
    return [params["protocolVersion"] for params in handshakes]


@pytest.mark.parametrize(
    ("status", "refusal", "asked"),
    [
        (200, SPEC_EXAMPLE, ["2025-11-25", "2025-03-26"]),
        (400, SPEC_EXAMPLE, ["2025-11-25", "2025-03-26"]),
        (400, TEXT, ["2025-11-25", "2025-03-26"]),
        (400, WITHOUT_LIST, ["2025-11-25", "2025-06-18", "2025-03-26"]),
        (400, b"Unsupported protocol version", ["2025-11-25", "2025-06-18", "2025-03-26"]),
    ],
)
async def test_a_refusing_http_server_is_offered_an_older_revision(status, refusal, asked):
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        method, params = message["method"], message.get("params") or {}
        if method == "initialize" and params["protocolVersion"] > "2025-03-26":
            body = refusal
            if not isinstance(refusal, bytes):
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}).encode()
            await reply.send(status, JSON, body)
        elif method == "initialize":
            result = {"protocolVersion": params["protocolVersion"], "capabilities": TOOLS, "serverInfo": {}}
            await web.answer(reply, message, result)
        elif not await initialize(web, request, message, reply) and method == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        facts = mux.upstreams["web"].facts
        assert facts is not None and facts.revision == "2025-03-26"
        assert asked_revisions([message for _, message in web.seen]) == asked


def choosy(revision: str | None, refusal: Json) -> ScriptedServer:
    """Return a server that refuses to initialize in another revision than this; None: in any."""

    async def answer(server: ScriptedServer, params: Json, _message: Json) -> Json:
        if params["protocolVersion"] != revision:
            raise RpcFailure(**refusal)
        return server._initialize()

    return ScriptedServer(revision or LEGACY[-1], tools=[], handlers={"initialize": answer})


@pytest.mark.parametrize("refusal", [SPEC_EXAMPLE, WITHOUT_LIST])
async def test_a_refusing_stdio_server_is_offered_an_older_revision(refusal, autojump_clock):
    server = choosy("2024-11-05", refusal)
    async with open_world({"a": server}) as world:
        await world.mux.upstreams["a"].supervision.settled()
        facts = world.mux.upstreams["a"].facts
        assert facts is not None and facts.revision == "2024-11-05"
        assert world.connects == {"a": 1}


@pytest.mark.parametrize("refusal", [{"code": -32603, "message": "no"}, WITHOUT_LIST])
async def test_a_server_that_refuses_all_revisions_is_asked_for_each_once(refusal, autojump_clock):
    server = choosy(None, refusal)
    async with open_world({"a": server}) as world:
        await world.mux.upstreams["a"].supervision.settled()
        upstream = world.mux.upstreams["a"]
        assert upstream.status.trouble == f"it refused to initialize: {refusal['message']}"
        revisions = list(LEGACY[::-1]) if refusal is WITHOUT_LIST else [LEGACY[-1]]
        assert asked_revisions(server.seen) == revisions


@pytest.mark.parametrize("revision", LEGACY)
async def test_a_pinned_revision_is_the_only_one_that_is_asked_for(revision, autojump_clock):
    settings = {"a": {"revision": revision}, "b": {"revision": revision}, "c": {"revision": revision}}
    servers = {"a": choosy(revision, WITHOUT_LIST), "b": choosy(None, WITHOUT_LIST)}
    servers["c"] = ScriptedServer(NEWEST, tools=[])
    async with open_world(servers, settings=settings) as world:
        for upstream in world.mux.upstreams.values():
            await upstream.supervision.settled()
        facts = world.mux.upstreams["a"].facts
        assert facts is not None and facts.revision == revision
        assert set(asked_revisions(servers["b"].seen)) == {revision}
        assert {message["method"] for message in servers["c"].seen} == {"initialize"}
        assert not world.mux.upstreams["b"].facts and not world.mux.upstreams["c"].facts


async def test_a_server_that_does_not_speak_the_pinned_revision_is_told(autojump_clock):
    settings = {"a": {"revision": "2025-03-26"}, "b": {"revision": NEWEST}}
    servers = {"a": ScriptedServer("2025-11-25", tools=[]), "b": ScriptedServer("2025-11-25", tools=[])}
    async with open_world(servers, settings=settings) as world:
        for upstream in world.mux.upstreams.values():
            await upstream.supervision.settled()
        assert [upstream.status.trouble for upstream in world.mux.upstreams.values()] == [
            f"it does not speak revision {revision}; it answered with 2025-11-25"
            for revision in ("2025-03-26", NEWEST)
        ]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real sockets have no virtual time: the probe waits a shorter time."""
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.2)


def cases(*tables: dict[str, Any]) -> Any:
    merged = {name: value for table in tables for name, value in table.items()}
    return [pytest.param(value, id=name) for name, value in merged.items()]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("bad", cases({name: bad for name, (bad, _) in NO_ANSWER.items()}))
async def test_a_legacy_server_is_found_behind_any_answer_to_the_probe(bad: Bad):
    await find_legacy_server(bad)


@pytest.mark.parametrize("bad", cases(saying(400), saying(404), saying(405)))
async def test_a_legacy_server_is_found_behind_a_refusal_with_any_body(bad: Bad):
    await find_legacy_server(bad)


async def find_legacy_server(bad: Bad) -> None:
    """Find a legacy server, in which `bad` answers everything before `initialize`."""

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "server/discover":
            await bad(message, reply)
        elif not await initialize(web, request, message, reply) and message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        assert web.methods()[:2] == ["server/discover", "initialize"]


@pytest.mark.parametrize("case", cases(DENIED))
async def test_a_server_that_denies_access_is_asked_nothing_more(case: tuple[Bad, str]):
    async def script(_web: Web, _request: Any, message: Json, reply: Any) -> None:
        await case[0](message, reply)

    async with open_web(script) as (web, mux):
        with pytest.raises(RpcError):
            await exchange(mux, "resources/read", {"uri": "a:1"})
        assert set(web.methods()) == {"server/discover"}
