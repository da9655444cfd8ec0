"""Waiting until a moment, more exactly than an event loop does whose waits are whole milliseconds.

On Linux the wait ends with a timer of the kernel, through a file descriptor; elsewhere, and under a virtual
clock, it is trio's own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from mcpmux.bench.drive import SleepUntil

CLOCK_MONOTONIC = 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
SHORT_SECONDS = 0.002  # longer waits leave the timer alone until they are that short
EXPIRATIONS_BYTES = 8  # what is read from a timer that has ended


class _Spec(ctypes.Structure):
    """`struct itimerspec`: the interval, of which we make no use, and the time to wait."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class KernelTimer:
    """A timer of the kernel. For one task at a time. Raises OSError where there is none."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._set = library.timerfd_settime
            self._descriptor = library.timerfd_create(CLOCK_MONOTONIC, FLAGS)
        except AttributeError:
            raise OSError("this system has no timerfd") from None
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def __repr__(self) -> str:
        return f"<KernelTimer {self._descriptor}>"

    async def sleep_until(self, moment: float) -> None:
        """Wait until a moment on the clock of trio."""
        left = moment - trio.current_time()
        if left > 2 * SHORT_SECONDS:
            await trio.sleep(left - SHORT_SECONDS)
            left = moment - trio.current_time()
        if left <= 0:
            await trio.lowlevel.checkpoint()
            return
        spec = _Spec(0, 0, 0, max(int(left * 1e9), 1))
        self._set(self._descriptor, 0, ctypes.byref(spec), None)
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, EXPIRATIONS_BYTES)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


@contextmanager
def open_timer() -> Iterator[SleepUntil]:
    """The most exact way to wait that this system has. To be opened where trio's clock is the real one."""
    timer = None
    if sys.platform == "linux":
        try:
            timer = KernelTimer()
        except OSError:
            timer = None
    try:
        yield timer.sleep_until if timer is not None else trio.sleep_until
    finally:
        if timer is not None:
            timer.close()
