"""A reception that runs, as a context."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcpmux.transports.reception import Reception


@asynccontextmanager
async def open_reception() -> AsyncIterator[Reception]:
    """A reception that runs. On leaving nobody is told any more."""
    reception = Reception()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reception.run, name="reception")
            yield reception
            nursery.cancel_scope.cancel()
    finally:
        reception.close()
