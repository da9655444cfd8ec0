"""Streams of legacy HTTP sessions: the session's own, resumed ones, and calls that outlive connections."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.clients import http_session
from mcpmux.transports.http import server_connection
from mcpmux.transports.sse import KEEP_ALIVE
from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, CLIENT, CLIENT_INFO, LEGACY, MODERN, VERSION, Json
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.runtime.http_front import open_endpoint
from tests.runtime.test_asking import Impatient
from tests.runtime.test_flows import docs

UPDATED = "notifications/resources/updated"
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


class Steps:
    """A tool that reports progress each time it is let go on, `total` times, then answers."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.started = trio.Event()
        self.cancelled = trio.Event()
        self._go, self._waiting = trio.open_memory_channel[None](total)

    def go(self) -> None:
        self._go.send_nowait(None)

    async def __call__(self, server: ScriptedServer, params: Json, _message: Json) -> Json:
        self.started.set()
        try:
            for step in range(1, self._total + 1):
                await self._waiting.receive()
                progress = {"progressToken": params["_meta"]["progressToken"], "progress": step}
                await server.send({"method": "notifications/progress", "params": progress})
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


class Quiet:
    """A tool that is silent until it is released to answer."""

    def __init__(self) -> None:
        self._asked = trio.Event()
        self._answer = trio.Event()

    async def answer_when_asked(self) -> None:
        with trio.fail_after(60):
            await self._asked.wait()
        await trio.testing.wait_all_tasks_blocked()
        self._answer.set()

    async def __call__(self, _server: ScriptedServer, _params: Json, _message: Json) -> Json:
        self._asked.set()
        await self._answer.wait()
        return {"resultType": "complete", "content": []}


def call(request_id: int = 1) -> Json:
    return request("tools/call", {"name": "x__t", "_meta": {"progressToken": "p"}}, request_id)


def servers(steps: Steps | Quiet) -> dict[str, Any]:
    return {"x": ScriptedServer(tools=[TOOL], handlers={"tools/call": steps}), "docs": docs()}


async def test_updates_arrive_on_the_own_stream_and_again_after_a_break():
    server = Subscribable("2026-07-28")
    async with open_endpoint({"x": server, "y": Subscribable(LEGACY)}) as client:
        session = await client.initialize()
        for uri in ("x+memo:1", "x+memo:2", "x+memo:3"):
            assert (await client.send(request("resources/subscribe", {"uri": uri}), session)).last[
                "result"
            ] == {}
        async with client.stream("GET", None, session) as stream:
            assert stream.response.headers["content-type"] == "text/event-stream"
            await server.update("memo:1")
            seen = await next_update(stream)
        await server.update("memo:2")
        resume = session | {"Last-Event-ID": seen[0]}
        async with client.stream("GET", None, resume) as stream:
            second = await next_update(stream)
            assert second[1] == "x+memo:2"
            await server.update("memo:3")
            assert (await next_update(stream))[1] == "x+memo:3"
        async with client.stream("GET", None, resume) as stream:
            again = [(await next_update(stream))[1] for _ in range(2)]
            assert again == ["x+memo:2", "x+memo:3"]


async def test_a_repeated_change_is_sent_once_after_a_break():
    server = Subscribable("2026-07-28")
    async with open_endpoint({"x": server, "y": Subscribable(LEGACY)}) as client:
        session = await client.initialize()
        for uri in ("x+memo:1", "x+memo:2"):
            await client.send(request("resources/subscribe", {"uri": uri}), session)
        async with client.stream("GET", None, session) as stream:
            await server.update("memo:1")
            first = await next_update(stream)
            updates = []
            for name in ("memo:1", "memo:2", "memo:1", "memo:1"):
                await server.update(name)
                updates.append(await next_update(stream))
        async with client.stream("GET", None, session | {"Last-Event-ID": first[0]}) as stream:
            assert [await next_update(stream) for _ in range(2)] == [updates[1], updates[3]]
        async with client.stream("GET", None, session | {"Last-Event-ID": updates[0][0]}) as stream:
            assert [await next_update(stream) for _ in range(2)] == [updates[1], updates[3]]
        async with client.stream("GET", None, session | {"Last-Event-ID": updates[3][0]}) as stream:
            await server.update("memo:1")
            assert (await next_update(stream))[0] not in [event_id for event_id, _ in updates]


