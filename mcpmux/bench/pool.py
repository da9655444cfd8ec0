"""Several runs of one target as one result, which is what their tables tell. Pure.

Counts and times are added up, so percentiles are those of all requests of all runs, and a rate is over the
time of all. Rows in time follow one another; the cut last row of each run is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from mcpmux.bench.histogram import merged
from mcpmux.bench.results import Connections, FanOut, Generator, Operation, Results, Series, Step, added


def by_name(results: Iterable[Results]) -> dict[str, list[Results]]:
    """The runs of each target, in the order measured."""
    found: dict[str, list[Results]] = {}
    for one in results:
        found.setdefault(one.about.name, []).append(one)
    return found


def pooled(results: Iterable[Results]) -> list[Results]:
    """One result for each target."""
    return [pool(runs) for runs in by_name(results).values()]


def pool(runs: Sequence[Results]) -> Results:
    """All runs of one target as one; a single run as it is."""
    first = runs[0]
    if len(runs) == 1:
        return first
    names = dict.fromkeys(name for run in runs for name in run.operations)
    return Results(
        about=first.about,
        seconds=sum(run.seconds for run in runs),
        warm_up=first.warm_up,
        operations={
            name: _operation([run.operations[name] for run in runs if name in run.operations])
            for name in names
        },
        series=_series([run.series for run in runs]),
        connections=_connections([run.connections for run in runs]),
        generator=_generator([run.generator for run in runs]),
        steps=_steps([run.steps for run in runs]),
        fan_out=_fan_out([run.fan_out for run in runs if run.fan_out is not None]),
        unfinished=sum(run.unfinished for run in runs),
        examples={key: words for run in reversed(runs) for key, words in run.examples.items()},
        stopped=next((run.stopped for run in runs if run.stopped), None),
    )


def _operation(parts: Sequence[Operation]) -> Operation:
    return Operation(
        count=sum(part.count for part in parts),
        errors=added(part.errors for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        latency=merged(part.latency for part in parts),
        service=merged(part.service for part in parts),
        series=_series([part.series for part in parts]),
    )


def _series(parts: Sequence[Series]) -> Series:
    """Of runs of one plan, whose rows are of one length."""
    whole = [part.whole() for part in parts]
    return Series(
        seconds=parts[0].seconds,
        last_seconds=parts[0].seconds,
        count=tuple(value for part in whole for value in part.count),
        errors=tuple(value for part in whole for value in part.errors),
        p50=tuple(value for part in whole for value in part.p50),
        p99=tuple(value for part in whole for value in part.p99),
        most=tuple(value for part in whole for value in part.most),
    )


def _connections(parts: Sequence[Connections]) -> Connections:
    return Connections(
        count=sum(part.count for part in parts),
        errors=added(part.errors for part in parts),
        times=merged(part.times for part in parts),
        lost=sum(part.lost for part in parts),
    )


def _generator(parts: Sequence[Generator]) -> Generator:
    """The busiest one: a warning of one run is one of all."""
    return max(parts, key=lambda part: (part.warning is not None, part.cpu_share))


def _steps(parts: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """Step by step, as far as all runs came."""
    return tuple(
        msgspec.structs.replace(
            steps[0],
            seconds=sum(step.seconds for step in steps),
            count=sum(step.count for step in steps),
            arrived=sum(step.arrived for step in steps),
            errors=added(step.errors for step in steps),
            latency=merged(step.latency for step in steps),
        )
        for steps in zip(*parts, strict=False)
    )


def _fan_out(parts: Sequence[FanOut]) -> FanOut | None:
    if not parts:
        return None
    return msgspec.structs.replace(
        parts[0],
        changes=sum(part.changes for part in parts),
        expected=sum(part.expected for part in parts),
        deliveries=sum(part.deliveries for part in parts),
        duplicates=sum(part.duplicates for part in parts),
        delay=merged(part.delay for part in parts),
    )
