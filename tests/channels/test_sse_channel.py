"""Upstreams over HTTP+SSE on real sockets: finding them out, using them, losing them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux import app
from mcpmux.channels import opener
from mcpmux.config import Config, Http, Secret, Upstream
from mcpmux.errors import RpcError
from mcpmux.mux import wanted
from mcpmux.protocol.call import CLIENT_CAPABILITIES, PROGRESS_TOKEN, Call, Event
from mcpmux.protocol.envelope import decode_any, raw, text_of
from mcpmux.protocol.principal import ANYONE
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.recorder import Recorder
from mcpmux.transports.http import sse_streams
from tests.channels.test_tap import Witness
from tests.peers.http_server import HttpFace
from tests.peers.revision import LEGACY, Json
from tests.peers.server import ScriptedServer
from tests.peers.sse_server import SseFace, open_sse_face
from tests.peers.subscribable import Subscribable
from tests.runtime.test_asking import ASKED, Curious

OLD = "2024-11-05"
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
PATIENCE = 5.0
SUBSCRIBE = Call("resources/subscribe", {}, {})


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits in real time that are not under test."""
    monkeypatch.setattr(wanted, "BROKEN_SECONDS", 0.05)
    monkeypatch.setattr(sse_streams, "ACCEPT_SECONDS", 0.2)
    monkeypatch.setattr(opener, "DETECT_SECONDS", 0.5)


async def read(_server: Any, params: Json, _message: Json) -> Json:
    return {"contents": [{"uri": params["uri"], "text": "hello"}]}


class Docs(ScriptedServer):
    """A server of one resource and one tool; `answers` has what is answered to its own requests."""

    def __init__(self, **handlers: Any) -> None:
        handlers = {"resources/read": read, **{name.replace("_", "/"): do for name, do in handlers.items()}}
        super().__init__(OLD, resources=[{"uri": "a:1", "name": "a"}], tools=[TOOL], handlers=handlers)
        self._answers, self.answers = trio.open_memory_channel[Json](1)

    def take_answer(self, message: Json) -> None:
        self._answers.send_nowait(message)


@asynccontextmanager
async def open_stage(server: ScriptedServer, **target: Any) -> AsyncIterator[tuple[SseFace, app.Mux]]:
    """Open a server over HTTP+SSE, and mcpmux with it as its only upstream, under its own names."""
    async with open_sse_face(server) as face, open_mux(face, **target) as mux:
        yield face, mux


@asynccontextmanager
async def open_mux(face: SseFace, **target: Any) -> AsyncIterator[app.Mux]:
    config = Config(upstreams=(Upstream(name="x", target=Http(face.url, **target), prefix=""),))
    with trio.fail_after(2 * PATIENCE):
        async with app.open_mux(config) as mux:
            yield mux


async def ask(mux: app.Mux, method: str, params: Json, events: list[Event] | None = None) -> Json:
    async def notify(event: Event) -> None:
        if events is not None:
            events.append(event)

    offers: Json = {"sampling": {}, "elicitation": {}, "roots": {}}
    meta = {PROGRESS_TOKEN: raw("t"), CLIENT_CAPABILITIES: raw(offers)}
    call = Call(method, {key: raw(value) for key, value in params.items()}, meta)
    result = await mux.router.exchange(call, notify)
    return {key: decode_any(value) for key, value in result.items()}


async def read_text(mux: app.Mux) -> str:
    return (await ask(mux, "resources/read", {"uri": "a:1"}))["contents"][0]["text"]


async def trouble_of(mux: app.Mux) -> str:
    with pytest.raises(RpcError) as caught:
        await ask(mux, "resources/read", {"uri": "a:1"})
    return caught.value.message


def conversation(face: SseFace) -> list[str]:
    return [f"{request.method} {request.path}" for request in face.requests]


