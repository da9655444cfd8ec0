"""Results of a benchmark as frozen values that JSON can hold; several runs as one; their file.

Times are seconds, sizes bytes, rates per second, shares 0 to 1. `latency` counts from the time at which a
request was meant to be sent, so that a stalled server cannot hide; `service` from when it was sent.
Both hold the answers without error, and the waits that ended without an answer (WAITED): an error that
comes fast makes no server look faster, and a timeout does not vanish.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from mcpmux import __version__
from mcpmux.errors import McpmuxError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.traffic.reading.histogram import Distribution, merged

S = TypeVar("S", bound=msgspec.Struct)

WAITED = frozenset({"timeout", "unfinished"})  # outcomes that waited for an answer in vain
BUSY_SHARE = 0.9  # of one core; from here on the generator may have been the limit
LATE_SHARE = 0.01  # of the requests that may leave late before it is said
COLUMNS = ("count", "errors", "p50", "p99", "most")  # of a series
COUNTED = ("count", "errors", "sent_bytes", "received_bytes", "latency", "service")  # of an operation
NO_TIMES = merged(())


class LoadDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a run. `text`: for people; `settings`: what has to be equal to compare two results."""

    text: str
    settings: dict[str, Any] = {}


class About(msgspec.Struct, frozen=True, kw_only=True):
    """A target and its load. `when`: the start as RFC 3339 in UTC. `name`: its name among several targets."""

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
        if len({len(getattr(self, name)) for name in COLUMNS}) > 1:
            raise ValueError("the columns of a series are not of one length")
        if not (self.seconds > 0 and self.last_seconds >= 0):
            raise ValueError("the rows of a series last no time")

    def widths(self) -> list[float]:
        """Return the length of each row in seconds."""
        rows = len(self.count)
        return [self.seconds] * (rows - 1) + [self.last_seconds] * min(rows, 1)

    def whole(self) -> Series:
        """Return all but a last row that is cut short by a tenth or more: it would look like a change."""
        if self.last_seconds >= self.seconds * 0.9 or not self.count:
            return self
        columns = {name: getattr(self, name)[:-1] for name in COLUMNS}
        return replace(self, last_seconds=self.seconds, **columns)

    def rates(self) -> list[float]:
        """Return answers without error per second, row by row."""
        rows = zip(self.count, self.errors, self.widths(), strict=True)
        return [(count - errors) / width if width else 0.0 for count, errors, width in rows]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests. `count` includes the errors; `errors` by kind, such as `rpc -32602`."""

    count: int
    errors: dict[str, int]
    latency: Distribution

    @property
    def failed(self) -> int:
        """Number of requests that ended in an error."""
        return sum(self.errors.values())

    @property
    def error_share(self) -> float | None:
        """Errors among all; None without any request."""
        return self.failed / self.count if self.count else None


class OperationResult(Counted, frozen=True, kw_only=True):
    """One kind of request."""

    sent_bytes: int
    received_bytes: int
    service: Distribution
    series: Series


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that were opened: count, times, and errors. `lost`: those that broke off in use."""

    count: int
    errors: dict[str, int]
    times: Distribution
    lost: int = 0


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of the load generator. `cpu_share`: of one core. `warning`: when it was the limit."""

    cpu_share: float
    warning: str | None = None


class Step(Counted, frozen=True, kw_only=True):
    """The requests meant to be sent in a part of a run under one load: of a ramp, or a probe of a search.

    `offered`: requests per second asked for, or None. `arrived`: answers without error that came while it
    lasted, whenever they were asked for: a server that falls behind shows it here. `held`: whether the load
    held, None without conditions; `why`: the first that broke.
    """

    name: str
    offered: float | None
    seconds: float
    arrived: int
    held: bool | None = None
    why: str | None = None

    @property
    def rate(self) -> float:
        """Return answers without error per second, while it lasted."""
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

    `seconds`: how long was measured, without `warm_up`, which is not counted. `unfinished`:
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
        """Return all operations as one."""
        none = NO_TIMES
        nothing = OperationResult(
            count=0, errors={}, sent_bytes=0, received_bytes=0, latency=none, service=none, series=self.series
        )
        return _sum([nothing, *self.operations.values()], *COUNTED)

    def rate(self, part: OperationResult) -> float:
        """Return answers without error per second."""
        return (part.count - part.failed) / self.seconds if self.seconds else 0.0


def _sum(parts: Sequence[S], *names: str) -> S:
    """Return the first of `parts`, but with the sums over all of them in the fields with these `names`."""
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return replace(parts[0], **{name: _sum_values(values) for name, values in columns.items()})


def _sum_values(values: Sequence[Any]) -> Any:
    """Sum values. Of counts by kind, the most frequent come first; series follow one another."""
    if isinstance(values[0], Distribution):
        return merged(values)
    if isinstance(values[0], dict):
        kinds: Counter[str] = sum(map(Counter, values), Counter())
        return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    if not isinstance(values[0], Series):
        return sum(values)
    whole, seconds = [part.whole() for part in values], values[0].seconds
    columns = {name: tuple(chain.from_iterable(getattr(part, name) for part in whole)) for name in COLUMNS}
    return Series(seconds=seconds, last_seconds=seconds, **columns)


def generator_of(
    cpu_seconds: float, seconds: float, waited_seconds: float = 0.0, late: int = 0, requests: int = 0
) -> Generator:
    """Judge whether the load generator was the limit, by CPU time, waits and late requests."""
    share, waited = (spent / seconds if seconds > 0 else 0.0 for spent in (cpu_seconds, waited_seconds))
    warning = None
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
    elif late > requests * LATE_SHARE:
        warning = (
            f"{late} requests left late though there was room for them: this machine was too busy "
            "for the load generator"
        )
    return Generator(cpu_share=share, warning=warning)


# Several runs of one target as one result. Counts and times are added up, so percentiles are those of all
# requests of all runs, and a rate is over the time of all. Rows in time follow one another; the last row of
# each run is left out when it is cut short.


def by_name(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Return the runs of each target, in the order measured."""
    runs: dict[str, list[Results]] = {}
    for result in results:
        runs.setdefault(result.about.name, []).append(result)
    return runs


