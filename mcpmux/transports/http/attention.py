"""What one socket receives, taken where it is received; its task sleeps until there is something for it.

    asleep --bytes that `take` takes--> asleep
           --other bytes, the end, an error--> awake, with them

Promises: nothing is received while the task is awake, so that a peer which sends too fast is held up; nothing
that was received is lost when the task is cancelled. Refuses to know what bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio
from trio.lowlevel import Abort

from mcpmux.errors import TransportClosed
from mcpmux.transports.reception import Reception
from mcpmux.transports.wire import PlainWire


class Attention:
    """To one wire. `take(data)` says whether that is done with; it must not raise. `close` it first."""

    __slots__ = ("_data", "_reception", "_take", "_task", "_watched", "_wire")

    def __init__(self, reception: Reception, wire: PlainWire, take: Callable[[bytes], bool]) -> None:
        self._reception = reception
        self._wire = wire
        self._take = take
        self._task: trio.lowlevel.Task | None = None  # asleep
        self._data = b""
        self._watched = False

    def __repr__(self) -> str:
        return f"<Attention to {self._wire!r}{'' if self._task is None else ', asleep'}>"

    async def receive(self) -> bytes:
        """What has come and was not taken, b"" at the end of the stream or when it broke."""
        if self._wire.is_early or not self._is_watched():
            with suppress(TransportClosed):
                return await self._wire.receive()
            return b""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)
        data, self._data = self._data, b""
        return data

    def _is_watched(self) -> bool:
        if not self._watched:
            try:
                self._reception.watch(self._wire.descriptor, self._hear)
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
            data = self._wire.receive_nowait()
        except TransportClosed:
            data = b""
        if data is None or (data and self._take(data)):
            return
        task, self._task = self._task, None
        if task is not None:  # else what `take` did has cancelled it, or woken it
            self._data = data
            self._reception.give_way()
            trio.lowlevel.reschedule(task)

    def close(self) -> None:
        """Nothing is received until the task sleeps again. To be called before the wire is closed."""
        if self._watched:
            self._watched = False
            self._reception.forget(self._wire.descriptor)
