"""Looks for the highest rate at which the conditions hold: one probe after another on the same sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from random import Random

import trio
from attrs import define, evolve, field

from mcpmux.bench.assertion import Assertion, value_of
from mcpmux.bench.drive import Drive, Work
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import BUSY_SHARE, Step
from mcpmux.bench.schedule import Ramp, SleepUntil
from mcpmux.bench.session import Session
from mcpmux.bench.tally import Tally
from mcpmux.bench.workload import Turns
from mcpmux.format import rate_text, share_text, time_text

FIRST_RATE = 50.0  # by default; nearly every server bears it
TRIES = 3  # of each rate: one bad moment of the machine is outvoted
CLOSE = 0.05  # of the rate: where bisection ends
HIGHEST = 1_000_000.0  # a second; no further doubling
LOWEST = 1.0  # a second; a server that cannot do this is not measured
REACHED = 0.95  # of the requests that were offered have to be answered within the step
ERRORS = 0.01  # of the requests may fail, if no condition says otherwise
PROBE_SECONDS = 5.0  # of one try by default
REST_SECONDS = 0.2  # between two tries, for the server to be done with the last one


EXAMPLE_RATE = 1000.0  # for the time that a search takes; twice as much is one rate more
BISECTIONS = 4  # from a factor of 2 down to CLOSE


def estimate(plan: Plan) -> str:
    """Return a sentence about how long a search takes."""
    first = plan.profile[0].first if plan.profile is not None else FIRST_RATE
    doublings = max(1, ceil(log2(max(EXAMPLE_RATE / first, 1))) + 1)
    seconds, rates, majority = plan.duration or PROBE_SECONDS, doublings + BISECTIONS, TRIES // 2 + 1
    least, most = (
        tries * rates * (plan.warm_up + seconds + REST_SECONDS) / 60 for tries in (majority, TRIES)
    )
    return (
        f"each rate is tried {majority} or {TRIES} times for {time_text(seconds)}: a search that ends at "
        f"{rate_text(EXAMPLE_RATE)} takes {least:.1f} to {most:.1f} min"
    )


@define
class Knee:
    """Which rate to try next, and what is known so far. Pure. `next` is None when the search is over.

        doubling    from the first rate on, until one does not hold
        bisection   between the highest rate that held and the lowest that did not, until they are close

    A rate is tried up to TRIES times and holds when most of its tries do. The result is the highest rate that
    `held` and the lowest that `failed`, which are at most CLOSE apart.
    """

    next: float | None
    held: float | None = None
    failed: float | None = None
    why: str | None = None
    tries: dict[float, tuple[int, int]] = field(factory=dict)  # by rate: how many held, of how many

    def __attrs_post_init__(self) -> None:
        self.next = max(self.next or 0.0, LOWEST)

    def note(self, why: str | None) -> None:
        """Take the outcome of a try: None when the rate held, or what broke."""
        rate = self.next
        assert rate is not None
        good, tries = self.tries.get(rate, (0, 0))
        good, tries = self.tries[rate] = (good + (why is None), tries + 1)
        majority = TRIES // 2 + 1
        if good >= majority:
            self.held = rate
        elif tries - good >= majority:
            self.failed, self.why = rate, why
        else:
            return
        low, high = self.held, self.failed
        if high is None:
            assert low is not None
            self.next = low * 2 if low * 2 <= HIGHEST else None
        elif low is None:
            self.next = max(high / 2, LOWEST) if high > LOWEST else None
        else:
            self.next = None if high <= low * (1 + CLOSE) else float(f"{(low * high) ** 0.5:.3g}")

    def describe(self) -> str:
        """Return the answer, in a sentence."""
        early = "" if self.next is None else "; the search ended early"
        if self.held is None and self.failed is None:
            return f"no rate was tried often enough to say whether it holds{early}"
        if self.held is None:
            return f"no rate held, down to {rate_text(self.failed)}: {self.why}{early}"
        good, tries = self.tries[self.held]
        text = f"{rate_text(self.held)} held ({good} of {tries} tries)"
        if self.failed is None:
            return f"{text}, and nothing higher was tried{early}"
        good, tries = self.tries[self.failed]
        return (
            f"{text}; at {rate_text(self.failed)} ({tries - good} of {tries} tries) broke first: {self.why}"
            f"{early}"
        )


def find_break(step: Step, conditions: Sequence[Assertion]) -> str | None:
    """Return what broke in a step, None if it held. Checks conditions, then errors, then throughput."""
    worst = max(step.errors, key=lambda name: step.errors[name], default="")
    also = f" ({step.errors[worst]} × {worst})" if worst else ""
    for condition in conditions:
        value = value_of(condition, step, step.rate)
        if value is None:
            return f"{condition.text}: nothing was measured"
        if not condition.holds(value):
            return f"{condition.text}: it was {condition.text_of(value)}{also}"
    judges_errors = any(condition.measure == "errors" for condition in conditions)
    if not judges_errors and step.failed > step.count * ERRORS:
        return f"{share_text(step.error_share)} errors{also}"
    if step.offered is not None and step.rate < step.offered * REACHED and not step.failed:
        expected = step.offered * step.seconds
        if step.count < expected - 4 * expected**0.5:  # fewer than chance alone would bring
            return f"only {rate_text(step.rate)} were answered"
    return None


@define(eq=False, repr=False)
class Search(Work):
    """One search: `plan.find_max` has its conditions. `knee` has what is known so far."""

    _plan: Plan
    _sessions: Sequence[Session]
    _mix: Turns
    _tally: Tally
    _sleep_until: SleepUntil
    _cpu: Callable[[], float]
    knee: Knee = field(init=False)
    drive: Drive | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        profile = self._plan.profile
        self.knee = Knee(profile[0].first if profile is not None else FIRST_RATE)

    @property
    def in_flight(self) -> int:
        return self.drive.in_flight if self.drive is not None else 0

    def stop(self, reason: str) -> None:
        super().stop(reason)
        if self.drive is not None:
            self.drive.stop(reason)

    async def run(self, started: float) -> None:
        """Probe until the knee is known, the server is gone, or it is stopped."""
        tally, random = self._tally, Random(self._plan.seed)
        seconds = self._plan.duration or PROBE_SECONDS
        while (rate := self.knee.next) is not None and self.stopped is None:
            probe = evolve(self._plan, find_max=(), profile=(Ramp(rate, rate, seconds),))
            started = trio.current_time()
            begun = started + probe.warm_up
            step = tally.begin_step(begun, f"{rate:g}/s", offered=rate)
            tally.count_from(begun)
            drive = Drive(probe, self._sessions, self._mix, tally.record, random, self._sleep_until)
            self.drive = drive
            used = self._cpu()
            await drive.run(started)
            busy = (self._cpu() - used) / max(trio.current_time() - started, 1e-9)
            self.late += drive.late
            self.unfinished += drive.unfinished
            if drive.stopped is not None:
                step.end(drive.ended)
                self.stopped = drive.stopped
                break
            step.end(begun + seconds)
            why = find_break(step.freeze(step.ended), self._plan.find_max)
            if why is not None and busy >= BUSY_SHARE:
                why = f"the load generator itself, at {busy:.0%} of its core ({why})"
            step.held, step.why = why is None, why
            self.knee.note(why)
            await trio.sleep(REST_SECONDS)
        self.ended = trio.current_time()
