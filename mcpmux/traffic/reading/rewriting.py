"""What mcpmux made of the messages of an exchange: which went out for which that had come in. Pure.

a client's request      and the requests to upstreams with the same method
upstreams' answers      and the answer to the client
an upstream's question  and that to the client; the client's answer and that to the upstream
notifications           one by one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mcpmux.traffic.reading.status import is_answer
from mcpmux.traffic.record import Record


class Passage(NamedTuple):
    """A message that went out, and those of the other leg that it was made of: several when merged."""

    before: tuple[Record, ...]
    after: Record


def passages(records: Sequence[Record]) -> list[Passage]:
    """In the order in which they went out. What mcpmux has made by itself is not among them."""
    found = []
    arrived: list[Record] = []
    for record in records:
        if record.direction == "in":
            arrived.append(record)
        elif record.direction == "out":
            before = [each for each in arrived if _fits(each, record)]
            if record.kind == "notification":
                before = before[:1]
            if before and record.kind != "request":
                taken = {id(each) for each in before}
                arrived = [each for each in arrived if id(each) not in taken]
            if before and record.kind == "request":
                before = before[-1:]
            if before:
                found.append(Passage(tuple(before), record))
    return found


def _fits(before: Record, after: Record) -> bool:
    if before.leg == after.leg or before.method != after.method or before.method is None:
        return False
    return before.kind == after.kind or (is_answer(before) and is_answer(after))
