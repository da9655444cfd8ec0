"""No frame is ever sent behind half of another one, with any task cancelled and any peer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio
from trio.abc import HalfCloseableStream
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from mcpmux.errors import TransportClosed
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports.message_stream import LineStream, open_line_stream
from mcpmux.transports.send_queue import QUEUE_BYTES
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket import CLOSE_SECONDS, HandshakePolicy, WebSocketStream, open_websocket_client
from tests.peers.raw_websocket import RawClient, handshake

LIMIT = 10_000_000
DOOR = HandshakePolicy("/mcp", OriginPolicy("127.0.0.1", [], []))


class Reluctant(HalfCloseableStream):
    """A stream whose peer reads `allowed` bytes more; what it has read is `sent`."""

    def __init__(self, stream: trio.StapledStream) -> None:
        self._stream = stream
        self._more = trio.lowlevel.ParkingLot()
        self._allowed = 1_000_000
        self.sent = b""

    def allow(self, count: int) -> None:
        self._allowed = count
        self._more.unpark_all()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = bytes(data)
        while rest:
            while not self._allowed:
                await self._more.park()
            piece = rest[: self._allowed]
            rest = rest[len(piece) :]
            self._allowed -= len(piece)
            self.sent += piece
            await self._stream.send_all(piece)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


class Stage:
    """A server's pipe, held by a task that `leave` cancels, and the client at its other end."""

    def __init__(self, client: RawClient, stream: Reluctant) -> None:
        self.client = client
        self.stream = stream
        self.owner = trio.CancelScope()
        self.done = trio.Event()
        self.pipe: WebSocketStream

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        with self.owner:
            async with open_websocket_client(PatientStream(self.stream), DOOR, lambda: None, LIMIT) as pipe:
                assert pipe is not None
                self.pipe = pipe
                task_status.started()
                await trio.sleep_forever()
        self.done.set()

    def send_soon(self, nursery: trio.Nursery, message: bytes) -> trio.CancelScope:
        """Send in a new task. Return the scope that cancels it."""
        scope = trio.CancelScope()

        async def send() -> None:
            with scope, suppress(TransportClosed):
                await self.pipe.send(message)

        nursery.start_soon(send)
        return scope


@asynccontextmanager
async def open_stage() -> AsyncIterator[tuple[Stage, trio.Nursery]]:
    ours, theirs = memory_stream_pair()
    stage = Stage(RawClient(ours), Reluctant(theirs))
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            await ours.send_all(handshake())
            await nursery.start(stage.serve)
            assert (await stage.client.head())[0] == 101
            stage.stream.sent = b""
            yield stage, nursery
            nursery.cancel_scope.cancel()


def frames_in(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the first byte and the payload of each whole frame, and the unfinished one at the end."""
    frames = []
    while len(data) >= 2:
        head, size = 2, data[1] & 0x7F
        if size >= 126:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[2:head], "big")
        mask = data[head : head + 4] if data[1] & 0x80 else b""
        head += len(mask)
        if len(data) < head + size:
            break
        assert data[0] & 0x70 == 0
        payload = data[head : head + size]
        if mask:
            payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
        frames.append((data[0], payload))
        data = data[head + size :]
    return frames, data


@pytest.mark.parametrize("hard", [False, True])
async def test_when_the_peer_never_reads_on_nothing_follows_the_half_frame(hard: bool, autojump_clock):
    async with open_stage() as (stage, nursery):
        stage.stream.allow(50)
        stage.send_soon(nursery, b"x" * 200)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        if hard:
            stage.owner.cancel()
        else:
            nursery.start_soon(stage.pipe.aclose)
        await wait_all_tasks_blocked()
        await trio.sleep(2 * CLOSE_SECONDS + 0.5)
        stage.stream.allow(10_000)
        await wait_all_tasks_blocked()
        assert frames_in(stage.stream.sent) == ([], b"\x81\x7e\x00\xc8" + b"x" * 46)
        with pytest.raises(TransportClosed):
            await stage.pipe.send(b"z")
        assert trio.current_time() - began <= 2 * CLOSE_SECONDS + 1


async def test_a_peer_that_does_not_read_makes_senders_wait_in_bounded_memory(autojump_clock):
    async with open_stage() as (stage, nursery):
        stage.stream.allow(0)
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while True:
                await stage.pipe.send(b"x" * 10_000)
                sent += 10_000
                assert sent < 10_000_000

        for _ in range(10):
            nursery.start_soon(send_on)
        await wait_all_tasks_blocked()
        assert QUEUE_BYTES <= sent <= 2 * QUEUE_BYTES + 200_000  # a full queue, and one that is being sent
        sent = 0
        stage.stream.allow(700)
        await wait_all_tasks_blocked()
        assert sent <= 20_000
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["websocket", "lines"])
async def test_many_senders_who_give_up_at_any_moment_tear_nothing(kind: str, seed: int, autojump_clock):
    """Send the frames or lines of those that were not cancelled, whole and in order."""
    random = Random(seed)
    async with open_stage() as (stage, nursery), open_lines() as (lines, line_stream):
        pipe, stream = (stage.pipe, stage.stream) if kind == "websocket" else (lines, line_stream)
        messages = []
        kept = []
        stream.allow(0)
        stream.sent = b""
        for number in range(40):
            message = b"%d:" % number + b"x" * random.choice([0, 10, 100, 125, 126, 3000, 66_000])
            messages.append(message)
            scope = trio.CancelScope()

            async def send(message: bytes = message, scope: trio.CancelScope = scope) -> None:
                with scope:
                    await pipe.send(message)
                    kept.append(message)

            nursery.start_soon(send)
            if random.random() < 0.5:
                await wait_all_tasks_blocked()
                stream.allow(random.choice([1, 5, 100, 5000]))
            if random.random() < 0.5:
                scope.cancel()
        stream.allow(100_000_000)
        await wait_all_tasks_blocked()
        if kind == "websocket":
            frames, rest = frames_in(stream.sent)
            assert {first for first, _ in frames} <= {0x81}
            whole = [payload for _, payload in frames]
        else:
            *whole, rest = stream.sent.split(b"\n")
        assert rest == b""
        assert whole == kept
        assert set(whole) <= set(messages)


@asynccontextmanager
async def open_lines() -> AsyncIterator[tuple[LineStream, Reluctant]]:
    stream = Reluctant(memory_stream_pair()[0])
    async with open_line_stream(stream, LIMIT) as pipe:
        yield pipe, stream
