"""A link that reads, as a context."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcpmux.runtime.calls import Hear
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.link import Link
from mcpmux.transports.pipe import MessagePipe


@asynccontextmanager
async def open_link(
    pipe: MessagePipe,
    answer: Answer,
    hear: Hear,
    *,
    objects: bool,
    linger: float = 0,
) -> AsyncIterator[Link]:
    """A link over `pipe`, reading in the background. The pipe stays the caller's.

    `answer` runs inline, see `transports/inline`.

    `objects`: whether the peer is told about messages that cannot be taken (clients are, servers not).

    When the stream ends `link.closed` is set and the body goes on. Leaving cancels the peer's exchanges.
    """
    async with trio.open_nursery() as nursery:
        link = Link(pipe, answer, hear, objects=objects)
        nursery.start_soon(link.run, linger, name="link reader")
        nursery.start_soon(link.deadlines.run, name="link deadlines")
        yield link
        nursery.cancel_scope.cancel()
