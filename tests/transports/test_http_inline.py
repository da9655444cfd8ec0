"""Handlers that run inline: answers are sent without a task until one is needed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.transports.http.server_connection import CONNECTION
from mcpmux.transports.inline import in_task, woken
from tests.transports.test_http_server import GET, TEXT, receive_all, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PATIENCE = 20  # seconds, on a busy machine
RESET = struct.pack("ii", 1, 0)
LARGE = 8 * 2**20  # more than two sockets hold


class Answer:
    """An answer that the test has. It is a source: `come` wakes its waiter.

    `begun` is set when it goes on in a task, which waits for `go`. At its end `over` is set, and `ended` is
    the outcome.
    """

    def __init__(self, reply):
        self.reply = reply
        self.wake: Callable[[], None] | None = None
        self.text = None
        self.failure = None
        self.begun = trio.Event()
        self.go = trio.Event()
        self.over = trio.Event()
        self.ended = None

    async def give(self):
        self.ended = "cut off"
        try:
            await woken(self)
            if self.failure is not None:
                raise self.failure
            if self.text is None:
                await self.go_on()
            else:
                await self.reply.send(200, TEXT, self.text)
                self.ended = "answered"
        finally:
            await self.leave()
            self.over.set()

    async def go_on(self):
        await in_task()
        self.begun.set()
        await self.go.wait()
        await self.reply.send(200, TEXT, b"went on")
        self.ended = "went on"

    async def leave(self):
        """Note the end, of any kind."""

    def come(self, text):
        """Have the answer come; None: the work needs a task."""
        self.text = text
        assert self.wake is not None
        self.wake()

    def fail(self, failure):
        self.failure = failure
        assert self.wake is not None
        self.wake()


class Desk:
    """Makes an `Answer` of `/a`. Others are answered at once."""

    def __init__(self, answer=Answer):
        self.answers = []
        self.arrival = trio.Event()
        self.others = []
        self._answer = answer

    async def handle(self, request, reply):
        if request.path != "/a":
            self.others.append(request.path)
            await reply.send(200, TEXT, request.path.encode())
            return
        answer = self._answer(reply)
        self.answers.append(answer)
        self.arrival.set()
        await answer.give()

    async def answer(self):
        """Wait for the next answer, and return it."""
        with trio.fail_after(PATIENCE):
            await self.arrival.wait()
        self.arrival = trio.Event()
        return self.answers[-1]


def serving_inline(handler, **limits):
    return serving(handler, inline=True, **limits)


async def ask(stream, desk):
    """Send a request that waits for its answer, while the connection's task waits for the next one."""
    await stream.send_all(GET)
    answer = await desk.answer()
    await trio.testing.wait_all_tasks_blocked()
    return answer


async def settled(event):
    with trio.fail_after(PATIENCE):
        await event.wait()


async def test_an_answer_is_sent_where_it_comes_and_the_connection_goes_on():
    desk = Desk()
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        for number in range(3):
            answer = await ask(stream, desk)
            answer.come(b"text %d" % number)
            assert answer.ended == "answered"  # before any task had its turn
            assert answer.wake is None
            data = await receive_until(stream, b"\r\n\r\ntext %d" % number)
            assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


async def test_bytes_that_arrive_with_the_need_for_a_task_are_kept():
    """Both wake in the same turn of the scheduler, in either order."""
    desk = Desk()
    source, target = os.pipe()

    async def need_task(answer):
        await trio.lowlevel.wait_readable(source)
        os.read(source, 1)
        answer.come(None)

    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        for _ in range(10):
            await stream.send_all(GET)
            answer = await desk.answer()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(need_task, answer)
                await trio.testing.wait_all_tasks_blocked()
                os.write(stream.socket.fileno(), NEXT)
                os.write(target, b"x")
            await settled(answer.begun)
            answer.go.set()
            data = await receive_until(stream, b"\r\n\r\n/next")
            assert data.index(b"went on") < data.index(b"/next")
    os.close(source)
    os.close(target)


@pytest.mark.parametrize("needs_task", [True, False], ids=["in task", "asleep"])
async def test_a_client_that_leaves_is_noticed_and_its_handler_cancelled(needs_task):
    desk = Desk()
    async with serving_inline(desk.handle) as server:
        async with await server.connect() as stream:
            answer = await ask(stream, desk)
            if needs_task:
                answer.come(None)
                await settled(answer.begun)
        await settled(answer.over)
        assert answer.ended == "cut off"
        assert answer.wake is None


async def test_what_is_left_when_the_server_is_cut_off_is_cancelled():
    desk = Desk()
    async with serving_inline(desk.handle) as server:
        stream = await server.connect()
        answer = await ask(stream, desk)
    assert answer.ended == "cut off"
    await stream.aclose()