async def test_a_change_reaches_a_client_that_still_reads_what_it_missed():
    """The client has lost its stream unnoticed, and returns for more than its connection takes at once."""
    long = [f"memo:{number}{'m' * 400_000}" for number in range(8)]
    server = Subscribable(LEGACY, uris=["memo:1", *long])
    async with open_endpoint({"x": server, "y": docs()}) as client:
        session = await client.initialize()
        for uri in ("memo:1", *long):
            await client.send(request("resources/subscribe", {"uri": f"x+{uri}"}), session)
        async with client.stream("GET", None, session) as lost:
            for uri in ("memo:1", *long):
                await server.update(uri)
            (event_id, _), *updates = [await next_update(lost) for _ in range(9)]
            async with client.stream("GET", None, session | {"Last-Event-ID": event_id}) as stream:
                await server.update("memo:1")
                await trio.testing.wait_all_tasks_blocked()
                assert [await next_update(stream) for _ in range(8)] == updates
                assert (await next_update(stream))[1] == "x+memo:1"


async def next_update(stream: Any) -> tuple[str, str]:
    """Return (event id, uri) of the next update; list changes at the start are skipped."""
    while True:
        event_id, message = await stream.next()
        if message is not None and message["method"] == UPDATED:
            return event_id, message["params"]["uri"]


async def test_a_call_outlives_its_connection_and_is_resumed():
    steps = Steps(3)
    async with open_endpoint(servers(steps)) as client:
        session = await client.initialize()
        steps.go()
        async with client.stream("POST", call(), session) as stream:
            primed, nothing = await stream.next()
            assert nothing is None
            last, first = await stream.next()
            assert first is not None
            assert first["params"]["progress"] == 1
        steps.go()
        steps.go()
        async with client.stream("GET", None, session | {"Last-Event-ID": last}) as stream:
            messages = [await stream.message() for _ in range(3)]
        assert [m["params"]["progress"] for m in messages[:2]] == [2, 3]
        assert messages[2]["result"]["content"][0]["text"] == "done"
        async with client.stream("GET", None, session | {"Last-Event-ID": primed}) as stream:
            assert [(await stream.next())[0] for _ in range(4)] == ["1-1", "1-2", "1-3", "1-4"]


