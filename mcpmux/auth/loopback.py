"""The way back from the browser: a page on this machine that takes one answer of an authorization server.

Promises: only loopback, only what carries the expected `state`; what is shown in the browser holds nothing of
what was received. Source: RFC 8252, section 7.3; RFC 6749, section 4.1.2.
"""

from __future__ import annotations

import hmac
import html
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qsl

import trio

from mcpmux.errors import McpmuxError, TransportError
from mcpmux.transports.http.message import Fields, HttpLimits
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_request import HttpRequest

HOST = "127.0.0.1"
PATH = "/callback"
CONNECTIONS = 16
MOST_MEMBERS = 32  # of an answer

PAGE: Fields = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'"),
    ("Referrer-Policy", "no-referrer"),
)


class Loopback(NamedTuple):
    """`uri`: where the browser is to come back to; `answers` gets the members of what it brings."""

    uri: str
    answers: trio.MemoryReceiveChannel[dict[str, str]]


@asynccontextmanager
async def open_loopback(ports: Sequence[int], state: str) -> AsyncIterator[Loopback]:
    """Listen on the first of these loopback ports that can be had, 0 for any. Leaving closes it.

    Raises TransportError.
    """
    listeners = await _listen(ports)
    bound = listeners[0].socket.getsockname()[1]
    send, receive = trio.open_memory_channel[dict[str, str]](1)

    async def handle(request: HttpRequest, reply: HttpReply) -> None:
        if (
            request.path != PATH
            or request.method != "GET"
            or request.headers.get("host") != f"{HOST}:{bound}"
        ):
            await _say(reply, 404, "There is nothing here.")
            return
        said = _members(request.query)
        if not hmac.compare_digest(said.get("state", "").encode(), state.encode()):
            await _say(reply, 400, "This does not belong to the login that mcpmux waits for.")
            return
        await _say(reply, 200, "mcpmux has its answer. You can close this page and go back to the terminal.")
        try:
            send.send_nowait(said)
        except trio.WouldBlock:
            return  # the same page was loaded again

    failure: McpmuxError | None = None
    async with trio.open_nursery() as nursery:
        limits = HttpLimits(connections=CONNECTIONS, body_bytes=1024)
        serve = partial(serve_http, refuse=_refuse, stopping=trio.Event(), limits=limits)
        await nursery.start(serve, listeners, handle, name="login callback")
        try:
            yield Loopback(f"http://{HOST}:{bound}{PATH}", receive)
        except McpmuxError as error:
            failure = error  # raised outside, where no group is made of it
        nursery.cancel_scope.cancel(reason="the login is over")
    if failure is not None:
        raise failure


async def _listen(ports: Sequence[int]) -> list[trio.SocketListener]:
    for port in ports:
        try:
            return await trio.open_tcp_listeners(port, host=HOST)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    raise TransportError(f"cannot listen on {HOST}:{port} for the browser to come back: {reason}")


def _members(query: str) -> dict[str, str]:
    """Each member once; none when one is there twice or there are too many (RFC 6749, section 3.1)."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_MEMBERS, errors="strict")
    except ValueError:
        return {}
    said = dict(pairs)
    return said if len(said) == len(pairs) else {}


async def _say(reply: HttpReply, status: int, sentence: str) -> None:
    await reply.send(
        status, PAGE, f"<!doctype html><title>mcpmux</title><p>{html.escape(sentence)}</p>".encode()
    )


def _refuse(_status: int, sentence: str) -> tuple[Fields, bytes]:
    return PAGE, html.escape(sentence).encode()
