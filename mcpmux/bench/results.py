"""What a benchmark found, as frozen values that JSON can hold; several runs as one. Pure.

Times are seconds, sizes bytes, rates per second, shares 0 to 1. `latency` counts from the time at which a
request was meant to be sent, so that a stalled server cannot hide; `service` from when it was sent.
Both hold the answers without error, and the waits that ended without an answer (WAITED): an error that
comes fast makes nothing look faster, and a timeout does not vanish. See `result_file` for the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mcpmux.traffic.reading.histogram import Distribution, merged

OK = "ok"
WAITED = frozenset({"timeout", "unfinished"})  # outcomes that waited for an answer in vain
BUSY_SHARE = 0.9  # of one core; from here on the generator may have been the limit


class LoadDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `text`: for people; `settings`: what has to be equal to compare two results."""

    text: str
    settings: dict[str, Any] = {}


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `when`: the start as RFC 3339 in UTC. `name`: its name among several targets."""

    name: str
    target: str
    transport: str
    revision: str
    when: str
    load: LoadDescription


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One column per number, one row per `seconds`; the last row is `last_seconds` long.

    An answer belongs to the row in which it arrived. `count` includes `errors`. Percentiles are of the
    latencies of a row, None where it has none.
    """

    seconds: float
    last_seconds: float
    count: tuple[int, ...]
    errors: tuple[int, ...]
    p50: tuple[float | None, ...]
    p99: tuple[float | None, ...]
    most: tuple[float | None, ...]

    def __post_init__(self) -> None:
        columns = (self.errors, self.p50, self.p99, self.most)
        if any(len(column) != len(self.count) for column in columns):
            raise ValueError("the columns of a series are not of one length")
        if not (self.seconds > 0 and self.last_seconds >= 0):
            raise ValueError("the rows of a series last no time")

    def widths(self) -> list[float]:
        """How many seconds each row is long."""
        rows = len(self.count)
        return [self.seconds] * (rows - 1) + [self.last_seconds] * min(rows, 1)

    def whole(self) -> Series:
        """Without the last row when that is cut short by a tenth or more, for it would look like a change."""
        if self.last_seconds >= self.seconds * 0.9 or not self.count:
            return self
        return Series(
            seconds=self.seconds,
            last_seconds=self.seconds,
            count=self.count[:-1],
            errors=self.errors[:-1],
            p50=self.p50[:-1],
            p99=self.p99[:-1],
            most=self.most[:-1],
        )

    def rates(self) -> list[float]:
        """Answers without error per second, row by row."""
        rows = zip(self.count, self.errors, self.widths(), strict=True)
        return [(count - errors) / width if width else 0.0 for count, errors, width in rows]


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request. `count` includes the errors; `errors` by kind, such as `rpc -32602`."""

    count: int
    errors: dict[str, int]
    sent_bytes: int
    received_bytes: int
    latency: Distribution
    service: Distribution
    series: Series

    @property
    def failed(self) -> int:
        """How many ended in an error."""
        return sum(self.errors.values())

    @property
    def error_share(self) -> float | None:
        """Errors among all; None without any request."""
        return self.failed / self.count if self.count else None


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """How many were opened, what those failed of that failed, and how long the others took to be ready.

    `lost`: how many sessions broke off while they were in use; each was to be opened again.
    """

    count: int
    errors: dict[str, int]
    times: Distribution
    lost: int = 0


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator itself used. `cpu_share`: of one core. `warning`: when it was the limit."""

    cpu_share: float
    warning: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run under one load: of a ramp, or a probe of a search.

    `offered`: requests per second asked for, or None; `clients`: how many, or None. `count`, `errors` and
    `latency`: of the requests meant to be sent in the step. `arrived`: answers without error that came
    while it lasted, whenever they were asked for: a server that falls behind shows it here. `held`: whether
    the load held, None when nobody asked; `why`: what broke first.
    """

    name: str
    offered: float | None
    clients: int | None
    seconds: float
    count: int
    arrived: int
    errors: dict[str, int]
    latency: Distribution
    held: bool | None = None
    why: str | None = None

    @property
    def rate(self) -> float:
        """Answers without error per second, while it lasted."""
        return self.arrived / self.seconds if self.seconds else 0.0


class FanOut(msgspec.Struct, frozen=True, kw_only=True):
    """Pushes: each of `changes` had to reach some subscribers, `expected` deliveries in all.

    `delay`: from a change to one delivery. `duplicates`: deliveries of a change after its first to the
    same subscriber; not among `deliveries`.
    """

    subscribers: int
    resources: int
    changes: int
    expected: int
    deliveries: int
    duplicates: int
    delay: Distribution

    @property
    def losses(self) -> int:
        """Deliveries that never came."""
        return self.expected - self.deliveries


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one target.

    `seconds`: how long was measured, without `warm_up` (of which nothing is counted). `unfinished`:
    requests without an answer when the run ended. `stopped`: why it ended before its time, or None.
    `examples`: "operation: kind" of an error → what was said of the first one, redacted.
    """

    about: About
    seconds: float
    warm_up: float
    operations: dict[str, OperationResult]
    series: Series
    connections: Connections
    generator: Generator
    steps: tuple[Step, ...] = ()
    fan_out: FanOut | None = None
    unfinished: int = 0
    stopped: str | None = None
    examples: dict[str, str] = {}

    def overall(self) -> OperationResult:
        """All operations as one."""
        return combined(self.operations.values(), self.series)

    def rate(self, part: OperationResult) -> float:
        """Answers without error per second."""
        return (part.count - part.failed) / self.seconds if self.seconds else 0.0