@pytest.mark.parametrize("needs_task", [True, False], ids=["in task", "asleep"])
async def test_called_off_it_is_cancelled_and_the_connection_goes_on(needs_task):
    desk = Desk()
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        for _ in range(2):
            answer = await ask(stream, desk)
            if needs_task:
                answer.come(None)
                await settled(answer.begun)
            answer.reply.call_off("taken back")
            await settled(answer.over)
            assert answer.ended == "cut off"
            assert answer.wake is None
            data = await receive_until(stream, b"\r\n\r\n")
            assert data.startswith(b"HTTP/1.1 202 ")
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


@pytest.mark.parametrize("text", [b"the end", None], ids=["asleep", "in task"])
async def test_the_connection_ends_after_the_answer_when_the_server_stops(text):
    desk = Desk()
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        server.stopping.set()
        await trio.sleep(0.3)  # more than a sweep: no connection is cut off
        answer.come(text)
        if text is None:
            await settled(answer.begun)
            answer.go.set()
        data = await receive_all(stream)
        assert b"\r\nConnection: close\r\n" in data
        assert data.endswith(text or b"went on")
        await settled(server.stopped)


async def test_a_connection_is_idle_from_its_answer_on():
    desk = Desk()
    limits = {"connection_idle": 0.6, "head_timeout": 0.6}
    async with serving_inline(desk.handle, **limits) as server, await server.connect() as stream:
        await stream.send_all(GET)
        answer = await desk.answer()
        await trio.sleep(1)
        answer.come(b"late")
        came = trio.current_time()
        assert (await receive_all(stream)).endswith(b"\r\n\r\nlate")
        assert trio.current_time() - came >= 0.2  # a sweep before


async def test_nothing_is_answered_after_the_answer_that_says_it_is_the_last():
    desk = Desk()
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        server.stopping.set()
        await trio.sleep(0.3)  # more than a sweep
        answer.come(b"the end")
        os.write(stream.socket.fileno(), NEXT)
        with suppress(trio.BrokenResourceError):  # reset, as it was not read
            await receive_all(stream)
        await settled(server.stopped)
        assert not desk.others


async def test_a_client_that_closed_its_side_is_gone_as_it_is_without():
    desk = Desk()
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        await stream.send_eof()
        await settled(answer.over)
        assert answer.ended == "cut off"
        assert await receive_all(stream) == b""


async def test_an_answer_that_blocks_is_sent_before_the_next():
    desk = Desk()
    text = b"x" * LARGE
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        answer.come(text)
        await stream.send_all(LAST)
        data = await receive_all(stream)
        first, _, second = data.partition(text)
        assert first.endswith(b"\r\n\r\n")
        assert second.endswith(b"/next")
        assert answer.ended == "answered"


@pytest.mark.parametrize("when", ["at once", "woken", "in task"])
async def test_a_crash_is_answered_by_500_and_no_other_connection_is_harmed(when):
    class Crashing(Answer):
        async def give(self):
            if when == "at once":
                raise ValueError("a mistake of ours")
            await super().give()

        async def go_on(self):
            await in_task()
            raise ValueError("a mistake of ours")

    desk = Desk(Crashing)
    async with (
        serving_inline(desk.handle) as server,
        await server.connect() as other,
        await server.connect() as stream,
    ):
        answer = await ask(stream, desk)
        if when == "woken":
            answer.fail(ValueError("a mistake of ours"))  # its waker does not get the error
        elif when == "in task":
            answer.come(None)
        data = await receive_all(stream)
        assert data.startswith(b"HTTP/1.1 500 ")
        assert data.endswith(b"internal error")
        await other.send_all(NEXT)
        await receive_until(other, b"/next")


class CrashesOnLeaving(Answer):
    async def leave(self):
        self.over.set()
        raise ValueError("a mistake of ours")


@pytest.mark.parametrize("needs_task", [True, False], ids=["in task", "asleep"])
@pytest.mark.parametrize("why", ["the client leaves", "called off"])
async def test_a_crash_of_a_handler_that_is_cancelled_harms_no_other_connection(needs_task, why):
    desk = Desk(CrashesOnLeaving)
    async with serving_inline(desk.handle) as server, await server.connect() as other:
        async with await server.connect() as stream:
            answer = await ask(stream, desk)
            if needs_task:
                answer.come(None)
                await settled(answer.begun)
            if why == "called off":
                answer.reply.call_off("taken back")
                assert (await receive_all(stream)).startswith(b"HTTP/1.1 500 ")
        await settled(answer.over)
        await other.send_all(NEXT)
        await receive_until(other, b"/next")


