"""A legacy server's own stream over HTTP: what it says of its own accord, heard for as long as it says it.

Source: "Listening for Messages from the Server", Transports of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
import trio

from mcpmux.errors import TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import Message, Notification
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.tap import EXCHANGE
from mcpmux.runtime.upstreams.http_peer import (
    TOO_MANY,
    HttpPeer,
    HttpStatusError,
    SessionExpired,
    is_event_stream,
    retry_seconds,
)
from mcpmux.transports.http.client import HttpResponse
from mcpmux.transports.sse import SseDecoder

log = structlog.get_logger()

_FORGOTTEN = (404, 400, 405)
"""What servers answer to a session of their former life; 404 by the specification, 405 when now modern."""

Take = Callable[[Message, None], Awaitable[None]]
"""Takes a message that belongs to no request."""

REFUSED_SECONDS = 5.0  # before a server is asked again that had too much to do, or failed by itself

_NOT_IMPLEMENTED = 501


@asynccontextmanager
async def stream_of(peer: HttpPeer, last_event_id: str | None) -> AsyncIterator[HttpResponse]:
    """The stream of a server, or what follows behind an event of one that broke off; released at the end.

    Raises the same as `HttpPeer.ask`; a SessionExpired raised into it ends the peer.
    """
    response = await peer.open_stream(last_event_id)
    try:
        yield response
    except SessionExpired as error:
        peer.lose(error)
        raise
    finally:
        response.release()


async def hear_own_stream(peer: HttpPeer, take: Take, hear: Hear, listening: trio.Event) -> None:
    """Read the stream, and open it again whenever it breaks off, until the server does not offer one.

    `listening` is set once there was an answer. What may have been missed while there was no stream is told
    as `MISSED`, and `HEARING` whenever `peer.hearing` has changed.
    """
    EXCHANGE.set(0)  # it outlives the one that its session may have been opened for
    decoder = SseDecoder(peer.message_limit)
    missed = False
    while not peer.closed.is_set():
        pause = None
        try:
            async with stream_of(peer, decoder.last_event_id) as response:
                status, again = response.status, listening.is_set()
                listening.set()
                if again and status in _FORGOTTEN:
                    raise SessionExpired("the server has forgotten the session")
                # There is no stream now, which is not to say that there never is.
                if status == TOO_MANY or (status >= 500 and status != _NOT_IMPLEMENTED):
                    raise peer.status_error(response, b"")
                if not is_event_stream(response):
                    return
                peer.hearing = True
                hear(Notification(m.HEARING))
                if missed and not decoder.last_event_id:
                    hear(Notification(m.MISSED))
                decoder = decoder.continued()
                async for chunk in response:
                    for message in peer.messages_in(decoder, chunk, status):
                        await take(message, None)
        except TransportError as error:
            log.debug("the server's stream broke off", reason=str(error))
            if isinstance(error, HttpStatusError):
                pause = max(REFUSED_SECONDS, error.retry_after or 0.0)
        finally:
            if peer.hearing:
                peer.hearing = False
                hear(Notification(m.HEARING))
        missed = True
        await trio.sleep(retry_seconds(decoder) if pause is None else pause)
