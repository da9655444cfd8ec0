"""Servers over HTTP that have too much to do, fail, or forget their sessions: on real sockets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import trio

from mcpmux.channels import http_peer
from mcpmux.errors import RpcError
from mcpmux.mux.breaker import FAILURES
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.envelope import raw
from mcpmux.upstreams import health, supervision
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.web import JSON, TOOLS, Web, initialize
from tests.runtime.web_world import exchange, open_web

BUSY_JSON = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"slow down"}}'


class Troubled:
    """Answers reads and tool calls in its era after as many refusals as are in `refusals`.

    A refusal is (status, headers, body); each such call uses up one. `sessions` counts those that a legacy
    server has opened; `forgotten` is what it answers to all that comes with another one than the last.
    """

    def __init__(self, era: str, *refusals: tuple[int, Any, bytes]) -> None:
        self.era = era
        self.refusals = list(refusals)
        self.sessions = 0
        self.forgotten: tuple[int, Any, bytes] = (404, (), b"")
        self.calls = 0
        self.alive = True

    async def __call__(self, web: Web, request: Any, message: Json, reply: Any) -> None:
        method = message["method"]
        if method == "initialize" and self.era == LEGACY and self.alive:
            self.sessions += 1
        elif self.era == LEGACY and request.headers.get("mcp-session-id", self._session) != self._session:
            await self._refuse(message, reply, self.forgotten)
            return
        if not self.alive:
            await reply.send(503, (), b"")
        elif method in ("resources/read", "tools/call"):
            self.calls += 1
            await self._answer(web, message, reply)
        elif self.era == MODERN and method == "server/discover":
            facts = {
                "supportedVersions": [MODERN],
                "capabilities": TOOLS,
                "ttlMs": 0,
                "cacheScope": "private",
            }
            await web.answer(reply, message, {"resultType": "complete"} | facts)
        elif self.era == LEGACY and method == "ping":
            await web.answer(reply, message, {})
        elif method == "resources/list":
            await web.answer(reply, message, {"resources": []})
        elif self.era == LEGACY:
            await initialize(web, request, message, reply, self._session)

    async def _refuse(self, message: Json, reply: Any, refusal: tuple[int, Any, bytes]) -> None:
        status, headers, body = refusal
        await reply.send(status, headers, body.replace(b"ID,", b"%d," % message.get("id", 0)))

    @property
    def _session(self) -> str:
        return f"s{self.sessions}"

    async def _answer(self, web: Web, message: Json, reply: Any) -> None:
        if self.refusals:
            await self._refuse(message, reply, self.refusals.pop(0))
            return
        result: Json = {"contents": []} if message["method"] == "resources/read" else {"content": []}
        await web.answer(reply, message, result | ({"resultType": "complete"} if self.era == MODERN else {}))


async def _unheard(_event: Any) -> None:
    pass


async def read(mux: Any) -> Any:
    """Read, and return the RpcError, or None."""
    try:
        await exchange(mux, "resources/read", {"uri": "a:1"})
    except RpcError as error:
        return error
    return None


async def call_tool(mux: Any) -> Any:
    try:
        params = {"name": raw("t"), "arguments": raw({})}
        await mux.router.exchange(Call("tools/call", params, {CLIENT_CAPABILITIES: raw({})}), _unheard)
    except RpcError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("era", "refusal"),
    [
        *product(
            ERAS,
            [
                (429, (("Retry-After", "0"),), b""),
                (429, (("Retry-After", "0"), *JSON), BUSY_JSON),
                (503, (), b"<h1>starting</h1>"),
                (502, (), b""),
                (500, (), b"boom"),
            ],
        ),
        (MODERN, (503, (("Retry-After", "1"),), b"")),
    ],
)
async def test_a_read_is_repeated_once_when_the_server_wants(era, refusal, monkeypatch):
    monkeypatch.setattr(http_peer, "FAILING_PAUSE_SECONDS", 0.01)
    script = Troubled(era, refusal)
    async with open_web(script, era="newest") as (_web, mux):
        began = trio.current_time()
        assert await read(mux) is None
        assert script.calls == 2
        assert trio.current_time() - began >= int(dict(refusal[1]).get("Retry-After", 0))
        assert not mux.upstreams["web"].status.breaker.doubtful
        script.refusals = [refusal, refusal]
        assert (await read(mux)).data["upstream"] == "web"
        assert script.calls == 4


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("refusal", [(429, (), b""), (503, (("Retry-After", "0"),), b""), (500, (), b"")])
async def test_a_tool_call_is_never_repeated_after_it_was_refused(era, refusal):
    script = Troubled(era, refusal)
    async with open_web(script, era="newest") as (_web, mux):
        assert (await call_tool(mux)).data["upstream"] == "web"
        assert script.calls == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("status", "code"), [(429, -31003), (503, -31001)])
async def test_who_wants_more_patience_than_is_fit_is_told_to_the_client(era, status, code):
    script = Troubled(era, (status, (("Retry-After", "30"), *JSON), BUSY_JSON))
    async with open_web(script, era="newest") as (_web, mux):
        began = trio.current_time()
        error = await read(mux)
        assert trio.current_time() - began < http_peer.LONGEST_PAUSE_SECONDS / 2
        assert (error.code, error.data["retryAfterSeconds"]) == (code, 30)
        assert f"HTTP status {status}" in error.message
        assert "slow down" in error.message
        assert script.calls == 1
        assert await read(mux) is None


async def test_what_the_deadline_leaves_bounds_the_patience():
    script = Troubled(MODERN, (503, (("Retry-After", "5"),), b""))
    async with open_web(script, era="newest", request_timeout=3.0) as (_web, mux):
        assert (await read(mux)).data["retryAfterSeconds"] == 5


@pytest.mark.parametrize("era", ERAS)
async def test_a_failing_server_gets_no_calls_until_a_probe_succeeds(era, monkeypatch):
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_PAUSE_SECONDS", 0.3)
    monkeypatch.setattr(http_peer, "FAILING_PAUSE_SECONDS", 0.0)
    script = Troubled(era)
    async with open_web(script, era="newest") as (_web, mux):
        upstream = mux.upstreams["web"]
        assert await read(mux) is None
        upstream.status.breaker.answered()  # takes over the shorter pause
        script.alive = False
        for _ in range(FAILURES):
            assert (await read(mux)).code == -31001
        while upstream.state != "failing":  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        calls = script.calls
        error = await read(mux)
        assert "does not answer any more: HTTP status 503" in error.message
        assert script.calls == calls
        script.alive = True
        while upstream.state != "ready":  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        assert await read(mux) is None
        assert upstream.status.connects == 1


def error_body(code: int, message: str) -> bytes:
    """Return an error object for the request with the id that `Troubled` puts in."""
    return b'{"jsonrpc":"2.0","id":ID,"error":{"code":%d,"message":"%s"}}' % (code, message.encode())


@pytest.mark.parametrize(
    "forgotten",
    [
        (404, (), b""),
        (404, JSON, error_body(-32001, "Session not found")),
        (400, JSON, error_body(-32000, "No valid session ID")),
        (400, JSON, error_body(-32001, "Session not found")),
        (400, (), b"unknown session"),
        (401, (), b"Unauthorized: Session not found"),
        (403, JSON, b'{"error":"unknown session"}'),
        (410, (), b""),
        (422, (), b"Unexpected message, expect initialize request"),
        (500, (), b"session not found"),
        (503, JSON, error_body(-32001, "Session not found")),
        (200, JSON, error_body(-32001, "Session not found")),
        (200, JSON, error_body(-32600, "Session terminated")),
        (200, JSON, error_body(-32002, "Server not initialized")),
        (200, JSON, error_body(-30001, "The SessionId has expired, please re-initialize")),
        (200, JSON, error_body(-32602, "Received request before initialization was complete")),
    ],
)
async def test_whatever_a_server_says_of_a_forgotten_session_no_call_fails(forgotten):
    script = Troubled(LEGACY)
    script.forgotten = forgotten
    async with open_web(script, health_interval=0) as (web, mux):
        assert await read(mux) is None
        script.sessions += 1
        failures = []

        async def call() -> None:
            failures.append(await call_tool(mux))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call)
        assert failures == [None] * 5
        assert web.methods().count("initialize") == 2  # one for all that were refused at once
        script.sessions += 1
        assert await read(mux) is None
        assert script.calls == 7
        assert (mux.upstreams["web"].state, web.methods().count("initialize")) == ("ready", 3)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_refusal_that_is_no_forgotten_session_costs_one_handshake(opens):
    """`opens`: whether the server opens a session without valid credentials."""
    allowed = ("server/discover", "initialize", "notifications/initialized") if opens else ()
    script = Troubled(LEGACY)
    denied = False

    async def deny(web: Web, request: Any, message: Json, reply: Any) -> None:
        if denied and message["method"] not in allowed:
            await reply.send(401, (), b"Your token has expired")
        else:
            await script(web, request, message, reply)

    async with open_web(deny, health_interval=0) as (web, mux):
        assert await call_tool(mux) is None
        denied = True
        for _ in range(5):
            for ask in (call_tool, read):
                error = await ask(mux)
                assert "HTTP status 401" in error.message and "Your token has expired" in error.in_full
        assert web.methods().count("server/discover") == 2
        assert mux.upstreams["web"].state == "ready"
        denied = False
        assert await call_tool(mux) is None


@pytest.mark.parametrize(
    "refusal",
    [
        (200, JSON, error_body(-32602, "Unknown tool")),
        (403, (), b"not this tool"),
        (500, (), b"session boom"),
    ],
)
async def test_an_error_of_one_tool_leaves_the_session_alone(refusal):
    script = Troubled(LEGACY, *[refusal] * 3)
    async with open_web(script, health_interval=0) as (web, mux):
        for _ in range(3):
            assert await call_tool(mux) is not None
        assert await call_tool(mux) is None
        assert (script.calls, web.methods().count("initialize")) == (4, 1)


async def test_a_possibly_executed_tool_call_is_not_repeated_in_a_new_session():
    script = Troubled(LEGACY)
    script.forgotten = (500, (), b"boom")
    async with open_web(script, health_interval=0) as (web, mux):
        assert await read(mux) is None
        script.sessions += 1
        assert "HTTP status 500 (Internal Server Error): boom" in (await call_tool(mux)).in_full
        assert web.methods().count("tools/call") == 1
        assert await call_tool(mux) is None
        assert web.methods().count("initialize") == 2


async def test_a_call_in_flight_is_answered_in_the_session_that_was_replaced():
    script = Troubled(LEGACY)
    script.forgotten = (401, (), b"who are you?")
    begun, end = trio.Event(), trio.Event()

    async def slow(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "tools/call":
            begun.set()
            await end.wait()
            await web.answer(reply, message, {"content": []})
        else:
            await script(web, request, message, reply)

    failures = []
    async with open_web(slow, health_interval=0) as (web, mux):

        async def call() -> None:
            failures.append(await call_tool(mux))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await begun.wait()
            script.sessions += 1
            assert await read(mux) is None
            await trio.sleep(3 * supervision.BREATH_SECONDS)
            end.set()
        assert failures == [None]
        assert web.methods().count("tools/call") == 1
        while "DELETE" not in web.methods():  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        ended = next(request for request, message in web.seen if message["method"] == "DELETE")
        assert ended.headers["mcp-session-id"] == "s1"


@pytest.mark.parametrize("status", [401, 404, 410])
async def test_an_idle_session_that_was_forgotten_is_replaced_by_a_health_check(status):
    script = Troubled(LEGACY)
    script.forgotten = (status, (), b"")
    async with open_web(script, health_interval=0.05) as (web, mux):
        assert await read(mux) is None
        script.sessions += 1
        while web.methods().count("initialize") < 2:  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        assert await read(mux) is None


async def test_a_peer_that_vanished_without_a_word_is_connected_anew(monkeypatch):
    """Packets without an answer: the connection is open here, and no byte comes."""
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(health, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_PAUSE_SECONDS", 0.1)
    script = Troubled(MODERN)

    async def vanish(web: Web, request: Any, message: Json, reply: Any) -> None:
        if not script.alive:
            await trio.sleep_forever()
        await script(web, request, message, reply)

    async with open_web(vanish, era="newest", health_interval=0.1, connect_timeout=0.5) as (_web, mux):
        upstream = mux.upstreams["web"]
        assert await read(mux) is None
        script.alive = False
        while upstream.status.connection is not None:  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        script.alive = True
        while upstream.state != "ready":  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)
        assert await read(mux) is None
        assert upstream.status.connects == 2
