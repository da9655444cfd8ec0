from __future__ import annotations

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    memory_stream_one_way_pair,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from mcpmux.errors import MessageTooLarge, TransportClosed
from mcpmux.transports.message_stream import open_line_stream
from mcpmux.transports.send_queue import FLUSH_SECONDS, LAST_WORDS_SECONDS, QUEUE_BYTES
from tests.peers.pipe import open_memory_pipes

LIMIT = 1000


class Stuck:
    """A stream whose peer does not read: `send_all` does not return before it is released."""

    def __init__(self) -> None:
        self.sender = MemorySendStream(send_all_hook=self._on_send)
        self.stream = trio.StapledStream(self.sender, MemoryReceiveStream())
        self.released = trio.Event()
        self.calls = 0

    async def _on_send(self) -> None:
        self.calls += 1
        await self.released.wait()


async def test_messages_of_one_chunk_are_handed_out_without_touching_the_stream():
    left, right = memory_stream_pair()
    async with open_line_stream(right, LIMIT) as pipe:
        await left.send_all(b"1\n2\n3\n")
        assert await pipe.receive() == b"1"
        with trio.CancelScope() as scope:
            scope.cancel()
            assert [await pipe.receive(), await pipe.receive()] == [b"2", b"3"]


async def test_an_oversized_message_is_told_and_the_next_one_arrives():
    left, right = memory_stream_pair()
    async with open_line_stream(right, LIMIT) as pipe:
        await left.send_all(b"x" * (LIMIT + 1) + b"\nnext\n")
        with pytest.raises(MessageTooLarge, match="1001 bytes is over the limit of 1000"):
            await pipe.receive()
        assert await pipe.receive() == b"next"


async def test_the_end_of_the_stream_is_told_every_time():
    left, right = memory_stream_pair()
    async with open_line_stream(right, LIMIT) as pipe:
        await left.send_all(b"last words")
        await left.send_eof()
        assert await pipe.receive() == b"last words"
        for _ in range(2):
            with pytest.raises(TransportClosed, match="the stream has ended"):
                await pipe.receive()


