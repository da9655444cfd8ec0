from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcpmux.config import Limits
from mcpmux.errors import LocalProtocolError
from mcpmux.transports.http.server import REFUSED_CONNECTIONS, SWEEP_SECONDS, serve_http
from mcpmux.transports.polling import open_readiness_poller
from tests.transports import ways

GET = b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET /a?b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
TEXT = (("Content-Type", "text/plain"),)


pytestmark = pytest.mark.usefixtures("received")


class Running:
    """A server under test; `stopping` is its stop signal, `stopped` is set when it has returned."""

    def __init__(self, port):
        self.port = port
        self.stopping = trio.Event()
        self.stopped = trio.Event()

    async def connect(self):
        return await ways.connect(self.port)

    async def ask(self, data):
        """Send `data`, receive to the end."""
        async with await self.connect() as stream:
            await stream.send_all(data)
            return await receive_all(stream)


@asynccontextmanager
async def serving(handler, *, inline=False, **limits):
    def refuse(status, sentence, _limit):
        return TEXT, f"{status} {sentence}".encode()

    async def serve(running, task_status):
        await serve_http(
            listeners,
            handler,
            refuse=refuse,
            stopping=running.stopping,
            limits=Limits(**limits),
            poller=poller,
            inline=inline,
            tls=(lambda: ways.contexts()[0]) if ways.secured else None,
            task_status=task_status,
        )
        running.stopped.set()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    running = Running(listeners[0].socket.getsockname()[1])
    with trio.fail_after(60):
        async with open_readiness_poller() as poller, trio.open_nursery() as nursery:
            await nursery.start(partial(serve, running))
            yield running
            nursery.cancel_scope.cancel()


async def receive_all(stream):
    return b"".join([part async for part in stream])


async def receive_until(stream, end):
    data = b""
    while not data.endswith(end):
        part = await stream.receive_some()
        assert part, data
        data += part
    return data


def without_date(response):
    head, _, rest = response.partition(b"Date: ")
    assert rest[25:31] == b" GMT\r\n"
    return head + rest[31:]


async def echo(request, reply):
    text = f"{request.method} {request.path} {request.query} ".encode() + request.body
    await reply.send(200, TEXT, text)


async def stream_three(_request, reply):
    await reply.open(200, TEXT, b"one")
    await reply.write(b"")
    await reply.write(b"two")
    await reply.finish(b"three")


async def wait_forever(_request, _reply):
    await trio.sleep_forever()


async def test_answer_is_one_complete_response():
    async with serving(echo) as server, await server.connect() as stream:
        await stream.send_all(GET)
        assert without_date(await stream.receive_some()) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nGET /a b "
        )


async def test_connection_is_kept_alive_until_the_client_closes():
    async with serving(echo) as server, await server.connect() as stream:
        for body in (b"1", b"2", b"3"):
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n" + body)
            assert await receive_until(stream, b"POST /  " + body)
        await stream.send_eof()
        assert await receive_all(stream) == b""


async def test_connection_closes_when_the_client_says_so():
    async with serving(echo) as server:
        assert b"\r\nConnection: close\r\n" in await server.ask(GET_AND_CLOSE)


async def test_pipelined_requests_are_answered_in_order():
    async def reply_path(request, reply):
        if request.path == "/1":
            await trio.lowlevel.checkpoint()
        await reply.send(200, (), request.path.encode())

    requests = [b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(1, 4)]
    async with serving(reply_path) as server:
        answer = await server.ask(b"".join(requests) + GET_AND_CLOSE)
        bodies = [part[:2] for part in answer.split(b"\r\n\r\n")[1:]]
        assert bodies == [b"/1", b"/2", b"/3", b"/a"]


async def test_chunked_request_is_received_in_pieces():
    async with serving(echo) as server, await server.connect() as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"2\r\na", b"b\r\n", b"1\r\nc\r\n0\r\n", b"\r\n"):
            await stream.send_all(piece)
            await trio.lowlevel.checkpoint()
        assert await receive_until(stream, b"POST /  abc")


async def test_body_that_waits_for_a_go_ahead_gets_one():
    async with serving(echo) as server, await server.connect() as stream:
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert await receive_until(stream, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"ab")
        assert (await receive_until(stream, b"ab")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_client_that_sends_far_too_much_reads_why_it_is_refused():
    """Many send all that they have before they read."""
    size = 32 * 2**20
    async with serving(echo, max_message_bytes=2**20) as server:
        answer = await server.ask(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
        )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 1048576 bytes" in answer


async def test_large_body_is_sent_whole_to_a_slow_reader():
    body = bytes(range(256)) * 8192

    async def send_large(_request, reply):
        await reply.send(200, (), body)

    async with serving(send_large) as server, await server.connect() as stream:
        await stream.send_all(GET_AND_CLOSE)
        await trio.testing.wait_all_tasks_blocked()
        _, _, received = (await receive_all(stream)).partition(b"\r\n\r\n")
        assert received == body


async def test_streamed_response_is_chunked():
    async with serving(stream_three) as server, await server.connect() as stream:
        await stream.send_all(GET)
        assert without_date(await receive_until(stream, b"0\r\n\r\n")) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
        )
        await stream.send_all(GET)
        assert await receive_until(stream, b"0\r\n\r\n")