async def test_a_handler_that_crashes_on_a_foreign_disconnect_harms_no_other_connection():
    class Streaming(CrashesOnLeaving):
        async def give(self):
            await self.reply.open(200, TEXT, b"one")
            await super().give()

    desk = Desk(Streaming)
    async with serving_inline(desk.handle) as server, await server.connect() as other:
        stream = await server.connect()
        answer = await ask(stream, desk)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await stream.aclose()
        answer.reply.write_nowait(b"two")
        await settled(answer.over)
        await other.send_all(NEXT)
        await receive_until(other, b"/next")


async def test_a_stream_can_be_begun_without_a_task_and_ended_in_one():
    class Streaming(Answer):
        async def give(self):
            await self.reply.open(200, TEXT, b"one")
            await woken(self)
            await self.reply.write(b"two")
            await woken(self)

    desk = Desk(Streaming)
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        for _ in range(2):
            answer = await ask(stream, desk)
            await receive_until(stream, b"3\r\none\r\n")
            answer.come(b"")
            await receive_until(stream, b"3\r\ntwo\r\n")
            answer.come(b"")
            assert await receive_until(stream, b"0\r\n\r\n") == b"0\r\n\r\n"
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


class SlowToLeave(Answer):
    """Tells somebody else that it was cancelled, which takes until `told`."""

    def __init__(self, reply):
        super().__init__(reply)
        self.leaving = trio.Event()
        self.told = trio.Event()

    async def leave(self):
        await in_task()
        self.leaving.set()
        with trio.CancelScope(shield=True):
            await self.told.wait()


async def test_a_request_called_off_twice_takes_no_other_one_with_it():
    desk = Desk(SlowToLeave)
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        first = await ask(stream, desk)
        first.reply.call_off("taken back")
        await settled(first.leaving)
        first.reply.call_off("taken back")
        first.told.set()
        assert (await receive_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
        second = await ask(stream, desk)
        second.told.set()
        second.go.set()
        second.come(None)
        await receive_until(stream, b"\r\n\r\nwent on")


@pytest.mark.parametrize("twice", [False, True])
async def test_nothing_follows_an_answer_that_was_cut_in_the_middle(twice):
    class Large(SlowToLeave):
        async def go_on(self):
            await self.reply.send_parts(200, TEXT, [b"x" * LARGE, b"y" * LARGE])

    desk = Desk(Large)
    async with serving_inline(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        answer.come(None)
        await trio.testing.wait_all_tasks_blocked()
        answer.reply.call_off("taken back")
        await settled(answer.leaving)
        if twice:
            answer.reply.call_off("taken back")
        answer.told.set()
        received = b""
        with trio.fail_after(PATIENCE), suppress(trio.BrokenResourceError):
            await stream.send_all(NEXT)
            async for part in stream:
                received += part
        assert len(received) < LARGE
        assert not desk.others


@pytest.mark.parametrize("text", [b"text", None], ids=["answered", "in task"])
async def test_what_comes_behind_and_is_no_request_wins_no_time(text):
    """Tiny: a line end behind a request is none, as RFC 9112 (2.2) has it."""
    desk = Desk()
    async with serving_inline(desk.handle, connection_idle=0.2) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        await stream.send_all(b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.05)
        answer.come(text)
        if text is None:
            await settled(answer.begun)
            answer.go.set()
        await receive_until(stream, b"\r\n\r\n" + (text or b"went on"))
        with trio.fail_after(PATIENCE):
            assert await stream.receive_some() == b""


async def test_each_request_has_its_own_context_variables_and_those_of_its_connection():
    """Give each request its variables in a task or without one, and by any waker."""
    mine = ContextVar("mine", default="nobody's")
    requests: list[Any] = []

    class Marked(Answer):
        async def give(self):
            value = mine.get()
            mine.set(f"request {len(requests)}")
            await woken(self)
            if self.text is None:
                await in_task()
            requests.append((value, mine.get(), CONNECTION.get()))
            await self.reply.send(200, TEXT, self.text or b"text")

    desk = Desk(Marked)
    peers = []
    async with (
        serving_inline(desk.handle) as server,
        await server.connect() as first,
        await server.connect() as other,
    ):
        mine.set("the waker's")
        for text in (b"text", None, b"text"):
            for stream in (first, other):
                answer = await ask(stream, desk)
                answer.come(text)
                await receive_until(stream, b"\r\n\r\ntext")
                peers.append("{}:{}".format(*stream.socket.getsockname()))
        assert mine.get() == "the waker's"
    assert requests == [("nobody's", f"request {number}", peers[number]) for number in range(6)]


async def test_a_handler_that_waits_for_trio_without_a_task_fails():
    async def handle(_request, _reply):
        await trio.lowlevel.checkpoint()

    async with serving_inline(handle) as server:
        assert (await server.ask(GET)).startswith(b"HTTP/1.1 500 ")
