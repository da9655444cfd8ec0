"""From a configured target to an open channel: the one place that knows which transports there are."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from mcpmux.config import Http, Stdio, Upstream
from mcpmux.errors import RpcError, TransportClosed, TransportError
from mcpmux.protocol.call import Notify
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Fields, Request
from mcpmux.protocol.method import PING
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.connection import Channel
from mcpmux.runtime.http_channel import open_http_channel
from mcpmux.runtime.link import open_link
from mcpmux.transports.http_client import HttpPool, PoolLimits
from mcpmux.transports.http_connection import HttpOrigin
from mcpmux.transports.process import StopLadder, open_process

log = structlog.get_logger()

LAST_WORDS = 3  # lines of stderr that explain a death


async def answer_server(request: Request, _notify: Notify) -> Fields:
    """What mcpmux itself answers to a server's request: it is alive, and has nothing else to offer."""
    if request.method == PING:
        return {}
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")


class ChannelOpener:
    """Opens channels within one set of limits."""

    def __init__(self, message_limit: int, head_limit: int, stop: StopLadder) -> None:
        self._message_limit = message_limit
        self._head_limit = head_limit
        self._stop = stop

    @asynccontextmanager
    async def open(self, upstream: Upstream, hear: Hear) -> AsyncIterator[Channel]:
        """A channel to `upstream`. Leaving stops its process or ends its session. Raises TransportError."""
        if isinstance(upstream.target, Stdio):
            async with self._open_process(upstream.target, hear) as link:
                yield link
        else:
            async with self._open_http(upstream.target, hear) as channel:
                yield channel

    @asynccontextmanager
    async def _open_process(self, target: Stdio, hear: Hear) -> AsyncIterator[Channel]:
        last_words: deque[str] = deque(maxlen=LAST_WORDS)

        def on_stderr(line: str) -> None:
            last_words.append(line)
            log.info("upstream says", line=line)

        env = {key: secret.reveal() for key, secret in target.env.items()}
        async with (
            open_process(
                target.command,
                target.args,
                env,
                Path(target.cwd) if target.cwd is not None else None,
                stop=self._stop,
                on_stderr_line=on_stderr,
                max_message_bytes=self._message_limit,
            ) as process,
            open_link(process.pipe, answer_server, hear, objects=False) as link,
        ):
            try:
                yield link
            except TransportClosed as error:
                raise _with_last_words(error, last_words) from None
            if link.closed.is_set():
                raise _with_last_words(link.close_reason, last_words)

    @asynccontextmanager
    async def _open_http(self, target: Http, hear: Hear) -> AsyncIterator[Channel]:
        limits = PoolLimits(head_bytes=self._head_limit, body_bytes=self._message_limit)
        parts = urlsplit(target.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = [(key, secret.reveal()) for key, secret in target.headers.items()]
        with HttpPool(HttpOrigin.from_url(target.url), limits=limits) as pool:
            async with open_http_channel(
                pool, path, headers, self._message_limit, answer_server, hear
            ) as channel:
                yield channel


def _with_last_words(reason: TransportError, last_words: deque[str]) -> TransportClosed:
    """Why a process says nothing more, with what it wrote to stderr before: that often explains it."""
    return TransportClosed(f"{reason}; it last said: {' | '.join(last_words)}" if last_words else str(reason))
