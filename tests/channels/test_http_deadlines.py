"""Deadlines of exchanges over HTTP: kept wherever one waits, by one task of its channel."""

from __future__ import annotations

import json
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.channels.http_channel import HttpChannel
from mcpmux.channels.http_peer import HttpPlace
from mcpmux.channels.opener import open_streamable
from mcpmux.errors import Overdue, TransportClosed
from mcpmux.protocol.call import PROGRESS_TOKEN, Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, PoolLimits
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.waiting import SWEEP_SECONDS, Deadline
from tests.channels.test_link_deadlines import unheard
from tests.inline import run_inline
from tests.peers.revision import LEGACY
from tests.peers.web import event

LATE = 2 * SWEEP_SECONDS
VIRTUAL_SECONDS = 5000  # after which a test has failed
LIMIT = 64 * 2**20
LARGE = "x" * 16 * 2**20  # more than the buffers of both sockets take

CALL = Call("tools/call", {"name": raw("slow")}, {})
WITH_PROGRESS = Call("tools/call", {"name": raw("slow")}, {PROGRESS_TOKEN: raw("mine")})
WARM = Call("resources/read", {"uri": raw("a:1")}, {})

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """The server's end of one connection. Requests that warm it up are answered, and not shown."""

    def __init__(self, stream, seen) -> None:
        self._stream = stream
        self._seen = seen
        self._data = bytearray()

    async def next(self):
        """Return the next message, {} for a request without a body; None at the end."""
        while b"\r\n\r\n" not in self._data:
            if not await self._receive():
                return None
        start = self._data.index(b"\r\n\r\n") + 4
        head = bytes(self._data[:start]).lower()
        end = start + int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while len(self._data) < end:
            assert await self._receive()
        message = json.loads(self._data[start:end] or b"{}")
        del self._data[:end]
        if message.get("method") == WARM.method:
            await self.answer(message)
            return await self.next()
        self._seen.append(message)
        return message

    async def _receive(self) -> bool:
        part = await self._stream.receive_some()
        self._data += part
        return bool(part)

    async def say(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def tell(self, **message: object) -> None:
        """Send an event of a stream that was begun."""
        data = event(message)
        await self.say(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self, message, more: bytes = b"", **result: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        head = b"%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (OK, more, len(body))
        await self.say(head + body)

    async def accept(self) -> None:
        await self.say(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


class World:
    """A channel to a server. `seen`: the messages that it got; `left`: how many connections have ended."""

    channel: HttpChannel

    def __init__(self, pool) -> None:
        self.pool = pool
        self.seen: list[Any] = []
        self.left = 0
        self._closing = trio.Event()
        self._closed = trio.Event()

    async def run(self, task_status) -> None:
        """Open the channel, until it is to be closed."""
        url = f"http://{self.pool.origin.authority}/mcp"
        place = HttpPlace(self.pool, url, (), LIMIT, lambda _: None, 1.0)
        async with open_streamable(place) as self.channel:
            task_status.started()
            await self._closing.wait()
        self._closed.set()

    async def close(self) -> None:
        self._closing.set()
        await self._closed.wait()

    def methods(self):
        return [message.get("method", "end") for message in self.seen]

    async def ask(self, deadline=None, call=CALL, notify=unheard):
        return await run_inline(self.channel.exchange(call, notify, deadline))

    async def overdue(self, deadline, call=CALL, notify=unheard) -> float:
        """Return how long an exchange without an answer took."""
        began = trio.current_time()
        with pytest.raises(Overdue):
            await self.ask(deadline, call, notify)
        return trio.current_time() - began

    async def nothing_is_left(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert len(self.channel.pending_requests) == 0
        assert self.channel.deadlines.watched == set()
        assert self.pool._running == 0


@asynccontextmanager
async def served_by(script, way="carried", **limits):
    """Open a world whose server treats each connection as the script does. `way`: how its calls are sent."""
    async with open_readiness_poller() as poller, trio.open_nursery() as nursery:

        async def serve(stream) -> None:
            async with stream:
                peer = Peer(stream, world.seen)
                await script(peer)
                world.left += 1

        listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        origin = HttpOrigin(False, "127.0.0.1", listener.socket.getsockname()[1])
        posts = way == "posted"
        bounds = PoolLimits(idle_seconds=math.inf, **limits)
        with (
            trio.fail_after(VIRTUAL_SECONDS),
            HttpPool(origin, limits=bounds, poller=poller if posts else None) as pool,
        ):
            world = World(pool)
            await nursery.start(world.run)
            if posts:
                await world.ask(call=WARM)
                assert pool.poller is not None
            yield world
            await world.close()
        nursery.cancel_scope.cancel()


WAYS = ["carried", "posted"]


@pytest.fixture(params=WAYS)
def way(request):
    """Have a task read the answer from the beginning, or post the call, which has no answer at first."""
    return request.param


async def silent(peer) -> None:
    while await peer.next():
        pass


async def begins(peer) -> None:
    await peer.next()
    await peer.say(OK + b"Content-Length: 10\r\n\r\n{")
    await silent(peer)


async def streams_nothing(peer) -> None:
    await peer.next()
    await peer.say(STREAM)
    await silent(peer)


async def streams_something(peer) -> None:
    await peer.next()
    await peer.say(STREAM)
    await peer.tell(method="notifications/message", params={"level": "info", "data": "on its way"})
    await silent(peer)


@pytest.mark.parametrize("run", ["inline", "in task"])
@pytest.mark.parametrize("script", [silent, begins, streams_nothing, streams_something])
async def test_an_exchange_ends_with_its_time_and_so_does_its_connection(autojump_clock, script, way, run):
    async with served_by(script, way) as world:
        began = trio.current_time()
        deadline = Deadline(30, 4, 60)
        with pytest.raises(Overdue):
            if run == "inline":
                await world.ask(deadline, WITH_PROGRESS)
            else:
                await world.channel.exchange(WITH_PROGRESS, unheard, deadline)
        assert 26 <= trio.current_time() - began <= 26 + LATE
        await world.nothing_is_left()
        assert world.left == 1
        assert world.methods() == ["tools/call"]


async def test_a_server_that_reads_nothing_holds_nobody_past_the_deadline(autojump_clock, way):
    gone = trio.Event()

    async def deaf(peer) -> None:
        if way == "posted":
            with trio.move_on_after(1):
                await peer.next()  # what warms it up
        await gone.wait()

    async with served_by(deaf, way) as world:
        took = await world.overdue(Deadline(30, 0, 60), Call("tools/call", {"text": raw(LARGE)}, {}))
        assert 30 <= took <= 30 + LATE
        await world.nothing_is_left()
        gone.set()


async def test_waiting_for_a_turn_counts(autojump_clock):
    async with served_by(silent, connections=1) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.ask)
        await trio.testing.wait_all_tasks_blocked()
        took = await world.overdue(Deadline(30, 0, 60))
        assert 30 <= took <= 30 + LATE
        assert world.methods() == ["tools/call"]  # the second was not sent
        nursery.cancel_scope.cancel()


async def test_waiting_for_a_connection_counts(autojump_clock):
    async with served_by(silent) as world:

        class Unreachable:
            async def open(self):
                await trio.sleep_forever()

        world.pool.route = Unreachable()
        took = await world.overdue(Deadline(30, 0, 60))
        assert 30 <= took <= 30 + LATE
        await world.nothing_is_left()


async def test_a_connection_is_used_again_after_exchanges_that_were_in_time(autojump_clock, way):
    peers = []

    async def patient(peer) -> None:
        while message := await peer.next():
            peers.append(peer)
            await trio.sleep(29)
            await peer.answer(message, ok=True)

    async with served_by(patient, way) as world:
        for _ in range(3):
            assert await world.ask(Deadline(30, 0, 60)) == {"ok": raw(True)}
            assert world.channel.deadlines.watched == set()
            await trio.sleep(300)
        assert len(peers) == 3
        assert len(set(map(id, peers))) == 1


async def test_a_client_that_does_not_take_its_progress_is_not_waited_for(autojump_clock, way):
    async with served_by(streams_something, way) as world:

        async def never(_event: object) -> None:
            await trio.sleep_forever()

        took = await world.overdue(Deadline(10, 0, 60), WITH_PROGRESS, never)
        assert 10 <= took <= 10 + LATE
        await world.nothing_is_left()


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "JSON"])
async def test_without_a_term_an_exchange_takes_its_time(autojump_clock, way, streams):
    async def slow(peer) -> None:
        request = await peer.next()
        if streams:
            await peer.say(STREAM)
        await trio.sleep(1000)
        if streams:
            await peer.tell(id=request["id"], result={})
            await peer.say(b"0\r\n\r\n")
        else:
            await peer.answer(request)

    async with served_by(slow, way) as world:
        assert await world.ask() == {}
        assert trio.current_time() >= 1000


async def legacy(peer) -> None:
    while message := await peer.next():
        if "id" not in message:
            await peer.accept()


async def test_a_legacy_server_is_told_that_nobody_waits_any_more(autojump_clock, way):
    async with served_by(legacy, way) as world:
        world.channel.settle(ServerFacts(LEGACY, {}))
        await world.overdue(Deadline(10, 0, 60))
        await world.nothing_is_left()
        request, cancellation = world.seen
        assert cancellation["method"] == "notifications/cancelled"
        assert cancellation["params"]["requestId"] == request["id"]


async def test_a_legacy_server_is_told_nothing_of_what_it_was_never_sent(autojump_clock):
    async with served_by(legacy, connections=1) as world, trio.open_nursery() as nursery:
        world.channel.settle(ServerFacts(LEGACY, {}))
        nursery.start_soon(world.ask)
        await trio.testing.wait_all_tasks_blocked()
        await world.overdue(Deadline(10, 0, 60))
        await trio.testing.wait_all_tasks_blocked()
        assert world.methods() == ["tools/call"]
        nursery.cancel_scope.cancel()


# When the channel ends, and its deadlines with it


async def hear_the_end(world, **kwargs) -> None:
    with pytest.raises(TransportClosed):
        await world.ask(Deadline(30, 0, 60), **kwargs)


@pytest.mark.parametrize("script", [silent, begins, streams_nothing, streams_something])
async def test_whoever_waits_hears_that_the_channel_ends(autojump_clock, way, script):
    async with served_by(script, way) as world, trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(partial(hear_the_end, world, call=WITH_PROGRESS))
        await trio.testing.wait_all_tasks_blocked()
        await world.close()
        await world.nothing_is_left()
        assert trio.current_time() - began < 1
        assert world.left == 1


async def test_nothing_is_sent_over_a_channel_that_has_ended(autojump_clock, way):
    async with served_by(silent, way) as world:
        await world.close()
        await hear_the_end(world)
        await world.nothing_is_left()
        assert world.seen == []


async def test_a_request_that_saw_the_end_is_not_repeated(autojump_clock, way):
    async with served_by(silent, way) as world, trio.open_nursery() as nursery:
        nursery.start_soon(partial(hear_the_end, world, call=Call("resources/list", {}, {})))
        await trio.testing.wait_all_tasks_blocked()
        await world.close()
        await trio.sleep(10)
        assert world.methods() == ["resources/list"]


async def test_a_queued_request_is_not_sent_after_the_channel_ended(autojump_clock):
    """Ending the session takes a turn, too, so that those before it could have theirs meanwhile."""
    go = trio.Event()

    async def answers_late(peer) -> None:
        while message := await peer.next():
            if message["method"] == "initialize":
                await peer.answer(message, b"Mcp-Session-Id: s1\r\n")
            else:
                await go.wait()
                await peer.answer(message)

    async with served_by(answers_late, connections=1) as world, trio.open_nursery() as nursery:
        await world.ask(call=Call("initialize", {}, {}))
        world.channel.settle(ServerFacts(LEGACY, {}))
        for _ in range(2):
            nursery.start_soon(hear_the_end, world)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.close)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        await trio.sleep(10)
        assert world.methods().count("tools/call") == 1
