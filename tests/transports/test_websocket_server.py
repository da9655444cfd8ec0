"""Mistakes of clients over WebSocket, byte by byte, in memory and virtual time."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from mcpmux.errors import TransportClosed
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports import websocket
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket import (
    CLOSE_SECONDS,
    GOING_AWAY,
    HANDSHAKE_SECONDS,
    POLICY_VIOLATION,
    HandshakePolicy,
    open_websocket_client,
)
from tests.examples import examples
from tests.peers.raw_websocket import BINARY, CLOSE, PING, PONG, TEXT, RawClient, frame, handshake

LIMIT = 1000
DOOR = HandshakePolicy("/mcp", OriginPolicy("127.0.0.1", ["mux.example"], ["https://app.example"]))


class Echo:
    """A server that sends back what it receives. `ends` tells how it went."""

    def __init__(self, busy: str | None = None, stall: float = 60) -> None:
        self.busy = busy
        self.stall = stall
        self.ends: list[str] = []
        self.received: list[bytes] = []
        self.stopping = trio.Event()
        self.done = trio.Event()

    async def serve(self, stream) -> None:
        patient = PatientStream(stream, self.stall)
        async with open_websocket_client(patient, DOOR, lambda: self.busy, LIMIT) as pipe:
            if pipe is None:
                self.ends.append("refused")
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop, nursery.cancel_scope)
                    await self._echo(pipe)
                    nursery.cancel_scope.cancel()
                if self.stopping.is_set():
                    pipe.close_code = GOING_AWAY
        self.done.set()

    async def _stop(self, scope) -> None:
        await self.stopping.wait()
        scope.cancel()

    async def _echo(self, pipe) -> None:
        try:
            while True:
                self.received.append(await pipe.receive())
                await pipe.send(self.received[-1])
        except TransportClosed as end:
            self.ends.append(str(end))
            for operation in (pipe.receive(), pipe.send(b"x")):
                with pytest.raises(TransportClosed):
                    await operation


@asynccontextmanager
async def connect(echo: Echo) -> AsyncIterator[RawClient]:
    ours, theirs = memory_stream_pair()
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo.serve, theirs)
            yield RawClient(ours)
            nursery.cancel_scope.cancel()


async def open_client(client: RawClient) -> None:
    await client.stream.send_all(handshake())
    status, _, _ = await client.head()
    assert status == 101


@asynccontextmanager
async def open_echo() -> AsyncIterator[tuple[Echo, RawClient]]:
    """Open a client whose handshake is done."""
    echo = Echo()
    async with connect(echo) as client:
        await open_client(client)
        yield echo, client


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [("mcp", True), ("other, mcp", True), (None, False)],
)
async def test_a_client_that_offers_mcp_or_nothing_gets_through(protocols, chosen, autojump_clock):
    async with connect(Echo()) as client:
        await client.stream.send_all(handshake(protocols=protocols))
        status, head, _ = await client.head()
        assert status == 101
        assert ("sec-websocket-protocol: mcp" in head.lower()) == chosen
        assert "extensions" not in head.lower()
        await client.stream.send_all(frame(TEXT, "grüße".encode()))
        assert await client.frame() == (TEXT, "grüße".encode())


REFUSED = [
    (handshake(path="/"), 404, "the WebSocket endpoint is at /mcp"),
    (handshake(path="/mcp/x"), 404, "the WebSocket endpoint is at /mcp"),
    (handshake(host="evil.example"), 403, "Host 'evil.example' is not served here"),
    (handshake(Origin="https://evil.example"), 403, "Origin 'https://evil.example' may not connect"),
    (handshake(Origin="null"), 403, "Origin 'null' may not connect"),
    (handshake(protocols="graphql-ws"), 400, "the subprotocol here is 'mcp'"),
    (b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, "no WebSocket handshake"),
    (b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}", 400, "no WebSocket handshake"),
    (b"no HTTP at all\r\n\r\n", 400, "no WebSocket handshake"),
    (handshake(host="\xff\xfe"), 400, "no WebSocket handshake"),
    (handshake(Sec_WebSocket_Version="8"), 426, "no WebSocket handshake of version 13"),
    (handshake(X="y" * 100_000), 400, "no WebSocket handshake"),
    (handshake(protocols="m\xfcp"), 400, "no WebSocket handshake"),
    (handshake(Content_Length="2") + b"{}", 400, "a WebSocket handshake has no body"),
    (handshake(Transfer_Encoding="chunked"), 400, "a WebSocket handshake has no body"),
]


@pytest.mark.parametrize(("request_bytes", "status", "sentence"), REFUSED)
async def test_any_other_client_hears_why_it_does_not(request_bytes, status, sentence, autojump_clock):
    echo = Echo()
    async with connect(echo) as client:
        with trio.move_on_after(1):
            await client.stream.send_all(request_bytes)
        actual, _, body = await client.head()
        assert actual == status
        assert sentence.encode() in body
        assert body
        await echo.done.wait()
    assert echo.ends == ["refused"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        handshake(path="/mcp?key=1"),
        handshake(host="localhost:1234"),
        handshake(host="mux.example"),
        handshake(Origin="https://app.example"),
        handshake(Origin="http://localhost:3000"),
    ],
)
async def test_those_who_may_connect_do(request_bytes, autojump_clock):
    async with connect(Echo()) as client:
        await client.stream.send_all(request_bytes)
        status, _, _ = await client.head()
        assert status == 101


async def test_a_client_that_does_not_wait_for_the_answer_loses_nothing(autojump_clock):
    async with connect(Echo()) as client:
        whole = frame(TEXT, b"an") + frame(TEXT, b"early")
        await client.stream.send_all(handshake() + whole + frame(TEXT, b"bird")[:3])
        assert (await client.head())[0] == 101
        assert [await client.frame() for _ in range(2)] == [(TEXT, b"an"), (TEXT, b"early")]
        await client.stream.send_all(frame(TEXT, b"bird")[3:])
        assert await client.frame() == (TEXT, b"bird")


async def shake(data: bytes) -> None:
    """Send `data` as a handshake. Expect some HTTP response, or none to an incomplete request."""
    echo = Echo()
    async with connect(echo) as client:
        with suppress(trio.BrokenResourceError):
            await client.stream.send_all(data)
            await wait_all_tasks_blocked()
            await client.stream.send_eof()
        answer = b""
        while chunk := await client.stream.receive_some():
            answer += chunk
        assert re.match(rb"HTTP/1.1 (101|4\d\d) |\Z", answer)
        await echo.done.wait()


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=5))
def test_any_handshake_is_answered_or_left(changes: list[tuple[int, bytes]]):
    data = bytearray(handshake())
    for place, new in changes:
        data[place : place + 2] = new
    trio.run(shake, bytes(data), clock=MockClock(autojump_threshold=0))


async def test_when_nobody_new_is_served_it_is_503(autojump_clock):
    async with connect(Echo(busy="too many connections")) as client:
        await client.stream.send_all(handshake())
        assert (await client.head())[::2] == (503, b"too many connections")


@pytest.mark.parametrize("sent", [b"", handshake()[:-10]])
async def test_a_handshake_that_does_not_end_is_bounded_in_time(sent, autojump_clock):
    echo = Echo()
    async with connect(echo) as client:
        await client.stream.send_all(sent)
        await client.expect_end()
        await echo.done.wait()
    assert trio.current_time() == HANDSHAKE_SECONDS


async def test_a_client_that_leaves_within_the_handshake_is_noticed_at_once(autojump_clock):
    echo = Echo()
    async with connect(echo) as client:
        await client.stream.send_all(handshake()[:-10])
        await client.stream.aclose()
        await echo.done.wait()
    assert trio.current_time() == 0


async def test_a_binary_message_ends_it_with_1003(autojump_clock):
    async with open_echo() as (echo, client):
        await client.stream.send_all(frame(TEXT, b"first") + frame(BINARY, b"{}"))
        assert await client.frame() == (TEXT, b"first")
        assert await client.close_code() == 1003
        await client.stream.send_all(frame(CLOSE, struct.pack("!H", 1003)))
        await client.expect_end()
        await echo.done.wait()
    assert echo.received == [b"first"]
    assert echo.ends == ["a binary message came; MCP messages are text"]


@pytest.mark.parametrize(
    ("size", "accepted"), [("x" * LIMIT, True), ("x" * (LIMIT + 1), False), ("ü" * (LIMIT // 2 + 1), False)]
)
async def test_the_limit_counts_bytes_and_past_it_is_1009(size, accepted, autojump_clock):
    async with open_echo() as (echo, client):
        await client.stream.send_all(frame(TEXT, size.encode()))
        if accepted:
            assert await client.frame() == (TEXT, size.encode())
        else:
            assert await client.close_code() == 1009
            await client.stream.send_all(frame(CLOSE, struct.pack("!H", 1009)))
            await echo.done.wait()
            assert echo.received == []


async def test_a_long_message_in_fragments_is_refused_before_it_is_whole(autojump_clock):
    async with connect(Echo()) as client:
        await open_client(client)
        await client.stream.send_all(frame(TEXT, b"x" * 600, fin=False) + frame(0, b"x" * 600, fin=False))
        assert await client.close_code() == 1009


async def test_a_message_in_fragments_is_one_message_and_pings_come_between(autojump_clock):
    async with connect(Echo()) as client:
        await open_client(client)
        await client.stream.send_all(frame(TEXT, b"a", fin=False) + frame(PING, b"?") + frame(0, b"b"))
        assert await client.frame() == (PONG, b"?")
        assert await client.frame() == (TEXT, b"ab")


async def test_fragments_without_end_are_cut_off(autojump_clock, monkeypatch):
    allowed = 2**16
    monkeypatch.setattr(websocket, "ALLOWANCE_BYTES", allowed)
    async with open_echo() as (echo, client):
        await client.stream.send_all(frame(TEXT, b"", fin=False))
        empty = frame(0, b"", fin=False) * 1000
        for _ in range((2 * LIMIT + allowed) // len(empty) + 2):
            await client.stream.send_all(empty)
            await wait_all_tasks_blocked()
        assert await client.close_code() == POLICY_VIOLATION
        await echo.done.wait()
    assert echo.ends == ["much comes, and no message"]


async def test_other_tasks_get_their_turn_between_tiny_frames():
    fragments = 20 * websocket.FRAMES_IN_A_ROW
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with connect(Echo()) as client, trio.open_nursery() as nursery:
        await open_client(client)
        await client.stream.send_all(frame(TEXT, b"", fin=False) + frame(0, b"", fin=False) * fragments)
        nursery.start_soon(count_turns)
        await client.stream.send_all(frame(0, b"x"))
        assert await client.frame() == (TEXT, b"x")
        nursery.cancel_scope.cancel()
    assert turns >= 20


async def test_messages_use_up_no_allowance(autojump_clock, monkeypatch):
    allowed = 2**16
    monkeypatch.setattr(websocket, "ALLOWANCE_BYTES", allowed)
    async with connect(Echo()) as client:
        await open_client(client)
        for _ in range((2 * LIMIT + allowed) // LIMIT + 10):
            await client.stream.send_all(frame(TEXT, b"x" * LIMIT))
            assert (await client.frame())[0] == TEXT


NONSENSE = {
    "no UTF-8": frame(TEXT, b"\xff"),
    "a lone surrogate": frame(TEXT, b"\xed\xa0\x80"),
    "reserved bits": b"\xf1\x80" + b"\0" * 4,
    "not masked": b"\x81\x01x",
    "an unknown opcode": frame(3, b""),
    "a message within another": frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"),
    "the middle of nothing": frame(0, b"x"),
    "a ping that is too long": frame(PING, b"x" * 126),
    "half a code": frame(CLOSE, b"\x00"),
    "a code of no meaning": frame(CLOSE, struct.pack("!H", 1005)),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_what_is_no_websocket_ends_this_connection_alone(nonsense, autojump_clock):
    async with open_echo() as (echo, client):
        await client.stream.send_all(nonsense + frame(TEXT, b"never"))
        await echo.done.wait()
    assert len(echo.ends) == 1
    assert echo.received == []


async def hear(data: bytes) -> None:
    """Send `data` to a server and end the stream. Expect that it ends once."""
    async with open_echo() as (echo, client):
        with suppress(trio.BrokenResourceError):
            await client.stream.send_all(data)
            await client.stream.send_eof()
        await echo.done.wait()
    assert len(echo.ends) == 1


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.binary(max_size=100) | st.builds(frame, st.integers(0, 15), st.binary(max_size=130))))
def test_any_bytes_end_it_once(parts: list[bytes]):
    trio.run(hear, b"".join(parts), clock=MockClock(autojump_threshold=0))


async def test_the_clients_goodbye_is_answered(autojump_clock):
    async with open_echo() as (echo, client):
        await client.stream.send_all(frame(CLOSE, struct.pack("!H", 1000) + b"bye"))
        assert await client.close_code() == 1000
        await client.expect_end()
        await echo.done.wait()
    assert echo.ends == ["the connection was closed with 1000: bye"]


async def test_a_client_that_vanishes_is_lost(autojump_clock):
    async with open_echo() as (echo, client):
        await client.stream.aclose()
        await echo.done.wait()
    assert echo.ends == ["the connection was lost"]
    assert trio.current_time() == 0


async def test_our_goodbye_says_that_we_go_and_does_not_wait_for_ever(autojump_clock):
    async with open_echo() as (echo, client):
        began = trio.current_time()
        echo.stopping.set()
        assert await client.close_code() == GOING_AWAY
        await echo.done.wait()
        assert trio.current_time() - began == CLOSE_SECONDS


async def test_the_clients_answer_to_our_goodbye_is_the_end(autojump_clock):
    async with open_echo() as (echo, client):
        echo.stopping.set()
        assert await client.close_code() == GOING_AWAY
        await client.stream.send_all(frame(TEXT, b"later") + frame(CLOSE, struct.pack("!H", GOING_AWAY)))
        await client.expect_end()
        await echo.done.wait()
    assert trio.current_time() == 0


async def test_a_ping_after_our_goodbye_harms_nobody(autojump_clock):
    async with open_echo() as (echo, client):
        echo.stopping.set()
        assert await client.close_code() == GOING_AWAY
        await client.stream.send_all(frame(PING, b"late") + frame(TEXT, b"later"))
        await echo.done.wait()
    assert echo.ends == []


async def test_a_client_that_reads_nothing_is_closed_after_the_stall(autojump_clock):
    echo = Echo(stall=7)
    ours, theirs = memory_stream_pair()
    blocked = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo.serve, theirs)
        client = RawClient(ours)
        await open_client(client)
        theirs.send_stream.send_all_hook = blocked.wait
        began = trio.current_time()
        await ours.send_all(frame(TEXT, b"a") + frame(TEXT, b"b"))
        with trio.fail_after(3600):
            await echo.done.wait()
        assert 7 <= trio.current_time() - began <= 7 + 3 * CLOSE_SECONDS
    assert echo.ends == ["the connection was lost"]
