"""Answers that come when their handler is over, sent by whoever has them."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import trio
import trio.testing

from mcpmux.errors import LocalProtocolError
from tests.transports.test_http_server import GET, GET_AND_CLOSE, TEXT, receive_all, receive_until, serving

pytestmark = pytest.mark.usefixtures("received")

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PATIENCE = 20  # seconds, on a busy machine
LARGE = 8 * 2**20  # more than two sockets hold


class Answer:
    """An answer that somebody else has. `carried`: how carrying it on ended, None until it did."""

    def __init__(self, reply):
        self.reply = reply
        self.hear = None
        self.text = None
        self.begun = trio.Event()
        self.go = trio.Event()
        self.over = trio.Event()
        self.carried = None

    def tell(self, hear):
        self.hear = hear

    def take(self):
        if self.text is None:
            return False
        self.reply.send_nowait(200, TEXT, self.text)
        self.over.set()
        return True

    async def carry_on(self):
        self.begun.set()
        self.carried = "cut off"
        try:
            await self.go.wait()
            await self.reply.send(200, TEXT, b"carried on")
            self.carried = "answered"
        finally:
            self.over.set()

    def come(self, text):
        """The answer is there; None: there is something else."""
        self.text = text
        self.hear()


class Desk:
    """Puts off the answers to `/a`. Others are given at once."""

    def __init__(self):
        self.answers = []
        self.arrival = trio.Event()
        self.others = []

    def handle(self, request, reply):
        if request.path != "/a":
            self.others.append(request.path)
            return reply.send(200, TEXT, request.path.encode())
        if not reply.may_put_off:
            return reply.send(200, TEXT, b"at once")
        answer = Answer(reply)
        over = reply.put_off(answer)
        self.answers.append(answer)
        self.arrival.set()
        return over

    async def answer(self):
        """The next one that is put off."""
        with trio.fail_after(PATIENCE):
            await self.arrival.wait()
        self.arrival = trio.Event()
        return self.answers[-1]


async def ask(stream, desk):
    """The answer to a request that has been put off, the connection's task waiting for the next one."""
    await stream.send_all(GET)
    answer = await desk.answer()
    await trio.testing.wait_all_tasks_blocked()
    return answer


async def settled(event):
    with trio.fail_after(PATIENCE):
        await event.wait()


async def test_an_answer_is_sent_when_it_comes_and_the_connection_goes_on():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        for number in range(3):
            answer = await ask(stream, desk)
            answer.come(b"text %d" % number)
            assert answer.hear is None
            data = await receive_until(stream, b"\r\n\r\ntext %d" % number)
            assert data.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.carried is None
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


async def test_an_answer_may_come_before_the_handler_is_over():
    def handle(_request, reply):
        answer = Answer(reply)
        over = reply.put_off(answer)
        answer.come(b"soon")
        return over

    async with serving(handle) as server, await server.connect() as stream:
        for _ in range(2):
            await stream.send_all(GET)
            await receive_until(stream, b"\r\n\r\nsoon")


async def test_what_has_to_be_waited_for_goes_on_in_the_connections_task():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        for _ in range(2):
            answer = await ask(stream, desk)
            answer.come(None)
            await settled(answer.begun)
            answer.go.set()
            await receive_until(stream, b"\r\n\r\ncarried on")
            assert answer.carried == "answered"


@pytest.mark.parametrize("together", [True, False], ids=["pipelined", "later"])
async def test_a_request_behind_waits_for_the_answer_before_it(together):
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        await stream.send_all(GET + NEXT if together else GET)
        answer = await desk.answer()
        if not together:
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(NEXT)
        await settled(
            answer.begun
        )  # the connection has something to do now, so its task waits for the answer
        assert answer.hear is None
        assert not desk.others
        answer.go.set()
        data = await receive_until(stream, b"\r\n\r\n/next")
        assert data.index(b"carried on") < data.index(b"/next")
        assert desk.others == ["/next"]


