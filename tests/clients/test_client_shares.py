"""One client that opens as many streams as it can, and the others, who go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from mcpmux.auth.bearer import hash_token
from mcpmux.config import Auth, Limits, StaticToken
from mcpmux.protocol.headers import METHOD_HEADER, SESSION_HEADER, VERSION_HEADER
from mcpmux.transports.http.server import REFUSED_CONNECTIONS
from tests.clients.test_http_bodies import ANN, TOKEN, Site, open_site
from tests.peers.http_client import request
from tests.peers.revision import CAPABILITIES, CLIENT, CLIENT_INFO, LEGACY, MODERN, VERSION

BOB = "Authorization: Bearer mcpmux_bob_0123456789abcdefghijklmnopqrst\r\n"
TOKENS = Auth(
    tokens={
        "ann": StaticToken(sha256=hash_token(TOKEN)),
        "bob": StaticToken(sha256=hash_token(BOB.split()[-1])),
    }
)
PLACES = 16
META = {VERSION: MODERN, CAPABILITIES: {}, CLIENT_INFO: CLIENT}


def post(method: str, more: str = "") -> bytes:
    params = {"_meta": META} | ({"notifications": {}} if method == "subscriptions/listen" else {})
    body = json.dumps(request(method, params)).encode()
    fields = f"{VERSION_HEADER}: {MODERN}\r\n{METHOD_HEADER}: {method}\r\nContent-Type: application/json\r\n"
    return b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (
        f"{fields}{more}Accept: application/json, text/event-stream\r\n".encode(),
        len(body),
        body,
    )


def get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}Accept: text/event-stream\r\n\r\n".encode()


@asynccontextmanager
async def asked(site: Site, data: bytes) -> AsyncIterator[bytes]:
    """Yield the first part of the answer while its connection is open."""
    async with await site.connect() as stream:
        await stream.send_all(data)
        yield bytes(await stream.receive_some())


async def status_of(site: Site, data: bytes) -> int:
    async with asked(site, data) as answer:
        return int(answer.split()[1])


async def begin_session(site: Site, more: str = "") -> str:
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
    body = json.dumps(request("initialize", params)).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{more}Content-Type: application/json\r\n"
    async with asked(site, head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as answer:
        fields = answer.decode().split("\r\n")
        return next(
            field.partition(": ")[2] for field in fields if field.lower().startswith("mcp-session-id:")
        )


@pytest.mark.parametrize("kind", ["listen", "get", "sse"])
@pytest.mark.parametrize("auth", [None, TOKENS], ids=["anybody", "tokens"])
async def test_one_client_leaves_half_of_the_connections_to_others(kind: str, auth: Auth | None):
    own = ANN if auth is not None else ""
    async with open_site(auth, Limits(max_connections=PLACES)) as site, AsyncExitStack() as streams:

        async def greedy() -> bytes:
            if kind != "get":
                return post("subscriptions/listen", own) if kind == "listen" else get("/sse", own)
            session = await begin_session(site, own)  # which has one stream
            return get("/mcp", f"{own}{SESSION_HEADER}: {session}\r\n{VERSION_HEADER}: {LEGACY}\r\n")

        first = await streams.enter_async_context(AsyncExitStack())
        assert (await first.enter_async_context(asked(site, await greedy()))).startswith(b"HTTP/1.1 200 ")
        for _ in range(PLACES // 2 - 1):
            assert (await streams.enter_async_context(asked(site, await greedy()))).startswith(
                b"HTTP/1.1 200 "
            )
        for _ in range(2 * PLACES):
            async with asked(site, await greedy()) as answer:
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429 ")
                assert b"\r\nRetry-After: 1" in head
                refusal = json.loads(body)
                assert refusal["error"]["data"]["limit"] == "limits.max_streams_per_client"
                assert refusal.get("id") == (1 if kind == "listen" else None)
        other = BOB if auth is not None else ""
        assert await status_of(site, post("resources/list", other)) == 200
        assert auth is None or await status_of(site, post("subscriptions/listen", BOB)) == 200
        await first.aclose()
        while await status_of(site, await greedy()) != 200:  # it is noticed that the first has ended
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_an_operator_may_give_one_client_all():
    limits = Limits(max_connections=PLACES, max_streams_per_client=PLACES)
    async with open_site(None, limits) as site, AsyncExitStack() as streams:
        for _ in range(PLACES):
            answer = await streams.enter_async_context(asked(site, post("subscriptions/listen")))
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert await status_of(site, post("resources/list")) == 503


ORIGIN = "http://localhost:6274"
ALLOWED = f"\r\nAccess-Control-Allow-Origin: {ORIGIN}\r\n".encode()
PREFLIGHT = (
    f"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: {ORIGIN}\r\n"
    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n"
).encode()


@asynccontextmanager
async def crowded() -> AsyncIterator[Site]:
    """Open a listener all of whose connections are taken for good."""
    async with open_site(None, Limits(max_connections=1)) as site, asked(site, post("subscriptions/listen")):
        yield site


async def test_a_page_may_read_that_there_are_too_many_connections():
    async with crowded() as site:
        async with asked(site, PREFLIGHT) as answer:
            assert answer.startswith(b"HTTP/1.1 204 ")
            assert ALLOWED in answer
        async with asked(site, post("resources/list", f"Origin: {ORIGIN}\r\n")) as answer:
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert ALLOWED in answer
        async with asked(site, post("resources/list", "Origin: https://evil.example.com\r\n")) as answer:
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Access-Control-Allow-Origin" not in answer


async def test_who_is_refused_and_says_nothing_reads_why_however_many_come():
    async with crowded() as site, AsyncExitStack() as streams:
        silent = [
            await streams.enter_async_context(await site.connect()) for _ in range(REFUSED_CONNECTIONS + 20)
        ]
        for stream in silent:
            answer = b""
            async for part in stream:
                answer += part
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert answer.count(b"HTTP/1.1") == 1
