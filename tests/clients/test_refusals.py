"""A client gets a refusal of every refused request, however many come at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from mcpmux.channels.duplex_channel import OBJECTION_LIMIT
from mcpmux.clients.stream_clients import StreamClients
from mcpmux.config import Limits
from mcpmux.protocol.codes import BUSY
from mcpmux.transports.message_stream import RECEIVE_BYTES
from mcpmux.transports.send_queue import QUEUE_BYTES
from tests.peers.revision import CAPABILITIES, MODERN, VERSION
from tests.runtime.test_load import SLOW, SlowServer, one_upstream

META = {VERSION: MODERN, CAPABILITIES: {}}
STALL = 7.0
LIMITS = Limits(max_message_bytes=100_000, client_stall=STALL, max_in_flight=2)


def requests(count: int) -> bytes:
    messages = (
        {"jsonrpc": "2.0", "id": number, "method": SLOW, "params": {"_meta": META}} for number in range(count)
    )
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


@asynccontextmanager
async def open_client() -> AsyncIterator[tuple[Any, trio.Event]]:
    """Open a stream of lines. Yields the client's end, the other end, and what is set when mcpmux is done."""
    done = trio.Event()
    async with one_upstream(SlowServer()) as world, trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()

        async def serve() -> None:
            await StreamClients(world.mux.service, LIMITS, trio.Event(), None).serve(theirs, "")
            done.set()

        nursery.start_soon(serve)
        yield (ours, theirs), done
        nursery.cancel_scope.cancel()


async def test_every_request_of_a_burst_is_answered(autojump_clock):
    async with open_client() as ((ours, _), _done):
        burst = requests(300)
        assert len(burst) < RECEIVE_BYTES  # so all of them are received at once
        await ours.send_all(burst)
        answers: dict[int, Any] = {}
        received = b""
        with trio.fail_after(60):
            while len(answers) < 300:
                received += await ours.receive_some()
                *lines, received = received.split(b"\n")
                answers |= {answer["id"]: answer for answer in map(json.loads, lines)}
        assert {number for number, answer in answers.items() if "result" in answer} == {0, 1}
        refused = [answer["error"]["code"] for answer in answers.values() if "error" in answer]
        assert refused == [BUSY] * 298


async def test_a_client_that_does_not_read_is_closed_after_the_stall(autojump_clock):
    """Close the stream as the one answer to all of its requests."""
    async with open_client() as ((ours, theirs), done):
        receives = 0

        async def count() -> None:
            nonlocal receives
            receives += 1

        theirs.receive_stream.receive_some_hook = count
        theirs.send_stream.send_all_hook = trio.sleep_forever
        flood = requests(6000)
        await ours.send_all(flood)
        await wait_all_tasks_blocked()
        in_memory = QUEUE_BYTES + OBJECTION_LIMIT * 1000  # of refusals, each longer than its request
        assert receives <= in_memory // RECEIVE_BYTES + 2 < len(flood) // RECEIVE_BYTES
        with trio.fail_after(60):
            await done.wait()
        assert trio.current_time() <= STALL + 5


@pytest.mark.parametrize("nonsense", [b"{}", b"x", b"[]"])
async def test_a_burst_of_nonsense_is_objected_to_line_by_line(nonsense: bytes, autojump_clock):
    async with open_client() as ((ours, _), _done):
        await ours.send_all(requests(1))
        await ours.send_all((nonsense + b"\n") * 300)
        received = b""
        with trio.fail_after(60):
            while received.count(b"\n") < 301:
                received += await ours.receive_some()
