"""One upstream over HTTP, played by a scripted web server on a real socket."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.channels import http_channel
from mcpmux.channels.http_channel import HttpChannel
from mcpmux.errors import RpcError, TransportClosed
from mcpmux.protocol.call import LOG_LEVEL, Call, Event
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.runtime.client_outbox import ClientOutbox
from tests.inline import run_inline
from tests.peers.revision import LEGACY, Json
from tests.peers.web import SSE, TOOLS, Web, event, initialize
from tests.runtime.web_world import exchange, open_web


async def test_a_legacy_session_carries_its_headers_and_is_ended():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if not await initialize(web, request, message, reply) and message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux):
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        headers = web.seen[-1][0].headers
        assert headers["mcp-session-id"] == "s1"
        assert headers["mcp-protocol-version"] == LEGACY
        assert "mcp-method" not in headers
    assert web.methods()[-1] == "DELETE"


@pytest.mark.parametrize("last", ["1-1", "ä日"])
async def test_a_broken_stream_is_resumed_behind_the_last_event(last: str):
    calls: list[Any] = []

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "tools/call":
            token = message["params"]["_meta"]["progressToken"]
            progress = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
            calls.append(message["id"])
            await reply.open(200, SSE, b"retry: 1\n" + event("", "1-0") + event(progress, last))
        elif request.headers.get("last-event-id", "").encode("latin-1") == last.encode():
            done = {"id": calls[0], "result": {"content": []}}
            await reply.open(200, SSE, event(done, "1-2"))

    events: list[Event] = []
    async with open_web(script) as (_, mux):
        result = await exchange(mux, "tools/call", {"name": "t"}, events)
        assert result["content"] == []
    assert [decode_any(happened.params["progressToken"]) for happened in events] == ["t"]


async def test_a_forgotten_session_is_opened_again_and_the_request_repeated():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        session = f"s{web.methods().count('initialize')}"
        if await initialize(web, request, message, reply, session):
            return
        if message["method"] == "tools/call":
            if request.headers["mcp-session-id"] == "s1":
                await web.refuse(reply, {}, 404, -32600)
            else:
                await web.answer(reply, message, {"content": [{"type": "text", "text": session}]})

    async with open_web(script) as (web, mux):
        result = await exchange(mux, "tools/call", {"name": "t"})
        assert result["content"][0]["text"] == "s2"
        assert web.methods().count("tools/call") == 2


async def test_a_read_that_ends_with_its_session_is_repeated():
    """Repeat it not in the old session, whose deadlines have ended."""
    waits = trio.Event()

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply) or message["method"] != "resources/read":
            return
        if web.methods().count("initialize") < 2 and message["params"]["uri"] == "a:1":
            waits.set()
            await trio.sleep_forever()
        await web.answer(reply, message, {"contents": []})

    async with open_web(script) as (web, mux), trio.open_nursery() as nursery:
        await exchange(mux, "resources/read", {"uri": "warm:1"})  # a connection is idle now

        async def lose() -> None:
            await waits.wait()
            connection = mux.upstreams["web"].status.connection
            assert connection is not None
            assert isinstance(connection.channel, HttpChannel)
            connection.channel.peer.lose(TransportClosed("for a test"))

        nursery.start_soon(lose)
        assert (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"] == []
        reads = [message for _, message in web.seen if message.get("params", {}).get("uri") == "a:1"]
        assert len(reads) == 2


async def test_a_question_in_a_calls_stream_parks_the_call():
    answers: list[Json] = []
    is_sent = trio.Event()

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message.get("id") == "q1":
            answers.append(message["result"])
            is_sent.set()
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "tools/call":
            await reply.open(200, SSE, event({"id": "q1", "method": "roots/list"}))
            await is_sent.wait()
            await reply.finish(
                event({"id": message["id"], "result": {"content": [{"type": "text", "text": "k"}]}})
            )

    async with open_web(script) as (_, mux):
        result = await exchange(mux, "tools/call", {"name": "t"})
        assert result["resultType"] == "input_required"
        ((key, wish),) = result["inputRequests"].items()
        assert wish["method"] == "roots/list"
        again = {"name": "t", "requestState": result["requestState"], "inputResponses": {key: {"roots": []}}}
        assert (await exchange(mux, "tools/call", again))["content"][0]["text"] == "k"
        assert answers == [{"roots": []}]


async def test_an_early_cancellation_follows_its_call_or_neither_is_sent():
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})
        elif message["method"] == "tools/call":
            await trio.sleep_forever()  # an answered call is not cancelled

    async with open_web(script) as (web, mux):
        await exchange(mux, "resources/read", {"uri": "a:1"})
        for _ in range(12):  # which task of ours runs first is chance
            with trio.CancelScope() as scope:
                scope.cancel()
                await exchange(mux, "tools/call", {"name": "t"})
        await exchange(mux, "resources/read", {"uri": "a:1"})
    sent: set[int] = set()
    for _, message in web.seen:
        if message["method"] == "tools/call":
            sent.add(message["id"])
        elif message["method"] == "notifications/cancelled":
            sent.remove(message["params"]["requestId"])
    assert not sent


async def test_missing_parameter_headers_are_looked_up_and_sent():
    tool = {
        "name": "t",
        "inputSchema": {
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        },
    }

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if message["method"] == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": TOOLS}
            await web.answer(reply, message, result | more)
        elif message["method"] == "tools/list":
            bad = {"name": "bad", "inputSchema": {"type": "object", "x-mcp-header": "X"}}
            await web.answer(reply, message, {"tools": [bad, tool]} | more)
        elif request.headers.get("mcp-param-region") != "eu":
            await web.refuse(reply, message, 400, -32020)
        else:
            await web.answer(reply, message, {"content": [], "resultType": "complete"})

    async with open_web(script) as (web, mux):
        params = {"name": "t", "arguments": {"region": "eu"}}
        assert (await exchange(mux, "tools/call", params))["content"] == []
        assert web.methods().count("tools/list") == 1
        assert (await exchange(mux, "tools/call", params))["content"] == []
        assert web.methods().count("tools/list") == 1
        listed = await exchange(mux, "tools/list", {})
        assert [item["name"] for item in listed["tools"]] == ["t"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'{"jsonrpc":"2.0","id":@,"result":{"content":[{"text":"cut \ud83d"}]}}', "cut \ufffd"),
        (b'{"jsonrpc":"2.0","id":"@","result":{"content":[{"text":"caf\xe9"}]}}', "caf\ufffd"),
        (b'{"jsonrpc":"2.0","id":@.0,"result":{"content":[{"text":"fine"}],"x":NaN}}', "fine"),
        (b'{"jsonrpc":"2.0","id":@,"result":{"content":[{"text":"', None),
        (b'{"result":{"x":01},"jsonrpc":"2.0","id":@}', None),
    ],
)
@pytest.mark.parametrize("kind", ["json", "stream", "late stream"])
async def test_an_answer_is_read_as_it_was_meant_or_fails_at_once(data, text, kind):
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "GET":
            await web.refuse(reply, {}, 405, -32600)
            return
        body = data.replace(b"@", str(message["id"]).encode())
        if kind == "json":
            await reply.send(200, (("Content-Type", "application/json"),), body)
            return
        first = event({"method": "notifications/message", "params": {"level": "info", "data": ""}})
        await reply.open(200, SSE, (first if kind == "late stream" else b"") + b"data: " + body + b"\n\n")
        await trio.sleep_forever()

    async with open_web(script) as (_, mux):
        if text is not None:
            result = await exchange(mux, "tools/call", {"name": "t"})
            assert result["content"][0]["text"] == text
        else:
            with pytest.raises(RpcError, match="the answer cannot be read"):
                await exchange(mux, "tools/call", {"name": "t"})


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", "asks for credentials"),
        (404, b"<html>nothing</html>", "check the URL's path"),
        (500, b"boom \x1b[31m", "HTTP status 500"),
        (200, b"<html>hello</html>", "no JSON-RPC response"),
        (302, b"", "HTTP status 302"),
    ],
)
async def test_what_is_no_mcp_server_is_told_in_words(status, body, words):
    async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(status, (("Content-Type", "text/html"),), body)

    async with open_web(script) as (_, mux):
        with pytest.raises(RpcError) as failure:
            await exchange(mux, "resources/list", {})
        assert words in failure.value.message
        assert "web" in failure.value.message


async def test_updates_come_on_the_servers_own_stream_across_its_breaks():
    second = trio.Event()

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "GET":
            last = request.headers.get("last-event-id")
            change = {"method": "notifications/tools/list_changed"}
            await reply.open(200, SSE, b"retry: 1\n" + event(change, "0-2" if last else "0-1"))
            if last:
                second.set()
                await trio.sleep_forever()

    async with open_web(script) as (_, mux):
        outbox = mux.hub.join(ClientOutbox(frozenset({"notifications/tools/list_changed"})))
        await second.wait()
        update = await outbox.take()
        assert update is not None
        assert update.method == "notifications/tools/list_changed"
        mux.hub.leave(outbox)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_missing_own_stream_is_requested_again(status, monkeypatch):
    monkeypatch.setattr(http_channel, "REFUSED_SECONDS", 0.01)
    refusals = 2

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        nonlocal refusals
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "GET" and refusals:
            refusals -= 1
            await reply.send(status, ())
        elif message["method"] == "GET":
            await open_at_last.wait()
            await reply.open(200, SSE, b": open\n\n")
            await trio.sleep_forever()

    open_at_last = trio.Event()
    async with open_web(script) as (_, mux):
        outbox = mux.hub.join(ClientOutbox(frozenset({"notifications/tools/list_changed"})))
        open_at_last.set()
        event = await outbox.take()  # what it said before may have been missed
        assert event is not None and event.method == "notifications/tools/list_changed"
        assert refusals == 0
        mux.hub.leave(outbox)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_a_stream_of_its_own_is_not_asked_again(status, monkeypatch):
    monkeypatch.setattr(http_channel, "REFUSED_SECONDS", 0.0)

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if not await initialize(web, request, message, reply):
            await reply.send(status if message["method"] == "GET" else 200, ())

    async with open_web(script) as (web, mux):
        await mux.upstreams["web"].supervision.settled()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert web.methods().count("GET") == 1


async def test_a_stream_that_always_ends_is_not_requested_forever(monkeypatch):
    monkeypatch.setattr("mcpmux.channels.http_peer.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_SECONDS", 30.0)

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if not await initialize(web, request, message, reply) and message["method"] == "GET":
            await reply.open(200, SSE, b": nothing\n\n")

    async with open_web(script, health_interval=0) as (web, mux):
        await mux.upstreams["web"].supervision.settled()
        while web.methods().count("GET") < 2:
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert web.methods().count("GET") == 2


async def test_log_messages_on_the_servers_own_stream_reach_the_only_call():
    streams: list[Any] = []
    events: list[Event] = []
    arrived = trio.Event()
    log = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "GET":
            streams.append(reply)
            await reply.open(200, SSE, b": open\n\n")
            await trio.sleep_forever()
        elif message["method"] == "tools/call":
            # The first one looks like mcpmux's own report that messages were lost.
            await streams[0].write(event({"method": "dev.mcpmux/missed"}) + event(log))
            await arrived.wait()
            await web.answer(reply, message, {"content": []})

    async def notify(happened: Event) -> None:
        events.append(happened)
        arrived.set()

    async with open_web(script) as (_, mux):
        outbox = mux.hub.join(ClientOutbox(frozenset({"notifications/tools/list_changed"})))
        await mux.upstreams["web"].supervision.settled()
        call = Call("tools/call", {"name": raw("t")}, {LOG_LEVEL: raw("debug")})
        with trio.fail_after(5):
            result = await run_inline(mux.router.exchange(call, notify))
        assert decode_any(result["content"]) == []
        assert [(item.method, decode_any(item.params["data"])) for item in events] == [(log["method"], "x")]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not outbox.waiting
        mux.hub.leave(outbox)


async def test_a_legacy_servers_own_code_does_not_repeat_its_call():
    """-32020 is HeaderMismatch in 2026-07-28 only: the server has perhaps carried the call out."""

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "tools/list":
            await web.answer(reply, message, {"tools": []})
        else:
            await web.refuse(reply, message, 405 if message["method"] == "GET" else 200, -32020)

    async with open_web(script) as (web, mux):
        with pytest.raises(RpcError):
            await exchange(mux, "tools/call", {"name": "t"})
        assert web.methods().count("tools/call") == 1
