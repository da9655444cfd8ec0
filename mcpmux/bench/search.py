"""Looks for the highest rate at which the conditions hold: one probe after another on the same sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import trio

from mcpmux.bench.assertion import Assertion
from mcpmux.bench.drive import Drive, Ending, Load, Recorder, Server, SleepUntil
from mcpmux.bench.knee import Knee, find_break
from mcpmux.bench.results import BUSY_SHARE
from mcpmux.bench.schedule import Ramp
from mcpmux.bench.tally import Tally
from mcpmux.bench.workload import Turns

PROBE_SECONDS = 5.0  # of one try, if nobody said otherwise
REST_SECONDS = 0.2  # between two tries, for the server to be done with the last one


class _FromThen:
    """Records what was due from a moment on: the warm-up of a probe is none of its business."""

    def __init__(self, tally: Recorder, begun: float) -> None:
        self._tally = tally
        self._begun = begun

    def record(
        self,
        operation: str,
        intended: float,
        sent: float,
        done: float,
        outcome: str,
        sent_bytes: int,
        received_bytes: int,
    ) -> None:
        """See Recorder."""
        if intended >= self._begun:
            self._tally.record(operation, intended, sent, done, outcome, sent_bytes, received_bytes)


class Search:
    """One search. `knee` has what is known; `stop` ends it. `load(rate)` is a probe's load."""

    def __init__(
        self,
        conditions: Sequence[Assertion],
        first: float,
        load: Callable[[tuple[Ramp, ...]], Load],
        seconds: float,
        cpu: Callable[[], float],
    ) -> None:
        self._conditions = tuple(conditions)
        self._load = load
        self._seconds = seconds
        self._cpu = cpu
        self.knee = Knee(first)
        self.drive: Drive | None = None
        self.stopped: str | None = None

    def __repr__(self) -> str:
        return f"<Search {self.knee!r}>"

    def stop(self, reason: str) -> None:
        """End it now; what is known stays."""
        self.stopped = self.stopped or reason
        if self.drive is not None:
            self.drive.stop(reason)

    async def run(
        self, servers: Sequence[Server], mix: Turns, tally: Tally, random: Random, sleep_until: SleepUntil
    ) -> Ending:
        """Probe until the knee is known, the server is gone, or it is stopped."""
        late = unfinished = 0
        while (rate := self.knee.next) is not None and self.stopped is None:
            load = self._load((Ramp(rate, rate, self._seconds),))
            started = trio.current_time()
            begun = started + load.warm_up
            tally.begin_step(begun, f"{rate:g}/s", offered=rate)
            self.drive = Drive(load, servers, mix, _FromThen(tally, begun), random, sleep_until)
            used = self._cpu()
            ending = await self.drive.run(started)
            busy = (self._cpu() - used) / max(trio.current_time() - started, 1e-9)
            late += ending.late
            unfinished += ending.unfinished
            if ending.stopped is not None:
                tally.end_step(ending.ended)
                self.stopped = ending.stopped
                break
            tally.end_step(begun + load.seconds)
            why = find_break(tally.last_step(), self._conditions)
            if why is not None and busy >= BUSY_SHARE:
                why = f"the load generator itself, at {busy:.0%} of its core ({why})"
            tally.judge_step(why is None, why)
            self.knee.note(why)
            await trio.sleep(REST_SECONDS)
        return Ending(ended=trio.current_time(), unfinished=unfinished, stopped=self.stopped, late=late)
