"""With which code a WebSocket client is left when we stop; what it has asked is answered before, in time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from mcpmux.clients.stream_clients import StreamClients
from mcpmux.config import Limits
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.transports.websocket import GOING_AWAY, HandshakePolicy
from tests.peers.raw_websocket import TEXT, RawClient, frame, handshake
from tests.peers.revision import CAPABILITIES, MODERN, VERSION
from tests.runtime.test_load import SLOW, SlowServer, one_upstream

DOOR = HandshakePolicy("/mcp", OriginPolicy("127.0.0.1", [], []))
META = {VERSION: MODERN, CAPABILITIES: {}}
ASK = {"jsonrpc": "2.0", "id": 1, "method": SLOW, "params": {"_meta": META}}


class Serving:
    """One client of mcpmux, whose serving `stopping` ends gently and `killed` at once."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.stopping = trio.Event()
        self.killed = trio.CancelScope()
        self.done = trio.Event()


@asynccontextmanager
async def open_client() -> AsyncIterator[Serving]:
    ours, theirs = memory_stream_pair()
    serving = Serving(RawClient(ours))
    async with one_upstream(SlowServer()) as world, trio.open_nursery() as nursery:

        async def serve() -> None:
            clients = StreamClients(world.mux.service, Limits(max_message_bytes=1000), serving.stopping, DOOR)
            with serving.killed:
                await clients.serve(theirs, "")
            serving.done.set()

        nursery.start_soon(serve)
        await ours.send_all(handshake() + frame(TEXT, json.dumps(ASK).encode()))
        assert (await serving.client.head())[0] == 101
        await wait_all_tasks_blocked()
        yield serving
        await serving.done.wait()


async def test_who_is_served_when_we_stop_is_answered_and_left_with_1001(autojump_clock):
    async with open_client() as serving:
        serving.stopping.set()
        opcode, answer = await serving.client.frame()
        assert (opcode, json.loads(answer)["id"]) == (TEXT, 1)
        assert await serving.client.close_code() == GOING_AWAY


async def test_who_is_served_when_we_are_killed_is_left_with_1001(autojump_clock):
    async with open_client() as serving:
        serving.stopping.set()
        await wait_all_tasks_blocked()
        serving.killed.cancel()
        assert await serving.client.close_code() == GOING_AWAY
