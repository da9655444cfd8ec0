"""Open duplex channels. This is apart from them because mypyc does not compile async generators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcpmux.channels.duplex_channel import Answer, DuplexChannel
from mcpmux.protocol.call import Hear
from mcpmux.transports.message_stream import MessageStream


@asynccontextmanager
async def open_duplex_channel(
    messages: MessageStream, hear: Hear, answer: Answer | None = None, *, linger: float = 0
) -> AsyncIterator[DuplexChannel]:
    """Open a channel over `messages` that reads in the background. The caller closes the stream.

    `answer` answers a client, inline (see `transports/inline`); None if the peer is a server. `linger`:
    seconds for which the peer's exchanges may go on after the end of the stream, which sets `closed`; the
    block goes on. Leaving cancels them.
    """
    async with trio.open_nursery() as nursery:
        channel = DuplexChannel(messages, hear, answer)
        nursery.start_soon(channel.run, linger, name="channel reader")
        nursery.start_soon(channel.deadlines.run, name="channel deadlines")
        yield channel
        nursery.cancel_scope.cancel()