def combined(parts: Iterable[OperationResult], series: Series) -> OperationResult:
    """Several operations, or one in several runs, as one. `series`: of all of them."""
    parts = list(parts)
    return OperationResult(
        count=sum(part.count for part in parts),
        errors=added(part.errors for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        latency=merged(part.latency for part in parts),
        service=merged(part.service for part in parts),
        series=series,
    )


def added(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by kind, of all tables; the most frequent first."""
    sums: dict[str, int] = {}
    for table in tables:
        for kind, count in table.items():
            sums[kind] = sums.get(kind, 0) + count
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def generator_of(cpu_seconds: float, seconds: float, waited_seconds: float = 0.0) -> Generator:
    """What the generator used. It runs on one core, for which it has waited `waited_seconds`."""
    share = cpu_seconds / seconds if seconds > 0 else 0.0
    waited = waited_seconds / seconds if seconds > 0 else 0.0
    if share >= BUSY_SHARE:
        warning = (
            f"the load generator used {share:.0%} of the one core it runs on, so the target may be able to "
            "do more than this: share the load between several generators, or ask for less"
        )
    elif share + waited >= BUSY_SHARE:
        warning = (
            f"the load generator was kept from running {waited:.0%} of the time, because other programs had "
            "the cores of this machine: times are longer and rates lower than those of the target alone"
        )
    else:
        return Generator(cpu_share=share)
    return Generator(cpu_share=share, warning=warning)


# Several runs of one target as one result. Counts and times are added up, so percentiles are those of all
# requests of all runs, and a rate is over the time of all. Rows in time follow one another; the last row of
# each run is left out when it is cut short.


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
            name: _pool_operation([run.operations[name] for run in runs if name in run.operations])
            for name in names
        },
        series=_pool_series([run.series for run in runs]),
        connections=_pool_connections([run.connections for run in runs]),
        generator=_pool_generator([run.generator for run in runs]),
        steps=_pool_steps([run.steps for run in runs]),
        fan_out=_pool_fan_out([run.fan_out for run in runs if run.fan_out is not None]),
        unfinished=sum(run.unfinished for run in runs),
        examples={key: words for run in reversed(runs) for key, words in run.examples.items()},
        stopped=next((run.stopped for run in runs if run.stopped), None),
    )


def _pool_operation(parts: Sequence[OperationResult]) -> OperationResult:
    return combined(parts, _pool_series([part.series for part in parts]))


def _pool_series(parts: Sequence[Series]) -> Series:
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


def _pool_connections(parts: Sequence[Connections]) -> Connections:
    return Connections(
        count=sum(part.count for part in parts),
        errors=added(part.errors for part in parts),
        times=merged(part.times for part in parts),
        lost=sum(part.lost for part in parts),
    )


def _pool_generator(parts: Sequence[Generator]) -> Generator:
    """The busiest one: a warning of one run is one of all."""
    return max(parts, key=lambda part: (part.warning is not None, part.cpu_share))


def _pool_steps(parts: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
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


def _pool_fan_out(parts: Sequence[FanOut]) -> FanOut | None:
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
