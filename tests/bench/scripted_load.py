"""A server whose delays are known, and what a run of load on it has recorded. In virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, cast

import trio

from mcpmux.bench.answer import Answer
from mcpmux.bench.drive import Drive, Work
from mcpmux.bench.operation import Ask
from mcpmux.bench.plan import Plan
from mcpmux.bench.session import Session
from mcpmux.bench.workload import Turns, bind_mix, parse_flow

Delay = Callable[[float, int], float]
"""Seconds that an answer takes, by the time since the start and the number of the request from 0."""


class Record(NamedTuple):
    operation: str
    intended: float
    sent: float
    done: float
    outcome: str
    sent_bytes: int
    received_bytes: int

    @property
    def latency(self) -> float:
        return self.done - self.intended


class Recording:
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def record(self, *values: object) -> None:
        self.records.append(Record(*values))  # type: ignore[arg-type]  # as the driver gives them

    def latencies(self, begun: float = 0.0) -> list[float]:
        return sorted(record.latency for record in self.records if record.intended >= begun)

    def percentile(self, percent: float, begun: float = 0.0) -> float:
        latencies = self.latencies(begun)
        return latencies[min(int(len(latencies) * percent / 100), len(latencies) - 1)]


class DelayedServer:
    """Answers each request after the delay of the script. `lost`: from then on no connection holds."""

    last_words: str | None = None

    def __init__(self, delay: Delay, lost: float = float("inf")) -> None:
        self._delay = delay
        self._lost = lost
        self._started = trio.current_time()
        self.asked = 0
        self.running = 0
        self.most = 0

    @property
    def sessions(self) -> list[Session]:
        """Itself, which has all that a drive uses of a session."""
        return [cast("Session", self)]

    async def perform(self, _ask: Ask, _follow: object = None) -> Answer:
        now = trio.current_time() - self._started
        if now >= self._lost:
            return Answer("connection lost", 1, 0, "the stream has ended")
        number, self.asked = self.asked, self.asked + 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(self._delay(now, number))
        finally:
            self.running -= 1
        return Answer("ok", 1, 2)


def ping_mix() -> Turns:
    return bind_mix([parse_flow("ping")], (), Random(1))


async def drive(server: DelayedServer, plan: Plan, seed: int = 1) -> tuple[Recording, Work, float]:
    """Run a load to its end: what it recorded, how it ended, and when it began."""
    recording = Recording()
    started = trio.current_time()
    run = Drive(plan, server.sessions, ping_mix(), recording.record, Random(seed))
    await run.run(started)
    return recording, run, started
