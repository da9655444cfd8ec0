"""A streamed response written without waiting, by somebody else than its task; many clients that leave."""

from __future__ import annotations

import math
import re

import pytest
import trio

from mcpmux.errors import LocalProtocolError
from mcpmux.transports.http import server as http_server
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import COMMENT_BYTES, HttpReply, ReplyWriter
from mcpmux.transports.sse import KEEP_ALIVE, STREAM_HEADERS
from tests.bare_reply import server_state
from tests.transports.test_http_server import GET, TEXT, receive_all, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

PART = b"x" * 1_000_000  # more than a socket takes at once when its peer does not read
PATIENCE = 20  # seconds, on a busy machine


class Stage:
    """A handler that opens a stream and waits; `reply` is what others may write to."""

    def __init__(self):
        self.opened = trio.Event()
        self.go_on = trio.Event()
        self.open = 0
        self.empty = trio.Event()

    async def handle(self, _request, reply):
        await reply.open(200, TEXT, b"begin;")
        self.reply = reply
        self.open += 1
        self.opened.set()
        try:
            await self.go_on.wait()
            await reply.flush()
        finally:
            self.open -= 1
            if not self.open:
                self.empty.set()


def body_of(response):
    """Return the contents of the chunks of a response."""
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


async def test_what_is_written_without_waiting_arrives_at_once():
    stage = Stage()
    async with serving(stage.handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await receive_until(stream, b"begin;\r\n")
        for text in (b"one", b"two"):
            assert stage.reply.write_nowait(text)
            assert await receive_until(stream, text + b"\r\n") == b"3\r\n%b\r\n" % text
        assert stage.reply.write_nowait(b"")
        stage.go_on.set()
        assert await receive_until(stream, b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("flushed", ["by the handler", "by the next write", "by the end"])
async def test_a_blocked_write_is_sent_whole_and_first(flushed):
    stage = Stage()

    async def handle(request, reply):
        await stage.handle(request, reply)
        if flushed == "by the next write":
            await reply.write(b";end")
        elif flushed == "by the handler":
            await reply.flush()
            assert reply.write_nowait(b";end")
        else:
            await reply.finish(b";end")

    async with serving(handle) as server, await server.connect() as stream:
        await stream.send_all(GET.replace(b"Host", b"Connection: close\r\nHost"))
        await stage.opened.wait()
        written = 0
        while stage.reply.write_nowait(PART):
            written += 1
        with pytest.raises(LocalProtocolError):
            stage.reply.write_nowait(b"and more")
        stage.go_on.set()
        assert body_of(await receive_all(stream)) == b"begin;" + PART * (written + 1) + b";end"


async def test_a_write_that_was_cancelled_half_way_is_finished_by_the_next():
    opened = trio.Event()

    async def handle(_request, reply):
        await reply.open(200, TEXT)
        with trio.move_on_after(0.05):
            while True:
                await reply.write(PART)
        opened.set()
        await reply.finish(b";end")

    async with serving(handle) as server, await server.connect() as stream:
        await stream.send_all(GET.replace(b"Host", b"Connection: close\r\nHost"))
        await opened.wait()
        assert re.fullmatch(rb"(x{1000000})+;end", body_of(await receive_all(stream)))


async def test_a_client_that_takes_nothing_of_the_rest_is_cut_off():
    outcome = []
    cut = trio.Event()

    async def handle(_request, reply):
        await reply.open(200, TEXT)
        while reply.write_nowait(PART):
            pass
        try:
            await reply.flush()
            outcome.append("flushed")
        except trio.Cancelled:
            outcome.append("cut off")
            raise
        finally:
            cut.set()

    async with serving(handle, client_stall=0.2) as server, await server.connect() as stream:
        await stream.send_all(GET)
        with trio.fail_after(PATIENCE):
            await cut.wait()
    assert outcome == ["cut off"]


class FullSocket:
    """Takes as many bytes as there is `room`. Waiting makes some, and the sweeper may come meanwhile."""

    def __init__(self):
        self.room = 10_000
        self.received = b""
        self.sweep = None

    def send_nowait(self, data):
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.received += taken
        return len(taken)

    async def wait_sendable(self):
        self.room = 3
        if self.sweep is not None:
            self.sweep()


def reply_to(sock, state):
    writer = ReplyWriter(state, sock, trio.CancelScope())
    request = HttpRequest("GET", "/", "", {}, b"", "", http_1_0=False, keep_alive=True)
    return writer, HttpReply(request, writer, state, lambda _reason: None)


@pytest.mark.interpreted  # over a connection made by the test, as no kernel stops at a given byte
@pytest.mark.parametrize("behind", ["sweeps", "an event", "an event and sweeps"])
@pytest.mark.parametrize("room", range(COMMENT_BYTES))
async def test_a_comment_that_is_sent_in_part_is_finished_first(room, behind):
    sock, state, event = FullSocket(), server_state(), b"data: {}\n\n"
    writer, reply = reply_to(sock, state)
    await reply.open(200, STREAM_HEADERS)
    sock.room = room
    reply.say_alive()
    assert writer.deadline == state.now + state.limits.client_stall
    if behind == "sweeps":
        for _ in range(COMMENT_BYTES - room):
            assert writer.rest is not None
            sock.room = 1
            reply.say_alive()
        event = b""
    else:
        sock.room = 0
        assert not reply.write_nowait(event)
        with pytest.raises(LocalProtocolError):
            reply.write_nowait(event)
        sock.sweep = reply.say_alive if behind == "an event and sweeps" else None
        await reply.flush()
    assert body_of(sock.received) == KEEP_ALIVE + event
    assert (writer.rest, writer.deadline) == (None, math.inf)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("fields", "comments"),
    [
        (STREAM_HEADERS, True),
        ((*TEXT, *STREAM_HEADERS), True),
        (TEXT, False),
        ((("content-type", "text/event-stream"),), False),  # passed on from another replica, in any parts
    ],
)
async def test_only_an_event_stream_of_this_process_has_comments(fields, comments):
    state = server_state()
    _, reply = reply_to(FullSocket(), state)
    await reply.open(200, fields)
    assert reply.is_quiet_since(state.now) == comments


@pytest.mark.parametrize("writing", [False, True])
async def test_many_clients_that_leave_are_all_noticed_in_turn(monkeypatch, writing):
    """With more of them than are looked after in one sweep."""
    monkeypatch.setattr(http_server, "SWEEP_CONNECTIONS", 3)
    monkeypatch.setattr(http_server, "SWEEP_SECONDS", 0.01)
    stage = Stage()
    async with serving(stage.handle) as server:
        streams = [await server.connect() for _ in range(20)]
        for stream in streams:
            await stream.send_all(GET)
            await receive_until(stream, b"begin;\r\n")
        assert stage.open == 20
        for stream in streams[10:]:
            await stream.aclose()
        with trio.fail_after(PATIENCE):
            while stage.open > 10:
                await trio.sleep(0.01)
                if writing:
                    stage.reply.write_nowait(b"to nobody")  # the last one: it has left
        await trio.sleep(0.2)
        assert stage.open == 10
        for stream in streams[:10]:
            await stream.aclose()
        with trio.fail_after(PATIENCE):
            await stage.empty.wait()