async def test_a_server_is_found_out_as_the_specification_says():
    async with open_stage(Docs()) as (face, mux):
        assert await read_text(mux) == "hello"
        assert (await ask(mux, "resources/list", {}))["resources"][0]["uri"] == "a:1"
        facts = mux.upstreams["x"].facts
        assert facts is not None and facts.revision == OLD
    begin = ["POST /sse", "POST /sse", "GET /sse", "POST /messages/", "POST /messages/"]
    assert conversation(face)[:5] == begin
    methods = [json.loads(request.body)["method"] for request in face.requests if request.body]
    assert methods[:4] == ["server/discover", "initialize", "initialize", "notifications/initialized"]
    assert "server/discover" not in [message.get("method") for message in face.server.seen]


async def test_a_server_known_to_be_so_is_not_tried_otherwise():
    async with open_stage(Docs(), transport="sse", headers={"X-Key": Secret("k")}) as (face, mux):
        assert await read_text(mux) == "hello"
    assert conversation(face)[:2] == ["GET /sse", "POST /messages/"]
    assert face.server.seen[0]["method"] == "initialize"
    assert {request.headers.get("x-key") for request in face.requests} == {"k"}


@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_whoever_watches_sees_over_what_the_messages_go(transport: str):
    over: dict[str | None, str] = {}

    class Tape(Witness):
        def take_all(self, batch: Sequence[Observation]) -> None:
            over.update({seen.method: seen.leg.transport for seen in batch})

    recorder = Recorder([Tape()], [], trio.current_time)
    async with open_sse_face(Docs()) as face:
        target = Http(face.url, transport=transport)
        config = Config(upstreams=(Upstream(name="x", target=target, prefix=""),))
        with trio.fail_after(2 * PATIENCE):
            async with app.open_mux(config, tap=recorder) as mux:
                assert await read_text(mux) == "hello"
    assert (over["initialize"], over["resources/read"]) == ("sse", "sse")
    assert over.get("server/discover") == ("http" if transport == "auto" else None)


async def test_a_server_that_should_be_streamable_is_not_tried_otherwise():
    async with open_stage(Docs(), transport="streamable") as (face, mux):
        assert "405" in await trouble_of(mux)
        assert face.count("GET") == 0


@pytest.mark.parametrize(
    "endpoint", ["messages/?session_id={}", "?session_id={}", "http://HOST/messages/?session_id={}"]
)
async def test_any_way_of_writing_the_address_will_do(endpoint):
    async with open_sse_face(Docs()) as face:
        face.endpoint = endpoint.replace("HOST", face.url.split("/")[2])
        async with open_mux(face) as mux:
            assert await read_text(mux) == "hello"


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [("http://evil.invalid/m", "another origin"), ("not an address", "no usable URI")],
)
@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_an_address_elsewhere_is_refused_in_words(endpoint, words, transport):
    async with open_sse_face(Docs()) as face:
        face.endpoint = endpoint
        async with open_mux(face, transport=transport) as mux:
            assert words in await trouble_of(mux)
    assert "POST /messages/" not in conversation(face)


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("holds", [False, True], ids=["202 at once", "answers when done"])
async def test_a_question_is_asked_and_its_answer_posted(method, holds):
    server = Curious(LEGACY, method)
    async with open_stage(server) as (face, mux):
        face.hold = trio.Event() if holds else None
        first_result = await ask(mux, "tools/call", {"name": "t"})
        ((key, wish),) = first_result["inputRequests"].items()
        assert wish["method"] == method
        answers = {key: ASKED[method][1]}
        again = {"name": "t", "requestState": first_result["requestState"], "inputResponses": answers}
        result = await ask(mux, "tools/call", again)
        assert json.loads(result["content"][0]["text"]) == [ASKED[method][1]]


async def test_an_update_of_a_subscribed_resource_is_heard():
    server = Subscribable(LEGACY)
    async with open_stage(server) as (_, mux):
        outbox = mux.hub.join(ClientOutbox(frozenset()))
        await mux.upstreams["x"].supervision.settled()
        await mux.router.subscribe(outbox, "memo:1", SUBSCRIBE)
        while server.subscribed != {"memo:1"}:
            await trio.lowlevel.checkpoint()
        await server.update("memo:1")
        update = await outbox.take()
        assert update is not None and text_of(update.params["uri"]) == "memo:1"


