"""A benchmark in a TOML file: the options of the command line, and flows of several steps. Pure.

rate = "50..500/1m"
timeout = "5s"
find_max = ["p99<50ms"]

[[flows]]                                     one client takes these steps in turn
weight = 3
pause = "200ms"                               between them
steps = ["list tools", 'tool echo {"text": "{{n}}"}']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from mcpmux.bench.operation import Operation, parse_operation
from mcpmux.bench.workload import Flow
from mcpmux.config.report import Unfit, sort_of, suggest, unfit
from mcpmux.config.scalars import Choice, Duration, Text, Whole
from mcpmux.config.source import Source, parse_source
from mcpmux.errors import ConfigError
from mcpmux.protocol.revisions import SUPPORTED

MOST = 10_000_000  # of any count; the plan has closer limits


class Reader(Protocol):
    """Reads one value. Raises Unfit."""

    def read(self, value: object) -> Any: ...


@frozen
class _Number:
    low: float
    high: float

    def read(self, value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            raise Unfit(f"expected a number from {self.low:g} to {self.high:g}")
        return float(value)


@frozen
class _Rate:
    def read(self, value: object) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return f"{value:g}" if value < MOST else str(value)
        if not isinstance(value, str):
            raise Unfit('expected a rate a second such as 200 or "100..1000/30s"')
        return value


@frozen
class _Pause:
    def read(self, value: object) -> float:
        return 0.0 if value == 0 and not isinstance(value, bool) else Duration().read(value)


@frozen
class _Flag:
    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Unfit("expected true or false")
        return value


@frozen
class _Texts:
    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise unfit("a list of texts", value)
        return tuple(value)


READERS: Mapping[str, Reader] = {
    "clients": Whole(1, MOST),
    "think": _Pause(),
    "rate": _Rate(),
    "even": _Flag(),
    "duration": Duration(),
    "count": Whole(1, MOST),
    "warm_up": _Pause(),
    "timeout": Duration(),
    "sessions": Whole(1, MOST),
    "connections": Whole(1, MOST),
    "in_flight": Whole(1, MOST),
    "zipf": _Number(0, 10),
    "check": Choice(("length", "hash")),
    "revision": Choice(SUPPORTED),
    "seed": Whole(0, 2**53),
    "find_max": _Texts(),
    "assert": _Texts(),
    "push": Text(),
    "resources": Whole(1, MOST),
}
"""What stands at the top of the file, in the words of the options."""

_FLOW: Mapping[str, Reader] = {"weight": _Number(1e-9, 1e9), "pause": _Pause(), "steps": _Texts()}


@frozen
class Scenario:
    """What a file says: options by name, and flows."""

    options: Mapping[str, Any]
    flows: tuple[Flow, ...]


def parse_scenario(source: Source) -> Scenario:
    """Raises ConfigError with every mistake of the file."""
    table = dict(parse_source(source).table)
    problems: list[str] = []
    flows = tuple(_read_flows(table.pop("flows", []), problems))
    options = _read_table(table, READERS, "", problems)
    if problems:
        raise ConfigError([f"{source.origin}: {problem}" for problem in problems])
    return Scenario(options, flows)


def _read_flows(value: object, problems: list[str]) -> Iterator[Flow]:
    if not isinstance(value, list):
        problems.append(f"flows: expected tables [[flows]], not {sort_of(value)}")
        return
    for number, table in enumerate(value):
        place = f"flows[{number}]."
        if not isinstance(table, Mapping):
            problems.append(f"flows[{number}]: expected a table, not {sort_of(table)}")
            continue
        flow = _read_table(table, _FLOW, place, problems)
        if "steps" not in table:
            problems.append(f'{place}steps: missing; expected a list such as ["read", "list tools"]')
        if "steps" in flow and not flow["steps"]:
            problems.append(f"{place}steps: expected one at least")
        steps = tuple(_read_steps(flow.get("steps", ()), f"{place}steps", problems))
        yield Flow(flow.get("weight", 1.0), steps, flow.get("pause", 0.0))


def _read_steps(texts: Sequence[str], place: str, problems: list[str]) -> Iterator[Operation]:
    for number, text in enumerate(texts):
        try:
            yield parse_operation(text)
        except Unfit as mistake:
            problems.append(f"{place}[{number}]: {mistake}")


def _read_table(
    table: Mapping[str, Any], readers: Mapping[str, Reader], place: str, problems: list[str]
) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            problems.append(f"{place}{key}: {suggest(key, [*readers, *([] if place else ['flows'])])}")
            continue
        try:
            read[key] = readers[key].read(value)
        except Unfit as mistake:
            problems.append(f"{place}{key}: {mistake}")
    return read
