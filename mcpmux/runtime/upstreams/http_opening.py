"""Opens the channel to one upstream over Streamable HTTP, and ends its session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mcpmux.auth.credential import Credential
from mcpmux.runtime.calls import Hear
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.tap import Watch
from mcpmux.runtime.upstreams.http_channel import HttpChannel, OpenOlder
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.transports.http.client import HttpPool


@asynccontextmanager
async def open_http_channel(
    pool: HttpPool,
    target: str,
    headers: Sequence[tuple[str, str]],
    message_limit: int,
    answer: Answer,
    hear: Hear,
    older: OpenOlder | None = None,
    watch: Watch | None = None,
    credential: Credential | None = None,
) -> AsyncIterator[HttpChannel]:
    """A channel to `target` (path and query) over `pool`; leaving ends the session at the server."""
    peer = HttpPeer(pool, target, tuple(headers), message_limit, watch, credential)
    async with trio.open_nursery() as nursery:
        channel = HttpChannel(peer, answer, hear, nursery, older)
        nursery.start_soon(channel.deadlines.run, name="http deadlines")
        nursery.start_soon(pool.punctuality.run, name="ends of http streams")
        try:
            yield channel
        finally:
            channel.fail_calls()
            await peer.end_session()
            nursery.cancel_scope.cancel()