async def test_a_ping_of_the_server_is_answered():
    server = Docs()
    async with open_stage(server) as (_, mux):
        assert await read_text(mux) == "hello"
        await server.send({"id": "p", "method": "ping"})
        assert (await server.answers.receive())["result"] == {}


class Person:
    """A client that has roots."""

    capabilities = raw({"roots": {}})
    knows_tasks = False
    principal = ANYONE

    async def ask(self, _method: str, _params: Any) -> Any:
        return {"roots": raw([{"uri": "file:///home"}])}


@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_a_question_outside_of_any_call_reaches_the_client(transport):
    server = Docs()
    async with open_stage(server, transport=transport) as (_, mux):
        assert await read_text(mux) == "hello"
        mux.router.join(Person())
        await server.send({"id": "q", "method": "roots/list"})
        answer = await server.answers.receive()
    assert answer["result"] == {"roots": [{"uri": "file:///home"}]}


async def test_what_was_found_out_is_remembered_when_the_stream_breaks():
    async with open_stage(Docs()) as (face, mux):
        assert await read_text(mux) == "hello"
        count = conversation(face).count("POST /sse")
        connection = mux.upstreams["x"].status.connection
        assert connection is not None
        face.break_off()
        await connection.closed.wait()
        assert await read_text(mux) == "hello"
        assert face.count("GET") == 2
        assert conversation(face).count("POST /sse") == count


async def test_calls_under_way_hear_when_the_stream_breaks():
    started = trio.Event()

    async def hang(_server: Any, _params: Json, _message: Json) -> Json:
        started.set()
        await trio.sleep_forever()
        raise AssertionError

    async with open_stage(Docs(tools_call=hang)) as (face, mux), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RpcError, match="the event stream has ended"):
                await ask(mux, "tools/call", {"name": "t"})

        nursery.start_soon(call)
        await started.wait()
        face.break_off()


@pytest.mark.parametrize("status", [404, 410, 400, 401, 403, 422])
async def test_a_forgotten_session_is_opened_anew_and_the_request_repeated(status):
    async def call(_server: Any, params: Json, _message: Json) -> Json:
        return {"content": []}

    async with open_stage(Docs(tools_call=call)) as (face, mux):
        face.forgotten = status
        for ask_again in (partial(read_text, mux), partial(ask, mux, "tools/call", {"name": "t"})):
            assert await read_text(mux) == "hello"
            gets = face.count("GET")
            face.streams.clear()  # the stream stays open, but POSTs do not find it
            await ask_again()
            assert face.count("GET") == gets + 1


@pytest.mark.parametrize("status", [400, 500])
async def test_a_refused_message_fails_its_call_and_no_other(status):
    async with open_stage(Docs()) as (face, mux):
        assert await read_text(mux) == "hello"
        face.refusal = status
        assert f"refused with HTTP status {status}" in await trouble_of(mux)
        face.refusal = None
        while len(face.streams) > 1:  # noqa: ASYNC110  # the scripted server answers on its newest stream
            await trio.sleep(0.01)
        assert await read_text(mux) == "hello"
        assert mux.upstreams["x"].status.connects == 1


async def test_a_server_that_became_streamable_is_found_out_anew(monkeypatch):
    handle = SseFace.handle
    new = HttpFace(Docs())
    replaced = trio.Event()

    async def either(face: SseFace, request: Any, reply: Any) -> None:
        await (handle(face, request, reply) if not replaced.is_set() else new.handle(request, reply))

    monkeypatch.setattr(SseFace, "handle", either)
    async with open_stage(Docs()) as (face, mux):
        assert await read_text(mux) == "hello"
        replaced.set()
        connection = mux.upstreams["x"].status.connection
        assert connection is not None
        face.break_off()
        await connection.closed.wait()
        assert await read_text(mux) == "hello"
        assert len(new._server.seen) > 0