async def test_streamed_response_to_http_1_0_ends_with_the_connection():
    async with serving(stream_three) as server:
        answer = await server.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert without_date(answer) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nonetwothree"
        )


async def test_stream_left_open_ends_with_the_handler():
    async def open_only(_request, reply):
        await reply.open(200, ())

    async with serving(open_only) as server:
        assert (await server.ask(GET_AND_CLOSE)).endswith(b"\r\n\r\n0\r\n\r\n")


async def test_http_1_0_client_may_keep_its_connection():
    async with serving(echo) as server, await server.connect() as stream:
        for _ in range(2):
            await stream.send_all(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert b"\r\nConnection: keep-alive\r\n" in await receive_until(stream, b"GET /a  ")


@pytest.mark.parametrize(
    ("method", "status", "ending"),
    [
        (b"HEAD", 200, b"Content-Length: 4\r\n\r\n"),
        (b"GET", 200, b"Content-Length: 4\r\n\r\nbody"),
        (b"GET", 204, b" GMT\r\n\r\n"),
        (b"GET", 304, b" GMT\r\n\r\n"),
    ],
)
async def test_response_without_body_ends_with_its_head(method, status, ending):
    async def send(_request, reply):
        await reply.send(status, (), b"body")

    async with serving(send) as server:
        assert (await server.ask(method + GET_AND_CLOSE[3:])).endswith(ending)


async def test_reply_out_of_order_is_a_mistake_of_ours():
    async def confuse(_request, reply):
        for wrong in (reply.write(b"x"), reply.finish()):
            with pytest.raises(LocalProtocolError):
                await wrong
        await reply.open(200, ())
        with pytest.raises(LocalProtocolError):
            await reply.send(200, ())
        await reply.finish(b"right")

    async with serving(confuse) as server:
        assert (await server.ask(GET_AND_CLOSE)).endswith(b"right\r\n0\r\n\r\n")


async def test_response_to_head_is_not_streamed():
    async def stream(_request, reply):
        with pytest.raises(LocalProtocolError):
            await reply.open(200, ())
        await reply.send(405, (), b"body")

    async with serving(stream) as server:
        assert (await server.ask(b"HEAD" + GET_AND_CLOSE[3:])).endswith(b"Content-Length: 4\r\n\r\n")


async def test_field_that_would_break_the_response_is_not_sent():
    async def send(_request, reply):
        with pytest.raises(LocalProtocolError):
            await reply.send(200, (("A", "b\r\nC: d"),))
        raise ValueError("not sent")

    async with serving(send) as server:
        with capture_logs():
            await server.ask(GET)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + b"a" * 2000, b"413"),
    ],
)
async def test_refused_request_is_answered_and_others_are_unharmed(request_bytes, status):
    async with (
        serving(echo, max_head_bytes=1000, max_message_bytes=1000) as server,
        await server.connect() as other,
    ):
        answer = await server.ask(request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nConnection: close\r\n" in answer
        assert b"\r\n\r\n" + status[:3] in answer
        await other.send_all(GET)
        assert await receive_until(other, b"GET /a b ")


async def test_head_that_takes_too_long_is_refused():
    async with serving(echo, head_timeout=0.05) as server:
        assert (await server.ask(b"GET / HT")).startswith(b"HTTP/1.1 408 ")


async def test_body_that_stalls_is_refused():
    async with serving(echo, body_timeout=0.05) as server:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        assert (await server.ask(head)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("limits", [{"head_timeout": 0.05}, {"connection_idle": 0.05}])
async def test_connection_that_idles_too_long_is_closed(limits):
    async with serving(echo, **limits) as server, await server.connect() as stream:
        if "connection_idle" in limits:
            await stream.send_all(GET)
            await receive_until(stream, b"GET /a b ")
        assert await receive_all(stream) == b""


async def test_handler_may_take_longer_than_any_deadline():
    async def take_time(_request, reply):
        await trio.sleep(0.3)
        await reply.send(200, (), b"done")

    seconds = dict.fromkeys(("head_timeout", "body_timeout", "connection_idle", "client_stall"), 0.05)
    async with serving(take_time, **seconds) as server:
        assert (await server.ask(GET_AND_CLOSE)).endswith(b"done")


async def test_client_that_does_not_read_is_cut_off():
    cut_off = trio.Event()

    async def flood(_request, reply):
        await reply.open(200, ())
        try:
            while True:
                await reply.write(b"a" * 1_000_000)
        finally:
            cut_off.set()

    async with serving(flood, client_stall=0.05) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await cut_off.wait()


@pytest.mark.parametrize("reset", [False, True])
async def test_client_that_leaves_cancels_its_handler(reset):
    started = trio.Event()
    ended = trio.Event()

    async def wait(_request, _reply):
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving(wait) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await started.wait()
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await ended.wait()


async def test_client_that_leaves_while_it_is_sent_to_cancels_its_handler():
    ended = trio.Event()

    async def flood(_request, reply):
        await reply.open(200, ())
        try:
            while True:
                await reply.write(b"a" * 1000)
        finally:
            ended.set()

    async with serving(flood) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await stream.receive_some(1)
        await stream.aclose()
        await ended.wait()


async def test_crash_before_the_answer_is_logged_and_answered():
    async def crash(_request, _reply):
        raise ValueError("oops")

    async with serving(crash) as server:
        with capture_logs() as logs:
            answer = await server.ask(GET)
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"oops" not in answer
        assert [entry["log_level"] for entry in logs].count("error") == 1
        assert logs[0]["errors"] == ["ValueError('oops')"]


async def test_crash_in_the_middle_of_the_answer_cuts_it():
    async def crash(_request, reply):
        await reply.open(200, (), b"begun")
        raise ExceptionGroup("several", [ValueError("oops")])

    async with serving(crash) as server:
        with capture_logs() as logs:
            answer = await server.ask(GET)
        assert answer.endswith(b"5\r\nbegun\r\n")
        assert logs[0]["log_level"] == "error"


async def test_crash_while_being_cancelled_stays_inside():
    started = trio.Event()

    async def crash(request, reply):
        if request.path == "/a":
            started.set()
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("oops")
        await reply.send(200, (), b"alive")

    async with serving(crash) as server:
        with capture_logs() as logs:
            async with await server.connect() as stream:
                await stream.send_all(GET)
                await started.wait()
            while not logs:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await server.ask(GET_AND_CLOSE.replace(b"/a", b"/c"))).endswith(b"alive")


async def test_handler_without_an_answer_is_a_crash():
    async def forget(_request, _reply):
        pass

    async with serving(forget) as server:
        with capture_logs() as logs:
            assert (await server.ask(GET)).startswith(b"HTTP/1.1 500 ")
        assert "without an answer" in logs[0]["errors"][0]


async def test_drain_lets_handlers_finish_and_closes_the_rest():
    started = trio.Event()
    go_on = trio.Event()

    async def wait(_request, reply):
        started.set()
        await go_on.wait()
        await reply.send(200, (), b"done")

    async with serving(wait) as server:
        async with await server.connect() as idle, await server.connect() as busy:
            await busy.send_all(GET + GET)
            await started.wait()
            server.stopping.set()
            assert await receive_all(idle) == b""
            with pytest.raises(OSError, match="connect"):
                await server.connect()
            go_on.set()
            answer = await receive_all(busy)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\nConnection: close\r\n" in answer
        await server.stopped.wait()


async def test_cancelling_closes_everything():
    begun = trio.Event()

    async def wait(_request, _reply):
        begun.set()
        await trio.sleep_forever()

    async with serving(wait) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await begun.wait()
    assert await receive_all(stream) == b""
    await stream.aclose()


async def test_a_connection_above_the_limit_is_refused_while_all_others_work():
    async with serving(wait_forever, max_connections=1) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _ in range(2):
            assert (await server.ask(GET)).startswith(b"HTTP/1.1 503 ")


async def test_a_connection_above_the_limit_replaces_the_longest_idle_one():
    async with serving(echo, max_connections=3) as server:
        streams = [await server.connect() for _ in range(3)]
        for stream in (streams[0], streams[2], streams[1]):
            await stream.send_all(GET)
            assert await stream.receive_some()
            await trio.sleep(2 * SWEEP_SECONDS)  # which the server's clock has noticed
        for resting in (streams[0], streams[2]):
            newcomer = await server.connect()
            await newcomer.send_all(GET)
            assert (await newcomer.receive_some()).startswith(b"HTTP/1.1 200 ")
            assert await receive_all(resting) == b""
            streams.append(newcomer)
        await streams[1].send_all(GET)
        assert (await streams[1].receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in streams:
            await stream.aclose()


async def test_who_comes_far_above_the_limit_reads_why():
    """Replace it also when no earlier one was read: they have had their time."""
    async with serving(wait_forever, max_connections=0) as server:
        streams = [await server.connect() for _ in range(REFUSED_CONNECTIONS + 20)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        for stream in reversed(streams):
            assert (await receive_all(stream)).startswith(b"HTTP/1.1 503 ")
            await stream.aclose()


async def test_many_idle_connections_of_one_peer_keep_nobody_out():
    async with serving(echo, max_connections=80) as server:
        streams = [await server.connect() for _ in range(150)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        streams.append(await server.connect())
        await streams[-1].send_all(GET)
        assert (await streams[-1].receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in streams:
            await stream.aclose()