async def test_what_comes_in_the_same_moment_as_the_need_to_wait_is_not_lost():
    """Both wake in the same turn of the scheduler, in either order."""
    desk = Desk()
    source, target = os.pipe()

    async def need_to_wait(answer):
        await trio.lowlevel.wait_readable(source)
        os.read(source, 1)
        if answer.hear is not None:
            answer.come(None)

    async with serving(desk.handle) as server, await server.connect() as stream:
        for _ in range(10):
            await stream.send_all(GET)
            answer = await desk.answer()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(need_to_wait, answer)
                await trio.testing.wait_all_tasks_blocked()
                os.write(stream.socket.fileno(), NEXT)
                os.write(target, b"x")
            await settled(answer.begun)
            answer.go.set()
            data = await receive_until(stream, b"\r\n\r\n/next")
            assert data.index(b"carried on") < data.index(b"/next")
    os.close(source)
    os.close(target)


async def test_a_client_that_leaves_is_noticed_and_nobody_waits_for_its_answer_any_more():
    desk = Desk()
    async with serving(desk.handle) as server:
        async with await server.connect() as stream:
            await stream.send_all(GET)
            answer = await desk.answer()
        await settled(answer.over)
        assert answer.carried == "cut off"
        assert answer.hear is None


async def test_what_is_left_when_the_server_is_cut_off_is_given_up():
    desk = Desk()
    async with serving(desk.handle) as server:
        stream = await server.connect()
        answer = await ask(stream, desk)
    assert answer.carried == "cut off"
    await stream.aclose()


@pytest.mark.parametrize("waits", [True, False], ids=["waited for", "put off"])
async def test_called_off_it_is_given_up_and_the_connection_goes_on(waits):
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        for _ in range(2):
            answer = await ask(stream, desk)
            if waits:
                answer.come(None)
                await settled(answer.begun)
            answer.reply.call_off("taken back")
            await settled(answer.over)
            assert answer.carried == "cut off"
            data = await receive_until(stream, b"\r\n\r\n")
            assert data.startswith(b"HTTP/1.1 202 ")
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


