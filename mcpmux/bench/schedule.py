"""When requests are due in the open load model: a rate over time, its arrivals, and exact waits for them.

A rate is written as steps with commas between them, each `RATE` or `FROM..TO`, and `/DURATION` behind it. A
step without a duration lasts as long as the next one that has one:

    200                  200 a second, as long as the run takes
    100..1000/30s        from 100 to 1,000 a second within 30 seconds
    100,200,400/10s      three steps of 10 seconds each

Times are seconds from the start of the schedule, rates are arrivals a second.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, count, repeat
from random import Random
from typing import NamedTuple

import trio

from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Duration

RATE_LIMIT = 1_000_000.0  # a second; more is a slip of the keyboard

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_STEP = re.compile(rf"\s*{_NUMBER}\s*(?:\.\.\s*{_NUMBER}\s*)?(?:/(.+?))?\s*")

EXPECTED = "expected a rate a second such as 200, 100..1000/30s or 100,200,400/10s"


class Ramp(NamedTuple):
    """A rate that changes evenly from `first` to `last` within `seconds`."""

    first: float
    last: float
    seconds: float

    @property
    def arrivals(self) -> float:
        """Expected number of arrivals in it."""
        return (self.first + self.last) / 2 * self.seconds

    def moment(self, number: float) -> float:
        """Return the time at which the expected count of arrivals since its start reaches `number`."""
        if number <= 0:
            return 0.0
        bend = (self.last - self.first) / (2 * self.seconds)
        return 2 * number / (self.first + math.sqrt(max(self.first**2 + 4 * bend * number, 0.0)))


Profile = tuple[Ramp, ...]


def parse_rate(text: str, seconds: float) -> Profile:
    """Return the profile in `text`; steps without any duration share `seconds`. Raises InvalidValue."""
    ramps: list[Ramp] = []
    following: float | None = None
    steps = text.split(",")
    for step in reversed(steps):
        match = _STEP.fullmatch(step)
        if match is None:
            raise InvalidValue(EXPECTED)
        first, last = float(match[1]), float(match[2] or match[1])
        if max(first, last) > RATE_LIMIT:
            raise InvalidValue(f"expected at most {RATE_LIMIT:,.0f} arrivals a second")
        following = Duration().read(match[3]) if match[3] else following
        ramps.append(Ramp(first, last, following or seconds / len(steps)))
    profile = tuple(reversed(ramps))
    if math.fsum(ramp.arrivals for ramp in profile) < 1:
        raise InvalidValue(f"nothing would be sent at the rate {text!r}; {EXPECTED}")
    return profile


def arrivals(profile: Profile, random: Random | None) -> Iterator[float]:
    """Yield the times of requests: independent of each other (Poisson), or even without `random`."""
    positions = accumulate(random.expovariate(1) for _ in repeat(None)) if random is not None else count(0.0)
    position, start, done = next(positions), 0.0, 0.0
    for ramp in profile:
        while position - done < ramp.arrivals:
            yield start + ramp.moment(position - done)
            position = next(positions)
        start += ramp.seconds
        done += ramp.arrivals


SleepUntil = Callable[[float], Awaitable[None]]
"""Waits until a moment on the clock of trio."""

CLOCK_MONOTONIC = 1
SHORT_SECONDS = 0.002  # longer waits leave the timer alone until they are that short
EXPIRATIONS_BYTES = 8  # what is read from a timer that has ended
_Spec = ctypes.c_long * 4
"""`struct itimerspec`: seconds and nanoseconds of an interval, which is not used, and of the time to wait."""


@contextmanager
def open_timer() -> Iterator[SleepUntil]:
    """Open a timer of the kernel for exact waits of one task: trio waits whole milliseconds."""
    library, descriptor = ctypes.CDLL(None) if sys.platform == "linux" else None, -1
    if sys.platform == "linux" and library is not None and hasattr(library, "timerfd_create"):
        descriptor = int(library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    if library is None or descriptor < 0:
        yield trio.sleep_until
        return
    set_timer = library.timerfd_settime

    async def sleep_until(moment: float) -> None:
        left = moment - trio.current_time()
        if left > 2 * SHORT_SECONDS:
            await trio.sleep(left - SHORT_SECONDS)
            left = moment - trio.current_time()
        if left <= 0:
            await trio.lowlevel.checkpoint()
            return
        set_timer(descriptor, 0, _Spec(0, 0, 0, max(int(left * 1e9), 1)), None)
        await trio.lowlevel.wait_readable(descriptor)
        os.read(descriptor, EXPIRATIONS_BYTES)

    try:
        yield sleep_until
    finally:
        os.close(descriptor)
