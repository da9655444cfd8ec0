"""The filter language on rows of the ring, as they may be shown: a filter finds no secret either."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from mcpmux.traffic.capture.message import fingerprint
from mcpmux.traffic.live.ring import Row
from mcpmux.traffic.live.view import LiveView
from mcpmux.traffic.reading.filter_terms import FilterError
from mcpmux.traffic.reading.filters import Filter, parse_filter
from mcpmux.traffic.reading.status import http_words
from mcpmux.traffic.reading.summary import Summary

__all__ = ["FilterError", "RowFilter", "read_filter"]


def read_filter(text: str, now: float) -> Filter | None:
    """The filter, None when it asks for nothing. `now`: milliseconds since 1970. Raises FilterError."""
    found = parse_filter(text, datetime.fromtimestamp(now / 1000, UTC))
    return found if found else None


class RowFilter:
    """Judges rows of one ring."""

    def __init__(self, view: LiveView, wanted: Filter) -> None:
        self._view = view
        self._wanted = wanted

    def __repr__(self) -> str:
        return f"<RowFilter {self._wanted}>"

    def matches(self, row: Row) -> bool:
        """Whether the row is wanted."""
        return self._wanted.matches(_Subject(self._view, row, self._heard(row)))

    def _heard(self, row: Row) -> frozenset[int]:
        """Which of the terms on bodies hold for one of its messages."""
        missing: dict[int, Callable[..., bool]] = dict(enumerate(self._wanted.watches))
        for kept in row.messages:
            if not missing:
                break
            record = self._view.record(kept)
            missing = {number: watch for number, watch in missing.items() if not watch(record)}
        return frozenset(range(len(self._wanted.watches))) - missing.keys()


class _Subject(Summary):
    """A row in the words of filters."""

    __slots__ = ()

    def __init__(self, view: LiveView, row: Row, heard: frozenset[int]) -> None:
        shown = view.summary(row)
        messages = [kept.seen for kept in row.messages]
        self.own = row.first.own
        self.run, self.seq, self.exchange = view.run_name, 0, row.exchange
        self.time, self.at = view.time_of(row.first), row.first.at
        self.kind = "exchange" if row.exchange else row.first.kind
        self.method, self.client, self.revision = shown.method, shown.client, shown.revision
        self.id = row.first.id
        self.target = (shown.target,) if shown.target is not None else ()
        self.upstream = row.upstreams
        self.leg = tuple({seen.leg.side: None for seen in messages})
        self.direction = tuple({seen.direction: None for seen in messages})
        self.peer = tuple({seen.leg.peer: None for seen in messages})
        self.transport = tuple({seen.leg.transport: None for seen in messages})
        session = row.first.leg.session
        self.session = fingerprint(session) if session is not None else None
        self.status = row.http
        words = (row.status,) if row.status != "note" else ()
        self.statuses = (
            *(word for word in words if word != "ok" or not http_words(row.http)),
            *http_words(row.http),
        )
        self.code, self.failed, self.ms = row.code, row.status == "tool-error", row.ms
        self.redacted = 1 if row.redacted else None
        self.size = row.messages[0].size if row.messages else 0
        self.answer_size = None
        self.messages = row.count
        self.heard = heard
