"""Count traffic and durations in memory, for metrics. No clock and no waiting.

Promises: bounded memory. Labels are configured names and words of the protocol; an unknown method counts
as `other`, and URIs and clients' names are never labels. `Names` has the names of tools and prompts that are.
`prometheus` turns the counts into text.

In `upstream`, `(none)` stands for an exchange that mcpmux itself has answered, `(several)` for one that
went to more than one upstream; no upstream can have such a name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.observer import BATCH, Exchange, Observation
from mcpmux.traffic.outcome import CODES, ERROR, OK, TOOL_ERROR, outcome_of
from mcpmux.transports.inline import AT_ONCE

SECONDS: Final[Sequence[float]] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
"""Upper bounds of the buckets: from a cached read to the default deadline of a request."""

OTHER: Final = "other"
NONE: Final = "(none)"
SEVERAL: Final = "(several)"
OTHERS: Final = "(others)"
NAMES_MOST: Final = 1000  # tools and prompts with separate metrics
NAMES_FAILED: Final = 100  # of those that have only failed until now
NAMED: Final = frozenset({m.TOOLS_CALL, m.PROMPTS_GET})

Labels = tuple[str, ...]


def _new_histogram() -> list[float]:
    """Return the counts of values up to each of SECONDS, of those above all of them, and their sum: all 0."""
    return [0] * (len(SECONDS) + 2)


def _add(counts: dict[Labels, int], labels: Labels, number: int) -> None:
    counts[labels] = counts.get(labels, 0) + number


def _count(histogram: list[float], seconds: float) -> None:
    histogram[bisect_left(SECONDS, seconds)] += 1
    histogram[-1] += seconds


class LabelNames:
    """Names of tools and prompts that have separate metrics: a bounded number.

    A server that accepts any name, or answers any with a tool error, would let a client invent as many as it
    likes. Names that have only ever failed have less room.
    """

    def __init__(self, most: int = NAMES_MOST, failed: int = NAMES_FAILED) -> None:
        self._most, self._failed = most, failed
        self._known: set[str | int] = set()
        self._doubtful: set[str | int] = set()

    def allow(self, name: str | int, error: str | None) -> bool:
        """Return whether the metric of a call with this outcome may have the name."""
        if name in self._known:
            return True
        if error is None and len(self._known) < self._most:
            self._known.add(name)
            self._doubtful.discard(name)
            return True
        if error == TOOL_ERROR and len(self._doubtful) < self._failed:
            self._doubtful.add(name)
        return name in self._doubtful


class Metrics:
    """A MessageObserver, and an ExchangeObserver that never waits.

    Attributes map label values to counts, see `prometheus`; `settle` comes before they are read.

    Requests to upstreams include those of mcpmux itself. A listen has no duration: it lasts as long as its
    client wants. `message_bytes_total` is without the framing of transports.
    """

    most_waiting = BATCH
    passes = False

    def __init__(self) -> None:
        self.settle: Callable[[], None] = lambda: None
        self._messages: dict[Labels, list[int]] = {}  # how many, and their bytes
        self.notifications_total: dict[Labels, int] = {}
        self.exchanges_total: dict[Labels, int] = {}
        self.exchange_duration_seconds: defaultdict[Labels, list[float]] = defaultdict(_new_histogram)
        self.exchange_duration_by_name_seconds: defaultdict[Labels, list[float]] = defaultdict(_new_histogram)
        self._names = {method: LabelNames() for method in NAMED}
        self.upstream_requests_total: dict[Labels, int] = {}
        self.upstream_request_duration_seconds: defaultdict[Labels, list[float]] = defaultdict(_new_histogram)
        self.exchanges_in_flight: dict[Labels, int] = {}
        self.verdicts_total: dict[Labels, int] = {}
        self.verdict_duration_seconds: defaultdict[Labels, list[float]] = defaultdict(_new_histogram)

    @property
    def messages_total(self) -> dict[Labels, int]:
        """The number of messages, by labels."""
        return {labels: number for labels, (number, _) in self._messages.items()}

    @property
    def message_bytes_total(self) -> dict[Labels, int]:
        """The bytes of messages, by labels."""
        return {labels: size for labels, (_, size) in self._messages.items()}

    def expect(self, settle: Callable[[], None]) -> None:
        """Remember how to settle. See MessageObserver."""
        self.settle = settle

    def take_all(self, batch: Sequence[Observation]) -> None:
        """Count messages. See MessageObserver."""
        for observed in batch:
            leg, direction = observed.leg, observed.direction
            labels = leg.side, direction, leg.transport, observed.kind
            counts = self._messages.get(labels)
            if counts is None:
                counts = self._messages[labels] = [0, 0]
            counts[0] += 1
            counts[1] += len(observed.data)
            if observed.kind == "notification":
                _add(self.notifications_total, (leg.side, direction, method_label(observed.method)), 1)
            elif observed.ms is not None and leg.upstream is not None and direction == "in":
                method = method_label(observed.method)
                answer = TOOL_ERROR if observed.failed else OK
                outcome = answer if observed.code is None else CODES.get(observed.code, ERROR)
                _add(self.upstream_requests_total, (leg.upstream, method, outcome), 1)
                if method != m.LISTEN:
                    _count(self.upstream_request_duration_seconds[leg.upstream, method], observed.ms / 1000)

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Count an exchange as in flight. See ExchangeObserver."""
        _add(self.exchanges_in_flight, (method_label(exchange.call.method),), 1)
        return AT_ONCE

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Count an exchange and its duration. See ExchangeObserver."""
        method = method_label(exchange.call.method)
        upstreams = exchange.upstreams
        upstream = upstreams[0] if len(upstreams) == 1 else SEVERAL if upstreams else NONE
        _add(self.exchanges_in_flight, (method,), -1)
        word = outcome_of(exchange.call.method, outcome)
        _add(self.exchanges_total, (method, upstream, word), 1)
        if method != m.LISTEN:
            _count(self.exchange_duration_seconds[method, upstream], seconds)
        for verdict in exchange.intercepted:
            _add(self.verdicts_total, (verdict.name, verdict.on, verdict.verdict), 1)
            _count(self.verdict_duration_seconds[verdict.name, verdict.on], verdict.seconds)
        if method in NAMED:
            name = text_of(exchange.call.params.get("name")) or ""
            is_known = self._names[method].allow(name, None if word == OK else word)
            _count(self.exchange_duration_by_name_seconds[method, name if is_known else OTHERS], seconds)
        return AT_ONCE


def method_label(method: str | None) -> str:
    """Return the label of a method: itself if the protocol has it, else OTHER."""
    return method if method is not None and method in METHODS else OTHER


METHODS: Final = frozenset(
    value
    for name, value in vars(m).items()
    if name.isupper() and isinstance(value, str) and value != m.MISSED
)
"""Every method of the protocol; any other is arbitrary text."""
