"""What workers share of changes: the counters of generations, and who tells whom that a list has changed.

What a worker remembers of an upstream is old as soon as any worker counts something in the shared memory, see
`mux/generations`: nobody waits for that. Clients of the other workers hear of a changed list, too, though the
server may have told one session alone:

    worker --`Changed`--> keeper --`Changed`--> each other worker, whose clients are told

Promises: adding never waits, and what waits is bounded by the lists there are.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

import trio

from mcpmux.mux.generations import ROW_BYTES, Generations

ChangedList = tuple[str, str]
"""An upstream's name, and the method of the notification."""


def open_counters(workers: int) -> int:
    """The file descriptor of the counters of all workers, which lie in memory only. Raises OSError."""
    descriptor = os.memfd_create("mcpmux-generations")
    os.ftruncate(descriptor, workers * ROW_BYTES)
    return descriptor


def map_counters(descriptor: int, number: int, workers: int) -> Generations:
    """The generations of the worker with that number, from 1. The descriptor is closed."""
    counters = mmap.mmap(descriptor, workers * ROW_BYTES)
    os.close(descriptor)
    return Generations(memoryview(counters), number - 1, workers)


class Changes:
    """Lists that have changed, of which one process is still to be told."""

    def __init__(self) -> None:
        self._waiting: dict[ChangedList, None] = {}
        self._arrival = trio.Event()

    def __repr__(self) -> str:
        return f"<Changes {len(self._waiting)}>"

    def add(self, lists: Iterable[ChangedList]) -> None:
        """These have changed."""
        self._waiting.update(dict.fromkeys(lists))
        self._arrival.set()

    async def take(self) -> tuple[ChangedList, ...]:
        """All that waits, once there is anything."""
        await self._arrival.wait()
        taken, self._waiting, self._arrival = tuple(self._waiting), {}, trio.Event()
        return taken
