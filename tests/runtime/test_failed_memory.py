"""The memory that a failed exchange holds before the garbage collector comes, which it does rarely."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mcpmux.clients.http_answer import respond
from mcpmux.config.model import Limits
from mcpmux.errors import RpcError, TransportClosed
from mcpmux.protocol.envelope import Request, raw
from mcpmux.protocol.raw_json import Fields
from tests.clients.test_http_answer import Peer
from tests.inline import run_inline
from tests.peers.revision import Json
from tests.peers.web import JSON, SSE, TOOLS, Web
from tests.runtime.web_world import exchange, open_web

LARGE = 4 * 2**20
LEFT = LARGE // 8


@contextmanager
def uncollected() -> Iterator[list[int]]:
    """Turn off the collector. Yields a list, which gets the number of bytes that are left behind."""
    left: list[int] = []
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        yield left
        left.append(tracemalloc.get_traced_memory()[0] - start)
    finally:
        tracemalloc.stop()
        gc.enable()


async def answer_badly(web: Web, _request: Any, message: Json, reply: Any) -> None:
    if message["method"] == "server/discover":
        await web.answer(reply, message, {"supportedVersions": ["2026-07-28"], "capabilities": TOOLS})
    elif message.get("params", {}).get("name") == "event":
        await reply.open(200, SSE, b"data: " + bytes(LARGE))
        await reply.write(bytes(LARGE))
    elif message.get("params", {}).get("name") == "compressed":
        web.sent = 0
        await reply.open(200, (*JSON, ("Content-Encoding", "gzip")), b"")
        with suppress(TransportClosed):
            while web.sent < 8 * LARGE:
                await reply.write(bytes(2**16))
                web.sent += 2**16
    elif message["method"] == "tools/call":
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"text": "MARK"}}).encode()
        await reply.send(200, JSON, body.replace(b"MARK", b"x" * LARGE)[:-1])


@pytest.mark.parametrize("tool", ["event", "cut"])
async def test_an_answer_that_cannot_be_read_is_not_kept(tool: str) -> None:
    async with open_web(answer_badly, limits=Limits(max_message_bytes=LARGE + LARGE // 2)) as (_, mux):
        with pytest.raises(RpcError):
            await exchange(mux, "tools/call", {"name": "warm"})
        with uncollected() as left, pytest.raises(RpcError, match="makes no sense"):
            await exchange(mux, "tools/call", {"name": tool})
    assert left[0] < LEFT


async def test_a_compressed_answer_is_not_even_read() -> None:
    async with open_web(answer_badly) as (web, mux):
        with pytest.raises(RpcError, match="its answer is compressed"):
            await exchange(mux, "tools/call", {"name": "compressed"})
        assert web.sent < 4 * LARGE


@pytest.mark.interpreted  # stand-ins
async def test_what_a_failed_request_had_in_hand_is_not_kept() -> None:
    async def work() -> Fields:
        body = bytes(LARGE)
        error = RpcError(-32603, f"not with {len(body)} bytes")
        raise error  # so that it, its frame and what is in that are a cycle

    with uncollected() as left:
        for _ in range(2):
            peer = Peer()
            await run_inline(respond(Request(7, "tools/call", raw({})), peer.reply, work(), streams=False))
            assert b"not with" in peer.received
    assert left[0] < LEFT
