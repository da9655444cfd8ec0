"""Webhooks on a real socket: what they are sent, and how little a bad one can do."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from mcpmux.config import Secret
from mcpmux.errors import McpmuxError
from mcpmux.interceptors.webhook import ANSWER_BYTES, Webhook
from mcpmux.mux.intercept import PASS, InterceptedMessage, Refuse
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw

KEY = "a key of sixteen characters"
MESSAGE = InterceptedMessage("request", Call("tools/call", {"name": raw("t")}, {}), "docs", "t", None)

Answer = Callable[[trio.SocketStream], Awaitable[None]]


def saying(body: bytes, status: str = "200 OK") -> Answer:
    async def answer(stream: trio.SocketStream) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)

    return answer


async def flood(stream: trio.SocketStream) -> None:
    """Send more than an answer may have."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(ANSWER_BYTES // 0x10000 * 4):
        await stream.send_all(chunk)


@asynccontextmanager
async def open_guard(answer: Answer, **more: Any) -> AsyncIterator[tuple[Webhook, list[bytes]]]:
    """Yield a webhook of a server that answers so, and the requests that came."""
    requests: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            data += await stream.receive_some()
        requests.append(data)
        with suppress(trio.BrokenResourceError):  # the client has had enough
            await answer(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
        port = listener.socket.getsockname()[1]
        settings = {"secret": None, "wall": lambda: 1_790_000_000.0, **more}
        with trio.fail_after(5):
            yield Webhook(f"http://127.0.0.1:{port}/guard", **settings), requests
        nursery.cancel_scope.cancel()


async def test_a_webhook_gets_the_message_signed_and_gives_a_verdict():
    verdict = json.dumps({"verdict": "refuse", "reason": "no"}).encode()
    async with open_guard(saying(verdict), secret=Secret(KEY)) as (webhook, requests):
        assert await webhook.judge(MESSAGE) == Refuse("no")
        head, _, body = requests[0].partition(b"\r\n\r\n")
        assert json.loads(body) == MESSAGE.as_json()
        tag = hmac.new(KEY.encode(), b"1790000000." + body, hashlib.sha256).hexdigest()
        assert head.startswith(b"POST /guard ")
        assert f"mcpmux-signature: t=1790000000,v1={tag}".encode() in head.lower()


@pytest.mark.parametrize("answer", [saying(b"", "204 No Content"), saying(b""), saying(b"null")])
async def test_an_empty_answer_lets_the_message_pass(answer):
    async with open_guard(answer) as (webhook, requests):
        assert await webhook.judge(MESSAGE) is PASS
        assert b"ignature" not in requests[0]


BAD = {
    "an error": saying(b"", "500 Oops"),
    "a redirect": saying(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"),
    "no JSON": saying(b"<html>"),
    "no verdict": saying(b'{"ok": true}'),
    "too much": flood,
    "an early end": saying(b"", "200 OK\r\nContent-Length: 9"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_bad_answer_is_a_failure(answer):
    async with open_guard(answer) as (webhook, _):
        with pytest.raises((McpmuxError, ValueError)):
            await webhook.judge(MESSAGE)


@pytest.mark.parametrize("url", ["http://169.254.169.254/x", "https://169.254.169.254/x", "http://1.1.1.1/x"])
async def test_no_webhook_is_at_a_forbidden_address(url):
    with pytest.raises(McpmuxError, match="not for webhooks"):
        await Webhook(url, None, lambda: 0.0).judge(MESSAGE)
