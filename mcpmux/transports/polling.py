"""Open a readiness poller. This is apart from it because mypyc does not compile async generators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import trio

from mcpmux.transports.waiting import ReadinessPoller


@asynccontextmanager
async def open_readiness_poller() -> AsyncIterator[ReadinessPoller]:
    """Open a poller and run it in the background. It calls no function any more once this is left."""
    async with trio.open_nursery() as nursery:
        with closing(ReadinessPoller(nursery)) as poller:
            nursery.start_soon(poller.run, name="readiness poller")
            yield poller