async def test_a_stream_of_a_call_that_is_resumed_replaces_the_one_before():
    """ "It MUST NOT broadcast the same message across multiple streams" (Transports, 2025-03-26)."""
    steps = Steps(1)
    async with open_endpoint(servers(steps)) as client:
        session = await client.initialize()
        async with client.stream("POST", call(), session) as first:
            primed, _ = await first.next()
            async with client.stream("GET", None, session | {"Last-Event-ID": primed}) as second:
                while await first.response.receive_some():
                    pass
                steps.go()
                assert (await second.message())["params"]["progress"] == 1
                assert (await second.message())["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize(("calls", "messages", "size"), [(12, 0, 1_000_000), (1, 3000, 10_000)])
async def test_a_client_that_stays_gets_each_answer_however_much_is_displaced(
    calls: int, messages: int, size: int
):
    """Answers that come together, and messages that a slow client leaves, are more than a session keeps."""
    opened: list[str | None] = []
    go, sent = trio.Event(), trio.Event()

    async def answer(server: ScriptedServer, _params: Json, _message: Json) -> Json:
        await go.wait()
        for _ in range(messages):
            message = {"level": "info", "data": "w" * size}
            await server.send({"method": "notifications/message", "params": message})
        sent.set()
        return {"content": [{"type": "text", "text": "w" * size}]}

    server = ScriptedServer(LEGACY, tools=[TOOL], handlers={"tools/call": answer})
    async with open_endpoint({"x": server, "docs": docs()}) as client, trio.open_nursery() as nursery:
        session = await client.initialize()

        async def read(request_id: int) -> None:
            async with client.stream("POST", call(request_id), session) as stream:
                opened.append((await stream.next())[0])
                if len(opened) == calls:
                    go.set()
                await sent.wait()
                while "result" not in await stream.message():
                    pass

        for request_id in range(calls):
            nursery.start_soon(read, request_id)


async def test_a_quiet_call_can_be_resumed_before_it_has_said_anything():
    steps = Steps(1)
    async with open_endpoint(servers(steps)) as client:
        session = await client.initialize()
        async with client.stream("POST", call(), session) as stream:
            primed, nothing = await stream.next()
            assert (primed, nothing) == ("1-0", None)
            assert stream.retry_milliseconds == http_session.RETRY_MILLISECONDS
        steps.go()
        async with client.stream("GET", None, session | {"Last-Event-ID": primed}) as stream:
            assert (await stream.message())["params"]["progress"] == 1
            assert (await stream.message())["result"]["content"][0]["text"] == "done"


async def test_a_quiet_call_of_an_older_client_is_answered_without_events(monkeypatch):
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 0)
    quiet = Quiet()
    async with open_endpoint(servers(quiet)) as client:
        session = await client.initialize("2025-06-18")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quiet.answer_when_asked)
            answer = await client.send(call(), session)
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.interpreted  # compiled, a constant cannot be replaced: it would wait for half a minute
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
@pytest.mark.parametrize("revision", ["2025-06-18", LEGACY, MODERN])
async def test_an_answer_that_is_long_in_coming_becomes_a_stream(revision, method, monkeypatch):
    for module in (server_connection, http_session):
        monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.1)
    quiet = Quiet()
    server = ScriptedServer(tools=[TOOL], prompts=[{"name": "t"}], handlers={method: quiet})
    async with open_endpoint({"x": server, "docs": docs()}) as client:
        params: Json = {"name": "x__t"}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": "x__t"}
        if revision == MODERN:
            params["_meta"] = {VERSION: MODERN, CLIENT_INFO: CLIENT, CAPABILITIES: {}}
        else:
            headers = await client.initialize(revision)
        async with client.stream("POST", request(method, params), headers) as stream:
            received = b""
            while received.count(KEEP_ALIVE) < 2:
                received += await stream.response.receive_some()
            assert stream.response.headers["content-type"] == "text/event-stream"
            await quiet.answer_when_asked()
            assert (await stream.message())["result"]["content"] == []


@pytest.mark.interpreted
@pytest.mark.parametrize("place", ["listen", "own stream", "resumed call"])
async def test_a_quiet_stream_has_comments_and_then_its_events(place, monkeypatch):
    monkeypatch.setattr(server_connection, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(http_session, "PRIMING_SECONDS", 0)
    quiet, server = Quiet(), Subscribable(MODERN)
    server.handlers["tools/call"] = quiet
    async with open_endpoint({"x": server, "docs": docs()}) as client:
        body = None
        if place == "listen":
            wish = {"notifications": {"resourceSubscriptions": ["x+memo:1"]}}
            meta = {VERSION: MODERN, CLIENT_INFO: CLIENT, CAPABILITIES: {}}
            body = request("subscriptions/listen", {**wish, "_meta": meta})
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
        else:
            headers = await client.initialize()
            await client.send(request("resources/subscribe", {"uri": "x+memo:1"}), headers)
        if place == "resumed call":
            async with client.stream("POST", call(), headers) as stream:
                event_id, _ = await stream.next()
            headers |= {"Last-Event-ID": event_id or ""}
        async with client.stream("GET" if body is None else "POST", body, headers) as stream:
            if place == "listen":
                await stream.message()
            received = b""
            while received.count(KEEP_ALIVE) < 2:
                received += await stream.response.receive_some()
            assert set(received.removeprefix(b": open\n\n").split(KEEP_ALIVE)) == {b""}
            if place == "resumed call":
                await quiet.answer_when_asked()
                assert (await stream.message())["result"]["content"] == []
            else:
                await server.update("memo:1")
                assert (await stream.message())["params"]["uri"] == "x+memo:1"


@pytest.mark.parametrize("revision", ["2025-06-18", LEGACY])
async def test_a_client_without_streams_gets_json_however_late(revision, monkeypatch):
    monkeypatch.setattr(server_connection, "KEEP_ALIVE_SECONDS", 0.0)
    quiet = Quiet()
    async with open_endpoint(servers(quiet)) as client:
        session = await client.initialize(revision)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quiet.answer_when_asked)
            answer = await client.send(call(), session | {"Accept": "application/json"})
        assert answer.headers["content-type"] == "application/json"
        assert answer.last["result"]["content"] == []


