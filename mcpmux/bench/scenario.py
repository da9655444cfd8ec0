"""Scenario files: the options of `mcpmux bench` in TOML, and flows of several steps."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypeAlias

import attrs

from mcpmux.bench.assertion import Assertion, parse_assertion
from mcpmux.bench.operation import Operation, parse_operation
from mcpmux.bench.workload import Flow
from mcpmux.config.reading import read_document, structure
from mcpmux.config.scalars import Choice, Duration, Flag, Seconds, Whole
from mcpmux.config.scalars import Text as TextValue
from mcpmux.errors import ConfigError
from mcpmux.hosts.document import with_lines
from mcpmux.protocol.revisions import SUPPORTED

PLACES_LIMIT = 10_000  # of clients, sessions and connections
CHECKS = ("length", "hash")
ASSERT = "assert"

Places: TypeAlias = Annotated[int, Whole(1, PLACES_LIMIT)]
Condition: TypeAlias = Annotated[Assertion, TextValue(make=parse_assertion)]


class Rate(TextValue, frozen=True):
    """A rate as on the command line, or a number."""

    def read(self, value: object) -> Any:
        """See TextValue."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().read(f"{Decimal(str(value)):f}" if is_number else value)


@attrs.frozen(kw_only=True)
class Scenario:
    """A benchmark in a TOML file: options of the command line, and flows of several steps.

    rate = "50..500/1m"
    timeout = "5s"

    [[flows]]                # one client takes these steps in turn
    weight = 3
    pause = "200ms"          # between them
    steps = ["list tools", 'tool echo {"text": "{{n}}"}']
    """

    clients: Places | None = None
    think: Annotated[float, Duration(off=True)] | None = None
    rate: Annotated[str, Rate()] | None = None
    even: Annotated[bool, Flag()] | None = None
    duration: Seconds | None = None
    count: Annotated[int, Whole(1, 10**15)] | None = None
    warm_up: Annotated[float, Duration(off=True)] | None = None
    timeout: Seconds | None = None
    sessions: Places | None = None
    connections: Places | None = None
    in_flight: Places | None = None
    check: Annotated[str, Choice(CHECKS)] | None = None
    revision: Annotated[str, Choice(SUPPORTED)] | None = None
    seed: Annotated[int, Whole(-(10**15), 10**15)] | None = None
    find_max: tuple[Condition, ...] | None = None
    abort_on_fail: Annotated[bool, Flag()] | None = None
    push: Annotated[Operation, TextValue(make=parse_operation)] | None = None
    resources: Places | None = None
    flows: tuple[Flow, ...] | None = None

    ignored_keys = frozenset({ASSERT})  # no argument of a function can be called so


def read_scenario(file: str, stdin: Callable[[], bytes]) -> dict[str, Any]:
    """Return what a file says, `stdin()` for "-", by name. Raises ConfigError with every mistake."""
    source = read_document(file, stdin)
    scenario, problems = structure(Scenario, source.table)
    assertions, more = structure(tuple[Condition, ...], source.table.get(ASSERT, []))
    problems += [problem.under(ASSERT) for problem in more]
    if problems:  # without the place in a condition, which takes further lines
        short = [problem._replace(text=problem.text.partition("\n")[0]) for problem in problems]
        raise with_lines(ConfigError(short, source.origin), source)
    values = {**attrs.asdict(scenario, recurse=False), ASSERT: assertions or None}
    return {key: value for key, value in values.items() if value is not None}
