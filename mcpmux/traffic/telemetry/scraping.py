"""`/metrics` of the admin listener, and the metrics of several processes as those of one.

The text is read line by line, as it is written: `prometheus_client` would take thirty times as long.

Rules
  * Samples of the same name and labels are added up: counters, histograms, and gauges, which count what is
    there.
  * What is 1 or 0 is 1 when it is so everywhere (EVERYWHERE), or anywhere (ANYWHERE).
  * Counters of a process that has ended stay in the sum; its gauges do not. So no counter ever goes back,
    but for what was counted after the last look at a process.

Law: the sum of one text says the same as that text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from mcpmux.traffic.admin.route import NO_STORE, SECURITY, HttpExchange, Route
from mcpmux.transports.http.message import Fields

PATH = "/metrics"

_FIELDS: Fields = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), NO_STORE, *SECURITY)

EVERYWHERE = frozenset({"mcpmux_upstream_up"})
ANYWHERE = frozenset({"mcpmux_capture_paused", "mcpmux_build_info"})
COUNTED = frozenset({"counter", "histogram"})


def metrics_route(read: Callable[[], Awaitable[bytes]]) -> Route:
    """A route for `serve_admin`. `read` returns the text."""

    async def handle(http: HttpExchange) -> None:
        await http.reply.send(200, _FIELDS, await read())

    return Route(PATH, handle)


class Family:
    """Everything of one name: its head lines and its samples, in the order of their first coming."""

    __slots__ = ("head", "join", "kind", "samples")

    def __init__(self, name: str) -> None:
        self.kind = "untyped"
        self.head: list[str] = []
        self.samples: dict[str, float] = {}  # by name with labels
        self.join: Callable[[float, float], float] = (
            min if name in EVERYWHERE else max if name in ANYWHERE else float.__add__
        )


def add_up(texts: Iterable[str], ended: Iterable[str] = ()) -> str:
    """One text. `ended`: the last ones of processes that are not there any more."""
    families: dict[str, Family] = {}
    for text in texts:
        _read(text, families, counters_only=False)
    for text in ended:
        _read(text, families, counters_only=True)
    lines = []
    for family in families.values():
        lines += family.head
        lines += [f"{key} {value}" for key, value in family.samples.items()]
    return "".join(f"{line}\n" for line in lines)


def _read(text: str, families: dict[str, Family], *, counters_only: bool) -> None:
    family: Family | None = None
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            family = families.setdefault(name, Family(name))
            if line not in family.head:
                family.head.append(line)
            if word == "TYPE":
                family.kind = rest[0]
        elif line and family is not None and (not counters_only or family.kind in COUNTED):
            key, _, number = line.rpartition(" ")
            value, before = float(number), family.samples.get(key)
            family.samples[key] = value if before is None else family.join(before, value)


class Totals:
    """The sum over processes that come and go, each known by a name that no other ever has."""

    def __init__(self) -> None:
        self._last: dict[object, str] = {}
        self._ended = ""

    def __repr__(self) -> str:
        return f"<Totals of {len(self._last)} processes>"

    def add_up(self, texts: dict[object, str], running: Iterable[object]) -> str:
        """The sum of the processes' present metrics; `running` also has those that did not answer."""
        self._last.update(texts)
        for gone in self._last.keys() - set(running):
            self._ended = add_up([self._ended, self._last.pop(gone)])
        return add_up(texts.values(), [self._ended])
