"""Drives the load: which request is sent when, until the schedule or the count ends, or the server is gone.

Two models. Closed: each of N clients asks, waits, thinks and asks again, so a slow server is asked less.
Open: requests are due at times that the server has no say in; one that finds every place taken is sent later,
and its latency still counts from when it was due (no coordinated omission).

Rules
- A worker is one place for a request in flight. In the open model they take turns to wait for the next
  arrival: only the one in front waits for the clock, so requests leave in the order in which they are due.
- What was begun before the end is waited for `grace` seconds; what is not answered by then, and what was
  due and could not even be sent, is recorded as unfinished with all the time that it has waited.
- A server from which nothing but lost connections came for DEAD_SECONDS is gone: the run ends there.

Source: G. Tene, "How NOT to Measure Latency", for coordinated omission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from random import Random

import trio
from attrs import define, field

from mcpmux.bench.answer import TIMEOUT, UNFINISHED, Follow
from mcpmux.bench.operation import Ask
from mcpmux.bench.plan import COUNT, Plan
from mcpmux.bench.schedule import Ramp, SleepUntil, arrivals
from mcpmux.bench.session import Session
from mcpmux.bench.workload import Turns
from mcpmux.traffic.outcome import OK

DEAD_SECONDS = 1.0  # of nothing but lost connections
DEAD_COUNT = 5  # of them at least: one refused connection is not an end
LOST_PAUSE = 0.05  # before a client asks a server again that was lost; no storm on what is down
WATCH_SECONDS = 0.1  # how often overdue requests are looked for
LATE_SECONDS = 0.005  # a request that leaves so much later than its own timer was late by the generator


Record = Callable[[str, float, float, float, str, int, int], None]
"""Counts a request that has ended, see `Tally.record`: operation, when it was meant to be sent, when it was
sent, when it ended (on the clock of trio), outcome, bytes sent and received."""


@define(eq=False, repr=False)
class Work:
    """Work of a run until it has `ended`. `stopped`: the reason if that was before its time.

    `unfinished`: requests without an answer by then; `late`: those that left late by the generator's fault.
    """

    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    stopped: str | None = field(default=None, init=False)
    ended: float = field(default=0.0, init=False)
    unfinished: int = field(default=0, init=False)
    late: int = field(default=0, init=False)

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their answers."""
        return 0

    def stop(self, reason: str) -> None:
        """End it now; what was measured stays."""
        self.stopped = self.stopped or reason
        self._scope.cancel(reason=reason)


@define(eq=False, repr=False)
class Worker:
    """One place for a request in flight. `sent` is when its request left, None while it has none."""

    session: Session
    follow: Follow | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ask: Ask | None = None
    intended: float = 0.0
    sent: float | None = None


