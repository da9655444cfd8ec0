"""Runs the benchmarks of several targets at the same time, until they end or the user has seen enough."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import trio
from attrs import field, frozen

from mcpmux.bench.plan import Plan
from mcpmux.bench.results import Results
from mcpmux.bench.run import Run
from mcpmux.bench.timer import open_timer
from mcpmux.config import Limits, Upstream
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.transports.process import StopLadder

INTERRUPTED = "interrupted"
STOP = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
SPARE_CONNECTIONS = 1  # of a session over HTTP: a legacy server's own stream takes one


@frozen(kw_only=True)
class Outcome:
    """What came of all runs, in the order of the targets. `failures`: name → why there are no results.

    `knees`: name → what a search has found.
    """

    results: list[Results] = field(factory=list)
    failures: dict[str, str] = field(factory=dict)
    knees: dict[str, str] = field(factory=dict)
    interrupted: bool = False


class Bench:
    """Several targets, each with its own run. Watched by `runs`."""

    def __init__(self, upstreams: Sequence[Upstream], plan: Plan, limits: Limits) -> None:
        self._upstreams = upstreams
        self._plan = plan
        self._limits = limits
        self.runs: list[Run] = []
        self._interrupted = False
        self._results: dict[str, Results] = {}
        self._failures: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Bench of {len(self._upstreams)}>"

    @property
    def names(self) -> list[str]:
        """Of the targets."""
        return [upstream.name for upstream in self._upstreams]

    async def measure(self) -> Outcome:
        """Everything that was found; SIGINT or SIGTERM end it early, the second one at once.

        Raises ConfigError when a target has not what is to be asked of it.
        """
        with open_timer() as sleep_until:
            for upstream in self._upstreams:
                opener = ChannelOpener(
                    self._limits.max_message_bytes,
                    self._limits.max_head_bytes,
                    STOP,
                    self._plan.connections_each(upstream) + SPARE_CONNECTIONS,
                )
                self.runs.append(Run(upstream, self._plan, opener.open, sleep_until))
            async with trio.open_nursery() as outer:
                await outer.start(self._heed_signals)
                async with trio.open_nursery() as nursery:
                    for run in self.runs:
                        nursery.start_soon(self._measure, run, name=f"bench {run.upstream.name}")
                outer.cancel_scope.cancel()
        names = self.names
        return Outcome(
            results=[self._results[name] for name in names if name in self._results],
            failures={name: self._failures[name] for name in names if name in self._failures},
            knees={run.upstream.name: run.knee.describe() for run in self.runs if run.knee is not None},
            interrupted=self._interrupted,
        )

    async def _measure(self, run: Run) -> None:
        name = run.upstream.name
        try:
            results = await run.measure()
            if results is not None:
                self._results[name] = results
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
