"""The requests of one client, one after another: what is asked now, and what follows. Pure.

Why: an answer that is as it should be can be counted, and the next request sent, right where it was received,
without waking the client's task in between. That is most of what a request costs the generator.

asked -- `advance`: a good answer, and an ask follows --> asked, or `pending` if not to be sent at once
      -- `advance`: anything else                          --> None: whoever waits for this answer gets it
"""

from __future__ import annotations

from collections.abc import Callable

from mcpmux.bench.answer import size_of
from mcpmux.bench.operation import Ask, Kind
from mcpmux.bench.results import OK
from mcpmux.protocol.raw_json import Fields

Judge = Callable[[Ask, Fields], str]

Follow = Callable[[int, int], Ask | None]
"""Counts a good answer, of which it is told the bytes sent and received, and gives the next ask.

Or gives None, and has not counted it.
"""


class Chain:
    """`ask`: what is being asked. `pending`: it was given by `follow` and is not sent yet."""

    __slots__ = ("_follow", "_judge", "ask", "pending")

    def __init__(self, ask: Ask, judge: Judge, follow: Follow | None = None) -> None:
        self.ask = ask
        self.pending = False
        self._judge = judge
        self._follow = follow

    def __repr__(self) -> str:
        return f"<Chain {self.ask.operation}{', pending' if self.pending else ''}>"

    def judge(self, result: Fields) -> str:
        """The outcome of the answer to `ask`."""
        return self._judge(self.ask, result)

    def advance(self, result: Fields, sent_bytes: int) -> Ask | None:
        """The answer to `ask` is there: the ask that is to be sent at once."""
        if self._follow is None or self._judge(self.ask, result) != OK:
            return None
        ask = self._follow(sent_bytes, size_of(result))
        if ask is None:
            return None
        self.ask = ask
        self.pending = ask.kind is not Kind.ONCE
        return None if self.pending else ask
