"""A server at one URL that is replaced by one of the other era: found out without restarting mcpmux."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.envelope import decode_any, raw
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.web import SSE, TOOLS, Web, initialize
from tests.runtime.web_world import exchange, open_web

CONTENTS: Json = {"contents": [{"uri": "a:1", "text": "x"}]}
CALLED: Json = {"content": []}


class Changing:
    """The script of a server whose `era` can be set; `carried_out` has the methods that it really did."""

    def __init__(self, era: str, refusal: tuple[int, int | None] = (400, None)) -> None:
        """`refusal`: HTTP status and error code for what it does not understand after it has changed."""
        self.era = era
        self._first_era = era
        self._refusal = refusal
        self.discovers = 0
        self.carried_out: list[str] = []
        self.streams = trio.Event()  # set: event streams that are open break off

    async def __call__(self, web: Web, request: Any, message: Json, reply: Any) -> None:
        method = message.get("method")
        self.discovers += method == "server/discover"
        if self.era == MODERN:
            await self._answer_modern(web, request, message, reply)
        elif request.headers.get("mcp-protocol-version") == MODERN:
            await self._refuse(web, reply, message)
        elif method == "GET":
            await reply.open(200, SSE, b"")
            await self.streams.wait()
        elif not await initialize(web, request, message, reply):
            await self._carry_out(web, message, reply, {})

    async def _answer_modern(self, web: Web, request: Any, message: Json, reply: Any) -> None:
        if request.headers.get("mcp-protocol-version") != MODERN:
            await self._refuse(web, reply, message)
        elif message["method"] == "server/discover":
            facts = {
                "supportedVersions": [MODERN],
                "capabilities": TOOLS,
                "ttlMs": 0,
                "cacheScope": "private",
            }
            await web.answer(reply, message, {"resultType": "complete"} | facts)
        else:
            await self._carry_out(web, message, reply, {"resultType": "complete"})

    async def _refuse(self, web: Web, reply: Any, message: Json) -> None:
        status, code = (400, None) if self.era == self._first_era else self._refusal
        if code is not None:
            await web.refuse(reply, message, status, code)
        else:
            await reply.send(status, (("Content-Type", "text/html"),), b"<h1>no</h1>")

    async def _carry_out(self, web: Web, message: Json, reply: Any, more: Json) -> None:
        self.carried_out.append(message["method"])
        if message["method"] == "tools/call" and message["params"]["name"] == "bad":
            await web.refuse(reply, message, 400, -32602)
            return
        result = CALLED if message["method"] == "tools/call" else CONTENTS
        await web.answer(reply, message, result | more)


async def read(mux: Any) -> None:
    assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == CONTENTS["contents"]


async def call_tool(mux: Any, name: str = "t") -> None:
    params = {"name": raw(name), "arguments": raw({})}
    result = await mux.router.exchange(Call("tools/call", params, {CLIENT_CAPABILITIES: raw({})}), _unheard)
    assert decode_any(result["content"]) == []


async def _unheard(_event: Any) -> None:
    pass


LEGACY_REFUSALS = [(400, -32600), (400, -32000), (400, None), (404, None), (406, -32000)]
MODERN_REFUSALS = [(400, -32022), (400, -32020), (400, -32602), (400, None), (404, None)]


@pytest.mark.parametrize(("refusal"), LEGACY_REFUSALS)
async def test_a_modern_server_becomes_a_legacy_one(refusal):
    script = Changing(MODERN, refusal)
    async with open_web(script, era="newest") as (_web, mux):
        await read(mux)
        script.era = LEGACY
        await read(mux)
        facts = mux.upstreams["web"].facts
        assert facts is not None and facts.revision == LEGACY
        await call_tool(mux)


@pytest.mark.parametrize(("refusal"), MODERN_REFUSALS)
async def test_a_legacy_server_becomes_a_modern_one(refusal):
    script = Changing(LEGACY, refusal)
    async with open_web(script) as (_web, mux):
        await read(mux)
        script.era = MODERN
        await read(mux)
        facts = mux.upstreams["web"].facts
        assert facts is not None and facts.revision == MODERN
        await call_tool(mux)


@pytest.mark.parametrize(
    ("before", "after", "refusal"), [(MODERN, LEGACY, (400, -32600)), (LEGACY, MODERN, (400, -32022))]
)
async def test_a_tool_call_that_was_not_understood_is_sent_again(before, after, refusal):
    script = Changing(before, refusal)
    async with open_web(script, era="newest") as (_web, mux):
        await read(mux)
        script.era = after
        await call_tool(mux)
        assert script.carried_out.count("tools/call") == 1


async def test_a_legacy_server_that_changes_is_noticed_without_a_call():
    script = Changing(LEGACY, (400, -32022))
    async with open_web(script) as (_web, mux):
        await read(mux)
        script.era = MODERN
        script.streams.set()
        while mux.upstreams["web"].facts is None or mux.upstreams["web"].facts.revision != MODERN:
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_errors_of_an_unchanged_server_stay_errors_and_cost_little():
    script = Changing(MODERN)
    async with open_web(script) as (_web, mux):
        await read(mux)
        count = script.discovers
        for _ in range(5):
            with pytest.raises(RpcError):
                await call_tool(mux, "bad")
        assert script.carried_out.count("tools/call") == 5
        assert script.discovers == count


async def test_a_server_that_refuses_oddly_is_asked_once_in_a_while():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message.get("method") == "resources/read":
            await web.refuse(reply, message, 400, -32000)
        else:
            await modern(web, request, message, reply)

    modern = Changing(MODERN)
    async with open_web(script) as (_web, mux):
        for _ in range(5):
            with pytest.raises(RpcError, match="no"):
                await exchange(mux, "resources/read", {"uri": "a:1"})
        assert modern.discovers == 2
