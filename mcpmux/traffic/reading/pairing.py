"""Requests and their answers on one leg, put together from single messages. Pure; memory is bounded.

Answers do not say what they are about; the request does. So an answer gets its request's `target`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from mcpmux.traffic.reading.status import is_answer
from mcpmux.traffic.record import Record

OPEN_LIMIT = 20_000  # requests that wait for their answer; of more the oldest are taken for never answered

_Key: TypeAlias = tuple[str, str | None, str | None, str | None, int | str | None]

_OTHER_WAY = {"in": "out", "out": "in"}


class Pair(NamedTuple):
    """A request and what answered it, or a message that is alone: a notification, an answer to nothing."""

    first: Record
    answer: Record | None


class _Open(OrderedDict[_Key, Record]):
    """The requests that wait, oldest first."""

    def ask(self, request: Record) -> list[Record]:
        """Those that will have no answer any more: one with the same id, or the oldest of too many."""
        key = (request.run, request.leg, request.peer, request.direction, request.id)
        given_up = [known] if (known := self.pop(key, None)) is not None else []
        self[key] = request
        if len(self) > OPEN_LIMIT:
            given_up.append(self.popitem(last=False)[1])
        return given_up

    def answer(self, answer: Record) -> Record | None:
        """The request that is answered."""
        way = _OTHER_WAY.get(answer.direction or "")
        return self.pop((answer.run, answer.leg, answer.peer, way, answer.id), None)


def pair_up(records: Iterable[Record]) -> Iterator[Pair]:
    """Every message once, requests with their answers; in the order in which pairs become complete."""
    waiting = _Open()
    for record in records:
        if record.kind == "request":
            yield from (Pair(given_up, None) for given_up in waiting.ask(record))
        elif is_answer(record) and (request := waiting.answer(record)) is not None:
            yield Pair(request, record)
        elif record.kind != "start":
            yield Pair(record, None)
    yield from (Pair(request, None) for request in waiting.values())


class Targets:
    """Tells answers what they are about. Remembers of a request what is needed for that."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Targets {len(self._known)} waiting>"

    def fill(self, record: Record) -> Record:
        """The same message; an answer with its request's target."""
        if record.kind == "request":
            if record.target is not None:
                self._known[record.run, record.leg, record.peer, record.direction, record.id] = record.target
                if len(self._known) > OPEN_LIMIT:
                    self._known.popitem(last=False)
        elif is_answer(record) and record.target is None:
            way = _OTHER_WAY.get(record.direction or "")
            target = self._known.pop((record.run, record.leg, record.peer, way, record.id), None)
            if target is not None:
                return msgspec.structs.replace(record, target=target)
        return record