async def test_a_question_that_its_call_outlives_is_taken_back_in_its_stream():
    server = Impatient("roots/list", "result")
    async with open_endpoint({"x": server}) as client:
        session = await client.initialize(capabilities={"roots": {}})
        async with client.stream("POST", request("tools/call", {"name": "x__t"}), session) as stream:
            question, taken_back, answer = [await stream.message() for _ in range(3)]
        assert question["method"] == "roots/list"
        assert taken_back["method"] == "notifications/cancelled"
        assert taken_back["params"]["requestId"] == question["id"]
        assert "told me" in answer["result"]["content"][0]["text"]


async def test_a_client_without_streams_is_not_waited_for():
    server = Impatient("roots/list", "late")
    async with open_endpoint({"x": server}) as client:
        session = await client.initialize(capabilities={"roots": {}})
        call = request("tools/call", {"name": "x__t"})
        answer = await client.send(call, session | {"Accept": "application/json"})
        assert "takes no event stream" in answer.last["result"]["content"][0]["text"]


async def test_a_cancelled_call_reaches_the_upstream_and_is_not_answered():
    steps = Steps(2)
    async with open_endpoint(servers(steps)) as client:
        session = await client.initialize()
        steps.go()
        async with client.stream("POST", call(7), session) as stream:
            await stream.next()
            assert (await stream.message())["params"]["progress"] == 1
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            assert (await client.send(cancel, session)).status == 202
            with trio.fail_after(60):
                await steps.cancelled.wait()
            assert await stream.response.receive_some() == b""


async def test_ending_the_session_ends_its_calls_and_streams():
    steps = Steps(1)
    async with open_endpoint(servers(steps)) as client:
        session = await client.initialize()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, call(), session)
            with trio.fail_after(60):
                await steps.started.wait()
            async with client.stream("GET", None, session) as stream:
                assert (await client.send(b"", session, "DELETE")).status == 204
                with trio.fail_after(60):
                    while await stream.response.receive_some():
                        pass
            with trio.fail_after(60):
                await steps.cancelled.wait()


async def test_event_ids_that_are_not_kept_get_a_clear_answer():
    async with open_endpoint() as client:
        session = await client.initialize()
        for event_id in ("0-99", "5-1", "nonsense", "9" * 50 + "-1"):
            answer = await client.send(b"", session | {"Last-Event-ID": event_id}, "GET")
            assert answer.status == 400
            assert "never sent" in answer.last["error"]["message"]


async def test_a_stream_that_is_opened_again_replaces_the_one_before():
    async with open_endpoint({"x": Subscribable("2026-07-28"), "y": docs()}) as client:
        session = await client.initialize()
        async with client.stream("GET", None, session) as first, client.stream("GET", None, session):
            with trio.fail_after(60):
                while await first.response.receive_some():
                    pass


async def test_a_get_without_a_session_is_refused():
    async with open_endpoint() as client:
        assert (await client.send(b"", {}, "GET")).status == 405
        assert (await client.send(b"", {"Mcp-Session-Id": "nope"}, "GET")).status == 404
