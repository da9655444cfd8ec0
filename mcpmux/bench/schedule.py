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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from itertools import accumulate, count, repeat
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
        """How many are expected in it."""
        return (self.first + self.last) / 2 * self.seconds

    def moment(self, number: float) -> float:
        """When the expected count of arrivals since its start reaches `number`."""
        if number <= 0:
            return 0.0
        bend = (self.last - self.first) / (2 * self.seconds)
        return 2 * number / (self.first + math.sqrt(max(self.first**2 + 4 * bend * number, 0.0)))


Profile = tuple[Ramp, ...]


def parse_rate(text: str, seconds: float) -> Profile:
    """The profile that `text` describes; `seconds` is what steps without any duration share.

    Raises InvalidValue.
    """
    ramps: list[Ramp] = []
    following: float | None = None
    steps = text.split(",")
    for step in reversed(steps):
        found = _STEP.fullmatch(step)
        if found is None:
            raise InvalidValue(EXPECTED)
        first, last = float(found[1]), float(found[2] or found[1])
        if max(first, last) > RATE_LIMIT:
            raise InvalidValue(f"expected at most {RATE_LIMIT:,.0f} arrivals a second")
        following = Duration().read(found[3]) if found[3] else following
        ramps.append(Ramp(first, last, following or seconds / len(steps)))
    profile = tuple(reversed(ramps))
    if total_arrivals(profile) < 1:
        raise InvalidValue(f"nothing would be sent at the rate {text!r}; {EXPECTED}")
    return profile


def total_seconds(profile: Profile) -> float:
    """How long it takes."""
    return math.fsum(ramp.seconds for ramp in profile)


def total_arrivals(profile: Profile) -> float:
    """How many arrivals are expected in it."""
    return math.fsum(ramp.arrivals for ramp in profile)


def even_positions() -> Iterator[float]:
    """Arrivals at even distances."""
    return map(float, count())


def poisson_positions(draw: Callable[[], float]) -> Iterator[float]:
    """Arrivals independent of each other; `draw` gives exponential numbers of mean 1."""
    return accumulate(draw() for _ in repeat(None))


def arrivals(profile: Profile, positions: Iterator[float]) -> Iterator[float]:
    """When the expected count of arrivals reaches each of `positions`, until the profile ends."""
    start = before = 0.0
    ramps = iter(profile)
    ramp = next(ramps, None)
    for position in positions:
        while ramp is not None and position - before >= ramp.arrivals:
            start += ramp.seconds
            before += ramp.arrivals
            ramp = next(ramps, None)
        if ramp is None:
            return
        yield start + ramp.moment(position - before)


SleepUntil = Callable[[float], Awaitable[None]]
"""Waits until a moment on the clock of trio."""

CLOCK_MONOTONIC = 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
SHORT_SECONDS = 0.002  # longer waits leave the timer alone until they are that short
EXPIRATIONS_BYTES = 8  # what is read from a timer that has ended
_Spec = ctypes.c_long * 4
"""`struct itimerspec`: seconds and nanoseconds of an interval, which is not used, and of the time to wait."""


class KernelTimer:
    """A timer of the Linux kernel, for one task at a time: trio itself waits whole milliseconds.

    Raises OSError where there is none.
    """

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._set = library.timerfd_settime
            self._descriptor = library.timerfd_create(CLOCK_MONOTONIC, FLAGS)
        except AttributeError:
            raise OSError("this system has no timerfd") from None
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    async def sleep_until(self, moment: float) -> None:
        """Wait until a moment on the clock of trio."""
        left = moment - trio.current_time()
        if left > 2 * SHORT_SECONDS:
            await trio.sleep(left - SHORT_SECONDS)
            left = moment - trio.current_time()
        if left <= 0:
            await trio.lowlevel.checkpoint()
            return
        self._set(self._descriptor, 0, _Spec(0, 0, 0, max(int(left * 1e9), 1)), None)
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, EXPIRATIONS_BYTES)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


@contextmanager
def open_timer() -> Iterator[SleepUntil]:
    """The most exact way to wait that this system has. Only for where trio's clock is the real one."""
    try:
        timer = KernelTimer()
    except OSError:
        yield trio.sleep_until
        return
    with closing(timer):
        yield timer.sleep_until
