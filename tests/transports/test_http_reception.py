"""HTTP where it is received: requests that connections' tasks sleep through, and requests without a task."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.client import HttpPool, HttpResponse
from mcpmux.transports.http.route import HttpOrigin, PoolLimits, Route
from mcpmux.transports.http.server_connection import ServerConnection
from mcpmux.transports.inline import in_task
from mcpmux.transports.polling import open_readiness_poller
from tests.http_request import requested
from tests.transports import ways
from tests.transports.test_http_client import CHUNKED, OK, SHORT, Connection
from tests.transports.test_http_inline import Answer, serving_inline
from tests.transports.test_http_server import TEXT, receive_all, receive_until

pytestmark = pytest.mark.usefixtures("secured")
PATIENCE = 30
LEARNED = 3  # requests on a connection after which its head is known


def post(path="/a", body=b"x", more=b""):
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        more,
        len(body),
        body,
    )


# The server


class Clerk:
    """Answers inline, a moment later in a task, or on command; counts what connections woke for."""

    def __init__(self, monkeypatch):
        self.answers = []
        self.connections: set[Any] = set()
        self.awoken = 0
        self.waiting = False
        sleep = ServerConnection._sleep

        async def count(connection):
            self.connections.add(connection)
            await sleep(connection)
            self.awoken += 1

        monkeypatch.setattr(ServerConnection, "_sleep", count)

    async def handle(self, request, reply):
        if request.body == b"crash":
            raise ValueError("a mistake of ours")
        if request.body == b"later":
            await in_task()
            await trio.lowlevel.checkpoint()
        if self.waiting and request.body != b"later":
            self.answers.append(Answer(reply))
            await self.answers[-1].give()
        else:
            await reply.send(200, TEXT, b"<%b>" % request.body)


@pytest.fixture
def clerk(monkeypatch):
    return Clerk(monkeypatch)


async def learn(stream, clerk):
    """Say the same a few times, so that the head is known; how often the task has been woken."""
    for _ in range(LEARNED):
        await stream.send_all(post())
        await receive_until(stream, b"<x>")
    return clerk.awoken


async def wait_behind(stream, clerk):
    """Have a request be given to a handler that sleeps: its answer."""
    clerk.waiting = True
    await stream.send_all(post(body=b"first"))
    await trio.testing.wait_all_tasks_blocked(0.01)
    [answer] = clerk.answers
    return answer


async def test_a_request_with_a_known_head_is_answered_while_the_task_sleeps(clerk):
    async with serving_inline(clerk.handle) as server, await server.connect() as stream:
        awoken = await learn(stream, clerk)
        for number in range(5):
            await stream.send_all(post(body=b"%d" % number))
            await receive_until(stream, b"<%d>" % number)
        assert clerk.awoken == awoken
        assert awoken < LEARNED


@pytest.mark.parametrize("cut", [1, 20, 60])
async def test_a_request_that_comes_in_parts_is_a_request(clerk, cut):
    async with serving_inline(clerk.handle) as server, await server.connect() as stream:
        await learn(stream, clerk)
        for _ in range(3):
            whole = post(body=b"parts")
            await stream.send_all(whole[:cut])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(whole[cut:])
            await receive_until(stream, b"<parts>")


@pytest.mark.interpreted
async def test_what_comes_behind_is_not_lost_when_a_sweep_looks_first(clerk, monkeypatch):
    receive = ServerConnection._receive

    def sweep_first(connection):
        connection.sweep()
        receive(connection)

    monkeypatch.setattr(ServerConnection, "_receive", sweep_first)
    async with serving_inline(clerk.handle) as server, await server.connect() as stream:
        await learn(stream, clerk)
        answer = await wait_behind(stream, clerk)
        await stream.send_all(post(body=b"later"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        answer.come(b"<first>")
        await receive_until(stream, b"<later>")


@pytest.mark.interpreted
async def test_a_stop_between_receiving_a_request_and_its_task_loses_nothing(clerk, monkeypatch):
    receive = ServerConnection._receive

    def receive_and_stop(connection):
        receive(connection)
        connection._server.draining = True
        connection.sweep()

    monkeypatch.setattr(ServerConnection, "_receive", receive_and_stop)
    async with serving_inline(clerk.handle) as server, await server.connect() as stream:
        await stream.send_all(post(body=b"later"))
        assert (await receive_all(stream)).endswith(b"<later>")


# The client


def posts(pool):
    """Return whether a request can be posted, without a wait for it."""
    return pool.post("POST", "/", (), b"{}", idempotent=True, hear=lambda: None) is not None


class Ear:
    """Hears of one request; `sent` is it. With `enough` until its response's `body` so far is enough."""

    def __init__(self, pool, *, idempotent=True, body=b"{}", enough=None):
        self.arrival = trio.Event()
        self.calls = 0
        self.body = b""
        self._enough = enough
        self.sent = pool.post("POST", "/", (), body, idempotent=idempotent, hear=self._hear)
        assert self.sent is not None

    def _hear(self):
        if self._enough is not None and not self._has_enough():
            self.sent.hear_more(self._hear)
            return
        self.calls += 1
        self.arrival.set()

    def _has_enough(self):
        response = self.sent.take_nowait()
        if not isinstance(response, HttpResponse):
            return True
        part = response.receive_nowait(2**20)
        assert part is not None
        self.body += part
        return self._enough(self.body)

    async def wait(self):
        with trio.fail_after(PATIENCE):
            await self.arrival.wait()
        assert self.calls == 1

    async def outcome(self):
        """Return the body, received in either way."""
        await self.wait()
        response = await self.sent.wait()
        try:
            return await response.read()
        finally:
            response.release()


