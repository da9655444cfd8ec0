"""Servers over HTTP: Streamable HTTP, HTTP+SSE, and finding out which of the two it is.

"Clients wanting to support older servers should" POST `initialize`, and when that is answered with 400, 404
or 405 GET the same URL: an event stream that begins with `endpoint` is HTTP+SSE.

Source: "Backwards Compatibility" in "Transports", 2025-11-25; "HTTP with SSE" of 2024-11-05.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import structlog
import trio

from mcpmux.auth.credential import REFUSES_TOKEN, Credential
from mcpmux.errors import TransportError
from mcpmux.protocol.headers import Headers
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.channel import Channel
from mcpmux.runtime.duplex_channel import DuplexChannel
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.opening import open_duplex_channel
from mcpmux.runtime.tap import EXCHANGE, Watch, tapped
from mcpmux.runtime.upstreams.http_channel import HttpChannel, OpenOlder
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import target_of
from mcpmux.transports.http.sse_client import NoEventStream, open_sse_client_stream

log = structlog.get_logger()

DETECT_SECONDS = 5.0  # for the first event, where it is not sure that there will be one


class HttpPlace(NamedTuple):
    """One server's URL, and how it is spoken to there. `patience`: seconds for it to answer a GET."""

    pool: HttpPool
    url: str
    headers: Headers
    message_limit: int
    answer: Answer
    hear: Hear
    patience: float
    watch: Watch | None = None
    credential: Credential | None = None


@asynccontextmanager
async def open_streamable(place: HttpPlace, older: OpenOlder | None = None) -> AsyncIterator[HttpChannel]:
    """A channel over Streamable HTTP; leaving ends the session at the server.

    The server need not be there yet. `older`: opens what it may need instead.
    """
    pool, url, headers, limit, answer, hear, _, watch, credential = place
    _watch_as(watch, "http")
    peer = HttpPeer(pool, target_of(url), headers, limit, watch, credential)
    async with trio.open_nursery() as nursery:
        channel = HttpChannel(peer, answer, hear, nursery, older)
        nursery.start_soon(channel.deadlines.run, name="http deadlines")
        nursery.start_soon(pool.deadlines.run, name="ends of http streams")
        try:
            yield channel
        finally:
            channel.fail_calls()
            await peer.end_session()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_sse(place: HttpPlace) -> AsyncIterator[DuplexChannel]:
    """A channel over HTTP+SSE. Raises NoEventStream, another RemoteProtocolError, TransportError."""
    pool, url, headers, limit, answer, hear, patience, watch, credential = place
    shown = credential.header if credential is not None else None
    async with AsyncExitStack() as stack:
        opening = open_sse_client_stream(pool, url, headers, limit, patience, shown)
        try:
            messages = await stack.enter_async_context(opening)
        except NoEventStream as error:
            if credential is not None and error.status in REFUSES_TOKEN:
                # The next attempt to connect shows another token, if there is one.
                renewed = await credential.refused(credential.header_now(), error.status, error.challenge)
                if not renewed and credential.advice is not None:
                    raise TransportError(f"{error}: {credential.advice}") from None
            raise
        _watch_as(watch, "sse")
        channel = await stack.enter_async_context(
            open_duplex_channel(tapped(messages, watch), answer, hear, objects=False)
        )
        channel.legacy_only = True
        yield channel


def _watch_as(watch: Watch | None, transport: str) -> None:
    """Whoever watches is told what it is, once that is known: it may be another one than last time."""
    if watch is not None:
        watch.leg.transport = transport


@asynccontextmanager
async def open_either(place: HttpPlace, sse_urls: set[str]) -> AsyncIterator[Channel]:
    """A channel over whichever of the two it is; `sse_urls` remembers those found out to be HTTP+SSE.

    A remembered one that has no event stream any more is forgotten and found out anew. Raises as `open_sse`.
    """
    async with AsyncExitStack() as stack:
        guess = place._replace(patience=min(place.patience, DETECT_SECONDS))
        channel: Channel | None = None
        if place.url in sse_urls:
            try:
                channel = await stack.enter_async_context(open_sse(guess))
            except NoEventStream as error:
                log.info("the server does not speak HTTP+SSE any more", reason=str(error))
                sse_urls.discard(place.url)
        if channel is None:
            channel = await stack.enter_async_context(_open_detecting(guess, sse_urls))
        yield channel


@asynccontextmanager
async def _open_detecting(place: HttpPlace, sse_urls: set[str]) -> AsyncIterator[Channel]:
    async def hold(task_status: trio.TaskStatus[DuplexChannel]) -> None:
        EXCHANGE.set(0)  # it outlives the one that its session may have been opened for
        async with open_sse(place) as channel:
            task_status.started(channel)
            await trio.sleep_forever()

    async def older() -> DuplexChannel | None:
        try:
            channel: DuplexChannel = await nursery.start(hold, name="http+sse")
        except (NoEventStream, TransportError) as error:
            log.debug("not HTTP+SSE either", reason=str(error))
            return None
        sse_urls.add(place.url)
        return channel

    async with trio.open_nursery() as nursery, open_streamable(place, older) as channel:
        yield channel
        nursery.cancel_scope.cancel(reason="the channel is closed")
