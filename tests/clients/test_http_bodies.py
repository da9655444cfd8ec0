"""Large bodies of HTTP requests: of strangers, and of more clients than there is memory for."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from mcpmux.app.listeners import Serving, make_gate, serve_listener
from mcpmux.auth.bearer import hash_token
from mcpmux.config import Auth, Config, HttpListener, Limits, Listeners, StaticToken
from mcpmux.protocol.headers import METHOD_HEADER, VERSION_HEADER
from mcpmux.transports.body_budget import BodyBudget
from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, MODERN, VERSION
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world, upstream

TOKEN = "mcpmux_ann_0123456789abcdefghijklmnopqrst"
TOKENS = Auth(tokens={"ann": StaticToken(sha256=hash_token(TOKEN))})
ANN = f"Authorization: Bearer {TOKEN}\r\n"
STRANGERS = 20
BODY_BYTES = 4 * 2**20
HELD_BYTES = 512 * 1024  # of a stranger: some receives of 64 KiB, the objects of a connection, and ours
BUDGET = 2**20
PATIENCE = 30.0
LIST = request("resources/list", {"_meta": {VERSION: MODERN, CAPABILITIES: {}}})


class Site:
    """A listener for HTTP, and the budget for the bodies that come there."""

    def __init__(self, port: int, bodies: BodyBudget) -> None:
        self.port = port
        self.bodies = bodies

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def open_site(auth: Auth | None = None, limits: Limits | None = None) -> AsyncIterator[Site]:
    listener = HttpListener(port=0, sse_path="/sse")
    limits = limits or Limits(max_body_bytes_in_flight=BUDGET)
    listeners, auth = Listeners(http=(listener,)), auth or Auth()
    config = Config(upstreams=(upstream("docs"),), listeners=listeners, limits=limits, auth=auth)
    async with open_world({"docs": docs()}) as world:
        announced: list[str] = []
        bodies = BodyBudget(BUDGET)
        gate = await make_gate(config)
        served = limits, world.mux.service, trio.Event(), announced.append, gate
        serving = Serving(*served, poller=world.mux.poller, bodies=bodies)
        await world.nursery.start(serve_listener, listener, serving)
        with trio.fail_after(PATIENCE):
            yield Site(int(announced[0].rpartition(":")[2].partition("/")[0]), bodies)


def head(framing: str, more: str = "", host: str = "localhost", method: str = "POST") -> bytes:
    fields = (
        f"Content-Type: application/json\r\n{VERSION_HEADER}: {MODERN}\r\n{METHOD_HEADER}: resources/list"
    )
    return f"{method} /mcp HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{more}{framing}\r\n\r\n".encode()


def padded(size: int) -> bytes:
    """Return a request of that length."""
    return json.dumps(LIST).encode().ljust(size)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def declared(size: int) -> str:
    return f"Content-Length: {size}"


CHUNKED = "Transfer-Encoding: chunked"


async def read_answer(stream: trio.SocketStream) -> tuple[int, str, Any]:
    """Read an answer. Return its status, fields in lower case, and the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = await stream.receive_some()
        assert part, data
        data += part
    first, _, body = data.partition(b"\r\n\r\n")
    fields = first.decode().lower()
    length = int(fields.partition("content-length: ")[2].partition("\r\n")[0] or 0)
    while len(body) < length:
        body += await stream.receive_some()
    return int(first.split()[1]), fields, json.loads(body) if body else None


async def ask(site: Site, framing: str, body: bytes, more: str = "") -> tuple[int, str, Any]:
    async with await site.connect() as stream:
        await stream.send_all(head(framing, more))
        with suppress(trio.BrokenResourceError):
            await stream.send_all(body)
        return await read_answer(stream)


@pytest.mark.parametrize("framing", [declared(BODY_BYTES), CHUNKED])
async def test_strangers_hold_little_memory(framing: str):
    body = padded(BODY_BYTES) if framing != CHUNKED else chunked(padded(BODY_BYTES))
    statuses: list[int] = []
    sent = 0

    async def come(site: Site) -> None:
        """Send all but the last byte, and that when all others have come as far."""
        nonlocal sent
        async with await site.connect() as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(head(framing))
                await stream.send_all(memoryview(body)[:-1])
            sent += 1
            if sent == STRANGERS:
                complete.set()
            await complete.wait()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(body[-1:])
            statuses.append((await read_answer(stream))[0])

    async with open_site(TOKENS) as site:
        complete = trio.Event()
        tracemalloc.start()
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(STRANGERS):
                    nursery.start_soon(come, site)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert statuses == [401] * STRANGERS
    assert most < STRANGERS * HELD_BYTES


