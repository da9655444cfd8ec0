"""Deadlines of exchanges on one stream, which one task keeps for all of them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcpmux.channels.opener import open_duplex_channel
from mcpmux.errors import Overdue
from mcpmux.protocol.call import PROGRESS_TOKEN, Call
from mcpmux.protocol.envelope import raw
from mcpmux.transports.message_stream import open_line_stream
from mcpmux.transports.send_queue import QUEUE_BYTES
from mcpmux.transports.waiting import SWEEP_SECONDS, Deadline
from tests.peers.pipe import open_memory_pipes
from tests.transports.test_pipe import Stuck

LIMIT = 2 * QUEUE_BYTES
VIRTUAL_SECONDS = 2000  # after which a test has failed
CALL = Call("tools/call", {"name": raw("slow")}, {})


async def unheard(_event: object) -> None:
    pass


class Peer:
    """The other end, by hand."""

    def __init__(self, pipe) -> None:
        self._pipe = pipe

    async def next(self):
        return json.loads(await self._pipe.receive())

    async def say(self, **message: object) -> None:
        await self.say_raw(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def say_raw(self, data: bytes) -> None:
        await self._pipe.send(data)


@asynccontextmanager
async def open_world(kind: str):
    """Open a link and its peer: over lines, which can be sent without waiting, or over a pipe that cannot."""
    with trio.fail_after(VIRTUAL_SECONDS):
        if kind == "memory":
            pipe, end = open_memory_pipes()
            async with open_duplex_channel(pipe, lambda _: None) as link:
                yield link, Peer(end)
            return
        left, right = trio.testing.memory_stream_pair()
        async with (
            open_line_stream(left, LIMIT) as ours,
            open_line_stream(right, LIMIT) as theirs,
            open_duplex_channel(ours, lambda _: None) as link,
        ):
            yield link, Peer(theirs)


@pytest.fixture(params=["lines", "memory"])
def kind(request):
    return request.param


async def overdue(link, deadline: Deadline, call: Call = CALL) -> float:
    """Return how long an exchange without an answer took."""
    began = trio.current_time()
    with pytest.raises(Overdue):
        await link.exchange(call, unheard, deadline)
    return trio.current_time() - began


async def test_an_unanswered_exchange_ends_in_time_and_the_peer_is_told(autojump_clock, kind):
    async with open_world(kind) as (link, peer):
        took = await overdue(link, Deadline(10, 4, 60))
        assert 6 <= took <= 6 + 2 * SWEEP_SECONDS
        request, cancellation = await peer.next(), await peer.next()
        assert cancellation["method"] == "notifications/cancelled"
        assert cancellation["params"]["requestId"] == request["id"]
        await peer.say(id=request["id"], result={})  # too late, and for no exchange
        assert len(link.pending_requests) == 0


async def test_no_deadline_is_watched_after_an_answer_in_time(autojump_clock, kind):
    async with open_world(kind) as (link, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            request = await peer.next()
            await trio.sleep(9)
            await peer.say(id=request["id"], result={"ok": True})

        nursery.start_soon(answer)
        assert await link.exchange(CALL, unheard, Deadline(10, 0, 60)) == {"ok": raw(True)}
        assert repr(link.deadlines) == "<DeadlineSweeper of 0>"


async def test_a_peer_that_does_not_read_holds_nobody_past_the_deadline(autojump_clock):
    stuck = Stuck()
    large = Call("tools/call", {"text": raw("x" * QUEUE_BYTES)}, {})
    with trio.fail_after(VIRTUAL_SECONDS):
        pipes = open_line_stream(stuck.stream, LIMIT)
        async with pipes as pipe, open_duplex_channel(pipe, lambda _: None) as link:
            took: list[float] = []

            async def ask() -> None:
                took.append(await overdue(link, Deadline(5, 0, 60), large))

            async with trio.open_nursery() as asking:
                for _ in range(4):  # the first is being written, the second queued, the others wait for room
                    asking.start_soon(ask)
            assert all(5 <= spent <= 5 + 4 for spent in took), took  # 4: for saying that it is cancelled
            stuck.released.set()


async def test_a_client_that_does_not_take_its_progress_is_not_waited_for(autojump_clock, kind):
    async with open_world(kind) as (link, peer), trio.open_nursery() as nursery:

        async def never(_event: object) -> None:
            await trio.sleep_forever()

        async def progress() -> None:
            request = await peer.next()
            token = request["params"]["_meta"][PROGRESS_TOKEN]
            await peer.say(method="notifications/progress", params={PROGRESS_TOKEN: token, "progress": 1})

        nursery.start_soon(progress)
        began = trio.current_time()
        with pytest.raises(Overdue):
            call = Call("tools/call", {}, {PROGRESS_TOKEN: raw("mine")})
            await link.exchange(call, never, Deadline(10, 0, 60))
        assert trio.current_time() - began == pytest.approx(10)
