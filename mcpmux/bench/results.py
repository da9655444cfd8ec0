"""What a benchmark found, as frozen values that JSON can hold. Pure.

Times are seconds, sizes bytes, rates per second, shares 0 to 1. `latency` counts from the time at which a
request was meant to be sent, so that a stalled server cannot hide; `service` from when it was sent.
Both hold the answers without error, and the waits that ended without an answer (WAITED): an error that
comes fast makes nothing look faster, and a timeout does not vanish. See `result_file` for the file.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from mcpmux import __version__
from mcpmux.bench.histogram import Distribution, merged
from mcpmux.errors import McpmuxError

OK = "ok"
WAITED = frozenset({"timeout", "unfinished"})  # outcomes that waited for an answer in vain
BUSY_SHARE = 0.9  # of one core; from here on the generator may have been the limit


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `text`: for people; `settings`: what has to be equal to compare two results."""

    text: str
    settings: dict[str, Any] = {}


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `when`: the start as RFC 3339 in UTC. `name`: how it is called beside others."""

    name: str
    target: str
    transport: str
    revision: str
    when: str
    load: Load


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


class Operation(msgspec.Struct, frozen=True, kw_only=True):
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
    """How many were tried, what they failed of, and how long the good ones took to be ready.

    `lost`: how many sessions broke off while they were in use; each was to be opened again.
    """

    count: int
    errors: dict[str, int]
    times: Distribution
    lost: int = 0


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator itself needed. `cpu_share`: of one core. `warning`: when it was the limit."""

    cpu_share: float
    warning: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run under one load: of a ramp, or a probe of a search.

    `offered`: requests per second asked for, or None; `clients`: how many, or None. `count`, `errors` and
    `latency`: of the requests meant to be sent in the step. `arrived`: answers without error that came
    while it lasted, whenever they were asked for: a server that falls behind shows it here. `held`: whether
    the load was borne, None when nobody asked; `why`: what broke first.
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
    operations: dict[str, Operation]
    series: Series
    connections: Connections
    generator: Generator
    steps: tuple[Step, ...] = ()
    fan_out: FanOut | None = None
    unfinished: int = 0
    stopped: str | None = None
    examples: dict[str, str] = {}

    def overall(self) -> Operation:
        """All operations as one."""
        parts = self.operations.values()
        return Operation(
            count=sum(part.count for part in parts),
            errors=added(part.errors for part in parts),
            sent_bytes=sum(part.sent_bytes for part in parts),
            received_bytes=sum(part.received_bytes for part in parts),
            latency=merged(part.latency for part in parts),
            service=merged(part.service for part in parts),
            series=self.series,
        )

    def rate(self, part: Operation) -> float:
        """Answers without error per second."""
        return (part.count - part.failed) / self.seconds if self.seconds else 0.0


def added(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by kind, of all tables; the most frequent first."""
    sums: dict[str, int] = {}
    for table in tables:
        for kind, count in table.items():
            sums[kind] = sums.get(kind, 0) + count
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def generator_of(cpu_seconds: float, seconds: float, waited_seconds: float = 0.0) -> Generator:
    """What the generator needed. It runs on one core, for which it has waited `waited_seconds`."""
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


# The file of a benchmark: JSON, versioned, read again by `--compare`. Pure: bytes in and out.
#
# One object:
#
#     format    "mcpmux bench"
#     version   1; goes up when a reader of the old one would misunderstand the new one
#     tool      what wrote it, such as "mcpmux 0.1.0"
#     when      start of the first run, RFC 3339 in UTC
#     machine   facts about where the load came from (see below)
#     results   one object per target and run, in the order measured: `Results`
#
# The fields of `Results` and of all below it have the names, the units and the meaning of the classes in
# `results`; a histogram is a `Distribution` as `histogram` says. `null` is what is not known. A reader
# ignores fields that it does not know; fields with a default may be absent.

FORMAT = "mcpmux bench"
VERSION = 1


class BadResults(McpmuxError):
    """What should be the file of a benchmark is none that this version can read; the text says why."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one call of `mcpmux bench` has measured."""

    tool: str
    when: str
    machine: dict[str, str | int | float]
    results: tuple[Results, ...]
    format: Literal["mcpmux bench"] = "mcpmux bench"
    version: Literal[1] = 1


class _Head(msgspec.Struct):
    format: Any = None
    version: Any = None


_decoder = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """The report as JSON on one line."""
    return msgspec.json.encode(report) + b"\n"


def decode_report(data: bytes, source: str) -> Report:
    """The report in a file. `source`: how to name it in errors. Raises BadResults."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadResults(f"{source} is not JSON of a benchmark: {error}. {_ADVICE}") from error
    if head.format != FORMAT:
        raise BadResults(f"{source} is JSON, but not of a benchmark of mcpmux. {_ADVICE}")
    _check_version(head.version, source)
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadResults(f"{source} is damaged or was changed by hand: {error}") from error


_ADVICE = "Write one with `mcpmux bench TARGET --json FILE`."


def _check_version(version: Any, source: str) -> None:
    if version == VERSION and not isinstance(version, bool | float):
        return
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise BadResults(
            f"{source} has version {version} of the format, and this mcpmux reads version {VERSION}: "
            "it was written by a newer mcpmux; read it with that one"
        )
    raise BadResults(f"{source} has version {version!r} of the format, which never was one: it is damaged")


# Facts about the machine that makes the load, so that a result can be judged later. No names of it.

TOOL = f"mcpmux {__version__}"


def machine_facts() -> dict[str, str | int | float]:
    """What matters for speed: system, processor, how many of them may be used, Python."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "processors": usable_processors(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def usable_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def waited_seconds() -> float:
    """How long this process's first thread was ready to run and had no processor. 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0