@pytest.mark.parametrize("framing", [declared(BODY_BYTES), CHUNKED, declared(2) + "\r\nExpect: 100-continue"])
@pytest.mark.parametrize(
    ("auth", "more", "host", "status"),
    [
        (TOKENS, "Origin: http://localhost:6274\r\n", "localhost", 401),
        (TOKENS, "Origin: http://localhost:6274\r\nAuthorization: Bearer wrong\r\n", "localhost", 401),
        (TOKENS, ANN + "Origin: https://evil.example.com\r\n", "localhost", 403),
        (None, "Origin: https://evil.example.com\r\n", "localhost", 403),
        (None, "", "rebound.example.com", 403),
    ],
)
async def test_a_refusal_answers_the_head(framing: str, auth: Auth | None, more: str, host: str, status: int):
    async with open_site(auth) as site, await site.connect() as stream:
        await stream.send_all(head(framing, more, host))
        got, fields, answer = await read_answer(stream)
        assert (got, answer["error"]["code"]) == (status, -32600)
        assert "connection: close" in fields
        assert ("www-authenticate: bearer" in fields) == (status == 401)
        assert ("access-control-allow-origin: http://localhost:6274" in fields) == (status == 401)
        await stream.send_eof()
        assert await stream.receive_some() == b""


async def test_a_preflight_is_answered_before_its_body():
    more = "Origin: http://localhost:6274\r\nAccess-Control-Request-Method: POST\r\n"
    async with open_site(TOKENS) as site, await site.connect() as stream:
        await stream.send_all(head(declared(BODY_BYTES), more, method="OPTIONS"))
        status, fields, _ = await read_answer(stream)
        assert (status, "access-control-max-age" in fields) == (204, True)


@pytest.mark.parametrize("auth", [TOKENS, None])
async def test_large_bodies_of_one_connection_are_answered_in_turn(auth: Auth | None):
    body = padded(BODY_BYTES)
    async with open_site(auth) as site, await site.connect() as stream:
        for framing, data in ((declared(BODY_BYTES), body), (CHUNKED, chunked(body))) * 2:
            await stream.send_all(head(framing, ANN))
            await stream.send_all(data)
            status, fields, answer = await read_answer(stream)
            assert (status, "connection: close" in fields) == (200, False)
            assert answer["result"]["resources"]
        await stream.send_all(head(declared(BODY_BYTES) + "\r\nExpect: 100-continue", ANN))
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(body)
        assert (await read_answer(stream))[0] == 200
    assert site.bodies.taken == 0


@pytest.mark.parametrize("framing", ["declared", "chunked"])
@pytest.mark.parametrize("ending", ["answered", "vanished"])
async def test_bodies_in_flight_share_one_budget(framing: str, ending: str):
    size = BUDGET * 3 // 4
    body = padded(size)
    second = (declared(size), body) if framing == "declared" else (CHUNKED, chunked(body))
    async with open_site() as site:
        async with await site.connect() as stream:
            await stream.send_all(head(declared(size)) + body[:-1])
            while site.bodies.taken < size:
                await trio.lowlevel.checkpoint()
            status, fields, answer = await ask(site, *second)
            assert (status, "retry-after: 1" in fields) == (503, True)
            assert answer["error"]["code"] == -31003
            assert answer["error"]["data"]["limit"] == "limits.max_body_bytes_in_flight"
            assert (await ask(site, declared(len(padded(0))), padded(0)))[0] == 200
            assert site.bodies.taken == size
            if ending == "answered":
                await stream.send_all(body[-1:])
                assert (await read_answer(stream))[0] == 200
        while site.bodies.taken:
            await trio.lowlevel.checkpoint()
        assert (await ask(site, *second))[0] == 200
        assert site.bodies.taken == 0