@asynccontextmanager
async def pooled(*scripts, **limits):
    """Open a pool with one idle connection. Each is served by the next script, after a first answer."""
    remaining = list(scripts)

    async def serve(byte_stream):
        async with ways.accepted(byte_stream) as stream:
            connection = Connection(stream)
            script = remaining.pop(0)
            await connection.receive_request()
            await connection.send(SHORT)
            await script(connection)

    async with open_readiness_poller() as poller, trio.open_nursery() as nursery:
        listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        origin = HttpOrigin(ways.secured, "127.0.0.1", listener.socket.getsockname()[1])
        route = Route(origin, (lambda: ways.contexts()[1]) if ways.secured else None)
        with HttpPool(origin, limits=PoolLimits(**limits), route=route, poller=poller) as pool:
            async with requested(pool, "POST", "/", (), b"", idempotent=True) as response:
                await response.read()
            yield pool
            assert pool._running == 0
        nursery.cancel_scope.cancel()
    assert not remaining


def sends(*parts):
    """Return a script that answers each request with these bytes, one after the other."""

    async def script(connection):
        while await connection.receive_request():
            for part in parts:
                await connection.send(part)
                await trio.testing.wait_all_tasks_blocked(0.01)

    return script


async def hangs(connection):
    await connection.receive_request()
    await trio.sleep_forever()


async def closes(connection):
    await connection.receive_request()


async def is_gone(_connection):
    """End the connection right after its first answer."""


STREAM = CHUNKED.removesuffix(b"\r\n") + b"Content-Type: text/event-stream\r\n\r\n"
BODY = OK + b"Content-Length: 10\r\n\r\n0123456789"


@pytest.mark.parametrize("cut", [1, 17, 30, len(BODY) - 1])
async def test_a_response_is_there_when_all_of_it_is(cut):
    async with pooled(sends(BODY[:cut], BODY[cut:])) as pool:
        for _ in range(3):
            ear = Ear(pool)
            await ear.wait()
            assert ear.sent.take_nowait() == b"0123456789"
            ear.sent.release()
        assert len(pool._idle) == 1


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"ok"),
        (OK + b"Content-Length: 300000\r\n\r\n" + b"y" * 300_000, b"y" * 300_000),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + SHORT, b"ok"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", b"no"),
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", b""),
    ],
    ids=["chunked", "large", "interim", "refused", "empty"],
)
@pytest.mark.parametrize("cut", [0, 70])
async def test_whatever_the_response_is_it_can_be_waited_for(answer, body, cut):
    parts = (answer[:cut], answer[cut:]) if cut else (answer,)
    async with pooled(sends(*(part for part in parts if part))) as pool:
        for _ in range(3):
            assert await Ear(pool).outcome() == body
        assert len(pool._idle) == 1


