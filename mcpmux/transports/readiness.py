"""Receives for many connections: one wait of the event loop for however many are ready.

Promises: each watched descriptor is told of by a plain call as long as there is something to read; what was
forgotten is not told of any more; one call that fails stops nothing but its own descriptor; other tasks have
their turn soon, however much there is to tell. Refuses to know what is received. Linux only (epoll); see
`available`.

Why: a wait of trio's own costs several times what receiving does, and under load dozens are ready at once.
Where few are, what was sent is often answered sooner than a process falls asleep and is woken. So it lingers
for a moment before it waits, as long as that pays; where it does not it is tried again now and then.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Final

import structlog
import trio
from trio.lowlevel import Abort

from mcpmux.errors import TransportClosed
from mcpmux.transports.byte_stream import PlainStream

log = structlog.get_logger()

MOST_AT_ONCE: Final = 64  # calls before other tasks get their turn
MOST_LINGERED: Final = 16  # the same where each may have been waited for, besides those that are ready then
LINGER_SECONDS = 60e-6  # about as long as it takes to be woken
MOST_MISSES: Final = 6  # that are counted: twice as many waits without lingering after each, 64 in the end
FEW: Final = 8  # connections that are busy; with more of them something is ready all the time
COUNTED_WAITS: Final = 64  # after which it is found out anew which connections are busy

available = sys.platform == "linux"


class ReadinessPoller:
    """Who is to be told of which descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}
        self._busy: set[int] = set()  # descriptors that were told of lately
        self._waits = 0
        self._gives_way = False
        self._misses = 0  # times that lingering brought nothing, since it last did
        self._pause = 0  # waits without lingering that are still to come

    def __repr__(self) -> str:
        return f"<ReadinessPoller of {len(self._told)}>"

    def watch(self, descriptor: int, tell: Callable[[], None]) -> None:
        """From now on `tell` is called whenever there is something to read.

        Raises OSError, and nothing is watched, when the system watches too much already.
        """
        self._epoll.register(descriptor, select.EPOLLIN)
        self._told[descriptor] = tell

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed."""
        if self._told.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def give_way(self) -> None:
        """A task has been woken: the event loop has its turn without lingering."""
        self._gives_way = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            self._gives_way = False
            self._waits += 1
            if self._waits % COUNTED_WAITS == 0:
                self._busy.clear()
            told = self._tell_ready()
            while told < MOST_LINGERED and not self._gives_way and self._linger():
                told += self._tell_ready()

    def _tell_ready(self) -> int:
        """Tell of what is ready, until nothing is or others must have their turn; of how many it was."""
        told = 0
        while told < MOST_AT_ONCE and (ready := self._epoll.poll(0, MOST_AT_ONCE - told)):
            told += len(ready)
            for descriptor, _ in ready:
                self._busy.add(descriptor)
                tell = self._told.get(descriptor)  # none when an earlier call has forgotten it
                try:
                    if tell is not None:
                        tell()
                except Exception:  # the wall between those who are told: a mistake of ours
                    log.exception("what was received could not be taken")
                    self.forget(descriptor)
        return told

    def _linger(self) -> bool:
        """Whether something has come within a moment. Others who want the processor have it meanwhile."""
        if self._pause or len(self._busy) > FEW:
            self._pause = max(0, self._pause - 1)
            return False
        until = perf_counter() + LINGER_SECONDS
        while perf_counter() < until:
            os.sched_yield()
            if self._epoll.poll(0, 1):
                self._misses = 0
                return True
        self._misses = min(self._misses + 1, MOST_MISSES)
        self._pause = 2**self._misses
        return False

    def close(self) -> None:
        """Give the poller back. Nothing may run any more."""
        self._told.clear()
        self._epoll.close()


class Registration:
    """One byte stream with a poller: what comes is taken where it is received, while its task sleeps.

        asleep --bytes that `take` takes--> asleep
               --other bytes, the end, an error--> awake, with them

    Nothing is received while the task is awake, so a peer that sends too fast is held up. Nothing received is
    lost when the task is cancelled. `take(data)` says whether that is done with, and must not raise. `close`
    this before the stream.
    """

    __slots__ = ("_byte_stream", "_data", "_poller", "_take", "_task", "_watched")

    def __init__(
        self, poller: ReadinessPoller, byte_stream: PlainStream, take: Callable[[bytes], bool]
    ) -> None:
        self._poller = poller
        self._byte_stream = byte_stream
        self._take = take
        self._task: trio.lowlevel.Task | None = None  # asleep
        self._data = b""
        self._watched = False

    def __repr__(self) -> str:
        return f"<Registration to {self._byte_stream!r}{'' if self._task is None else ', asleep'}>"

    async def receive(self) -> bytes:
        """What has come and was not taken, b"" at the end of the stream or when it broke."""
        if self._byte_stream.is_early or not self._is_watched():
            with suppress(TransportClosed):
                return await self._byte_stream.receive()
            return b""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)
        data, self._data = self._data, b""
        return data

    def _is_watched(self) -> bool:
        if not self._watched:
            try:
                self._poller.watch(self._byte_stream.descriptor, self._hear)
            except OSError:  # the system watches too much already: the task watches by itself
                return False
            self._watched = True
        return True

    @property
    def has_data(self) -> bool:
        """Whether something was received that its task has not seen yet."""
        return bool(self._data)

    def _leave(self, _raise_cancel: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED

    def _hear(self) -> None:
        """There is something to receive, or the end."""
        if self._task is None:  # it is looked at when the task sleeps again
            self.close()
            return
        try:
            data = self._byte_stream.receive_nowait()
        except TransportClosed:
            data = b""
        if data is None or (data and self._take(data)):
            return
        task, self._task = self._task, None
        if task is not None:  # else what `take` did has cancelled it, or woken it
            self._data = data
            self._poller.give_way()
            trio.lowlevel.reschedule(task)

    def close(self) -> None:
        """Nothing is received until the task sleeps again. To be called before the stream is closed."""
        if self._watched:
            self._watched = False
            self._poller.forget(self._byte_stream.descriptor)
