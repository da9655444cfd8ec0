"""Runs the benchmarks of several targets until they end or the user has seen enough."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import attrs
import trio
from attrs import field, frozen

from mcpmux.bench.drive import SleepUntil, open_timer
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import Results
from mcpmux.bench.run import Run
from mcpmux.bench.session import OpenChannel
from mcpmux.config import Limits, Upstream
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.transports.process import StopLadder

INTERRUPTED = "interrupted"
STOP = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
SPARE_CONNECTIONS = 1  # of a session over HTTP: a legacy server's own stream takes one


@frozen(kw_only=True)
class Outcome:
    """What came of all runs, in the order measured. `failures`: name → why there are no results, or no more.

    `knees`: name → what a search has found.
    """

    results: list[Results] = field(factory=list)
    failures: dict[str, str] = field(factory=dict)
    knees: dict[str, str] = field(factory=dict)
    interrupted: bool = False


class Bench:
    """Several targets, all at the same time, or, with several runs of each, in turns.

    `runs`: those under way; `turn`: which one of `turns` that is, from 1. Both may be watched.
    """

    def __init__(self, upstreams: Sequence[Upstream], plan: Plan, limits: Limits) -> None:
        self._upstreams = upstreams
        self._plan = plan
        self._limits = limits
        self.runs: list[Run] = []
        self.turn = 0
        self._interrupted = False
        self._results: list[Results] = []
        self._failures: dict[str, str] = {}
        self._knees: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Bench of {len(self._upstreams)}>"

    @property
    def names(self) -> list[str]:
        """Of the targets."""
        return [upstream.name for upstream in self._upstreams]

    @property
    def turns(self) -> int:
        """How many measurements are taken one after another."""
        return len(self._upstreams) * self._plan.runs if self._plan.runs > 1 else 1

    async def measure(self) -> Outcome:
        """Everything that was found; SIGINT or SIGTERM end it early, the second one at once.

        Raises ConfigError when a target has not what is to be asked of it.
        """
        with open_timer() as sleep_until:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._heed_signals)
                for number in range(self._plan.runs):
                    for group in self._groups():
                        await self._measure_all(group, number, sleep_until)
                nursery.cancel_scope.cancel()
        return Outcome(
            results=self._results,
            failures={name: self._failures[name] for name in self.names if name in self._failures},
            knees=self._knees,
            interrupted=self._interrupted,
        )

    def _groups(self) -> list[Sequence[Upstream]]:
        """What is measured at the same time. Runs that are to be compared have the machine alone."""
        return [[upstream] for upstream in self._upstreams] if self._plan.runs > 1 else [self._upstreams]

    async def _measure_all(self, upstreams: Sequence[Upstream], number: int, sleep_until: SleepUntil) -> None:
        """The run with a number, from 0, of some targets, without those that have failed."""
        if self._interrupted:
            return
        plan = attrs.evolve(self._plan, seed=self._plan.seed + number)
        self.turn += 1
        self.runs = [
            Run(upstream, plan, self._open_channel(upstream), sleep_until)
            for upstream in upstreams
            if upstream.name not in self._failures
        ]
        found: dict[str, Results] = {}
        async with trio.open_nursery() as nursery:
            for run in self.runs:
                nursery.start_soon(self._measure, run, found, name=f"bench {run.upstream.name}")
        self._results += [found[run.upstream.name] for run in self.runs if run.upstream.name in found]
        knees = {run.upstream.name: run.knee.describe() for run in self.runs if run.knee is not None}
        self._knees.update(knees)

    def _open_channel(self, upstream: Upstream) -> OpenChannel:
        connections = self._plan.connections_each(upstream) + SPARE_CONNECTIONS
        limits = self._limits
        return ChannelOpener(limits.max_message_bytes, limits.max_head_bytes, STOP, connections).open

    async def _measure(self, run: Run, found: dict[str, Results]) -> None:
        name = run.upstream.name
        try:
            results = await run.measure()
            if results is not None:
                found[name] = results
        except* ConfigError:
            raise
        except* McpmuxError as group:  # the wall around one target
            self._failures[name] = "; ".join(dict.fromkeys(_reasons(group)))

    async def _heed_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self._interrupted:
                    raise KeyboardInterrupt
                self._interrupted = True
                for run in self.runs:
                    run.stop(INTERRUPTED)


def _reasons(group: BaseExceptionGroup[McpmuxError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _reasons(error)
        else:
            yield str(error)
