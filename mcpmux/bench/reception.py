"""Receives for all connections of a run: one wait of the event loop for however many are ready.

Promises: each watched descriptor is told of by a plain call as long as there is something to read; what was
forgotten is not told of any more. Refuses to know what is received. Linux only (epoll); see `available`.

Why: a wait of trio's own costs several times what receiving does, and under load dozens are ready at once.
"""

from __future__ import annotations

import select
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

MOST_AT_ONCE = 1024  # descriptors told of before other tasks get their turn

available = sys.platform == "linux"


class Reception:
    """Who is to be told of which descriptor."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<Reception of {len(self._told)}>"

    def watch(self, descriptor: int, tell: Callable[[], None]) -> None:
        """From now on `tell` is called whenever there is something to read. It must not raise."""
        self._told[descriptor] = tell
        self._poller.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed."""
        if self._told.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    async def run(self) -> None:
        """Until cancelled."""
        poll, told = self._poller.poll, self._told
        while True:
            await trio.lowlevel.wait_readable(self._poller)
            for descriptor, _ in poll(0, MOST_AT_ONCE):
                tell = told.get(descriptor)  # none when an earlier call has forgotten it
                if tell is not None:
                    tell()

    def close(self) -> None:
        """Give the poller back. Nothing may run any more."""
        self._told.clear()
        self._poller.close()


@asynccontextmanager
async def open_reception() -> AsyncIterator[Reception]:
    """A reception that runs. On leaving nobody is told any more."""
    reception = Reception()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reception.run, name="bench reception")
            yield reception
            nursery.cancel_scope.cancel()
    finally:
        reception.close()