async def test_called_off_in_the_moment_in_which_it_has_to_be_waited_for_it_is_given_up():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        answer.come(None)
        answer.reply.call_off("taken back")
        assert (await receive_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
        assert answer.carried == "cut off"
        await stream.send_all(NEXT)
        await receive_until(stream, b"\r\n\r\n/next")


@pytest.mark.parametrize("comes", [True, False], ids=["taken", "carried on"])
async def test_the_connection_ends_after_the_answer_when_the_server_stops(comes):
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        server.stopping.set()
        await trio.sleep(0.3)  # more than a sweep: nobody is cut off
        answer.come(b"the end" if comes else None)
        if not comes:
            await settled(answer.begun)
            answer.go.set()
        data = await receive_all(stream)
        assert b"\r\nConnection: close\r\n" in data
        assert data.endswith(b"the end" if comes else b"carried on")
        await settled(server.stopped)


async def test_a_connection_is_idle_from_its_answer_on():
    desk = Desk()
    limits = {"idle_seconds": 0.6, "head_seconds": 0.6}
    async with serving(desk.handle, **limits) as server, await server.connect() as stream:
        await stream.send_all(GET)
        answer = await desk.answer()
        await trio.sleep(1)
        answer.come(b"late")
        came = trio.current_time()
        assert (await receive_all(stream)).endswith(b"\r\n\r\nlate")
        assert trio.current_time() - came >= 0.2  # a sweep before


async def test_a_server_that_stops_does_not_wait_for_a_connection_that_was_answered():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        answer.come(b"text")
        await receive_until(stream, b"\r\n\r\ntext")
        server.stopping.set()
        await settled(server.stopped)


async def test_nothing_is_answered_after_the_answer_that_says_it_is_the_last():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        server.stopping.set()
        await trio.sleep(0.3)  # more than a sweep
        answer.come(b"the end")
        os.write(stream.socket.fileno(), NEXT)
        with suppress(trio.BrokenResourceError):  # reset, as it was not read
            await receive_all(stream)
        await settled(server.stopped)
        assert not desk.others


async def test_the_last_request_of_a_connection_is_not_put_off():
    desk = Desk()
    async with serving(desk.handle) as server:
        assert (await server.ask(GET_AND_CLOSE)).endswith(b"at once")
        assert (await server.ask(b"GET /a HTTP/1.0\r\n\r\n")).endswith(b"at once")


async def test_a_client_that_closed_its_side_is_gone_as_it_is_without():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        answer = await desk.answer()
        await stream.send_eof()
        await settled(answer.over)
        assert answer.carried == "cut off"
        assert await receive_all(stream) == b""


async def test_an_answer_that_does_not_go_at_once_is_sent_whole():
    desk = Desk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        for text in (b"x" * LARGE + b"1", b"x" * LARGE + b"2"):
            answer = await ask(stream, desk)
            answer.come(text)
            data = await receive_until(stream, text[-1:])
            assert len(data.partition(b"\r\n\r\n")[2]) == len(text)
            assert answer.carried is None


async def test_an_answer_that_does_not_go_at_once_is_sent_before_the_next():
    desk = Desk()
    text = b"x" * LARGE
    async with serving(desk.handle) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        answer.come(text)
        await stream.send_all(LAST)
        data = await receive_all(stream)
        first, _, second = data.partition(text)
        assert first.endswith(b"\r\n\r\n")
        assert second.endswith(b"/next")
        assert answer.carried is None


async def test_the_answer_to_a_client_that_resets_the_connection_is_no_trouble():
    desk = Desk()
    async with serving(desk.handle) as server:
        stream = await server.connect()
        answer = await ask(stream, desk)
        trio.lowlevel.notify_closing(stream.socket)
        stream.socket.close()
        answer.come(b"too late")
        assert b"/next" in await server.ask(LAST)
        server.stopping.set()
        await settled(server.stopped)


async def test_nothing_is_put_off_twice_nor_without_a_connection():
    caught = []

    async def handle(_request, reply):
        reply.put_off(answer := Answer(reply))
        answer.come(b"one")
        try:
            reply.send_nowait(200, TEXT, b"two")
        except LocalProtocolError as error:
            caught.append(error)

    async with serving(handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await receive_until(stream, b"\r\n\r\none")
        assert len(caught) == 1


class SlowToLeave(Answer):
    """Tells somebody else that it was given up, which takes until `told`."""

    def __init__(self, reply):
        super().__init__(reply)
        self.told = trio.Event()

    async def carry_on(self):
        try:
            await super().carry_on()
        finally:
            with trio.CancelScope(shield=True):
                await self.told.wait()


class SlowDesk(Desk):
    def handle(self, request, reply):
        answer = SlowToLeave(reply)
        over = reply.put_off(answer)
        self.answers.append(answer)
        self.arrival.set()
        return over


async def test_a_request_called_off_twice_takes_no_other_one_with_it():
    desk = SlowDesk()
    async with serving(desk.handle) as server, await server.connect() as stream:
        first = await ask(stream, desk)
        first.reply.call_off("taken back")
        await settled(first.begun)
        first.reply.call_off("taken back")
        first.told.set()
        assert (await receive_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
        second = await ask(stream, desk)
        second.told.set()
        second.go.set()
        second.come(None)
        await receive_until(stream, b"\r\n\r\ncarried on")


@pytest.mark.parametrize("twice", [False, True])
async def test_nothing_follows_an_answer_that_was_cut_in_the_middle(twice):
    class Large(SlowToLeave):
        async def carry_on(self):
            try:
                await self.reply.send_parts(200, TEXT, [b"x" * LARGE, b"y" * LARGE])
            finally:
                self.begun.set()
                with trio.CancelScope(shield=True):
                    await self.told.wait()

    answers = []

    def handle(request, reply):
        if request.path != "/a":
            return reply.send(200, TEXT, b"NEXT")
        answers.append(Large(reply))
        return reply.put_off(answers[-1])

    async with serving(handle) as server, await server.connect() as stream:
        await stream.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        (answer,) = answers
        answer.come(None)
        answer.reply.call_off("taken back")
        await settled(answer.begun)
        if twice:
            answer.reply.call_off("taken back")
        answer.told.set()
        received = b""
        with trio.fail_after(PATIENCE), suppress(trio.BrokenResourceError):
            await stream.send_all(NEXT)
            async for part in stream:
                received += part
        assert len(received) < LARGE
        assert b"NEXT" not in received


async def test_what_comes_behind_and_is_no_request_wins_no_time():
    """Tiny: a line end behind a request is none, as RFC 9112 (2.2) has it."""
    desk = Desk()
    async with serving(desk.handle, idle_seconds=0.2) as server, await server.connect() as stream:
        answer = await ask(stream, desk)
        await stream.send_all(b"\r\n")
        await settled(answer.begun)
        answer.go.set()
        await receive_until(stream, b"\r\n\r\ncarried on")
        with trio.fail_after(PATIENCE):
            assert await stream.receive_some() == b""
