"""Exchanges with one upstream over a stream that stays open: WebSocket, TCP or a Unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import structlog
import trio

from mcpmux.auth.credential import REFUSES_TOKEN, Credential
from mcpmux.config import ClientTls, Tcp, Unix, WebSocket
from mcpmux.errors import ConnectFailed
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.duplex_channel import DuplexChannel
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.opening import open_duplex_channel
from mcpmux.runtime.tap import Watch, tapped
from mcpmux.transports.message_stream import MessageStream, open_line_stream
from mcpmux.transports.stream import PatientStream, open_tcp, open_unix
from mcpmux.transports.websocket import HandshakeRefused, open_websocket

log = structlog.get_logger()


@asynccontextmanager
async def open_stream_channel(
    target: WebSocket | Tcp | Unix,
    message_limit: int,
    patience: float,
    answer: Answer,
    hear: Hear,
    watch: Watch | None,
    credential: Credential | None = None,
) -> AsyncIterator[DuplexChannel]:
    """A channel to the server at `target`, connected within `patience` seconds.

    Leaving closes the stream. Raises TransportError, and ConfigError for a file of the TLS settings.
    """
    if isinstance(target, WebSocket):
        opening: AbstractAsyncContextManager[MessageStream] = _open_websocket(
            target, message_limit, patience, credential
        )
    else:
        opening = _open_lines(target, message_limit, patience)
    async with (
        opening as messages,
        open_duplex_channel(tapped(messages, watch), answer, hear, objects=False) as channel,
    ):
        yield channel


@asynccontextmanager
async def _open_websocket(
    target: WebSocket, message_limit: int, patience: float, credential: Credential | None
) -> AsyncIterator[MessageStream]:
    headers = [(key, secret.reveal()) for key, secret in target.headers.items()]
    if target.url.startswith("wss"):
        _warn_of(target.tls, target.display)
    shown = await credential.header() if credential is not None else ()
    async with AsyncExitStack() as stack:
        try:
            opening = open_websocket(target.url, [*headers, *shown], target.tls, message_limit, patience)
            messages = await stack.enter_async_context(opening)
        except HandshakeRefused as error:
            if credential is None or error.status not in REFUSES_TOKEN:
                raise
            # The next attempt to connect shows the new token.
            renewed = await credential.refused(shown, error.status, error.challenge)
            advice = "" if renewed or credential.advice is None else f": {credential.advice}"
            raise ConnectFailed(f"{error}{advice}") from None
        yield messages


@asynccontextmanager
async def _open_lines(
    target: Tcp | Unix, message_limit: int, patience: float
) -> AsyncIterator[MessageStream]:
    stream = None
    with trio.move_on_after(patience):
        if isinstance(target, Unix):
            stream = await open_unix(target.path)
        else:
            _warn_of(target.tls, target.display)
            stream = await open_tcp(target.host, target.port, target.tls)
    if stream is None:
        raise ConnectFailed(f"cannot connect to {target.display}: not within {patience:g} s")
    async with open_line_stream(PatientStream(stream), message_limit) as messages:
        yield messages


def _warn_of(tls: ClientTls | None, where: str) -> None:
    if tls is not None and not tls.verify:
        log.warning("ANY SERVER IS BELIEVED: `tls.verify` is false", target=where)