async def test_send_waits_while_the_queue_is_full():
    stuck = Stuck()
    sent = []

    async def send_many(pipe) -> None:
        for _ in range(4):
            await pipe.send(b"x" * (QUEUE_BYTES // 2))
            sent.append(stuck.released.is_set())

    async with open_line_stream(stuck.stream, LIMIT) as pipe, trio.open_nursery() as nursery:
        await pipe.send(b"first, taken by the writer at once")
        await wait_all_tasks_blocked()
        nursery.start_soon(send_many, pipe)
        await wait_all_tasks_blocked()
        assert sent == [False, False]
        stuck.released.set()
    assert sent == [False, False, True, True]


async def test_a_cancelled_send_has_queued_nothing_of_its_message():
    stuck = Stuck()
    async with open_line_stream(stuck.stream, LIMIT) as pipe:
        await pipe.send(b"first")
        await wait_all_tasks_blocked()
        await pipe.send(b"x" * QUEUE_BYTES)
        with trio.move_on_after(0) as scope:
            await pipe.send(b"never")
        assert scope.cancelled_caught
        stuck.released.set()
    assert await stuck.sender.get_data() == b"first\n" + b"x" * QUEUE_BYTES + b"\n"


async def test_what_is_queued_meanwhile_goes_out_at_once():
    stuck = Stuck()
    async with open_line_stream(stuck.stream, LIMIT) as pipe:
        for number in range(100):
            await pipe.send(b"%d" % number)
        stuck.released.set()
    assert stuck.calls == 1


async def test_leaving_writes_the_queue_and_ends_the_stream():
    left, right = memory_stream_pair()
    async with open_line_stream(left, LIMIT) as pipe:
        await pipe.send(b"bye")
    assert await right.receive_some() == b"bye\n"
    assert await right.receive_some() == b""


async def test_leaving_does_not_wait_forever_for_a_peer_that_does_not_read(autojump_clock):
    stuck = Stuck()
    async with open_line_stream(stuck.stream, LIMIT) as pipe:
        await pipe.send(b"never read")
        started = trio.current_time()
    assert trio.current_time() - started == FLUSH_SECONDS


async def test_cancelling_closes_the_stream_at_once(autojump_clock):
    stuck = Stuck()
    with trio.CancelScope() as scope:
        async with open_line_stream(stuck.stream, LIMIT) as pipe:
            await pipe.send(b"never read")
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    with pytest.raises(trio.ClosedResourceError):
        await stuck.stream.receive_some()
    with pytest.raises(TransportClosed):
        await pipe.send(b"too late")
    assert trio.current_time() == 0


async def test_closing_wakes_those_who_wait_to_send_and_to_receive(autojump_clock):
    stuck = Stuck()
    refused = []

    async def expect_closed(operation, *args) -> None:
        with pytest.raises(TransportClosed):
            await operation(*args)
        refused.append(operation.__name__)

    async with open_line_stream(stuck.stream, LIMIT) as pipe:
        await pipe.send(b"first")
        await wait_all_tasks_blocked()
        await pipe.send(b"x" * QUEUE_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_closed, pipe.send, b"waiting")
            nursery.start_soon(expect_closed, pipe.receive)
            await wait_all_tasks_blocked()
            await pipe.aclose()
    assert sorted(refused) == ["receive", "send"]


async def test_after_send_eof_the_peer_reads_everything_and_still_answers():
    left_stream, right_stream = memory_stream_pair()
    async with open_line_stream(left_stream, LIMIT) as left, open_line_stream(right_stream, LIMIT) as right:
        await left.send(b"question")
        await left.send_eof()
        with pytest.raises(TransportClosed):
            await left.send(b"no more")
        assert await right.receive() == b"question"
        with pytest.raises(TransportClosed):
            await right.receive()
        await right.send(b"answer")
        assert await left.receive() == b"answer"


async def test_a_peer_that_stopped_reading_is_heard_out_and_then_gone(autojump_clock):
    sender, gone = memory_stream_one_way_pair()
    peer, receiver = memory_stream_one_way_pair()
    async with open_line_stream(trio.StapledStream(sender, receiver), LIMIT) as pipe:
        await gone.aclose()
        await peer.send_all(b"last words\n")
        await pipe.send(b"is anybody there")
        await wait_all_tasks_blocked()
        with pytest.raises(TransportClosed, match="cannot send"):
            await pipe.send(b"again")
        assert await pipe.receive() == b"last words"
        with pytest.raises(TransportClosed, match="cannot send"):
            await pipe.receive()
        assert trio.current_time() == LAST_WORDS_SECONDS


async def test_what_is_offered_and_what_is_sent_arrive_in_order():
    left_stream, right_stream = memory_stream_pair()
    async with open_line_stream(left_stream, LIMIT) as left, open_line_stream(right_stream, LIMIT) as right:
        assert left.offer(b"1")
        await left.send(b"2")
        assert left.offer(b"3")
        assert [await right.receive() for _ in range(3)] == [b"1", b"2", b"3"]


async def test_nothing_is_taken_that_would_have_to_wait():
    stuck = Stuck()
    async with open_line_stream(stuck.stream, LIMIT) as pipe:
        await pipe.send(b"first")
        await wait_all_tasks_blocked()  # it is being written, and stays so
        taken = 0
        while pipe.offer(b"x" * (QUEUE_BYTES // 4)):
            taken += 1
        assert taken == 4
        stuck.released.set()
        await wait_all_tasks_blocked()
        assert pipe.offer(b"again")


async def test_nothing_is_taken_when_the_pipe_is_closed_or_broken():
    left, right = memory_stream_pair()
    async with open_line_stream(right, LIMIT) as pipe:
        await pipe.aclose()
        assert not pipe.offer(b"late")
        with pytest.raises(TransportClosed, match="closed"):
            await pipe.send(b"late")
    await left.aclose()


async def test_what_is_here_already_is_received_without_waiting():
    left, right = memory_stream_pair()
    async with open_line_stream(right, LIMIT) as pipe:
        assert pipe.receive_nowait() is None
        await left.send_all(b"1\n2\n" + b"x" * (LIMIT + 1) + b"\n3\n")
        assert pipe.receive_nowait() is None  # only `receive` reads
        assert await pipe.receive() == b"1"
        assert pipe.receive_nowait() == b"2"
        with pytest.raises(MessageTooLarge):
            pipe.receive_nowait()
        assert pipe.receive_nowait() == b"3"
        assert pipe.receive_nowait() is None


async def test_a_pipe_that_may_have_to_wait_is_never_used_without_waiting():
    left, right = open_memory_pipes()
    assert left.offer(b"message") is False
    await left.send(b"message")
    assert right.receive_nowait() is None
    assert await right.receive() == b"message"
