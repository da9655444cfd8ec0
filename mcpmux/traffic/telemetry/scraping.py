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
from itertools import chain, repeat
from operator import add

from mcpmux.traffic.admin.route import NO_STORE, SECURITY, HttpExchange, Route
from mcpmux.transports.http.message import Fields

PATH = "/metrics"

_FIELDS: Fields = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), NO_STORE, *SECURITY)

EVERYWHERE = ("mcpmux_upstream_up",)
ANYWHERE = ("mcpmux_capture_paused", "mcpmux_build_info")
COUNTED = ("counter", "histogram")

_JOINS = {**dict.fromkeys(EVERYWHERE, min), **dict.fromkeys(ANYWHERE, max)}


def metrics_route(read: Callable[[], Awaitable[bytes]]) -> Route:
    """A route for `serve_admin`. `read` returns the text."""

    async def handle(http: HttpExchange) -> None:
        await http.reply.send(200, _FIELDS, await read())

    return Route(PATH, handle)


def add_up(texts: Iterable[str], ended: Iterable[str] = ()) -> str:
    """One text. `ended`: the last ones of processes that are not there any more."""
    heads: dict[str, list[str]] = {}  # by the name of a family
    samples: dict[str, dict[str, float]] = {}  # of each family, by name with labels
    for text, is_running in chain(zip(texts, repeat(True)), zip(ended, repeat(False))):
        is_kept = False
        for line in text.splitlines():
            if line.startswith("# "):
                _, word, name, *rest = line.split(" ", 3)
                head, found = heads.setdefault(name, []), samples.setdefault(name, {})
                join: Callable[[float, float], float] = _JOINS.get(name, add)
                if line not in head:
                    head.append(line)
                if word == "TYPE":
                    is_kept = is_running or rest[0] in COUNTED
            elif line and is_kept:
                key, _, number = line.rpartition(" ")
                value = float(number)
                found[key] = join(found[key], value) if key in found else value
    lines = []
    for name, head in heads.items():
        lines += [*head, *(f"{key} {value}" for key, value in samples[name].items())]
    return "".join(f"{line}\n" for line in lines)


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
