"""Exchanges of a client over HTTP: plain calls are sent on and answered without their own task."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from opentelemetry.trace import SpanKind

from mcpmux.channels import http_channel
from mcpmux.channels.duplex_channel import DuplexChannel
from mcpmux.channels.http_channel import HttpChannel
from mcpmux.channels.http_peer import PendingHttpRequest
from mcpmux.channels.tap import Leg, Said
from mcpmux.cli.main import is_compiled
from mcpmux.config import Audit as AuditSettings
from mcpmux.mux import rewrite
from mcpmux.protocol.envelope import LARGE_BYTES
from mcpmux.protocol.raw_json import Id
from mcpmux.traffic.audit.journal import Audit
from mcpmux.traffic.audit.record_maker import RecordMaker
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.transports.inline import Inline
from mcpmux.upstreams.response_cache import DOUBTS
from tests.peers.http_client import Answer, HttpClient, request
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import ScriptedServer
from tests.runtime.http_front import open_endpoint
from tests.runtime.http_world import HttpWorld
from tests.runtime.test_exchanges import (
    NO_SLOT_IS_HELD,
    PLAIN,
    PROMPT,
    READ,
    TOOL,
    URI,
    Server,
    held,
    on_the_way,
)
from tests.runtime.world import World
from tests.traffic.traced_world import Memory, make_spans

STREAM, HTTP, EVENTS = "stream", "http", "events"
PATIENCE = 30  # seconds, on a busy machine


class Asking:
    """A client, modern or of a session, in front of server `x`.

    `attended`: exchanges that went on in a task; `carried`: what a task has sent to a server, or read of it.
    Compiled callers do not see what is put in a method's place, so that a look-up there fails.
    """

    def __init__(self, client: HttpClient, session: Json | None) -> None:
        self.client = client
        self.session = session
        self.attended: list[Inline] = []
        self.carried: list[PendingHttpRequest] = []

    @property
    def has_no_task(self) -> bool:
        return not self.attended and not self.carried

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attend, carry = Inline.__await__, HttpChannel._carry

        def note_attended(inline: Inline) -> Iterator[Any]:
            # Its pauses refer to the coroutine; a task of the server is none of the exchange.
            is_the_servers = "_handle_in_task" in repr(gc.get_referents(inline._pauses))
            if not inline.is_over and not is_the_servers:
                self.attended.append(inline)
            return attend(inline)

        def note_carried(channel: HttpChannel, pending: PendingHttpRequest) -> None:
            self.carried.append(pending)
            carry(channel, pending)

        monkeypatch.setattr(Inline, "__await__", note_attended)
        monkeypatch.setattr(HttpChannel, "_carry", note_carried)

    async def ask(self, method: str, params: Json, request_id: int = 1, **headers: Any) -> Answer:
        if self.session is None:
            return await self.client.modern(method, params, **headers)
        # Without event streams a tool call of a session needs none that can be resumed.
        accept = {"Accept": "application/json"} if method == "tools/call" else {}
        message = request(method, params, request_id)
        return await self.client.send(message, self.session | accept | headers)

    async def cancel(self, request_id: int) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        assert (await self.client.send(note, self.session)).status == 202


@asynccontextmanager
async def asking(
    server: Placed,
    era: str,
    monkeypatch: pytest.MonkeyPatch,
    watching: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Asking]:
    """Open an endpoint whose server has answered once and has closed its gate. `watching`: see `open_mux`."""
    servers = {"x": server, "y": ScriptedServer()}
    worlds = HttpWorld if server.over == HTTP else World
    watching = watching or {}
    async with open_endpoint(servers, settings={"x": settings}, world_class=worlds, **watching) as client:
        session = Asking(client, None if era == MODERN else await client.initialize(era))
        server.gate.set()
        for method, params in [TOOL, *[READ] * DOUBTS]:  # then a read is not looked for in a memory first
            await session.ask(method, params)
        server.gate = trio.Event()
        session.watch(monkeypatch)
        yield session


async def asked(server: Server, method: str, count: int) -> None:
    with trio.fail_after(PATIENCE):
        while len(server.asked(method)) < count:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)


def make_audit() -> tuple[list[bytes], Audit]:
    """Return the output of an audit log, and the log, which the caller runs."""
    written: list[bytes] = []

    async def append(records: Sequence[bytes]) -> None:
        written.extend(records)

    return written, Audit(append, AuditSettings(), RecordMaker("run", Redactor(), time.time))


async def nothing_is_held(found: Asking) -> None:
    assert found.client.world is not None
    with trio.fail_after(PATIENCE):
        while held(found.client.world) != NO_SLOT_IS_HELD:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)


class Placed(Server):
    """A server and how it is reached: over a byte stream, or over HTTP, where it answers with JSON or EVENTS.

    `left`: calls that it has stopped to work on.
    """

    def __init__(self, revision: str, way: str) -> None:
        super().__init__(revision)
        self.over = STREAM if way == STREAM else HTTP
        self.streams = way == EVENTS
        self.left = 0

    async def pass_gate(self, params: Json) -> None:
        try:
            await super().pass_gate(params)
        except trio.Cancelled:
            self.left += 1
            raise

    async def heard_of_the_end(self, count: int) -> None:
        """Check the end of as many calls, each reported once: by a notification or a closed connection."""
        with trio.fail_after(PATIENCE):
            while self.left < count:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)
        cancellations = 0 if self.over == HTTP and self.modern else count
        await asked(self, "notifications/cancelled", cancellations)
        assert (self.left, len(self.asked("notifications/cancelled"))) == (count, cancellations)


@pytest.fixture(params=[MODERN, LEGACY])
def revision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[STREAM, HTTP, EVENTS])
def server(request: pytest.FixtureRequest, revision: str) -> Placed:
    return Placed(revision, request.param)


ERAS = pytest.mark.parametrize("era", [MODERN, LEGACY, "2024-11-05"])


@ERAS
@pytest.mark.parametrize("call", PLAIN, ids=lambda call: call[0])
async def test_a_plain_http_call_is_answered_in_its_era_without_a_task(server, call, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        server.gate.set()
        method, params = call
        for number in range(5):
            answer = await session.ask(method, params, number)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            text = str(answer.last["result"])
            assert (f"x+{URI}" in text) is (call is not PROMPT)
            assert ("resultType" in text) is (era == MODERN)
            assert ("resource_link" in text) is (call is TOOL and era != "2024-11-05")
        assert session.has_no_task
        assert held(session.client.world) == NO_SLOT_IS_HELD


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_observed_calls_are_answered_without_a_task(server, era, monkeypatch):
    memory, metrics = Memory(), Metrics()
    spans = make_spans(memory)
    written, audit = make_audit()
    recorder = Recorder([spans, metrics], [metrics, spans, audit], trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        async with asking(server, era, monkeypatch, {"tap": recorder, "trace": spans.trace}) as session:
            server.gate.set()
            memory.clear()
            for number in range(5):
                assert "result" in (await session.ask(*READ, number)).last
                record = json.loads(written[-1])
                assert (record["method"], record["outcome"]) == ("resources/read", "ok")
            assert session.has_no_task
            assert len(memory.of_kind(SpanKind.SERVER)) == len(memory.of_kind(SpanKind.CLIENT)) == 5
            error = (await session.ask("tools/call", {"name": "nothing"}, 5)).last["error"]  # it waits, too
            assert json.loads(written[-1])["code"] == error["code"]
        audit.close()


class Comparing:
    """Compares what a recorder gets about messages with the messages themselves."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.compared: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def message_passed(
        self, leg: Leg, direction: Any, message: bytes, status: int | None = None, said: Said | None = None
    ) -> None:
        self._compare(message, said)
        self._recorder.message_passed(leg, direction, message, status, said)

    def exchange_of(self, leg: Leg, request_id: Id, message: bytes = b"", said: Said | None = None) -> int:
        self._compare(message, said)
        return self._recorder.exchange_of(leg, request_id, message, said)

    def _compare(self, message: bytes, said: Said | None) -> None:
        if said is None:
            return
        decoded = json.loads(message)
        self.compared.append(said.kind)
        assert said.id == decoded["id"]
        assert said.code == decoded.get("error", {}).get("code")
        assert said.kind == (
            "request" if "method" in decoded else "error" if "error" in decoded else "result"
        )
        if said.kind == "request":
            params = decoded.get("params", {})
            assert (said.method, said.target) == (decoded["method"], params.get("uri", params.get("name")))