def pooled(results: Iterable[Results]) -> list[Results]:
    """Return one result for each target."""
    return [pool(runs) for runs in by_name(results).values()]


def pool(runs: Sequence[Results]) -> Results:
    """Combine all runs of one target."""
    if len(runs) == 1:
        return runs[0]
    operations: dict[str, list[OperationResult]] = {}
    for name, part in chain.from_iterable(run.operations.items() for run in runs):
        operations.setdefault(name, []).append(part)
    fan_outs = [run.fan_out for run in runs if run.fan_out is not None]
    pushes = ("changes", "expected", "deliveries", "duplicates", "delay")
    all_steps = zip(*(run.steps for run in runs), strict=False)  # as far as all runs came
    generators = [run.generator for run in runs]
    return replace(
        _sum(runs, "seconds", "unfinished", "series"),
        operations={name: _sum(parts, *COUNTED, "series") for name, parts in operations.items()},
        connections=_sum([run.connections for run in runs], "count", "errors", "times", "lost"),
        generator=max(generators, key=lambda one: (one.warning is not None, one.cpu_share)),
        steps=tuple(_sum(steps, "seconds", "count", "arrived", "errors", "latency") for steps in all_steps),
        fan_out=_sum(fan_outs, *pushes) if fan_outs else None,
        examples={key: words for run in reversed(runs) for key, words in run.examples.items()},
        stopped=next((run.stopped for run in runs if run.stopped), None),
    )


# The file of a benchmark: JSON, versioned, read again by `--compare`. One object:
#
#     format    "mcpmux bench"
#     version   1; goes up when a reader of the old one would misunderstand the new one
#     tool      what wrote it, such as "mcpmux 0.1.0"
#     when      start of the first run, RFC 3339 in UTC
#     command   the command line, without secrets
#     machine   facts about the machine that made the load, but none of its names
#     results   one object per target and run, in the order measured: `Results`
#
# Fields have the names, units and meaning of the classes above; a histogram is a `Distribution`. `null` is
# what is not known. A reader ignores fields that it does not know; fields with a default may be absent.

FORMAT = "mcpmux bench"
VERSION = 1
TOOL = f"mcpmux {__version__}"
_ADVICE = "Write one with `mcpmux bench TARGET --json FILE`."


class BadResults(McpmuxError):
    """What should be the file of a benchmark is none that this version can read; the text says why."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one call of `mcpmux bench` has measured."""

    tool: str
    when: str
    machine: dict[str, str | int | float]
    results: tuple[Results, ...]
    command: str = ""
    format: Literal["mcpmux bench"] = "mcpmux bench"
    version: Literal[1] = 1


def encode_report(report: Report) -> bytes:
    """Return the report as JSON on one line."""
    return msgspec.json.encode(report) + b"\n"


def decode_report(data: bytes, source: str) -> Report:
    """Return the report in a file. `source`: how to name it in errors. Raises BadResults."""
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as error:
        raise BadResults(f"{source} is not JSON of a benchmark: {error}. {_ADVICE}") from error
    if document.get("format") != FORMAT:
        raise BadResults(f"{source} is JSON, but not of a benchmark of mcpmux. {_ADVICE}")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool | float):
        why = "which never was one: it is damaged"
        if isinstance(version, int) and version > VERSION:
            newer = "it was written by a newer mcpmux; read it with that one"
            why = f"and this mcpmux reads version {VERSION}: {newer}"
        raise BadResults(f"{source} has version {version!r} of the format, {why}")
    try:
        return msgspec.convert(document, Report)
    except UNREADABLE as error:
        raise BadResults(f"{source} is damaged or was changed by hand: {error}") from error


def machine_facts() -> dict[str, str | int | float]:
    """Return facts that matter for speed: system, processors that this process may use, Python."""
    processors = os.cpu_count() or 1
    if sys.platform == "linux":
        processors = len(os.sched_getaffinity(0))
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "processors": processors,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