async def test_a_stream_is_read_on_by_whoever_waits():
    async with pooled(sends(STREAM, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n")) as pool:
        ear = Ear(pool)
        await ear.wait()
        assert not ear.sent.take_nowait().is_complete
        response = await ear.sent.wait()
        assert await response.read() == b"ab"
        response.release()


async def test_a_stream_that_has_said_too_little_is_heard_of_again():
    async with pooled(sends(STREAM, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n")) as pool:
        for _ in range(3):
            ear = Ear(pool, enough=lambda body: len(body) == 2)
            await ear.wait()
            assert ear.body == b"ab"
            ear.sent.take_nowait().release(ends=True)
            assert (pool._running, len(pool._idle)) == (0, 1)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert pool._idle[0].parser.complete  # its end has come


async def test_a_stream_that_breaks_off_is_read_up_to_there():
    async with pooled(sends_and_closes(STREAM + b"1\r\na\r\n")) as pool:
        ear = Ear(pool, enough=lambda _body: False)
        await ear.wait()
        assert (ear.body, ear.sent.take_nowait()) == (b"a", None)
        response = await ear.sent.wait()
        with pytest.raises(TransportClosed, match="in the middle of its answer"):
            await response.receive_some()
        response.release()


async def test_a_request_that_met_a_dying_connection_is_sent_once_more():
    async with pooled(closes, is_gone) as pool:
        assert await Ear(pool).outcome() == b"ok"


async def test_one_that_must_not_be_sent_twice_is_not():
    async with pooled(closes) as pool:
        with pytest.raises(TransportClosed):
            await Ear(pool, idempotent=False).outcome()


async def test_a_connection_that_has_ended_is_not_posted_on():
    async with pooled(is_gone) as pool:
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert pool.post("POST", "/", (), b"", idempotent=False, hear=list) is None


async def test_half_an_answer_is_none():
    async with pooled(sends_and_closes(BODY[:-1])) as pool:
        with pytest.raises(TransportClosed):
            await Ear(pool).outcome()


def sends_and_closes(data):
    async def script(connection):
        await connection.receive_request()
        await connection.send(data)

    return script


async def test_who_gives_up_waiting_closes_the_connection():
    async with pooled(hangs) as pool:
        ear = Ear(pool)
        with trio.move_on_after(0.1):
            await ear.sent.wait()
        assert ear.calls == 0
        assert pool._idle == []


async def test_an_abandoned_request_closes_its_connection_for_good():
    left = trio.Event()

    async def hears_of_it(connection):
        await connection.receive_request()
        assert await connection.receive_request() is None
        left.set()

    async with pooled(hears_of_it) as pool:
        ear = Ear(pool)
        await trio.testing.wait_all_tasks_blocked(0.01)
        ear.sent.release()
        with trio.fail_after(PATIENCE):
            await left.wait()
        assert ear.calls == 0
        assert (pool._idle, pool._running) == ([], 0)


async def test_without_an_idle_connection_or_a_turn_nothing_is_posted():
    async with pooled(hangs, connections=1) as pool:
        ear = Ear(pool)
        assert not posts(pool)
        with trio.move_on_after(0):
            await ear.sent.wait()


async def test_a_request_without_an_idle_connection_opens_one_for_others():
    async def answers(connection):
        while await connection.receive_request():
            await connection.send(BODY)

    async with pooled(answers, answers) as pool:
        ear = Ear(pool)
        assert not posts(pool)
        assert await ear.outcome() == b"0123456789"
        assert len(pool._idle) == 1
        async with requested(pool, "POST", "/", (), b"", idempotent=True) as response:
            await response.read()
        assert len(pool._idle) == 2
        async with requested(pool, "POST", "/", (), b"", idempotent=True) as response:
            await response.read()
        assert len(pool._idle) == 2


async def test_many_at_once_get_their_own_answers():
    async def script(connection):
        while request := await connection.receive_request():
            length = int(request.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            await connection.send(OK + b"Content-Length: %d\r\n\r\n" % length + b"z" * length)

    async with pooled(*[script] * 20) as pool, trio.open_nursery() as nursery:

        async def warm():
            async with requested(pool, "POST", "/", (), b"", idempotent=True) as response:
                await barrier()
                await response.read()

        ready, everybody = 0, trio.Event()

        async def barrier():
            nonlocal ready
            ready += 1
            if ready == 19:
                everybody.set()
            await everybody.wait()

        held = pool._idle.pop()
        async with trio.open_nursery() as warming:
            for _ in range(19):
                warming.start_soon(warm)
        pool._idle.append(held)

        async def ask(length):
            for _ in range(20):
                assert await Ear(pool, body=b"y" * length).outcome() == b"z" * length

        for length in range(1, 16):
            nursery.start_soon(ask, length)