@ERAS
async def test_what_is_said_of_messages_is_what_they_say(server, era, monkeypatch):
    tap = Comparing(Recorder([Metrics()], [], trio.current_time))
    async with asking(server, era, monkeypatch, {"tap": tap}) as session:
        server.gate.set()
        tap.compared.clear()
        for number, call in enumerate([*PLAIN, ("tools/call", {"name": "nothing"})]):
            await session.ask(*call, number)
        legs = 2 if server.over == HTTP and not server.streams else 1
        assert tap.compared.count("request") >= len(PLAIN) * legs
        assert tap.compared.count("result") >= len(PLAIN) * legs


async def test_observers_see_a_call_cut_off_by_a_stop_as_cancelled():
    metrics = Metrics()
    written, audit = make_audit()
    recorder = Recorder([metrics], [metrics, audit], trio.current_time)
    server = Server(MODERN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        async with open_endpoint({"x": server, "y": ScriptedServer()}, tap=recorder) as client:
            session = await client.initialize(LEGACY)
            client.world.nursery.start_soon(client.send, request(*TOOL, 7), session)
            await asked(server, "tools/call", 1)
            client.world.nursery.cancel_scope.cancel()
        audit.close()
    records = [json.loads(record) for record in written]
    assert [record["outcome"] for record in records if record.get("method") == "tools/call"] == ["cancelled"]
    assert metrics.exchanges_total["tools/call", "x", "cancelled"] == 1


async def test_a_call_beyond_its_connection_gets_a_task_with_its_first_event(server, monkeypatch):
    async with asking(server, "2025-06-18", monkeypatch) as session:  # which does not prime streams
        server.gate.set()
        for number in range(5):
            answer = await session.client.send(request(*TOOL, number), session.session)
            assert answer.headers["content-type"] == "application/json"
            assert answer.last["id"] == number
        assert session.has_no_task
        server.notes = 1
        method, params = TOOL
        meta = {"_meta": {"progressToken": "mine"}}
        answer = await session.client.send(request(method, params | meta, 9), session.session)
        assert [message.get("id") for message in answer.messages] == [None, 9]
        assert is_compiled() or len(session.attended) == 2  # the call, and the connection that follows it


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_progress_makes_the_answer_an_event_stream(server, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        server.notes = (
            0 if server.over == HTTP and era == MODERN else 3
        )  # there it has no owner without a token
        server.gate.set()
        method, params = READ
        answer = None
        meta = {"_meta": {"progressToken": "mine"}}
        if era == LEGACY:
            answer = await session.ask(method, params | meta)
            tokens = [message["params"]["progressToken"] for message in answer.messages[:-1]]
            assert tokens == ["mine"] * 3
            assert "contents" in answer.last["result"]
            assert is_compiled() or len(session.attended) == 1
        else:
            answer = await session.ask(method, params)  # it did not ask for progress, so it gets none
            assert len(answer.messages) == 1
            assert "contents" in answer.last["result"]


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_a_call_ends_at_its_deadline_and_its_server_is_notified(server, era, monkeypatch):
    async with asking(server, era, monkeypatch, timeouts={"tools/call": 0.5}) as session:
        answer = await session.ask(*TOOL)
        assert "did not answer tools/call within 0.5 s" in answer.last["error"]["message"]
        await server.heard_of_the_end(1)
        await nothing_is_held(session)
        server.gate.set()
        assert "result" in (await session.ask(*READ)).last  # the session may use the id again


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_a_read_is_sent_again_when_the_server_is_lost(server, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session, trio.open_nursery() as nursery:

        async def lose() -> None:
            await asked(server, "resources/read", DOUBTS + 1)
            server.gate.set()
            await session.client.world.kill("x")

        nursery.start_soon(lose)
        answer = await session.ask(*READ)
        assert "contents" in answer.last["result"]
        await nothing_is_held(session)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
@pytest.mark.parametrize("call", PLAIN, ids=lambda call: call[0])
async def test_a_client_that_leaves_is_noticed_and_the_server_is_told_once(server, call, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        count = len(server.asked(call[0]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(session.ask, *call))
            await asked(server, call[0], count + 1)
            nursery.cancel_scope.cancel()
        await server.heard_of_the_end(1)
        await nothing_is_held(session)
        server.gate.set()
        assert "result" in (await session.ask(*call)).last
        await server.heard_of_the_end(1)


@pytest.mark.parametrize("ended", ["taken back", "with its session"])
async def test_a_call_of_an_ended_session_gets_an_empty_answer(server, ended, monkeypatch):
    async with asking(server, LEGACY, monkeypatch) as session:
        got = []

        async def ask() -> None:
            got.append(await session.ask(*READ, 7))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await asked(server, "resources/read", DOUBTS + 1)
            busy = await session.ask(*READ, 7)
            assert "already in flight" in busy.last["error"]["message"]
            if ended == "taken back":
                for _ in range(2):
                    await session.cancel(7)
            else:
                assert (await session.client.send(b"", session.session, "DELETE")).status == 204
        assert [answer.status for answer in got] == [202]
        await server.heard_of_the_end(1)
        await nothing_is_held(session)
        if ended == "taken back":  # the connection goes on
            server.gate.set()
            assert "contents" in (await session.ask(*READ, 7)).last["result"]
            await server.heard_of_the_end(1)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
@pytest.mark.parametrize("size", [LARGE_BYTES // 16, LARGE_BYTES * 3], ids=["joined", "in parts"])
async def test_a_large_answer_is_whole(server, era, size, monkeypatch):
    text = "é" * size

    async def read(_server: Any, params: Json, _message: Json) -> Json:
        result = {"contents": [{"uri": params["uri"], "text": text}]}
        return result | (
            {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if server.modern else {}
        )

    async with asking(server, era, monkeypatch) as session:
        server.handlers["resources/read"] = read
        for number in range(2):
            answer = await session.ask(*READ, number)
            assert answer.last["result"]["contents"] == [{"uri": f"x+{URI}", "text": text}]
        in_parts = server.over == HTTP and size > LARGE_BYTES  # a task reads these where they stay
        assert is_compiled() or bool(session.carried) is in_parts


@pytest.mark.interpreted
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_a_call_that_breaks_while_sent_is_answered(server, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        server.gate.set()

        def fail(_link: DuplexChannel | HttpChannel, *_: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as broken:
            broken.setattr(DuplexChannel, "_send_now", fail)
            broken.setattr(HttpChannel, "_send_now", fail)
            answer = await session.ask(*TOOL)
        assert answer.last["error"]["message"] == "Internal error"
        await nothing_is_held(session)
        assert "result" in (await session.ask(*TOOL)).last


@pytest.mark.interpreted
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_an_answer_that_makes_no_sense_breaks_nothing(server, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        server.gate.set()

        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as broken:
            broken.setattr(rewrite, "expose_result", fail)
            answer = await session.ask(*READ)
        assert answer.last["error"]["message"] == "Internal error"
        assert answer.status == (500 if era == MODERN else 200)
        assert "result" in (await session.ask(*READ)).last


@pytest.mark.interpreted
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_an_answer_over_http_that_cannot_be_taken_holds_nothing(revision, era, monkeypatch):
    server = Placed(revision, HTTP)
    async with asking(server, era, monkeypatch) as session:
        server.gate.set()

        def fail(_body: bytes, _pending: PendingHttpRequest) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as broken:
            broken.setattr(http_channel, "answer_in", fail)
            answer = await session.ask(*READ)
        assert answer.last["error"]["message"] == "Internal error"
        await nothing_is_held(session)
        assert "result" in (await session.ask(*READ)).last
        assert session.has_no_task


@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_what_has_been_answered_is_gone_without_the_collector(server, era, monkeypatch):
    async with asking(server, era, monkeypatch) as session:
        server.gate.set()
        gc.collect()
        gc.disable()
        try:
            earlier = on_the_way()  # a server's own stream, and other tests' cycles
            for number in range(5):
                await session.ask(*READ, number)
            left = [held for held in on_the_way() if not any(held is other for other in earlier)]
            circles = gc.collect()  # objects that nothing else would have freed
        finally:
            gc.enable()
        assert left == []
        assert circles == 0