@define(eq=False, repr=False)
class Drive(Work):
    """One run against one target. Workers use `sessions` in turn."""

    _plan: Plan
    _sessions: Sequence[Session]
    _mix: Turns
    _count: Record = field(alias="record")
    _random: Random
    _sleep_until: SleepUntil = trio.sleep_until
    _workers: list[Worker] = field(init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False)
    _left: int = field(init=False)  # turns
    _lost: int = field(default=0, init=False)  # connections, since the server was last heard
    _lost_since: float = field(default=0.0, init=False)
    _arrivals: Iterator[float] = field(init=False)
    _begun: float = field(default=0.0, init=False)
    _until: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        plan, sessions = self._plan, self._sessions
        self._left = COUNT if plan.count is None else plan.count
        self._workers = [Worker(session) for session in islice(cycle(sessions), plan.workers)]
        if plan.profile is None and plan.think <= 0 and self._mix.single:
            for worker in self._workers:
                worker.follow = partial(self._follow, worker)

    @property
    def in_flight(self) -> int:
        return sum(worker.sent is not None for worker in self._workers)

    async def run(self, started: float) -> None:
        """Drive from `started`, on the clock of trio, to the end. Cancelling it leaves no task."""
        plan, profile = self._plan, self._plan.profile or ()
        self._begun = started + plan.warm_up
        self._until = self._begun + plan.measured
        if profile and plan.warm_up > 0:  # which has the rate at which the profile begins
            profile = (Ramp(profile[0].first, profile[0].first, plan.warm_up), *profile)
        moments = arrivals(profile, None if plan.even else self._random)
        self._arrivals = (started + moment for moment in moments)
        with self._scope:
            self._scope.deadline = self._until + plan.grace
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch, name="bench watch")
                async with trio.open_nursery() as nursery:
                    for number, worker in enumerate(self._workers):
                        nursery.start_soon(self._work, worker, name=f"bench worker {number}")
                watching.cancel_scope.cancel()
        now = trio.current_time()
        self.ended = min(now, self._until)
        self.unfinished = self.in_flight
        if self.stopped is not None:
            return
        for worker in self._workers:
            if worker.sent is not None:
                self._record(worker, now, UNFINISHED)
        for intended in self._arrivals:  # which were due, but found no place
            if not self._may_begin(intended):
                break
            over = max(now, intended)
            self._count(self._mix.next_ask().operation, intended, over, over, UNFINISHED, 0, 0)
            self.unfinished += 1

    async def _work(self, worker: Worker) -> None:
        """Take turn after turn; a request that takes too long is cut off and the next one begins."""
        turns = self._closed_turns if self._plan.profile is None else self._open_turns
        while True:
            with trio.CancelScope() as worker.scope:
                await turns(worker)
                return
            if worker.sent is not None:
                self._record(worker, trio.current_time(), TIMEOUT)

    async def _closed_turns(self, worker: Worker) -> None:
        think = self._plan.think
        now = trio.current_time()
        while now < self._until and self._may_begin(now):
            now = await self._take_turn(worker, now, now)
            if think > 0:
                await trio.sleep_until(min(now + think, self._until))
                now = trio.current_time()

    async def _open_turns(self, worker: Worker) -> None:
        while True:
            async with self._turn:
                intended = next(self._arrivals, None)
                if intended is None or not self._may_begin(intended):
                    return
                now = trio.current_time()
                if now < intended:
                    await self._sleep_until(intended)
                    if trio.current_time() - intended > LATE_SECONDS:
                        self.late += 1
            await self._take_turn(worker, intended, trio.current_time())

    def _may_begin(self, moment: float) -> bool:
        """Return whether another turn may begin; after the warm-up each is counted."""
        if moment >= self._begun:
            if self._left <= 0:
                return False
            self._left -= 1
        return True

    async def _take_turn(self, worker: Worker, intended: float, sent: float) -> float:
        """Take one turn, which begins now, at `sent`. Returns when it was over."""
        asks, pause = self._mix.next()
        done = sent
        for step, ask in enumerate(asks):
            if step:
                if pause > 0:
                    await trio.sleep(pause)
                intended = sent = trio.current_time()
            worker.ask = ask
            worker.intended = intended
            worker.sent = sent
            answer = await worker.session.perform(ask, worker.follow)
            done = trio.current_time()
            self._record(worker, done, *answer[:3])
            if worker.scope.cancel_called:  # for this very request, whose answer came at the last moment
                await trio.lowlevel.checkpoint()
            if answer.lost is None:
                self._lost = 0
                continue
            if not self._lost:
                self._lost_since = done
            self._lost += 1
            if self._lost >= DEAD_COUNT and done - self._lost_since >= DEAD_SECONDS:
                self.stop(f"the server is gone: {worker.session.last_words or answer.lost}")
            await trio.sleep(LOST_PAUSE)
            done = trio.current_time()
        return done

    def _follow(self, worker: Worker, sent_bytes: int, received_bytes: int) -> Ask | None:
        """Begin the next turn of a client without think time right where a good answer was received."""
        now = trio.current_time()
        if now >= self._until or not self._may_begin(now):
            return None
        self._record(worker, now, OK, sent_bytes, received_bytes)
        self._lost = 0
        worker.ask = ask = self._mix.next_ask()
        worker.intended = worker.sent = now
        return ask

    def _record(
        self, worker: Worker, done: float, outcome: str, sent_bytes: int = 0, received_bytes: int = 0
    ) -> None:
        ask, sent = worker.ask, worker.sent
        assert ask is not None and sent is not None
        self._count(ask.operation, worker.intended, sent, done, outcome, sent_bytes, received_bytes)
        worker.sent = None

    async def _watch(self) -> None:
        patience = self._plan.timeout
        while True:
            await trio.sleep(min(WATCH_SECONDS, patience))
            overdue = trio.current_time() - patience
            for worker in self._workers:
                if worker.sent is not None and worker.sent <= overdue:
                    worker.scope.cancel(reason="no answer in time")
